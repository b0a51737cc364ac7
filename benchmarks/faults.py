"""The fault suite, several times: of each job with a known fault, whether the report names it.

    python benchmarks/faults.py [--runs 3] [--only WORDS] [--json] [--table benchmarks/results/faults.md] [--until 08:20]
                                [--keep FOLDER]

In the last of the runs another program keeps one core busy. A case is right if the verdict, what
the first three lines of the report name, and the first advice are what `tests/faults/` says, and at
most 5 % of the steps' time has no name. A case that is wrong and says "unsure" is marked `?`, one
that is wrong and does not say so `X`: that must not happen.
"""  # noqa: E501

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

import pytest  # noqa: E402
from faults import all_cases  # noqa: E402
from faults.case import Case, outcome  # noqa: E402

from ioprof.converters import GenerateOptions, generate  # noqa: E402


@contextmanager
def busy_core(is_busy: bool) -> Iterator[None]:
    """Another program that computes, on any core."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()


def result(case: Case, images: Path, is_busy: bool, kept: Path | None) -> tuple[str, list[str]]:
    """`right`, `?`, `X` or `-` (skipped) of one run, and what was wrong or missing. `kept`: where
    the run's summary is written.
    """
    with tempfile.TemporaryDirectory() as folder, busy_core(is_busy):
        try:
            found = outcome(case, images, Path(folder))
        except pytest.skip.Exception as skipped:
            return "-", [str(skipped)]
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(found.run.summary.to_json())
    wrong = found.faults_of(case)
    return ("right" if not wrong else "?" if found.run.summary.verdict.doubts else "X"), wrong


def add_row(table: Path, label: str, found: list[tuple[str, list[str]]], load: float) -> None:
    """Replace the row of a case, or add it at its place in the order of the names."""
    old = table.read_text().splitlines() if table.exists() else []
    rows = {line.split("|")[1].strip(): line for line in old if line.startswith("|")}
    lines = dict.fromkeys(line for mark, wrong in found if mark != "right" for line in wrong)
    said = "; ".join(line.replace("|", "/").replace("\n", " ")[:160] for line in lines)
    rows[label] = f"| {label} | {' '.join(mark for mark, _ in found)} | {load:.1f} | {said} |"
    body = [rows[name] for name in sorted(rows) if name not in ("case", "---")]
    marks = [line.split("|")[2].split() for line in body]
    made = [mark for each in marks for mark in each if mark != "-"]
    right = sum(mark == "right" for mark in made)
    head = (
        f"# The fault suite\n\n{right} of {len(made)} runs of {len(body)} cases were right. `?`:"
        " wrong, and said to be unsure. `X`: wrong. `-`: skipped.\nThe load is the mean number of"
        " running processes of the last minute, on two cores.\n"
    )
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(
        "\n".join(
            [
                head,
                "| case | runs | load | what was wrong |",
                "| --- | --- | --- | --- |",
                *body,
                "",
            ]
        )
    )


def main() -> None:
    """Run the cases, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose subject and name contain this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--table",
        type=Path,
        help="a table in Markdown, in which the rows of these cases are replaced",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="for the summaries of all runs, which `ceilings.py` reads",
    )
    parser.add_argument(
        "--until", default="99:99", help="no case begins after that time of the day, in UTC"
    )
    options = parser.parse_args()
    os.chdir(TESTS.parent)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        generate(images, GenerateOptions(images=72, classes=2, workers=1))
        for subject, case in all_cases():
            label = f"{subject}: {case.name}"
            if options.only not in label or time.strftime("%H:%M", time.gmtime()) >= options.until:
                continue
            load = os.getloadavg()[0]
            found = []
            for run in range(options.runs):
                kept = (
                    options.keep / label.replace("/", "_") / f"{run + 1}.json"
                    if options.keep
                    else None
                )
                found.append(result(case, images, run == options.runs - 1 > 0, kept))
            rows[label] = found
            if options.table:
                add_row(options.table, label, found, max(load, os.getloadavg()[0]))
            if not options.json:
                print(f"{label:70}", *(f"{mark:5}" for mark, _ in found), flush=True)
                for number, (mark, wrong) in enumerate(found):
                    for line in wrong if mark != "right" else []:
                        print(f"    run {number + 1}: {line}", flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
