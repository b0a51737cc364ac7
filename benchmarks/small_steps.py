"""How much speed training loops of small steps lose while they are recorded.

    python benchmarks/small_steps.py [--pairs 10] [--seconds 4] [--hooks-only | --equal] [KIND ...]

Both loops of a pair run at the same time, each on one core, the recorded one with its launcher,
and exchange their cores ten times per second, as in job_cost.py. Counted is what the loop itself
measures, without start and report: the steps per second that are lost (median of the ratios, lowest
and highest), and the CPU time that recording adds to a step (difference of the medians). Behind it:
what the reports state as the cost, the median of its bounds. `--hooks-only` leaves out the capture
library, the samplers and the stacks; `--equal` records neither, which shows the measurement error.

    target  at most 2 % of steps/s lost
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from job_cost import MEMORY, started, swap_cores

HERE = Path(__file__).resolve().parent
JOB = HERE / "small_steps_job.py"
SITE = HERE.parent / "ioprof" / "instrument" / "site"
START_S = 10.0
"""Time until both loops have started."""
KINDS = ("dqn", "ppo", "linear", "rnn", "lbfgs", "ranks")


def main() -> None:
    parser = argparse.ArgumentParser(description="What loops of small steps lose.")
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--hooks-only", action="store_true")
    what.add_argument("--equal", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):  # argparse takes no default beside choices
        parser.error(f"no such KIND: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("small steps: not measured; it takes two cores")
        return
    for kind in options.kinds:
        try:
            pairs = [
                pair(kind, options, cores[:: 1 if number % 2 else -1], number // 2 % 2 == 0)
                for number in range(options.pairs)
            ]
        except RuntimeError as failure:  # the others are measured all the same
            said = str(failure).strip() or "it said nothing"
            print(f"{kind:7} failed: {said.splitlines()[0]}", flush=True)
            continue
        lost = sorted(1 - recorded.rate / alone.rate for alone, recorded in pairs)
        rate = statistics.median(alone.rate for alone, _ in pairs)
        cpu_us = statistics.median(alone.cpu_us for alone, _ in pairs)
        added_us = statistics.median(recorded.cpu_us for _, recorded in pairs) - cpu_us
        stated = [recorded.stated for _, recorded in pairs if recorded.stated]
        bounds = [statistics.median(each) for each in zip(*stated, strict=True)]
        says = f"; stated {bounds[0]:.2%} to {bounds[1]:.2%}" if bounds else ""
        print(
            f"{kind:7} {rate:7.0f} steps/s, {statistics.median(lost):+7.2%} lost"
            f" ({lost[0]:+.1%} to {lost[-1]:+.1%}); CPU {cpu_us:6.1f} us {added_us:+5.1f}"
            f" ({added_us / cpu_us:+.2%}){says}",
            flush=True,
        )


class Measured(NamedTuple):
    """As measured by the job."""

    rate: float
    """Steps per second."""
    cpu_us: float
    """CPU time of a step in microseconds."""
    stated: tuple[float, float] | None = None
    """What the report says that recording cost, as parts of the time: at least, at most."""


def pair(
    kind: str, options: argparse.Namespace, cores: list[int], is_recorded_first: bool
) -> tuple[Measured, Measured]:
    """One loop alone, and one recorded."""
    job = [sys.executable]
    if kind == "ranks":
        job += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job += [str(JOB), kind, str(options.seconds), str(time.monotonic() + START_S)]
    ioprof = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out"]
    with tempfile.TemporaryDirectory() as folder:
        recorded_job, variables = [*ioprof, f"{folder}/run", "--", *job], {}
        if options.equal:
            recorded_job = job
        elif options.hooks_only:
            recorded_job, variables = job, {"IOPROF_SPOOL": folder, "PYTHONPATH": str(SITE)}
        order = [(recorded_job, variables), (job, {})]
        processes = [
            started(command, core, {**MEMORY, "OMP_NUM_THREADS": "1", **more})
            for (command, more), core in zip(
                order if is_recorded_first else order[::-1], cores, strict=True
            )
        ]
        swap_cores(processes, cores)
        recorded, alone = map(measured, processes if is_recorded_first else processes[::-1])
        summary = Path(folder, "run", "summary.json")
        if summary.exists():
            cost = json.loads(summary.read_bytes())["capture"]
            recorded = recorded._replace(
                stated=(cost["overhead_ratio"] or 0.0, cost["overhead_ratio_most"] or 0.0)
            )
    return alone, recorded


def measured(process: "subprocess.Popen[str]") -> Measured:
    """The output of a job."""
    printed, complaints = process.communicate()
    if process.returncode:
        raise RuntimeError(complaints)
    rate, cpu_us = map(float, printed.split()[-2:])
    return Measured(rate, cpu_us)


if __name__ == "__main__":
    main()
