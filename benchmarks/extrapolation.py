"""Whole trainings predicted from short recordings, beside the same trainings run to their end.

    python benchmarks/extrapolation.py [--table FILE] [--only NAME]

Each case is recorded twice at least: short (so many steps, or one or two epochs), and whole. What
is compared is the time of the whole command, from run.json. Cases: the built-in job where an
emulated device bounds it, at two sizes; on a disk that is throttled to 30 MB/s, under a memory
limit that holds the dataset or does not (needs root); a plain script with two workers that are
started anew in each epoch, a validation and a checkpoint. None needs all cores: with other programs
on the machine, the short recording of such a job is of another time than the whole one. Rows "of
the same" predict from the first steps of the whole run: the error of the prediction alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import slow_storage
from result_files import write_result

import ioprof
from ioprof.format.run_record import EpochPrediction
from ioprof.model.extrapolation.asked import Extrapolated
from ioprof.model.extrapolation.whole import extrapolate

JOB: Final = Path(__file__).with_name("extrapolation_job.py")
RATE: Final = 30_000_000
IMAGES: Final = 320
"""Of the built-in job's dataset at 1x: raw, 196,608 bytes each, so that decoding needs no cores."""
WORDS: Final = ("--no-stacks", "--batch-size", "32", "--workers", "2")


@dataclass(frozen=True)
class Case:
    """A training, and its short recordings."""

    name: str
    records: int
    epochs: int
    shorts: tuple[str, ...] = ("40 steps", "2 epochs")
    device: str = ""
    """Of the built-in job; empty: the script."""
    scale: str = ""
    """Of the dataset of the built-in job."""
    limit_mb: int = 0
    """Memory of a job that reads the throttled disk; 0: it reads a disk as it is."""


CASES: Final = (
    Case("device", 1280, 3, device="emulated:p100", scale="4x"),
    Case("device", 2560, 5, device="emulated:p100", scale="8x"),
    Case("cold disk, then device", 640, 5, device="emulated:p100", scale="2x", limit_mb=900),
    Case("cold disk, data over memory", 2560, 3, device="emulated:p100", scale="8x", limit_mb=500),
    Case("script", 800, 3),
    Case("script", 1600, 4),
)


@dataclass(frozen=True)
class Row:
    """One prediction beside what happened."""

    name: str
    records: int
    epochs: int
    short: str
    found: EpochPrediction
    took_s: float

    @property
    def error(self) -> float:
        """Predicted over run, less 1."""
        return float(self.found.seconds / self.took_s - 1)

    @property
    def is_within(self) -> bool:
        """Whether the run lies in the stated range."""
        high = self.found.high_s
        return self.found.low_s <= self.took_s and (high is None or self.took_s <= high)


def main() -> int:
    """Run all cases, and print or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        for case in CASES:
            if arguments.only not in case.name:
                continue
            for row in of_case(case, Path(name), stack):
                rows.append(row)
                print(line(row), flush=True)
    text = table(rows)
    print(text)
    if arguments.table:
        write_result(arguments.table, text)
    return 0


_MADE: dict[str, Path] = {}
_DISK: list[slow_storage.ThrottledDisk] = []


def of_case(case: Case, folder: Path, stack: ExitStack) -> Iterator[Row]:
    """Its rows, the short recordings before and after the whole one in turn."""
    if case.limit_mb and (why := slow_storage.missing()):
        print(f"skipped: {case.name}: {why}")
        return
    made, join = data(case, folder, stack)
    whole = None
    for short in case.shorts:
        before = record(case, made, folder, short, join)
        if whole is None:
            whole = record(case, made, folder, f"{case.epochs} epochs", join)
        times = whole.trace.run.times
        found = ioprof.extrapolate(before, epochs=case.epochs, records=case.records)
        took_s = (times.end_ns - times.start_ns) / 1e9
        yield Row(case.name, case.records, case.epochs, short, found, took_s)
        number, what = short.split()
        steps = int(number) * (1 if what == "steps" else found.steps_per_epoch or 1)
        asked = Extrapolated(epochs=case.epochs, records=case.records)
        same = extrapolate(whole.analysed, asked, steps)
        yield Row(case.name, case.records, case.epochs, f"{short} of the same", same, took_s)


def data(case: Case, folder: Path, stack: ExitStack) -> tuple[Path, object]:
    """The dataset of a case, and what a job on the disk does first."""
    if not case.device:
        if "tree" not in _MADE:
            _MADE["tree"] = folder / "tree"
            words = ["generate", "imagenet", str(_MADE["tree"]), "--images", "200"]
            run_program([sys.executable, "-m", "ioprof", *words])
        return _MADE["tree"], None
    if not case.limit_mb:
        return database(folder / "data"), None
    if not _DISK:
        _DISK.append(stack.enter_context(slow_storage.throttled_disk(folder, 2_000_000_000)))
        database(_DISK[0].path / "data")
        _DISK[0].throttle(RATE)
    return _DISK[0].path / "data", _DISK[0].join


def database(where: Path) -> Path:
    """Raw images in an LMDB, made once."""
    if str(where) not in _MADE:
        ioprof.convert(
            f"synthetic:{IMAGES}", where, layout="lmdb", image="rgb256", encoding="raw", workers=2
        )
        _MADE[str(where)] = where
    return where


def record(case: Case, data: Path, folder: Path, length: str, join: object) -> "ioprof.Run":
    """One recording."""
    number, what = length.split()
    out = folder / f"run-{len(list(folder.glob('run-*')))}"
    if case.device:
        words = ["run", str(data), "--device", case.device, *WORDS, f"--{what}", number]
        words += ["--dataset-scale", case.scale, "--lmdb-read", "pread"]
        if case.limit_mb:
            words += ["--cache", "cold", "--memory-limit", f"{case.limit_mb}M"]
        words += ["--out", str(out)]
    else:
        epochs, steps = (number, "0") if what == "epochs" else (str(case.epochs), number)
        words = ["record", "--no-stacks", "--out", str(out), "--", sys.executable, str(JOB)]
        words += [str(data), str(case.records), epochs, steps]
    run_program([sys.executable, "-m", "ioprof", *words], folder, join)
    return ioprof.Run.load(out)


def run_program(words: list[str], folder: Path | None = None, join: object = None) -> None:
    """Run a command, or end with what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, preexec_fn=join)  # type: ignore[arg-type]  # a function
    if done.returncode:
        raise SystemExit(done.stderr)


def line(row: Row) -> str:
    """A row of the table."""
    found = row.found
    high = "no bound" if found.high_s is None else f"{found.high_s:.1f}"
    asks = ", ".join(each.what for each in found.record_next) or "-"
    return (
        f"| {row.name} | {row.records:,} | {row.epochs} | {row.short} | {found.seconds:.1f} s"
        f" ({found.low_s:.1f} to {high}) | {row.took_s:.1f} s | {row.error:+.1%} |"
        f" {'yes' if row.is_within else 'no'} | {asks} |"
    )


def table(rows: list[Row]) -> str:
    """The table, with what sums it up."""
    lines = [
        "# Whole trainings predicted from short recordings",
        "",
        f"`python benchmarks/extrapolation.py`, {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()}"
        " cores. Times are of whole commands; each was made once. *Of the same*: predicted from the"
        " first steps of the whole run itself.",
        "",
        "| job | records | epochs | recorded | predicted (range) | run | error | in range | asks"
        " for |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(line, rows),
        "",
    ]
    for what, chosen in (
        ("of another run", [row for row in rows if "same" not in row.short]),
        ("of the same run", [row for row in rows if "same" in row.short]),
    ):
        errors = [abs(row.error) for row in chosen]
        lines.append(
            f"From steps {what}: median error {median(errors):.1%}, worst {max(errors):.1%};"
            f" {sum(row.is_within for row in chosen)} of {len(chosen)} in range."
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
