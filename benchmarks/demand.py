"""Whether a job gets along with the storage that its report demands: on a disk that delivers 1.2
and 0.8 times the demand.

    python benchmarks/demand.py [--only WAY] [--json FILE]

A job is recorded with cold data on a disk that is not throttled. Its report says how many bytes per
second the devices need at their own rate, which is that of the computation alone. Then the disk is
throttled: to 1.2 times that the job must be bound by compute and reach its free rate, to 0.8 times
it must be bound by storage and reach 0.8 of the devices' rate. This needs root.

The way memmap-whole reads a whole file once at random, so that its need falls while it runs: the
demand is what its first batches need, and the report says what each tenth of them needs. Of 0.8
times the demand, only those tenths have too little that need more, so the job must take as long as
these then take together (`expected`), from its first wait to the end of its last step.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import slow_storage  # noqa: E402

from ioprof.format.run_record import Demand  # noqa: E402
from ioprof.report.run import Run  # noqa: E402

JOB = Path(__file__).with_name("demand_job.py")
WAYS = ("files", "lmdb-map", "lmdb-pread", "webdataset", "memmap", "memmap-whole")
DISK_BYTES = 720 << 20
MULTIPLES = (1.2, 0.8)


def record(disk: slow_storage.ThrottledDisk, way: str, bytes_per_s: int, out: Path) -> Run:
    """One cold run at that rate of the disk; 0: not throttled."""
    disk.throttle(0)
    slow_storage.evict(disk.path)
    disk.throttle(bytes_per_s)
    program = [sys.executable, str(JOB), way, str(disk.path)]
    words = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", str(out), "--", *program]
    ended = subprocess.run(words, capture_output=True, text=True, preexec_fn=disk.join, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return Run.load(out)


def whole_s(run: Run) -> float:
    """From the first wait for a batch to the end of the last step."""
    waits, steps = run.trace.rows(kinds=["wait"]), run.trace.rows(kinds=["step"])
    return (int(steps["end_ns"].to_numpy().max()) - int(waits["start_ns"].to_numpy().min())) / 1e9


def expected(need: Demand, free: float, multiple: float) -> float:
    """The time of the free run over that at so many times the demand, by what the tenths of the
    batches need.
    """
    assert need.bytes_per_s
    assert need.at_samples_per_s
    tenths = need.tenths_bytes_per_s or (need.bytes_per_s,)
    took = need.at_samples_per_s / free  # of a batch, over that of the device alone
    return took / mean(max(took, each / (multiple * need.bytes_per_s)) for each in tenths)


def measure(disk: slow_storage.ThrottledDisk, way: str, folder: Path) -> dict[str, Any]:
    """The demand of a way of reading, and the rates that it reaches against the devices' own."""
    unthrottled = record(disk, way, 0, folder / f"{way}-free")
    summary = unthrottled.summary
    need, free = summary.demand, summary.throughput.steady_samples_per_s
    found: dict[str, Any] = {
        "way": way,
        "demand_bytes_per_s": need.bytes_per_s,
        "mean_bytes_per_s": need.mean_bytes_per_s,
        "is_delivered": need.is_delivered,
        "reads": need.num_reads,
        "device_samples_per_s": need.at_samples_per_s,
        "free": free,
        "free bound": summary.verdict.bound_by,
        "tenths_bytes_per_s": need.tenths_bytes_per_s,
    }
    if need.bytes_per_s is None or not need.at_samples_per_s or not free:
        return found | {"reason": need.reason}
    for multiple in MULTIPLES:
        run = record(disk, way, round(multiple * need.bytes_per_s), folder / f"{way}-{multiple}")
        reached = run.summary
        steady = reached.throughput.steady_samples_per_s or 0.0
        found[f"at {multiple}"] = {
            "of free": steady / free,
            "of devices": steady / need.at_samples_per_s,
        }
        found[f"bound at {multiple}"] = reached.verdict.bound_by
        found[f"whole at {multiple}"] = {
            "of free": whole_s(unthrottled) / whole_s(run),
            "expected": expected(need, free, multiple),
        }
    return found


def line(found: dict[str, Any]) -> str:
    if "reason" in found:
        return f"  {found['way']:10} no demand: {found['reason']}"
    reached = ", ".join(
        f"at {multiple} × {found[f'at {multiple}']['of free']:.3f} of the free rate,"
        f" {found[f'at {multiple}']['of devices']:.3f} of the devices'"
        f" ({found[f'bound at {multiple}']}), from the first wait on"
        f" {found[f'whole at {multiple}']['of free']:.3f} of the free run's, by the tenths' need"
        f" {found[f'whole at {multiple}']['expected']:.3f}"
        for multiple in MULTIPLES
    )
    of = "delivered" if found["is_delivered"] else "asked for"
    free = (
        f"free {found['free']:.1f} of {found['device_samples_per_s']:.1f} samples/s"
        f" ({found['free bound']})"
    )
    return (
        f"  {found['way']:12} demand {found['demand_bytes_per_s'] / 1e6:7.2f} MB/s ({of}); {free};"
        f" {reached}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=WAYS, help="this way alone")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if why := slow_storage.missing():
        print(f"demand: not measured; {why}")
        return
    found = []
    for way in (options.only,) if options.only else WAYS:
        with (
            tempfile.TemporaryDirectory() as name,
            slow_storage.throttled_disk(Path(name), DISK_BYTES) as disk,
        ):
            subprocess.run([sys.executable, str(JOB), "make", str(disk.path), way], check=True)
            found.append(measure(disk, way, Path(name)))
            print(line(found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
