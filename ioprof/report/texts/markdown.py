"""The report of a run in Markdown, for issues, pull requests and assistants: answer, evidence,
advice, caveats in 60 lines at most.

Names come from the job and may hold anything: what Markdown or HTML would interpret in them is
escaped, and a name mentions nobody.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from ioprof.format.run_record import Summary
from ioprof.report import views
from ioprof.report.texts.caveats import caveats
from ioprof.report.texts.headline import headline
from ioprof.report.texts.prediction import gain_text, proof_hint, replay_note
from ioprof.report.texts.statements import (
    cause_rows,
    failures,
    setting,
    statements,
    title,
    unseen,
    with_basis,
)
from ioprof.report.texts.units import MISSING, clean, duration, percent
from ioprof.report.texts.whole_job import window_text

_MOST_FAILURES: Final = 3
_MOST_CAUSES: Final = 8
_LEAST_SHARE: Final = 0.005
_MOST_FACTS: Final = 9
_MOST_CHANGES: Final = 5
_MOST_CAVEATS: Final = 6
_MOST_UNSEEN: Final = 4
_MOST_CHARS: Final = 600
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#+!|~$&])")


def markdown(summary: Summary, steps: pl.DataFrame) -> str:
    """The report, ended by a newline."""
    blocks = [
        [f"## {escape(headline(summary))}"],
        [f"> **failed:** {escape(line)}" for line in failures(summary)[:_MOST_FAILURES]],
        [escape(summary.verdict.text)],
        [f"{escape(title(summary))}: {escape(setting(summary))}"],
        [f"These figures are of {escape(window_text(summary))}."] if window_text(summary) else [],
        ["### Evidence"],
        list(_causes(summary)),
        [f"- {escape(line)}" for line in _facts(summary, steps)],
        list(_advice(summary)),
        list(_limits(summary)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def escape(text: str) -> str:
    """A text on one line whose characters mean only themselves, in CommonMark and on GitHub."""
    plain = _SPECIAL.sub(r"\\\1", clean(text, _MOST_CHARS).strip() or MISSING)
    plain = re.sub(
        r"^([-=]|\d+(?=[.)](?:\s|$)))",
        lambda found: f"\\{found[1]}" if found[1] in "-=" else f"{found[1]}\\",
        plain,
    )
    # A zero-width space keeps a name from notifying a user, and from becoming a link to an issue or
    # a page.
    return (
        re.sub(r"@(?=\w)", "@\u200b", plain)
        .replace("://", ":\u200b//")
        .replace("www.", "www\u200b.")
    )


def _causes(summary: Summary) -> Iterator[str]:
    rows = list(zip(summary.steps.causes, cause_rows(summary.steps.causes), strict=True))
    known = sorted(
        ((entry, row) for entry, row in rows if entry.share), key=lambda each: -(each[0].share or 0)
    )
    if not known:
        return
    shown = [(entry, row) for entry, row in known if (entry.share or 0) >= _LEAST_SHARE][
        :_MOST_CAUSES
    ]
    yield "| cause | share of the steps' time | basis | largest part |"
    yield "|---|---:|---|---|"
    for _, row in shown:
        yield (
            f"| {escape(row.cause)} | {row.share}% | {escape(row.basis)} |"
            f" {escape(row.detail or '')} |"
        )
    if rest := known[len(shown) :]:
        yield f"| {len(rest)} others | {percent(sum(entry.share or 0 for entry, _ in rest))} | | |"


def _facts(summary: Summary, steps: pl.DataFrame) -> Iterator[str]:
    for statement in tuple(statements(summary))[:_MOST_FACTS]:
        yield f"{statement.label}: {with_basis(statement)}"
    if len(steps):
        row = views.longest_steps(steps, 1).row(0, named=True)
        yield (
            f"longest step: {row['step']} of rank {row['rank']}, {duration(row['wall_ns'] / 1e9)},"
            f" {views.cause_text(row)}"
        )
    if summary.storage.slowest and (read := summary.storage.slowest[0]).path:
        yield (
            f"slowest read: {duration(read.seconds)} from {read.source or 'an unknown source'},"
            f" {clean(read.path, 200)}"
        )


def _advice(summary: Summary) -> Iterator[str]:
    if not summary.verdict.findings:
        return
    yield "### What to change"
    yield ""
    for number, entry in enumerate(summary.verdict.findings[:_MOST_CHANGES], 1):
        gain = gain_text(entry)
        yield f"{number}. {escape(entry.action)}" + (f" ({escape(gain)})" if gain else "")
    for note in (proof_hint(summary.verdict.findings), replay_note(summary)):
        if note:
            yield ""
            yield escape(note)


def _limits(summary: Summary) -> Iterator[str]:
    found = [f"{entry.name}: {entry.seen}. To do: {entry.remedy}" for entry in caveats(summary)]
    missing = list(unseen(summary))
    if not found and not missing:
        return
    yield "### Before you rely on this"
    yield ""
    yield from _some(found, _MOST_CAVEATS, "")
    yield from _some(missing, _MOST_UNSEEN, "not seen: ")


def _some(lines: Sequence[str], most: int, before: str) -> Iterator[str]:
    """A list, cut after `most` entries."""
    yield from (f"- {before}{escape(line)}" for line in lines[:most])
    if len(lines) > most:
        yield f"- {before}{len(lines) - most} more"
