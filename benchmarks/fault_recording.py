"""The cost of recording page faults for a job: per context switch, per recorded minor fault, and
per thread created.

    python benchmarks/fault_recording.py [--json] [--repeats 5]

Each repeat runs each loop in a new process, with and without a recorder; the table shows the
difference. The whole job runs on one CPU. `recorded minor fault` is also the cost of a major fault,
in addition to the two context switches of its sleep.

A context switch is two records: one thread is switched out, another one in. Its cost and that of
creating threads increase with the number of CPUs, because every thread has two events per CPU. With
one event for each of 256 CPUs a switch cost 3.2 µs more instead of 1.3, a thread 415 µs instead of
15, and the events of a thread took 346 kB of kernel memory (a virtual machine with 2 CPUs, on which
254 more events of one CPU were opened; the second event, of minor faults, was added later and
doubles the last two numbers).

What did not work: sampling every page fault at its start, which would give its start time without
context switches. A program that decodes images has 55,000 minor faults in a second of computing,
and 400 context switches.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ioprof.instrument.faults import FaultRecorder

LOOPS = {
    "switch": (
        """
forth, back = os.pipe(), os.pipe()
if not os.fork():
    for _ in range(COUNT):
        os.read(forth[0], 1), os.write(back[1], b"x")
    os._exit(0)
def run():
    for _ in range(COUNT):
        os.write(forth[1], b"x"), os.read(back[0], 1)
each = 2 * COUNT
"""
    ),
    "recorded minor fault": (
        """
memory = mmap.mmap(-1, COUNT * mmap.PAGESIZE)
memory.madvise(mmap.MADV_NOHUGEPAGE)
def run():
    for place in range(0, len(memory), mmap.PAGESIZE):
        memory[place] = 1
each = COUNT
"""
    ),
    "thread": (
        """
def run():
    for _ in range(COUNT):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
each = COUNT
"""
    ),
}
COUNTS = {"switch": 30_000, "recorded minor fault": 50_000, "thread": 5_000}
FRAME = (
    "import mmap, os, threading, time\nos.sched_setaffinity(0,"
    " {min(os.sched_getaffinity(0))})\nCOUNT = %d\n%s"
)
CLOCK = "started = time.monotonic_ns()\nrun()\nprint((time.monotonic_ns() - started) / each)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the recording of page faults costs a job.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    repeats = [{name: added_ns(name) for name in LOOPS} for _ in range(options.repeats)]
    results = {name: spread([repeat[name] for repeat in repeats]) for name in LOOPS}
    machine = (
        f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python"
        f" {platform.python_version()}"
    )
    if options.json:
        print(
            json.dumps(
                {"machine": machine, "repeats": options.repeats, "added_ns": results}, indent=1
            )
        )
        return
    print(f"{machine}; nanoseconds added, median of {options.repeats} repeats (min-max)\n")
    for name, result in results.items():
        print(f"{name:<20} {result['median']:9.0f}   ({result['min']:.0f}-{result['max']:.0f})")


def spread(costs: list[float]) -> dict[str, float]:
    return {"median": statistics.median(costs), "min": min(costs), "max": max(costs)}


def added_ns(name: str) -> float:
    """The additional time per operation of the loop with recording."""
    alone = run(name)
    with tempfile.TemporaryDirectory() as spool:
        recorder = FaultRecorder(Path(spool), minor=name == "recorded minor fault")
        try:
            recorded = run(name)
        finally:
            recorder.stop()
    return recorded - alone


def run(name: str) -> float:
    program = FRAME % (COUNTS[name], LOOPS[name]) + CLOCK
    return float(
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
    )


if __name__ == "__main__":
    main()
