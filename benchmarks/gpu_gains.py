"""Predictions for jobs on a GPU, beside runs with the change: `tests/programs/train_on_gpu.py`,
with and without its faults.

    python benchmarks/gpu_gains.py [--only WORD] [--table FILE] [--keep FOLDER] [--small]

Each job is recorded once, and predicted from that: with a change (`ioprof whatif`), or by the first
advice on a cause, which says what the job gains if the cause, or the part of it that a function
takes, cost nothing. Then the job is run with the change, or without the fault, and without ioprof.
Times are those of a steady step: of the recorded job without what recording its GPU took, of the
other one by its own stopwatch.
"""

import argparse
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ioprof.converters import GenerateOptions, generate
from ioprof.model.changes import Change
from ioprof.model.pace import measured
from ioprof.model.prediction import whatif
from ioprof.model.recorded import pipeline
from ioprof.model.summary import with_gains
from ioprof.report.run import Run

PROGRAM = Path(__file__).parents[1] / "tests" / "programs" / "train_on_gpu.py"


@dataclass(frozen=True)
class Case:
    """A job and what is changed of it."""

    fault: str
    steps: int
    changed: str
    """Words for the program."""
    predicted: Change | str
    """The change, or the cause of the advice."""


CASES = (
    Case("compute", 150, "without", Change(speeds={"compute": 2.0})),
    Case("half_hidden", 150, "without", Change(speeds={"compute": 4.0})),
    Case("decode", 40, "workers=4", Change(workers=4)),
    Case("decode", 40, "workers=15", Change(workers=15)),
    Case("python", 120, "without", "host"),
    Case("metrics", 120, "without", "host"),
    Case("collected", 120, "without", "host"),
    Case("evaluation", 160, "without", "validation"),
    Case("checkpoint", 200, "without", "checkpoint"),
    Case("pageable", 80, "without", "h2d"),
)


def main() -> None:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose fault contains this")
    parser.add_argument("--table", type=Path, help="where to write the table too")
    parser.add_argument("--keep", type=Path, help="a new folder for the runs")
    parser.add_argument("--small", action="store_true", help="on the CPU, to see that it runs")
    options = parser.parse_args()
    if not (torch.cuda.is_available() or options.small):
        print("gpu_gains.py needs a GPU")
        return
    device = "the CPU, in small" if options.small else torch.cuda.get_device_name()
    lines = [
        f"# Gains of jobs on a GPU\n\n{device}.\n",
        "| job | change | ms a step | predicted | measured | error |",
        "|---|---|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        generate(Path(folder) / "images", GenerateOptions(images=72, classes=2))
        runs: dict[str, Run] = {}
        for case in CASES:
            if options.only in case.fault:
                some = replace(case, steps=case.steps // 5) if options.small else case
                lines.append(row(some, runs, Path(folder)))
                print(lines[-1], flush=True)
    if options.table:
        options.table.write_text("\n".join([*lines, ""]))


def row(case: Case, runs: dict[str, Run], folder: Path) -> str:
    """A line of the table."""
    program = [sys.executable, str(PROGRAM), case.fault, str(case.steps), str(folder / "images")]
    if case.fault not in runs:
        out = folder / case.fault
        record = [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--out",
            str(out),
            "--",
            *program,
        ]
        subprocess.run(record, cwd=folder, check=True, capture_output=True)
        runs[case.fault] = with_gains(Run.load(out))
    run = runs[case.fault]
    base_s = measured(pipeline(run.trace)).step_s
    speedup, low, high = predicted(case, run)
    ended = subprocess.run(
        [*program, case.changed], cwd=folder, check=True, capture_output=True, text=True
    )
    changed_ms = next(
        float(line.partition(" ms")[0])
        for line in ended.stdout.splitlines()
        if line.endswith(" ms")
    )
    change = (
        case.predicted.text if isinstance(case.predicted, Change) else f"without ({case.predicted})"
    )
    of_run = f"| {case.fault} | {change} | {base_s * 1e3:.2f} |"
    if speedup is None:
        return f"{of_run} not predicted | {changed_ms:.2f} | |"
    shown_ms = base_s * 1e3 / speedup
    lies = f" ({base_s * 1e3 / high:.2f} to {base_s * 1e3 / low:.2f})" if low and high else ""
    return f"{of_run} {shown_ms:.2f}{lies} | {changed_ms:.2f} | {shown_ms / changed_ms - 1:+.1%} |"


def predicted(case: Case, run: Run) -> tuple[float | None, float | None, float | None]:
    """The speedup, and where it lies at least and at most."""
    if isinstance(case.predicted, Change):
        found = whatif(run.trace, case.predicted)
        return found.speedup, found.speedup_range.low, found.speedup_range.high
    for advice in run.summary.verdict.findings:
        if advice.cause == case.predicted:
            return advice.gain, advice.low, advice.high
    return None, None, None


if __name__ == "__main__":
    main()
