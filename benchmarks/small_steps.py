"""How much speed training loops of small steps lose while they are recorded.

    python benchmarks/small_steps.py [--pairs 10] [--seconds 4] [--hooks-only] [KIND ...]

Each pair runs a loop of small_steps_job.py alone and recorded, in alternating order; counted is
what the loop itself measures, without start and report: the steps per second that are lost (median
of the ratios, lowest and highest), and the CPU time that recording adds to a step (difference of
the medians, which a busy machine affects less). `--hooks-only` leaves out the capture library, the
samplers and the stacks.

    target  at most 2 % of steps/s lost
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOB = HERE / "small_steps_job.py"
SITE = HERE.parent / "ioprof" / "instrument" / "site"
KINDS = ("dqn", "ppo", "linear", "rnn", "lbfgs", "ranks")


def main() -> None:
    parser = argparse.ArgumentParser(description="What loops of small steps lose.")
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--hooks-only", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):  # argparse takes no default beside choices
        parser.error(f"no such KIND: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    for kind in options.kinds:
        pairs = []
        for pair in range(options.pairs):
            order = (False, True) if pair % 2 else (True, False)
            found = {each: measured(kind, options, recorded=each) for each in order}
            pairs.append((found[False], found[True]))
        lost = sorted(1 - recorded[0] / alone[0] for alone, recorded in pairs)
        rate, cpu_us = (statistics.median(alone[place] for alone, _ in pairs) for place in (0, 1))
        added_us = statistics.median(recorded[1] for _, recorded in pairs) - cpu_us
        print(
            f"{kind:7} {rate:7.0f} steps/s, {statistics.median(lost):+7.2%} lost"
            f" ({lost[0]:+.1%} to {lost[-1]:+.1%}); CPU {cpu_us:6.1f} us {added_us:+5.1f}"
            f" ({added_us / cpu_us:+.2%})",
            flush=True,
        )


def measured(kind: str, options: argparse.Namespace, *, recorded: bool) -> tuple[float, float]:
    """Steps per second, and CPU microseconds per step."""
    command = [sys.executable]
    if kind == "ranks":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(JOB), kind, str(options.seconds)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        if recorded and options.hooks_only:
            variables |= {"IOPROF_SPOOL": folder, "PYTHONPATH": str(SITE)}
        elif recorded:
            ioprof = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", f"{folder}/run"]
            command = [*ioprof, "--", *command]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    rate, cpu_us = map(float, done.stdout.split()[-2:])
    return rate, cpu_us


if __name__ == "__main__":
    main()
