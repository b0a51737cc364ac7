"""The cost of full capture for a whole job: a training with two loader workers and real decode,
with and without `ioprof record`.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/job_cost.py [--json] [--pairs 10] [--seconds 12] [--light] [--equal | --parts]

Both jobs of a pair run at the same time, each with all its processes on one core, the recorded one
with its launcher, and are measured over the same seconds; they exchange their cores ten times per
second. Other load of the machine therefore affects both. A job that has a single core for decoding
and everything else cannot hide a cost, so the whole cost is visible. The median of the ratios
counts. The order in which the two are started alternates from pair to pair. The job (training.py)
prints its samples per second, and the CPU time of each of its processes and of the launcher. It is
torchvision's recipe for ImageNet, in batches of 32; `--light` mainly decodes, in batches of 16.
`--equal` records neither: the result is the measurement error. `--parts` records with one part of
ioprof at a time: the cost of each part without the others.

What did not work, on a shared virtual machine with 2 cores:
- One after the other: the rates of such a pair differed by 10 % with nothing changed, and ten pairs
  do not resolve 1 %.
- One core each, exchanged from pair to pair: 0.79 to 1.16 in ten equal pairs. The cores differ, and
  the difference changes.
- One long pair: two processes of the same job differ for their whole life because of the addresses
  of their memory; `--equal` shows by how much. Therefore there are ten short pairs.
- Memory at the same address in each run: an environment or a preloaded library shifts it, which
  alone cost or saved about as much as is measured here, in every run (Mytkowicz et al., "Producing
  Wrong Data Without Doing Anything Obviously Wrong!", 2009). The memory of each process of both
  jobs now starts at a random address.
- The default thresholds at which glibc returns freed memory to the kernel: a process randomly has
  some page faults per sample, or several times as many. Both jobs are therefore started with
  thresholds that are never reached.
"""  # noqa: E501

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TRAINING = Path(__file__).with_name("training.py")
IN_PART = Path(__file__).with_name("recorded_in_part.py")
PARTS = ("hooks", "library", "faults", "samples")
PROCESSES = ("consumer", "workers", "launcher")
WORKERS = 2
START_S = 15.0
"""Time until both jobs have started and finished their first epoch."""
SWAP_S = 0.1
"""Time between two exchanges of cores, which cost 0.2 ms."""
SWAPS_PER_LOOK = 5
"""Time between two listings of the processes."""
MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""For both jobs: glibc keeps freed memory (man mallopt)."""


def main() -> None:
    options = parse()
    if options.sample is None:
        print("job cost: not measured; set IOPROF_IMAGENET_SAMPLE to a folder of images")
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("job cost: not measured; it takes two cores")
        return
    for part in PARTS if options.parts else ("everything",):
        result = measured_part(options, part, cores)
        print(json.dumps({part: result}) if options.json else described(part, result), flush=True)


def described(part: str, result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        f"{part}: throughput lost {result['throughput_lost']:.2%}, CPU time added"
        f" {result['cpu_added']:.2%} (medians)"
    ]
    for name in PROCESSES:
        lines.append(
            f"  {name}: {result[name]['added_us']:+.1f} µs per sample (mean,"
            f" ±{result[name]['error_us']:.1f})"
        )
    return "\n".join(
        [
            *lines,
            f"  recorded over alone: rate {shown(result['rates'])}; CPU {shown(result['cpu'])}",
        ]
    )


def measured_part(options: argparse.Namespace, part: str, cores: list[int]) -> dict[str, Any]:
    """The results of all pairs."""
    pairs = [
        pair(options, part, cores[:: 1 if number % 2 else -1], number // 2 % 2 == 0)
        for number in range(options.pairs)
    ]
    rates = sorted(recorded.rate / alone.rate for recorded, alone in pairs)
    costs = sorted(sum(recorded.cpu_us) / sum(alone.cpu_us) for recorded, alone in pairs)
    result: dict[str, Any] = {
        "throughput_lost": 1 - statistics.median(rates),
        "cpu_added": statistics.median(costs) - 1,
        "rates": rates,
        "cpu": costs,
    }
    for place, name in enumerate(PROCESSES):
        added = [recorded.cpu_us[place] - alone.cpu_us[place] for recorded, alone in pairs]
        error = statistics.stdev(added) / len(added) ** 0.5 if len(added) > 1 else math.nan
        result[name] = {"added_us": statistics.mean(added), "error_us": error}
    return result


def shown(ratios: list[float]) -> str:
    return " ".join(f"{ratio:.3f}" for ratio in ratios)


def parse() -> argparse.Namespace:
    sample = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    parser = argparse.ArgumentParser(description="What full capture takes from a whole job.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=12.0, help="that are counted")
    parser.add_argument(
        "--light", action="store_true", help="a job that does little but decode, in small batches"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--equal", action="store_true", help="record none of them")
    what.add_argument("--parts", action="store_true", help="record with one part at a time")
    parser.add_argument(
        "--sample", type=Path, default=Path(sample) if sample else None, help="a tree of images"
    )
    return parser.parse_args()


class Measured(NamedTuple):
    """As measured by the job."""

    rate: float
    """Samples per second."""
    cpu_us: tuple[float, float, float]
    """Microseconds per sample, of `PROCESSES`."""


def pair(
    options: argparse.Namespace, part: str, cores: list[int], is_recorded_first: bool
) -> tuple[Measured, Measured]:
    """One job recorded, and one not."""
    job = [
        sys.executable,
        TRAINING,
        options.sample,
        WORKERS,
        time.monotonic() + START_S,
        options.seconds,
    ]
    job += ["light"] if options.light else []
    with tempfile.TemporaryDirectory() as folder:
        recorded_job = job if options.equal else [*recording(part, folder), *job]
        commands = (recorded_job, job) if is_recorded_first else (job, recorded_job)
        processes = [started(command, core) for command, core in zip(commands, cores, strict=True)]
        swap_cores(processes, cores)
        both = [measured(process) for process in processes]
        recorded, alone = both if is_recorded_first else both[::-1]
    has_launcher = not options.equal and part in ("everything", "faults", "samples")
    return recorded if has_launcher else without_launcher(recorded), without_launcher(alone)


def recording(part: str, folder: str) -> list[object]:
    """The command prefix that records a command, with all parts or one."""
    if part == "everything":
        return [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", f"{folder}/run", "--"]
    return [sys.executable, IN_PART, part, folder]


def without_launcher(found: Measured) -> Measured:
    """Its parent is this process, which is not part of a job."""
    return Measured(found.rate, (*found.cpu_us[:2], 0.0))


def started(
    command: Sequence[object], core: int, variables: Mapping[str, str] = MEMORY
) -> "subprocess.Popen[str]":
    """Run a command and its children on one core, with these variables of the environment."""
    words = ["taskset", "-c", str(core), *map(str, command)]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


def swap_cores(processes: "list[subprocess.Popen[str]]", cores: list[int]) -> None:
    """Repeatedly exchange the cores until one of the jobs has ended."""
    swaps, trees = 0, [[process.pid] for process in processes]
    while all(process.poll() is None for process in processes):
        time.sleep(SWAP_S)
        if swaps % SWAPS_PER_LOOK == 0:
            trees = [descendants(process.pid) for process in processes]
        swaps += 1
        for place, tree in enumerate(trees):
            move(tree, cores[(place + swaps) % 2])


def descendants(pid: int) -> list[int]:
    """A process and all its present descendants."""
    found = [pid]
    for parent in found:
        for thread in entries(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError):
                found += [
                    int(child)
                    for child in Path(f"/proc/{parent}/task/{thread}/children").read_text().split()
                ]
    return found


def move(pids: list[int], core: int) -> None:
    """All threads of these processes."""
    for pid in pids:
        for thread in entries(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), {core})


def entries(folder: str) -> list[str]:
    """The entries of a folder in /proc; empty if its process has ended."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def measured(process: "subprocess.Popen[str]") -> Measured:
    """The output of a job."""
    printed, complaints = process.communicate()
    if process.returncode:
        raise RuntimeError(complaints)
    rate, consumer, workers, parent = map(float, printed.split()[-4:])
    return Measured(rate, (consumer, workers, parent))


if __name__ == "__main__":
    main()
