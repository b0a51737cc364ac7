"""What `ioprof run` takes until its first step has been made: CPU time of all of its processes, and
wall time.

    python benchmarks/start_up.py [PYTHON ...]     absolute paths

Each PYTHON is an interpreter that has a version of ioprof installed (default: this one). They take
turns, so that a busy machine is the same for all; CPU time is what to compare there. Prints the
median of each, and the ratio to the first.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

TURNS = 3
JOB = (
    "--loader",
    "null",
    "--device",
    "emulated:a100",
    "--steps",
    "400",
    "--no-stacks",
    "--out",
    "run",
)


def main() -> None:
    pythons = sys.argv[1:] or [sys.executable]
    found: dict[str, list[tuple[float, float]]] = {python: [] for python in pythons}
    for _ in range(TURNS):
        for python in pythons:
            found[python].append(first_step(python))
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n{'CPU, s':>8} {'ratio':>6}"
        f" {'wall, s':>8}"
    )
    first = statistics.median(cpu_s for cpu_s, _ in found[pythons[0]])
    for python, times in found.items():
        cpu_s, wall_s = (statistics.median(each[place] for each in times) for place in (0, 1))
        print(f"{cpu_s:8.2f} {cpu_s / first:6.2f} {wall_s:8.2f}   {python}")


def first_step(python: str) -> tuple[float, float]:
    """CPU and wall seconds from the start of the command to the end of its first step."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        start_s = time.monotonic()
        process = subprocess.Popen(
            [python, "-m", "ioprof", "run", *JOB], cwd=folder, env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while process.poll() is None and not any(
                path.stat().st_size for path in Path(folder).glob("ioprof-*/progress")
            ):
                time.sleep(0.02)
            wall_s = time.monotonic() - start_s
            tree = [
                psutil.Process(process.pid),
                *psutil.Process(process.pid).children(recursive=True),
            ]
            cpu_s = sum(sum(each.cpu_times()[:2]) for each in tree) + sum(tree[0].cpu_times()[2:4])
        finally:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
            process.kill()
            process.wait()
        return cpu_s, wall_s


if __name__ == "__main__":
    main()
