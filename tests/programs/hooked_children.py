"""Decodes images in children of every kind, and in itself.

python hooked_children.py IMAGE
"""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

from PIL import Image


def decode(path: str) -> tuple[int, int, int]:
    """A pixel, for which all must be decoded."""
    with Image.open(path) as image:
        return image.convert("RGB").getpixel((0, 0))  # type: ignore[return-value]


def main() -> None:
    """One image each."""
    path = sys.argv[1]
    expected = decode(path)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert [expected] == pool.map(decode, [path])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        assert expected == executor.submit(decode, path).result()
    child = os.fork()
    if child == 0:
        decode(path)
        os._exit(0)
    os.waitpid(child, 0)
    if os.fork() == 0:
        os.execv("/bin/true", ["true"])  # a child that becomes another program leaves nothing
    os.wait()
    subprocess.run(
        [sys.executable, "-c", "import sys; assert 'PIL' not in sys.modules"], check=True
    )
    subprocess.run(["/bin/true"], check=True, preexec_fn=lambda: None)


if __name__ == "__main__":
    main()
