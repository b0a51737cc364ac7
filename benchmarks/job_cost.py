"""What full capture takes from a whole job: a training with two loader workers and real decode, with and without `ioprof record`.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/job_cost.py [--json] [--pairs 10] [--seconds 20] [--equal]

Of a pair both run at the same time, each with all its processes, the recorded one with its launcher, on a core of its own, and
are counted over the same seconds; ten times a second they change cores. So what else the machine does befalls both, and as a job
that has one core for decode and everything else has nothing to hide a cost behind, all of it shows. The median of the ratios
counts. The job (training.py) prints its own samples per second, and its CPU time per sample. Which of the two is started first
changes from pair to pair. `--equal` records none: what it shows then is the error of the measure. Six such pairs: rate 0.990 to
1.008 (median 0.998), CPU time 0.993 to 1.010 (1.000).

What did not work, on a shared virtual machine with 2 cores:
- One after the other: the rates of such a pair differed by 10 % with nothing changed, and ten pairs do not resolve 1 %.
- A core for each, changed from pair to pair: of ten equal pairs 0.79 to 1.16. The cores differ, and not the same way for long.
- glibc's own thresholds of when freed memory goes back to the kernel: by luck a process has some page faults per sample, or several
  times as many. Both jobs are therefore started with thresholds that it never reaches.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINING = Path(__file__).with_name("training.py")
WORKERS = 2
START_S = 20.0
"""Until both jobs have begun, and finished their first epoch."""
SWAP_S = 0.1
"""Between two changes of cores, which cost 0.2 ms."""
SWAPS_PER_LOOK = 5
"""Between two looks at which processes there are."""
MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""For both jobs: glibc keeps what was freed (man mallopt)."""


def main() -> None:
    options = parse()
    if options.sample is None:
        print("job cost: not measured; set IOPROF_IMAGENET_SAMPLE to a folder of images")
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("job cost: not measured; it takes two cores")
        return
    pairs = [pair(options, cores if number % 2 else cores[::-1], number // 2 % 2 == 0) for number in range(options.pairs)]
    rates, costs = sorted(rate for rate, _ in pairs), sorted(cost for _, cost in pairs)
    result = {
        "throughput_lost": 1 - statistics.median(rates),
        "cpu_added": statistics.median(costs) - 1,
        "rates": rates,
        "cpu": costs,
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"throughput lost: {result['throughput_lost']:.2%} (median; recorded over alone: {shown(rates)})")
    print(f"CPU time added:  {result['cpu_added']:.2%} (median; recorded over alone: {shown(costs)})")


def shown(ratios: list[float]) -> str:
    return " ".join(f"{ratio:.3f}" for ratio in ratios)


def parse() -> argparse.Namespace:
    sample = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    parser = argparse.ArgumentParser(description="What full capture takes from a whole job.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="that are counted")
    parser.add_argument("--equal", action="store_true", help="record none of them")
    parser.add_argument("--sample", type=Path, default=Path(sample) if sample else None, help="a tree of images")
    return parser.parse_args()


def pair(options: argparse.Namespace, cores: list[int], is_recorded_first: bool) -> tuple[float, float]:
    """Recorded over alone: of the rate, and of CPU time per sample."""
    job = [sys.executable, TRAINING, options.sample, WORKERS, time.monotonic() + START_S, options.seconds]
    with tempfile.TemporaryDirectory() as folder:
        recording = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", f"{folder}/run", "--"]
        recorded_job = job if options.equal else recording + job
        commands = (recorded_job, job) if is_recorded_first else (job, recorded_job)
        processes = [started(command, core) for command, core in zip(commands, cores, strict=True)]
        swap_cores(processes, cores)
        both = [measured(process) for process in processes]
        recorded, alone = both if is_recorded_first else both[::-1]
    return recorded[0] / alone[0], recorded[1] / alone[1]


def started(command: list[object], core: int) -> "subprocess.Popen[str]":
    """A command on one core, with all that it starts."""
    words = ["taskset", "-c", str(core), *map(str, command)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | MEMORY)


def swap_cores(processes: "list[subprocess.Popen[str]]", cores: list[int]) -> None:
    """Again and again, until one of both has ended."""
    swaps, trees = 0, [[process.pid] for process in processes]
    while all(process.poll() is None for process in processes):
        time.sleep(SWAP_S)
        if swaps % SWAPS_PER_LOOK == 0:
            trees = [descendants(process.pid) for process in processes]
        swaps += 1
        for place, tree in enumerate(trees):
            move(tree, cores[(place + swaps) % 2])


def descendants(pid: int) -> list[int]:
    """A process and all below it, as they are now."""
    found = [pid]
    for parent in found:
        for thread in entries(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in Path(f"/proc/{parent}/task/{thread}/children").read_text().split()]
    return found


def move(pids: list[int], core: int) -> None:
    """All threads of these processes."""
    for pid in pids:
        for thread in entries(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), {core})


def entries(folder: str) -> list[str]:
    """What is in a folder; nothing where its process has ended."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def measured(process: "subprocess.Popen[str]") -> tuple[float, float]:
    """Samples per second and milliseconds of CPU per sample, by the job's own word."""
    printed, complaints = process.communicate()
    if process.returncode:
        raise RuntimeError(complaints)
    rate, cpu = printed.split()[-2:]
    return float(rate), float(cpu)


if __name__ == "__main__":
    main()
