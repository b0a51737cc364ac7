"""A synthetic ILSVRC of many records with tiny images: seconds, rates and peak memory of each
command, for several sizes.

    python benchmarks/full_size.py [--folder DIR] [--layout LAYOUT ...] [SIZE ...]

Sizes are numbers of images (default: 2,000 and 20,000; ImageNet has 1,281,167). The peak is that of
the command's main process (ru_maxrss, man 2 getrusage).
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image

CLASSES = 1000
IOPROF = [sys.executable, "-m", "ioprof"]


class Measured(NamedTuple):
    """What a command took."""

    seconds: float
    cpu_s: float
    peak_mb: float
    output: str


def measure(*words: object) -> Measured:
    """Run a command of ioprof; raises CalledProcessError."""
    began_s = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([*IOPROF, *map(str, words)], stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise subprocess.CalledProcessError(
                process.returncode, list(map(str, words)), stderr=errors.read()[-2000:]
            )
        text = output.read().decode()
    return Measured(
        time.perf_counter() - began_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text
    )


def write_source(path: Path, images: int) -> int:
    """ImageNet's tar of tars with so many images of 8 x 8 pixels, each with a number in a comment;
    returns its bytes.
    """
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (120, 60, 200)).save(stream, "JPEG", quality=50)
    picture = stream.getvalue()
    with path.open("wb") as file:
        for label in range(CLASSES):
            wnid = f"n{label + 1:08d}"
            inner = io.BytesIO()
            for number in range(label * images // CLASSES, (label + 1) * images // CLASSES):
                data = picture[:2] + b"\xff\xfe\x00\x0a%08d" % number + picture[2:]
                inner.write(
                    _header(f"{wnid}_{number}.JPEG", len(data))
                    + data.ljust(-(-len(data) // 512) * 512, b"\0")
                )
            inner.write(bytes(1024))
            file.write(_header(f"{wnid}.tar", inner.tell()))
            file.write(inner.getvalue())
        file.write(bytes(1024))
        return file.tell()


def _header(name: str, size: int) -> bytes:
    header = tarfile.TarInfo(name)
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


@contextmanager
def new_folder(parent: Path | None) -> Iterator[Path]:
    """A folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ioprof-full-size-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_size(images: int, layouts: list[str], parent: Path | None) -> dict[str, float]:
    """Print a row per command; returns the peak memory of each in MB."""
    peaks: dict[str, float] = {}

    def row(what: str, found: Measured, note: str = "") -> None:
        peaks[what] = found.peak_mb
        rate = images / found.seconds
        numbers = f"{found.seconds:8.1f} {found.cpu_s:8.1f} {rate:11,.0f} {found.peak_mb:9.1f}"
        print(f"{images:>9,} {what:28} {numbers}  {note}", flush=True)

    with new_folder(parent) as folder:
        source = folder / "ILSVRC2012_img_train.tar"
        began_s = time.perf_counter()
        size = write_source(source, images)
        print(
            f"{images:>9,} {'(the source)':28} {time.perf_counter() - began_s:8.1f} {'':8} {'':11}"
            f" {'':9}  {size / 1e6:,.0f} MB"
        )
        row("list (inspect)", measure("inspect", source))
        for layout in layouts:
            dataset = folder / layout
            shards = ("--shards", 8) if layout == "lmdb" else ()
            made = measure(
                "convert", "imagenet", source, dataset, "--layout", layout, *shards, "--json"
            )
            files = (
                [path for path in dataset.rglob("*") if path.is_file()] if layout != "files" else []
            )
            note = (
                f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:,.0f} MB"
                if files
                else ""
            )
            row(f"convert {layout}", made, note)
            row(f"verify {layout}", measure("verify", dataset))
            if layout == "lmdb":
                environments = [path.stat().st_size for path in dataset.rglob("data.mdb")]
                # The map begins with 256 MB and is doubled; the file ends with its last page.
                print(
                    f"{'':9} environments of {min(environments) / 1e6:.1f} to"
                    f" {max(environments) / 1e6:.1f} MB"
                )
            again = measure(
                "convert", "imagenet", source, dataset, "--layout", layout, *shards, "--json"
            )
            row(f"the same again, {layout}", again)
            other = folder / f"{layout}-as-raw"
            row(
                f"convert dataset {layout} to raw",
                measure("convert", "dataset", dataset, other, "--layout", "raw", "--json"),
            )
            digests = [
                json.loads((path / "dataset.json").read_text())["digest"]
                for path in (dataset, other)
            ]
            assert digests[0] == digests[1], digests
            shutil.rmtree(other)
            row(f"scale 2x, {layout}", measure_scale(dataset), "double")
            shutil.rmtree(dataset)
            shutil.rmtree(folder / f"{layout}-2x")
    return peaks


def measure_scale(dataset: Path) -> Measured:
    """Time and memory of making twice the dataset beside it, in a process of its own."""
    program = (
        "import sys, pathlib, resource; from ioprof.format.dataset import Dataset; from"
        " ioprof.jobs.dataset_multiple import multiple_of;from ioprof.loaders.scaling import Scale;"
        " multiple_of(Dataset.load(pathlib.Path(sys.argv[1])), Scale.parse('2x'))"
    )
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(dataset)], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert not process.returncode
    return Measured(
        time.perf_counter() - began_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, ""
    )


def main() -> None:
    """All sizes, and how the memory of the largest compares with that of the smallest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", type=int, default=[2_000, 20_000])
    parser.add_argument(
        "--folder", type=Path, help="where to work (default: the folder for temporary files)"
    )
    parser.add_argument(
        "--layout",
        action="append",
        help="one of the layouts; may be repeated (default: lmdb, webdataset, raw)",
    )
    options = parser.parse_args()
    layouts = options.layout or ["lmdb", "webdataset", "raw"]
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print(
        f"{'images':>9} {'command':28} {'seconds':>8} {'CPU s':>8} {'images/s':>11} {'peak MB':>9}"
    )
    peaks = {size: run_size(size, layouts, options.folder) for size in options.sizes}
    first, last = options.sizes[0], options.sizes[-1]
    if first != last:
        ratios = {what: peaks[last][what] / peak for what, peak in peaks[first].items()}
        print(
            f"\npeak memory at {last:,} / at {first:,}: "
            + ", ".join(f"{what} {ratio:.2f}" for what, ratio in ratios.items())
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
