"""What the recording of page faults costs a job: per switch of a thread, minor fault that is watched, and thread made.

    python benchmarks/fault_recording.py [--json] [--repeats 5]

Each repeat runs each loop in a fresh process, with and without a recorder beside it; shown is the difference of the two. All of the
job runs on one CPU. `watched minor fault` is what a major fault costs, too, besides the two switches of its sleep.

A switch is a thread that gives up its core and the one that takes it: two records. It and the making of threads get dearer with the
number of CPUs, since every thread has two events for each. With one event for each of 256 CPUs a switch cost 3.2 µs more instead of
1.3, a thread 415 µs instead of 15, and a thread's events took 346 kB of the kernel's memory (a virtual machine with 2 CPUs, on
which 254 more events of one CPU were opened; the second event, of minor faults, came later and doubles the last two numbers).

What did not work: to sample every page fault at its begin, which would tell when it began and not need the switches. A program that
decodes images has 55,000 minor faults in a second of computing, and 400 switches.
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

from ioprof.record.faults import FaultRecorder

LOOPS = {
    "switch": """
forth, back = os.pipe(), os.pipe()
if not os.fork():
    for _ in range(COUNT):
        os.read(forth[0], 1), os.write(back[1], b"x")
    os._exit(0)
def run():
    for _ in range(COUNT):
        os.write(forth[1], b"x"), os.read(back[0], 1)
each = 2 * COUNT
""",
    "watched minor fault": """
memory = mmap.mmap(-1, COUNT * mmap.PAGESIZE)
memory.madvise(mmap.MADV_NOHUGEPAGE)
def run():
    for place in range(0, len(memory), mmap.PAGESIZE):
        memory[place] = 1
each = COUNT
""",
    "thread": """
def run():
    for _ in range(COUNT):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
each = COUNT
""",
}
COUNTS = {"switch": 30_000, "watched minor fault": 50_000, "thread": 5_000}
FRAME = "import mmap, os, threading, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nCOUNT = %d\n%s"
CLOCK = "started = time.monotonic_ns()\nrun()\nprint((time.monotonic_ns() - started) / each)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the recording of page faults costs a job.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    repeats = [{name: added_ns(name) for name in LOOPS} for _ in range(options.repeats)]
    results = {name: spread([repeat[name] for repeat in repeats]) for name in LOOPS}
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}"
    if options.json:
        print(json.dumps({"machine": machine, "repeats": options.repeats, "added_ns": results}, indent=1))
        return
    print(f"{machine}; nanoseconds added, median of {options.repeats} repeats (min-max)\n")
    for name, result in results.items():
        print(f"{name:<20} {result['median']:9.0f}   ({result['min']:.0f}-{result['max']:.0f})")


def spread(costs: list[float]) -> dict[str, float]:
    return {"median": statistics.median(costs), "min": min(costs), "max": max(costs)}


def added_ns(name: str) -> float:
    """What recording adds to one of whatever the loop makes."""
    alone = run(name)
    with tempfile.TemporaryDirectory() as spool:
        recorder = FaultRecorder(Path(spool), minor=name == "watched minor fault")
        try:
            recorded = run(name)
        finally:
            recorder.stop()
    return recorded - alone


def run(name: str) -> float:
    program = FRAME % (COUNTS[name], LOOPS[name]) + CLOCK
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
