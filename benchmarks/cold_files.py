"""Whether bytes of cold files are classified as read from storage, on the disk of a folder, and the
duration of cached reads.

    python benchmarks/cold_files.py [--folder TMPDIR] [--series 12] [--json]

64 files of 100 to 163 kB are evicted, verified by page cache residency, and read sequentially by a
new process: whole, and in parts of 20 kB; with all methods of the capture library, and without
RWF_NOWAIT, as on Lustre. Bytes not classified as storage are errors.

The times are those of reads of the same files by this process without the library: the time of a
cached read beyond 2 us, and of a cold read that did not wait, per byte. Between the two lies the
threshold of `is_slow` (native/capture/source.h), above which the library queries the kernel.

A virtual disk whose data is in the memory of the host completes reads in bursts before the reader
waits: a library that considered only reads that waited classified up to a quarter of these bytes as
cached. What did not work: the duration alone. If a virtual CPU is preempted by the host, any read
is slow.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from ioprof.ingest import read_spool
from ioprof.instrument import preload
from ioprof.storage.residency import evict

READERS = {
    "whole": "import sys\nfor path in sys.argv[1:]:\n    open(path, 'rb', 0).read()",
    "in parts": (
        "import sys\nfor path in sys.argv[1:]:\n    file = open(path, 'rb', 0)\n    while"
        " file.read(20_000): pass"
    ),
}
WAYS = {"as it is": {}, "without RWF_NOWAIT": {"IOPROF_CAPTURE_NOWAIT": "off"}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Whether bytes of cold files are classified as read from storage."
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--series", type=int, default=12)
    parser.add_argument(
        "--folder", type=Path, help="on the disk in question; without it, where temporary files are"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        paths = made_files(Path(folder))
        evicted = evict(paths)
        if evicted.resident_bytes or evicted.unknown_files:
            print(
                f"cold files: not measured; the pages of {folder} cannot be evicted (give --folder"
                " on a disk)"
            )
            return
        ways = [(reader, way) for reader in READERS for way in WAYS]
        results = {
            f"{reader}, {way}": share_from_storage(paths, reader, way, options.series)
            for reader, way in ways
        }
        times = copy_times(paths, options.series)
        size = sum(map(os.path.getsize, paths))
    if options.json:
        print(
            json.dumps(
                {
                    "machine": machine(),
                    "series": options.series,
                    "classified_as_storage": results,
                    **times,
                },
                indent=1,
            )
        )
        return
    print(
        f"{machine()}; {options.series} series of {size / 1e6:.1f} MB\n\nshare classified as"
        " storage"
    )
    for name, ratio in results.items():
        print(f"{name:<28} {ratio:8.3%}")
    print(
        "\nbeyond 2 us, ns per byte: "
        + ", ".join(f"{name} {value}" for name, value in times.items())
    )


def machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python"
        f" {platform.python_version()}"
    )


def made_files(folder: Path) -> list[str]:
    random = np.random.default_rng(0)
    for number in range(64):
        (folder / f"{number:02}").write_bytes(random.bytes(100_000 + 1_000 * number))
    return sorted(map(str, folder.iterdir()))


def share_from_storage(paths: list[str], reader: str, way: str, series: int) -> float:
    num_bytes: Counter[str] = Counter()
    for _ in range(series):
        evict(paths)
        with tempfile.TemporaryDirectory() as spool:
            environment = {
                **preload.environment(Path(spool), dict(os.environ), hooks=False),
                **WAYS[way],
            }
            subprocess.run(
                [sys.executable, "-c", READERS[reader], *paths], env=environment, check=True
            )
            trace = read_spool(Path(spool))
        files = trace.files.filter(pl.col("path").is_in(paths))
        reads = trace.spans.filter(pl.col("kind") == "read").join(files, on="file", how="semi")
        num_bytes.update(
            dict(reads.group_by(pl.col("source").cast(pl.String)).agg(pl.col("bytes").sum()).rows())
        )
    return num_bytes["storage"] / sum(num_bytes.values())


def copy_times(paths: list[str], series: int) -> dict[str, float | int | None]:
    """The 99th percentile of cached reads, the minimum and the number of cold reads that did not
    wait.
    """
    cached, cold = [], []
    buffer = memoryview(bytearray(1 << 20))
    buffer[:] = b"1" * len(buffer)  # else the read would allocate its first pages
    for _ in range(series):
        evict(paths)
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                for _ in range(2):
                    before, began = (
                        resource.getrusage(resource.RUSAGE_THREAD),
                        time.perf_counter_ns(),
                    )
                    got = os.preadv(file.fileno(), [buffer], 0)
                    duration, after = (
                        time.perf_counter_ns() - began,
                        resource.getrusage(resource.RUSAGE_THREAD),
                    )
                    if after.ru_nvcsw == before.ru_nvcsw:
                        (cold if after.ru_inblock > before.ru_inblock else cached).append(
                            (duration - 2000) / got
                        )
    return {
        "cached_p99": round(float(np.percentile(cached, 99)), 3),
        "cold_without_wait_min": round(min(cold), 3) if cold else None,
        "cold_without_wait": len(cold),
    }


if __name__ == "__main__":
    main()
