"""A process downloads files, each under another name at first, and another one reads them: URL
FOLDER."""

import multiprocessing
import os
import sys
import urllib.request
from pathlib import Path


def download(url: str, folder: Path) -> None:
    """Two files."""
    for number in range(2):
        part = folder / f"{number}.part"
        with urllib.request.urlopen(url, timeout=30) as response, open(part, "wb") as file:
            while data := response.read(1 << 16):
                file.write(data)
        part.rename(folder / f"{number}.tar")
    (folder / "log").write_bytes(bytes(100_000))


if __name__ == "__main__":
    place = Path(sys.argv[2])
    other = multiprocessing.get_context("fork").Process(target=download, args=(sys.argv[1], place))
    other.start()
    other.join()
    print(sum(len((place / name).read_bytes()) for name in sorted(os.listdir(place))), other.pid)
