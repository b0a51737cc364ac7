"""What an assistant learns from `ioprof report --markdown` alone: cause, subject and change.

    python benchmarks/assistant.py [--repeats 3] [--table benchmarks/results/assistant.md]

A scripted reader gets the Markdown of each stored recording of the fault suite and nothing else. It
answers by fixed rules, as literally as possible, so that a wrong answer is the fault of the text:

cause     what stands after "Cause:", up to the first comma, semicolon or bracket
subject   the headline, "Cause:", the paragraph below, and the first rows of the table
change    the list below "What to change"

It is asked for the cause in a second way: by the headline and the table, without the line "Cause:".
What the two ways read differently is in the table of results. What is right stands in
`tests/faults/`; a case that states no cause, subject or change is not counted there.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import stored
from faults import all_cases
from faults.case import Case
from result_files import write_result

from ioprof.model.summary import with_gains
from ioprof.report.texts.markdown import markdown, most_tokens

FIRST_ROWS = 3
OTHERS = ("compute", "exchange", "straggler", "h2d", "validation", "checkpoint", "gc", "host")
"""Causes that are no part of making batches."""


@dataclass(frozen=True)
class Answers:
    """What the reader found."""

    cause: str
    other_cause: str
    """By the other phrasing of the question."""
    subject: str
    changes: tuple[str, ...]


def read(text: str) -> Answers:
    """The reader."""
    plain = re.sub(r"\\(.)", r"\1", text.replace("\u200b", ""))
    lines = plain.splitlines()
    stated = next(line for line in lines if line.startswith("Cause: "))
    head = plain.partition("### Evidence")[0]
    rows = [line for line in lines if re.match(r"\| [a-z]", line) and "% |" in line]
    _, _, changes = plain.partition("### What to change")
    return Answers(
        re.split(r"[,;]| \(| in the first epoch", stated.removeprefix("Cause: "))[0],
        _by_table(rows),
        " ".join([head, *rows[:FIRST_ROWS]]),
        tuple(re.findall(r"^\d+\. (.*)", changes, flags=re.MULTILINE)),
    )


def _by_table(rows: list[str]) -> str:
    """What took most of the steps' time: making batches as a whole, named by its largest part, or
    one of the other causes; compute only where nothing else took a tenth.
    """
    shares = {}
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if "others" not in cells[0]:
            shares[cells[0].replace(" ", "_")] = float(cells[1].rstrip("%"))
    making = {cause: share for cause, share in shares.items() if cause not in OTHERS}
    groups = {cause: share for cause, share in shares.items() if cause in OTHERS}
    idle = sum(shares.values()) - groups.get("compute", 0.0)
    if idle < 10 or not shares:
        return "compute"
    groups.pop("compute", None)
    if making:
        groups[max(making, key=lambda cause: making[cause])] = sum(making.values())
    return max(groups, key=lambda cause: groups[cause])


def marks(case: Case, found: Answers) -> dict[str, bool]:
    """Which of the questions that the case answers are answered right."""
    right: dict[str, bool] = {}
    said = found.subject.lower()
    if case.bound_by:
        in_epoch = bool(case.says) and "first epoch" in case.says
        right["cause"] = found.cause.replace(" ", "_") == case.bound_by or (
            in_epoch and case.bound_by in said
        )
    if case.says:
        right["subject"] = all(word.lower() in said for word in case.says)
    if case.advises:
        wanted = case.advises.lower()
        right["change"] = any(wanted in change.lower() for change in found.changes)
        right["change is first"] = bool(found.changes) and wanted in found.changes[0].lower()
    return right


def texts() -> Iterator[tuple[str, Case, str]]:
    """Each stored case with its Markdown."""
    cases = [(subject, case) for subject, case in all_cases() if not (case.like or case.unsettled)]
    for subject, case in sorted(cases, key=lambda each: each[0]):  # a subject is one archive
        with tempfile.TemporaryDirectory() as folder:
            run, _ = stored.replayed(subject, stored.slug(case.name), Path(folder) / "spool")
            run = with_gains(run)
            yield f"{subject}: {case.name}", case, markdown(run.summary, run.steps)


def main() -> None:
    """Read all cases, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--table", type=Path, help="a table in Markdown to write")
    options = parser.parse_args()
    passes = [list(texts()) for _ in range(options.repeats)]
    same = all(each == passes[0] for each in passes)
    repeats = f"replayed {options.repeats} times, {'always the same' if same else 'DIFFERENT'}"
    if options.repeats == 1:
        repeats = "replayed once"
    counted: dict[str, list[bool]] = {}
    wrong, differing, sizes = [], [], []
    for label, case, text in passes[0]:
        found = read(text)
        sizes.append(most_tokens(text))
        for question, is_right in marks(case, found).items():
            counted.setdefault(question, []).append(is_right)
            if not is_right and question != "change is first":
                wrong.append(f"- {label}: {question}, read as {found.cause}")
        if case.bound_by and found.cause.replace(" ", "_") != found.other_cause:
            differing.append(f"- {label}: {found.cause}, by the table {found.other_cause}")
    lines = [
        "# What the report in Markdown answers",
        "",
        f"`python benchmarks/assistant.py --repeats {options.repeats}`: {len(passes[0])} stored"
        f" cases of the fault suite, {repeats}. Tokens of a text: at most {max(sizes):,},"
        f" by a count that no tokenizer exceeds.",
        "",
        "| question | cases | right |",
        "|---|---:|---:|",
        *(
            f"| {question} | {len(found)} | {sum(found)} ({sum(found) / len(found):.1%}) |"
            for question, found in counted.items()
        ),
        "",
        "Wrong:",
        "",
        *(wrong or ["- none"]),
        "",
        "Read differently where the question is asked by the table alone. Waiting for batches is"
        " named for the stage that takes most of the workers' time, which need not be the largest"
        " part of the waiting; the line `Cause:` says which it is:",
        "",
        *(differing or ["- none"]),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.table:
        write_result(options.table, text)


if __name__ == "__main__":
    main()
