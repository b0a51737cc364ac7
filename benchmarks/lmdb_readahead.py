"""Cold random reads of a raw LMDB: by plain py-lmdb, and by ours through the map and by pread, in
four situations of storage.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/lmdb_readahead.py [--rounds 3] [--work DIR] [--only plain,memory]

Every record once, in random order, by one process, without decoding; the file is evicted before
each. Each round has all ways, in an order that is rotated; medians of records per second count. The
situations: `plain`, the disk of --work; `throttled`, a loop device of 100 MB/s that reads 128 kB
ahead; `fuse`, a file system with 2 ms per read; `memory`, the disk of --work, with a limit of
memory of half the data. The last three need root. The target: `auto` has 0.95 of the best of
py-lmdb and pread.

Findings: benchmarks/results/decode.md.
"""  # noqa: E501

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import lmdb
from fuse_server import fuse_server
from slow_storage import bounded_memory, evict, throttled_disk

from ioprof.converters import ConvertOptions, convert
from ioprof.foreign.tensorprotos import decode
from ioprof.format.dataset import Dataset
from ioprof.jobs.dataset_multiple import multiple_of
from ioprof.loaders import open_records
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.lmdb_readahead import choose
from ioprof.loaders.scaling import Scale

WAYS = ("py-lmdb", "auto", "on", "off", "pread")
SITUATIONS = ("plain", "throttled", "fuse", "memory")
RATE, LATENCY_MS = 100 << 20, 2.0
TARGET = 0.95


def main() -> None:
    options = parse()
    if options.child:
        print(json.dumps(measured(Dataset.load(options.child), options.way)))
        return
    if options.sample is None:
        print("lmdb_readahead: not measured; set IOPROF_IMAGENET_SAMPLE to a folder of real images")
        return
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=options.work, prefix="ioprof-bench-") as folder:
        raw = ConvertOptions(layout="lmdb", image="rgb256", encoding="raw")
        dataset = convert(options.sample, Path(folder) / "raw", raw)
        for name in options.only.split(","):
            with situation(name, dataset, Path(folder)) as (path, prepare):
                show(name, compared(path, prepare, options.rounds))


def parse() -> argparse.Namespace:
    sample = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    parser = argparse.ArgumentParser(description="Cold random reads of an LMDB.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where to write the dataset")
    parser.add_argument("--only", default=",".join(SITUATIONS))
    parser.add_argument(
        "--sample",
        type=Path,
        default=Path(sample) if sample else None,
        help="a tree of real images",
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    return parser.parse_args()


@contextmanager
def situation(
    name: str, dataset: Dataset, folder: Path
) -> Iterator[tuple[Path, Callable[[], None] | None]]:
    """Where the dataset is then, and what a process does before it reads it."""
    if name == "throttled":
        with throttled_disk(folder, size_bytes=3 * dataset.bytes // 2, bytes_per_s=RATE) as disk:
            subprocess.run(["cp", "-r", str(dataset.path), str(disk.path / "raw")], check=True)
            yield disk.path / "raw", disk.join
    elif name == "fuse":
        with fuse_server(dataset.path, read_ms=LATENCY_MS) as mounted:
            yield mounted.path, None
    elif name == "memory":
        large = multiple_of(dataset, Scale.parse("4x"))
        with bounded_memory(large.bytes // 2) as memory:
            yield large.path, memory.join
    else:
        yield dataset.path, None


def compared(path: Path, prepare: Callable[[], None] | None, rounds: int) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for place in range(len(WAYS)):
            way = WAYS[(place + number) % len(WAYS)]
            evict(path)
            command = [sys.executable, __file__, "--child", str(path), "--way", way]
            ended = subprocess.run(
                command, preexec_fn=prepare, capture_output=True, text=True, check=False
            )
            if ended.returncode:
                sys.exit(ended.stderr)
            found[way].append(json.loads(ended.stdout))
    return found


def measured(dataset: Dataset, way: str) -> dict:
    """Records per second, and MB that the kernel fetched for this process."""
    order = list(range(dataset.records))
    random.Random(7).shuffle(order)
    read = reader(dataset, way)
    before, started = fetched_bytes(), time.perf_counter()
    total = sum(read(index) for index in order)
    seconds = time.perf_counter() - started
    assert total >= dataset.bytes
    facts = (
        choose(
            "auto", dataset.data_path / "data.mdb", dataset.bytes // dataset.records, dataset.bytes
        )
        if way == "auto"
        else None
    )
    return {
        "rate": dataset.records / seconds,
        "mb": (fetched_bytes() - before) / 1e6,
        "choice": facts and facts.reason,
    }


def reader(dataset: Dataset, way: str) -> Callable[[int], int]:
    if way == "py-lmdb":
        cursor = (
            lmdb.open(str(dataset.data_path), readonly=True, lock=False)
            .begin(buffers=True)
            .cursor()
        )

        def plain(index: int) -> int:
            cursor.set_range(b"%08d_" % index)
            return len(decode(bytes(cursor.value()))[0])

        return plain
    chosen = {"lmdb_read": "pread"} if way == "pread" else {"lmdb_readahead": way}
    records = open_records("lmdb", dataset, LoaderOptions(1, 1, **chosen))
    return lambda index: len(records.read(index).data)


def fetched_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def show(name: str, found: dict[str, list[dict]]) -> None:
    rates = {
        way: statistics.median(entry["rate"] for entry in entries) for way, entries in found.items()
    }
    bar = rates["auto"] / max(rates["py-lmdb"], rates["pread"])
    words = ", ".join(
        f"{way} {rates[way]:,.0f}/s ({statistics.median(e['mb'] for e in found[way]):,.0f} MB)"
        for way in WAYS
    )
    chosen = f"auto ({found['auto'][0]['choice']}) has {bar:.2f} of the best, target {TARGET}"
    print(f"{name}: {words}; {chosen}; load {os.getloadavg()[0]:.0f}", flush=True)


if __name__ == "__main__":
    main()
