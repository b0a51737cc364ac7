"""Results of `ioprof probe` compared with fio on the same file: same read size, same number of
clients, alternately.

    python benchmarks/probe_against_fio.py [--repeats 3] [--seconds 2] [--clients 1 8] [--json]

On this disk, on a disk throttled to 20 and to 200 MB/s (a loop device, needs root), and on a FUSE
server that delays each read by 5 ms. Reads of 112 KiB at random offsets, cold, buffered and by
O_DIRECT; each number is the median of the ratios probe/fio of the repeats, in which the two
alternate, with minimum and maximum. Target: within 10 %.

fio reads with threads and psync, like the probe; each of its jobs has its own part of the file,
because a second job that reads the same offset would find it in the page cache.

Notes (virtual disk, 2 shared cores): throttled disks 1.000 to 1.003 (20 MB/s) and 1.001 to 1.019
(200 MB/s), FUSE 1.006 to 1.035, this disk 0.98 to 1.09, with single pairs from 0.5 to 2.2. When fio
emptied the cache itself, that was included in its time, and the probe appeared up to a quarter
faster. At a rate that one client does not reach, pairs vary with the load of the machine.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ioprof.storage.probe import Allowance, Missing, Plan, Ranges, RecordSizes, probe
from ioprof.storage.residency import evict

TESTS = Path(__file__).resolve().parent.parent / "tests"
READ_BYTES = 112 << 10
FILE_BYTES = 1 << 30
BAR = 0.1

Join = Callable[[], None]


def main() -> None:
    """Print the table."""
    options = parse()
    if options.level:
        print(json.dumps(own_level(*options.level)))
        return
    if not shutil.which("fio"):
        print("probe against fio: not measured; there is no fio")
        return
    sys.path.insert(0, str(TESTS))  # the module of slow storage
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for place, path, join in places(Path(folder)):
            if options.only not in place:
                continue
            for mode in ("buffered", "direct"):
                for clients in options.clients:
                    rows.append({"place": place, **compared(path, mode, clients, options, join)})
                    if not options.json:
                        print(line(rows[-1]), flush=True)
    if options.json:
        print(
            json.dumps(
                {"machine": platform.machine(), "cores": os.cpu_count(), "rows": rows}, indent=1
            )
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument(
        "--only", default="", help="the places whose names contain this, such as 'this disk' or 20"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where the files are made (default: the temporary folder)",
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument(
        "--level",
        nargs=4,
        metavar=("FILE", "MODE", "CLIENTS", "SECONDS"),
        help="one level of the probe, as JSON",
    )
    return parser.parse_args()


def places(folder: Path) -> Iterator[tuple[str, Path, Join]]:
    """Name, file, and the function that a process calls to be throttled."""
    import fuse_server
    import slow_storage

    plain = folder / "plain"
    write(plain, FILE_BYTES)
    yield "this disk", plain, lambda: None
    if reason := slow_storage.missing():
        print(f"throttled disks: not measured; {reason}")
    else:
        with slow_storage.throttled_disk(folder, FILE_BYTES + (128 << 20)) as disk:
            write(disk.path / "file", FILE_BYTES)
            for rate in (20_000_000, 200_000_000):
                disk.throttle(rate)
                yield f"{rate // 10**6} MB/s", disk.path / "file", disk.join
    if reason := fuse_server.missing():
        print(f"FUSE server: not measured; {reason}")
    else:
        with served(folder, fuse_server) as path:
            yield "FUSE, 5 ms", path, lambda: None


@contextmanager
def served(folder: Path, fuse_server: Any) -> Iterator[Path]:
    """The plain file, through a server that delays reads."""
    with fuse_server.fuse_server(folder, read_ms=5, threads=32) as mounted:
        yield mounted.path / "plain"


def write(path: Path, num_bytes: int) -> None:
    """Incompressible bytes."""
    random = np.random.default_rng(0)
    with open(path, "wb") as stream:
        for _ in range(num_bytes >> 24):
            stream.write(random.bytes(1 << 24))
        stream.flush()
        os.fsync(stream.fileno())


def compared(
    path: Path, mode: str, clients: int, options: argparse.Namespace, join: Join
) -> dict[str, Any]:
    """Rates of both, and the median of their ratios."""
    pairs = []
    for repeat in range(options.repeats):
        order = (by_fio, by_probe) if repeat % 2 else (by_probe, by_fio)
        found = {
            measure.__name__: measure(path, mode, clients, options.seconds, join)
            for measure in order
        }
        pairs.append((found["by_probe"], found["by_fio"]))
    result: dict[str, Any] = {"mode": mode, "clients": clients}
    for name in ("bytes_per_s", "p50_s", "p99_s"):
        known = [
            (ours[name], theirs[name]) for ours, theirs in pairs if ours[name] and theirs[name]
        ]
        ratios = [ours / theirs for ours, theirs in known]
        result[name] = {
            "probe": statistics.median(ours for ours, _ in known) if known else None,
            "fio": statistics.median(theirs for _, theirs in known) if known else None,
            **(
                {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
                if known
                else {}
            ),
        }
    return result


def by_probe(
    path: Path, mode: str, clients: int, seconds: float, join: Join
) -> dict[str, float | None]:
    """One level, in a process of its own, which can be throttled."""
    line = [sys.executable, __file__, "--level", str(path), mode, str(clients), str(seconds)]
    found: dict[str, float | None] = json.loads(run(line, join))
    return found


def own_level(path: str, mode: str, clients: str, seconds: str) -> dict[str, float | None]:
    """The output of the child."""
    material = Ranges([path], RecordSizes.fixed(READ_BYTES), np.random.default_rng())
    plan = Plan((int(clients),), ("random",), (mode,))
    level = (
        *(found := probe(material, Allowance(float(seconds), FILE_BYTES), plan)).levels,
        *found.missing,
    )[0]
    if isinstance(level, Missing):
        sys.exit(f"{path}: {level.reason}")
    return {
        "bytes_per_s": level.bytes_per_s,
        "p50_s": level.latency.p50_s,
        "p99_s": level.latency.p99_s,
    }


def by_fio(
    path: Path, mode: str, clients: int, seconds: float, join: Join
) -> dict[str, float | None]:
    """The same by fio, with the same fadvise hint. The cache is emptied before, because fio would
    include that in its time.
    """
    evict([str(path)])
    part = FILE_BYTES // clients // READ_BYTES * READ_BYTES
    runtime = f"{seconds * 1e3:.0f}ms"
    options = {
        "name": "probe",
        "filename": path,
        "rw": "randread",
        "bs": READ_BYTES,
        "ioengine": "psync",
        "thread": 1,
        "numjobs": clients,
        "size": part,
        "offset_increment": part,
        "direct": int(mode == "direct"),
        "runtime": runtime,
        "randrepeat": 0,
        "invalidate": 0,
        "group_reporting": 1,
        "percentile_list": "50:99",
        "output-format": "json",
    }
    line = ["fio", "--readonly", *(f"--{name}={value}" for name, value in options.items())]
    read = json.loads(run(line, join))["jobs"][0]["read"]
    percentiles = read["clat_ns"]["percentile"]
    return {
        "bytes_per_s": read["bw_bytes"],
        "p50_s": percentiles["50.000000"] / 1e9,
        "p99_s": percentiles["99.000000"] / 1e9 if read["total_ios"] >= 100 else None,
    }


def run(line: list[str], join: Join) -> str:
    return subprocess.run(line, preexec_fn=join, capture_output=True, text=True, check=True).stdout


def line(row: dict[str, Any]) -> str:
    rate, middle, tail = row["bytes_per_s"], row["p50_s"], row["p99_s"]
    verdict = "met" if abs(rate["ratio"] - 1) <= BAR else "MISSED"
    spread = f"{rate['ratio']:.3f} ({rate['least']:.3f}-{rate['greatest']:.3f})"
    latencies = f"p50 {middle['probe'] * 1e3:8.2f} {middle['fio'] * 1e3:8.2f} ms"
    if tail["probe"]:
        latencies += f"   p99 {tail['probe'] * 1e3:8.2f} {tail['fio'] * 1e3:8.2f} ms"
    rates = f"probe {rate['probe'] / 1e6:8.1f}  fio {rate['fio'] / 1e6:8.1f} MB/s  ratio {spread}"
    return (
        f"{row['place']:<12}{row['mode']:<10}{row['clients']:>3}  {rates}  {verdict}   {latencies}"
    )


if __name__ == "__main__":
    main()
