"""The report of a run in Markdown, for issues, pull requests and assistants: answer, evidence,
advice, caveats in at most 60 lines and 4,000 tokens.

Names come from the job and may hold anything: what Markdown or HTML would interpret in them is
escaped, and a name mentions nobody.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Final

import polars as pl

from ioprof.format.run_record import CpuLimit, Summary
from ioprof.report import views
from ioprof.report.texts.caveats import caveats
from ioprof.report.texts.headline import headline
from ioprof.report.texts.prediction import gain_text, proof_hint, replay_note
from ioprof.report.texts.statements import (
    by_workers,
    cause_rows,
    failures,
    setting,
    statements,
    title,
    unseen,
    with_basis,
)
from ioprof.report.texts.units import MISSING, clean, duration
from ioprof.report.texts.whole_job import window_text

_MOST_FAILURES: Final = 3
_MOST_CAUSES: Final = 8
_LEAST_SHARE: Final = 0.005
_MOST_FACTS: Final = 9
_MOST_CHANGES: Final = 5
_MOST_CAVEATS: Final = 6
_MOST_UNSEEN: Final = 4
_MOST_CHARS: Final = (600, 300, 150, 70, 30, 12)
"""Of a line. The next is for a text that would have too many tokens: its names are long."""
_MOST_TOKENS: Final = 4000
"""An assistant keeps all of it beside its other work."""
_LIMITS: Final = {
    CpuLimit.QUOTA: "a quota of its control group",
    CpuLimit.WORKER_AFFINITY: "workers may use fewer cores than there are",
    CpuLimit.RANK_AFFINITY: "ranks may use fewer cores than there are",
    CpuLimit.THREADS: "more threads than cores",
    CpuLimit.CORES: "all cores were busy",
    CpuLimit.PROCESSES: "other processes of the job on the cores of the ranks",
}
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#+!|~$&])")


def markdown(summary: Summary, steps: pl.DataFrame) -> str:
    """The report, ended by a newline."""
    text = ""
    for most in _MOST_CHARS:
        text = _markdown(summary, steps, partial(escape, most=most))
        if most_tokens(text) <= _MOST_TOKENS:
            break
    return text


def most_tokens(text: str) -> int:
    """At most so many tokens has a text for a language model.

    Tokenizers of today (byte-pair encodings) take two letters or more of a word at a time, and have
    at most one token for a digit or a sign, and for each byte of any other character.
    """
    words = sum(-(-len(word) // 2) for word in re.findall(r"[A-Za-z]+", text))
    signs = sum(not (each.isascii() and each.isalpha()) and each != " " for each in text)
    rest = sum(len(each.encode(errors="replace")) - 1 for each in text if not each.isascii())
    return words + signs + rest


def _markdown(summary: Summary, steps: pl.DataFrame, write: Callable[[str], str]) -> str:
    blocks = [
        [f"## {write(headline(summary))}"],
        [f"> **failed:** {write(line)}" for line in failures(summary)[:_MOST_FAILURES]],
        [write(f"Cause: {_cause(summary)}")],
        [write(summary.verdict.text)],
        [write(f"{title(summary)}: {setting(summary)}")],
        [f"These figures are of {write(window_text(summary))}."] if window_text(summary) else [],
        ["### Evidence"],
        list(_causes(summary, write)),
        [f"- {write(line)}" for line in _facts(summary, steps)],
        list(_advice(summary, write)),
        list(_limits(summary, write)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _cause(summary: Summary) -> str:
    """What the job waited for most, in the words of the table, and what stands before it."""
    verdict = summary.verdict
    bound = "not known" if verdict.bound_by is None else verdict.bound_by.replace("_", " ")
    rows = {row.cause: row for row in cause_rows(summary.steps.causes)}
    if (row := rows.get(verdict.bound_by or "")) and (of_workers := by_workers(row)):
        bound += f" ({of_workers})"
    shares = {entry.cause: entry.share or 0.0 for entry in summary.steps.causes}
    if 0.0 < shares.get(verdict.bound_by or "", 0.0) < shares.get("compute", 0.0):
        bound += ", the largest after compute"
    first = f"{verdict.first_epoch} in the first epoch, then " if verdict.first_epoch else ""
    parts = [first + bound]
    parts += [f"before the steps: {verdict.phase}"] if verdict.phase else []
    if verdict.cpu_limits:
        limits = ", ".join(_LIMITS[each] for each in verdict.cpu_limits)
        parts.append(f"the reason may be a limit of CPU time: {limits}")
    return "; ".join([*parts, *(["unsure"] if verdict.doubts else [])])


def escape(text: str, most: int = _MOST_CHARS[0]) -> str:
    """A text on one line whose characters mean only themselves, in CommonMark and on GitHub."""
    plain = _SPECIAL.sub(r"\\\1", clean(text, most).strip() or MISSING)
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


def _causes(summary: Summary, write: Callable[[str], str]) -> Iterator[str]:
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
            f"| {write(row.cause)} | {row.share}% | {write(row.basis)} |"
            f" {write(row.detail or '')} |"
        )
    if rest := known[len(shown) :]:
        share = sum(Decimal(row.share) for _, row in rest)
        yield f"| {len(rest)} other{'s' if len(rest) > 1 else ''} | {share}% | | |"


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
            f"slowest read: {duration(read.seconds)} from {_source(read.source)},"
            f" {clean(read.path, 200)}"
        )


def _source(source: str | None) -> str:
    return (source or "unknown").replace("_", " ").replace("unknown", "an unknown source")


def _advice(summary: Summary, write: Callable[[str], str]) -> Iterator[str]:
    if not summary.verdict.findings:
        return
    yield "### What to change"
    yield ""
    for number, entry in enumerate(summary.verdict.findings[:_MOST_CHANGES], 1):
        gain = gain_text(entry)
        yield f"{number}. {write(entry.action)}" + (f" ({write(gain)})" if gain else "")
    for note in (proof_hint(summary.verdict.findings), replay_note(summary)):
        if note:
            yield ""
            yield write(note)


def _limits(summary: Summary, write: Callable[[str], str]) -> Iterator[str]:
    found = [f"{entry.name}: {entry.seen}. To do: {entry.remedy}" for entry in caveats(summary)]
    missing = list(unseen(summary))
    if not found and not missing:
        return
    yield "### Before you rely on this"
    yield ""
    yield from _some(found, _MOST_CAVEATS, "", write)
    yield from _some(missing, _MOST_UNSEEN, "not seen: ", write)


def _some(
    lines: Sequence[str], most: int, before: str, write: Callable[[str], str]
) -> Iterator[str]:
    """A list, cut after `most` entries."""
    yield from (f"- {before}{write(line)}" for line in lines[:most])
    if len(lines) > most:
        yield f"- {before}{len(lines) - most} more"
