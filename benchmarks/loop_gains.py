"""Gains of loops without a loader: what a report predicts if a cause cost nothing, beside runs of
the job without that cause.

    python benchmarks/loop_gains.py [--json] [--pairs 3] [--steps 120]

The job (loop_gains_job.py) computes, runs Python and decodes, one after the other. It is recorded
with the cause, and run without it and without ioprof; the median of the pairs counts. `noise` is
the largest difference of two runs without the cause.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import ioprof

JOB: Final = Path(__file__).with_name("loop_gains_job.py")
CASES: Final = (
    ("host", "host", 1),
    ("decode", "decode", 1),
    ("host,decode", "host", 1),
    ("host,decode", "decode", 1),
    ("host", "host", 2),
)
"""What the loop does, the cause that is then left out, and ranks."""


def main() -> None:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    rows = []
    for causes, left_out, ranks in CASES:
        rows.append(row(causes, left_out, ranks, options.pairs, options.steps))
        if not options.json:
            print(shown(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))


def row(causes: str, left_out: str, ranks: int, pairs: int, steps: int) -> dict[str, Any]:
    """One case: speedups that were measured and predicted, each the median of the pairs."""
    others = ",".join(cause for cause in causes.split(",") if cause != left_out) or "none"
    measured, predicted, without = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            run = Path(folder, f"run{pair}")
            with_ms = step_ms(
                causes,
                ranks,
                steps,
                [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", str(run), "--"],
            )
            without.append(step_ms(others, ranks, steps, []))
            measured.append(with_ms / without[-1])
            predicted += predictions(run, left_out)
    return {
        "job": causes,
        "without": left_out,
        "ranks": ranks,
        "pairs": pairs,
        "measured": statistics.median(measured),
        "predicted": statistics.median(predicted) if predicted else None,
        "noise": max(without) / min(without) - 1,
    }


def step_ms(causes: str, ranks: int, steps: int, before: list[str]) -> float:
    """The time of a step of the slowest rank."""
    start = [
        sys.executable,
        *(
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            if ranks > 1
            else []
        ),
    ]
    ended = subprocess.run(
        [*before, *start, str(JOB), causes, str(steps)], capture_output=True, text=True, check=True
    )
    return max(float(line) for line in ended.stdout.splitlines() if line.replace(".", "").isdigit())


def predictions(run: Path, cause: str) -> list[float]:
    """The speedup that the report predicts if the cause cost nothing; none if it predicts
    nothing.
    """
    summary = ioprof.load(run).summary
    return [
        1 / (1 - entry.gain.share)
        for entry in summary.steps.causes
        if entry.cause == cause and entry.gain is not None
    ]


def shown(found: dict[str, Any]) -> str:
    """A line of the table."""
    predicted = (
        "not predicted" if found["predicted"] is None else f"predicted {found['predicted']:.2f} x"
    )
    job = (
        f"{found['job']} without {found['without']}, {found['ranks']}"
        f" rank{'s' * (found['ranks'] > 1)}"
    )
    return (
        f"{job:40} {predicted}, measured {found['measured']:.2f} x ({found['pairs']} pairs, noise"
        f" {found['noise']:.1%})"
    )


if __name__ == "__main__":
    main()
