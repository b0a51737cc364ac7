"""The summary and the comparison of runs for a terminal, at most 100 columns wide."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ioprof.format.run_record import Finding, Summary
from ioprof.format.schema import CAUSES
from ioprof.report.texts.caveats import Caveat, caveats, others_on_the_machine
from ioprof.report.texts.code_lines import code_lines
from ioprof.report.texts.headline import headline
from ioprof.report.texts.prediction import gain_text, proof_hint, replay_note
from ioprof.report.texts.statements import (
    INTERRUPTED,
    Statement,
    cause_rows,
    dataset,
    device,
    failure_lines,
    identity,
    is_emulated,
    setting,
    statements,
    title,
    total_row,
    unseen,
    with_basis,
)
from ioprof.report.texts.units import (
    ADVICE_LENGTH,
    MISSING,
    clean,
    duration,
    percent,
    rate,
    sentence,
    shares,
)

WIDTH: Final = 100
"""Columns that a report may use."""
RUNS_PER_TABLE: Final = 4
"""Runs in one table of a comparison; more runs go into further tables, each with the first run
again."""


def summary_text(
    summary: Summary, more: Sequence[Statement] = (), mtbf_s: float | None = None
) -> RenderableType:
    """The whole report of one run: failures, verdict, table of causes, statements and `more`, what
    was not seen, caveats. `mtbf_s`: between failures of the job.
    """
    blocks: list[RenderableType] = [*_failures(summary), _heading(summary)]
    if summary.steps.count:
        blocks += [Text(""), _causes_table(summary), *_reasons(summary)]
    blocks += _replay_note(summary)
    blocks += _list("Your code (derived, by samples of Python's stacks):", code_lines(summary))
    blocks += [Text(""), statements_table((*statements(summary, mtbf_s), *more))]
    blocks += _advice(summary.verdict.findings)
    blocks += _list("Not seen:", unseen(summary))
    blocks += _caveats(caveats(summary))
    return Report(blocks)


def comparison_text(summaries: Sequence[Summary]) -> RenderableType:
    """The runs as columns, in the order given: setting, rates against the first run, and the share
    of each cause.
    """
    first, others = summaries[0], summaries[1:]
    groups = [
        others[start : start + RUNS_PER_TABLE - 1]
        for start in range(0, len(others), RUNS_PER_TABLE - 1)
    ] or [others]
    blocks: list[RenderableType] = []
    for group in groups:
        blocks += [_comparison_table([first, *group]), Text("")]
    blocks.append(
        Text(
            "Shares are of the time of all steps, in %; – was not measured. Main wait: the largest"
            " cause after compute; waits for batches are named for the longest stage of making"
            " them.",
            style="dim",
        )
    )
    for summary in summaries:
        if ratio := others_on_the_machine(summary):
            used = (
                f"{clean(summary.run.name)}: other programs took {percent(ratio)} of the host's CPU"
                " time"
            )
            blocks.append(Text(f"{used}; do not compare its rates.", style="bold"))
    if any(is_emulated(summary) for summary in summaries):
        known = (
            "emulated: no real accelerator; step times come from published rates, or rates derived"
            " from them."
        )
        blocks.append(Text(known, style="dim"))
    return Report(blocks)


class Report:
    """Blocks one below the other, at most `width` columns wide and without blanks at the ends of
    lines.

    Where lines may be longer than the console is wide (`soft_wrap`, as in the command line's
    console) and there is no terminal, the width is `width` whatever the console thinks it is, so
    that a report in a file does not depend on who wrote it.
    """

    def __init__(self, blocks: Sequence[RenderableType], width: int = WIDTH) -> None:
        self._blocks, self._width = Group(*blocks), width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = (
            self._width
            if options.no_wrap and not console.is_terminal
            else min(options.max_width, self._width)
        )
        inner = options.update(width=width, no_wrap=None, overflow=None)
        for line in console.render_lines(self._blocks, inner, pad=False):
            yield from _without_end(line)
            yield Segment.line()


def _without_end(line: list[Segment]) -> list[Segment]:
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []


def _failures(summary: Summary) -> list[Text]:
    lines = failure_lines(summary)
    return [Text(line, style=failure_style(summary)) for line in lines] + (
        [Text("")] if lines else []
    )


def failure_style(summary: Summary) -> str:
    """Of the lines that say how a run ended that did not complete."""
    return "bold yellow" if summary.run.status == INTERRUPTED else "bold red"


def _heading(summary: Summary) -> RenderableType:
    why = Text(clean(summary.verdict.text, 600))
    answer = [] if summary.verdict.bound_by is None else [Text(headline(summary), style="bold")]
    about = (Text(identity(summary), style="dim"), Text(setting(summary), style="dim"))
    return Group(*answer, why, *about)


def _causes_table(summary: Summary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("cause")
    table.add_column("seconds", justify="right")
    table.add_column("share %", justify="right")
    has_work = any(entry.workers_share is not None for entry in summary.steps.causes)
    has_gains = any(entry.gain for entry in summary.steps.causes)
    if has_work:
        table.add_column("workers %", justify="right")
    if has_gains:
        table.add_column("gain %", justify="right")
    table.add_column("basis")
    table.add_column("largest part")
    for row in cause_rows(summary.steps.causes):
        bound = row.cause == summary.verdict.bound_by
        replayed = (*([row.workers] if has_work else ()), *([row.gain] if has_gains else ()))
        shown = (row.cause, row.seconds, row.share, *replayed, row.basis, row.detail or "")
        table.add_row(*(Text(cell) for cell in shown), style="bold" if bound else None)
    total = total_row(summary.steps.causes)
    table.add_section()
    cells = (
        total.cause,
        total.seconds,
        total.share,
        *("",) * (has_work + has_gains),
        "",
        "all steps of all ranks",
    )
    table.add_row(*(Text(cell) for cell in cells))
    return table


def _replay_note(summary: Summary) -> list[RenderableType]:
    text = replay_note(summary)
    missing = summary.replay is not None and summary.replay.reason
    return [_hanging(text, bullet=f"{MISSING} " if missing else "· ")] if text else []


def _reasons(summary: Summary) -> list[RenderableType]:
    rows = [row for row in cause_rows(summary.steps.causes) if row.reason]
    found: dict[tuple[str, bool], list[str]] = {}
    for row in rows:
        found.setdefault((row.reason or "", row.seconds == MISSING), []).append(row.cause)
    return [
        _hanging(
            f"{', '.join(causes)}: {clean(reason, 300)}", bullet=f"{MISSING} " if missing else "· "
        )
        for (reason, missing), causes in found.items()
    ]


def statements_table(shown: Iterable[Statement]) -> Table:
    """The lines, their labels in a column of its own."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for statement in shown:
        table.add_row(Text(statement.label, style="dim"), Text(with_basis(statement)))
    return table


def _list(heading: str, lines: Iterable[str]) -> list[RenderableType]:
    shown = [_hanging(line) for line in lines]
    return [Text(""), Text(heading, style="bold"), *shown] if shown else []


def _caveats(found: Sequence[Caveat]) -> list[RenderableType]:
    return _list(
        "Before you rely on this:",
        (
            f"{entry.name}: {entry.seen}. {sentence(entry.cause)}. {sentence(entry.remedy)}."
            for entry in found
        ),
    )


def _hanging(text: str, bullet: str = "- ") -> RenderableType:
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(Text(bullet), Text(text))
    return Padding(table, (0, 0, 0, 1))


def _advice(advice: Sequence[Finding]) -> list[RenderableType]:
    """Numbered, as `ioprof prove RUN --advice 1` names them; below each line what it would
    bring.
    """
    if not advice:
        return []
    found: list[RenderableType] = [Text(""), Text("What to change:", style="bold")]
    for number, each in enumerate(advice, 1):
        gain = gain_text(each)
        found.append(
            _hanging(
                clean(each.action, ADVICE_LENGTH) + (f"\n{gain}" if gain else ""),
                bullet=f"{number}. ",
            )
        )
    hint = proof_hint(advice)
    return [*found, Text(hint)] if hint else found


def _comparison_table(summaries: Sequence[Summary]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for summary in summaries:
        table.add_column(
            Text(clean(title(summary), 36)), justify="right", max_width=19, overflow="fold"
        )
    for label, cells in _comparison_rows(summaries):
        table.add_row(Text(label), *(Text(cell) for cell in cells))
    table.add_section()
    columns = [{entry.cause: entry for entry in summary.steps.causes} for summary in summaries]
    printed = [
        dict(zip(found, shares([entry.share for entry in found.values()]), strict=True))
        for found in columns
    ]
    for cause in CAUSES:
        table.add_row(
            Text(cause),
            *(
                Text(_marked(column.get(cause, MISSING), entries[cause].basis))
                if cause in entries
                else Text(MISSING)
                for column, entries in zip(printed, columns, strict=True)
            ),
        )
    table.add_section()
    table.add_row(
        Text("total"), *(Text(total_row(summary.steps.causes).share) for summary in summaries)
    )
    table.add_row(
        Text("main wait"),
        *(Text(summary.verdict.bound_by or MISSING) for summary in summaries),
        style="bold",
    )
    return table


def _comparison_rows(summaries: Sequence[Summary]) -> Iterable[tuple[str, list[str]]]:
    base = summaries[0].throughput.steady_samples_per_s
    yield "dataset", [clean(dataset(summary.run.dataset) or MISSING, 38) for summary in summaries]
    yield "loader", [clean(summary.run.loader or MISSING, 19) for summary in summaries]
    yield "device", [clean(device(summary) or MISSING, 38) for summary in summaries]
    yield (
        "ranks × workers",
        [f"{_number(summary.run.ranks)} × {_number(summary.run.workers)}" for summary in summaries],
    )
    yield "status", [clean(summary.run.status or "unknown", 19) for summary in summaries]
    yield (
        "samples/s",
        [
            _marked(rate(found.steady_samples_per_s), found.basis)
            for found in (summary.throughput for summary in summaries)
        ],
    )
    yield (
        "against the first",
        [_against(summary.throughput.steady_samples_per_s, base) for summary in summaries],
    )
    yield (
        "step p50",
        [
            _marked(duration(summary.steps.p50_s), "emulated" if is_emulated(summary) else None)
            for summary in summaries
        ],
    )


def _marked(number: str, basis: str | None) -> str:
    return f"emulated {number}" if basis == "emulated" and number != MISSING else number


def _number(value: int | None) -> str:
    return MISSING if value is None else clean(value, 8)


def _against(value: float | None, base: float | None) -> str:
    return MISSING if value is None or not base else f"{value / base:.2f} ×"
