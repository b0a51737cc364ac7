"""What `ioprof watch` costs the job that it watches: CPU time of the job with and without it, in
turn, and that of watch itself.

    python benchmarks/watch_cost.py [PAIRS] [SECONDS]

The job makes 250 steps/s at most of 13 spans each, and as many steps in each run: its CPU time
(user and system, of the job's process alone) is compared in pairs. Watch looks every 5 s, as by
default. Its CPU time is given for its start, the first 8 s, and for the rest. The job must be
longer than some looks: by default 40 s.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START_S = 8
JOB = """
import json, os, resource, sys, time
from ioprof.instrument.span import emit, intern
begin, made = time.monotonic(), 0
while made < int(sys.argv[1]):
    at = time.monotonic_ns()
    time.sleep(0.004)
    own = intern(f"/data/{made % 5000}")
    for place in range(10):
        emit("read", at + place, at + place + 1, bytes=100, file=own, source=1)
    emit("fetch", at, at + 3_000_000, batch=made)
    emit("wait", at, at + 3_000_000, step=made, batch=made)
    emit("step", at, time.monotonic_ns(), step=made)
    made += 1
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.monotonic() - begin}))
"""


def job(folder: Path, steps: int, watched: bool) -> tuple[float, float, float, float]:
    """CPU time of the job, its wall time, CPU time of the start of watch, and its share of a core
    after that; times in seconds.
    """
    out = folder / f"run-{time.monotonic_ns()}"
    command = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--no-stacks",
        "--out",
        str(out),
        "--",
    ]
    with subprocess.Popen(
        [*command, sys.executable, "-c", JOB, str(steps)], text=True, stdout=subprocess.PIPE
    ) as recording:
        while not (out / "recording.json").exists():
            time.sleep(0.05)
        start_s = share = 0.0
        if watched:
            watch = subprocess.Popen(
                [sys.executable, "-m", "ioprof", "watch", str(out)], stdout=subprocess.DEVNULL
            )
            time.sleep(START_S)
            begin_s, start_s = time.monotonic(), _cpu_s(watch.pid)
            _, _, used = os.wait4(watch.pid, 0)
            watch.returncode = 0
            share = (used.ru_utime + used.ru_stime - start_s) / (time.monotonic() - begin_s)
        printed, _ = recording.communicate()
    found = json.loads(printed.splitlines()[0])
    return found["cpu_s"], found["wall_s"], start_s, share


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the pairs and print what they took."""
    pairs, seconds = (int(each) for each in (*sys.argv[1:], *("4", "40")[len(sys.argv) - 1 :]))
    changes, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            order = (False, True) if pair % 2 else (True, False)
            found = {watched: job(Path(folder), 200 * seconds, watched) for watched in order}
            (alone_s, *_), (with_s, wall_s, start_s, share) = found[False], found[True]
            changes.append((with_s - alone_s) / wall_s)
            shares.append(share)
            print(
                f"pair {pair + 1}: job {alone_s:.2f} s CPU alone, {with_s:.2f} s watched"
                f" ({changes[-1]:+.2%} of a core); watch {start_s:.2f} s CPU at its start, then"
                f" {share:.2%} of a core; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    spread = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
    print(
        f"job: {statistics.mean(changes):+.2%} ± {spread:.2%} of a core; watch:"
        f" {statistics.mean(shares):.2%} of one"
    )


if __name__ == "__main__":
    main()
