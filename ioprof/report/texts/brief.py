"""A run on one screen of a terminal: the answer, a bar for each cause, at most three changes, and
where to look.
"""

from collections.abc import Iterator, Sequence
from io import StringIO
from textwrap import wrap
from typing import Final

import polars as pl
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ioprof.analysis.ranks.stragglers import late_ranks
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.reads.read_patterns import AMPLIFIED
from ioprof.format.run_record import CauseShare, Cost, Finding, Summary
from ioprof.format.trace import Trace
from ioprof.report import views
from ioprof.report.palette import CAUSE_COLOURS, DARK
from ioprof.report.texts.caveats import limits, no_steps
from ioprof.report.texts.cpu_statements import short_of_cores
from ioprof.report.texts.epoch_statements import epochs_text
from ioprof.report.texts.gpu_time_statements import gpu_time_statements
from ioprof.report.texts.headline import headline, share_of_stragglers, waiting_for_cores
from ioprof.report.texts.import_statements import import_notes
from ioprof.report.texts.prediction import gain_text, proof_hint
from ioprof.report.texts.statements import (
    CauseRow,
    by_workers,
    cause_rows,
    failure_lines,
    identity,
    interval_statement,
    job_statements,
    setting,
    storage_statements,
    title,
)
from ioprof.report.texts.storage_statements import break_even_text, uring_notes
from ioprof.report.texts.text import Report, failure_style, statements_table
from ioprof.report.texts.units import ADVICE_LENGTH, clean, count, duration, percent, rate, sentence
from ioprof.report.texts.whole_job import attempts_text, window_text

WIDTH: Final = 80
_LINES: Final = 24
"""Of a terminal."""
_MOST_CHANGES: Final = 3
_LEAST_GAIN: Final = 1.05
"""Of a change of which there is a line."""
_MOST_FAILURES: Final = 3
_SLOW_READ_S: Final = 0.001
"""From which on the slowest read is worth a look."""
_LEAST_SHARE: Final = 0.005
"""Causes below this share of the steps' time are one row together, as are all but the largest
`_MOST_ROWS`."""
_MOST_ROWS: Final = 6
_FEWEST_ROWS: Final = 3
"""Causes that are shown although advice and limits then do not fit on one screen."""
_BAR: Final = 50  # columns that all of the time takes, where notes leave so much room
_LABELS: Final = 20  # columns of a cause's name and share, with the space between columns
_INDENT: Final = 2
_LONGEST_PATH: Final = 150  # two lines; of a longer one both ends are shown


def brief_text(
    summary: Summary,
    steps: pl.DataFrame,
    price: float | None = None,
    trace: Trace | None = None,
    mtbf_s: float | None = None,
) -> RenderableType:
    """What fits on one screen; `summary_text` has the rest. `price`: of a GPU-hour. `trace` has
    what the job was asked for besides. `mtbf_s`: between failures of the job.
    """
    blocks: list[RenderableType] = [
        Text(line, style=failure_style(summary)) for line in failure_lines(summary)[:_MOST_FAILURES]
    ]
    blocks.append(Text(headline(summary), style="bold"))
    if summary.cpu and summary.verdict.cpu_limits:
        blocks.append(Text(short_of_cores(summary.cpu), style="bold"))
    blocks += _setting(summary)
    for line in _asked(summary, trace):
        blocks.append(Text(f"{sentence(line)}."))
    if window := window_text(summary):
        blocks.append(Text(f"{sentence(window)}."))
    if summary.run.attempts:
        blocks.append(Text(f"{sentence(attempts_text(summary))}."))
    blocks += [Text(line) for line in import_notes(summary)]
    blocks += [Text(line) for line in uring_notes(summary)]
    if not summary.steps.count:
        blocks += _without_steps(summary)
    interval = [interval_statement(summary, mtbf_s)] if mtbf_s else []
    costs = statements_table((*gpu_time_statements(summary, price), *interval))
    ends = [*_block(costs), *_block(_looks(summary, steps), "Where to look")]
    left = _LINES - sum(map(_num_lines, (*blocks, *ends)))
    first = _changes(summary.verdict.findings[:1])
    bars = _bars(summary, left - _num_lines(first) - 1)
    if bars.row_count:
        blocks += [Text(""), bars]
        left -= 1 + bars.row_count
    return Report([*blocks, *_changes_that_fit(summary.verdict.findings, left), *ends], WIDTH)


def _asked(summary: Summary, trace: Trace | None) -> Iterator[str]:
    """The answers that options of the run asked for."""
    if summary.prediction:
        yield epochs_text(summary.prediction)
    if trace is None:
        return
    if (epochs := trace.run.config.predict_epochs) and not summary.prediction:
        yield (
            f"the time of {epochs} epochs is not predicted; why: ioprof extrapolate RUN --epochs"
            f" {epochs}"
        )
    if text := break_even_text(trace):
        yield f"staging breaks even: {text}"
    evaluations = trace.run.learning.evaluations if trace.run.learning else ()
    known = [each for each in evaluations if each.accuracy is not None]
    if known:
        best = max(known, key=lambda each: each.accuracy or 0.0)
        yield (
            f"accuracy {percent(known[-1].accuracy)} after {duration(known[-1].seconds)} (step"
            f" {count(known[-1].step)}), the best {percent(best.accuracy)} after"
            f" {duration(best.seconds)}"
        )


def answers(summaries: Sequence[Summary]) -> list[str]:
    """One line for each run: its name and the answer."""
    width = max(len(title(summary)) for summary in summaries)
    return [f"{title(summary):<{width}}  {headline(summary)}" for summary in summaries]


def _setting(summary: Summary) -> list[Text]:
    found = summary.throughput.steady_samples_per_s
    speed = f"{rate(found)} samples/s" if found is not None else ""
    line = "; ".join(text for text in (speed, setting(summary)) if text)
    return [Text(text, style="dim") for text in (identity(summary), line) if text]


def _without_steps(summary: Summary) -> list[RenderableType]:
    """What to do about a job in which no step was seen, and what it read all the same."""
    blocks: list[RenderableType] = []
    if remedy := no_steps(summary):
        blocks += [Text(f"{sentence(text)}.") for text in (remedy.seen, remedy.cause)]
        blocks.append(Text(f"{sentence(remedy.remedy)}.", style="bold"))
    return [
        *blocks,
        *_block(statements_table((*job_statements(summary), *storage_statements(summary)))),
    ]


def _block(table: Table, heading: str = "") -> list[RenderableType]:
    """A table below an empty line and its heading, if it has rows."""
    if not table.row_count:
        return []
    return [Text(""), *([Text(heading, style="bold")] if heading else []), table]


def _num_lines(block: RenderableType) -> int:
    """How many lines a block takes on the screen."""
    console = Console(width=WIDTH, file=StringIO())
    return len(console.render_lines(block, pad=False))


def _bars(summary: Summary, lines: int) -> Table:
    """A bar for each cause, of so many lines if the largest causes have room there."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    entries = [
        (entry, row)
        for entry, row in zip(summary.steps.causes, cause_rows(summary.steps.causes), strict=True)
        if entry.share
    ]
    bound, waited = (
        summary.verdict.bound_by,
        sum(entry.share or 0.0 for entry, _ in entries if entry.cause in LEAVES),
    )
    most = max((entry.share or 0.0 for entry, _ in entries if entry.cause in LEAVES), default=0.0)
    least = max(
        (entry.share or 0.0 for entry, _ in entries if entry.cause not in ("compute", "straggler")),
        default=0.0,
    )
    entries.sort(key=lambda each: _place(each[0], max(waited, least), bound, least))
    largest = sorted(entries, key=lambda each: (each[1].cause != bound, -(each[0].share or 0.0)))[
        :_MOST_ROWS
    ]
    shown = [
        each
        for each in entries
        if each in largest and ((each[0].share or 0.0) >= _LEAST_SHARE or each[1].cause == bound)
    ][: max(_FEWEST_ROWS, lines - 1)]
    noted = [_notes(entry, row, summary, most) for entry, row in shown]
    room = WIDTH - _LABELS - max(map(len, noted), default=0)
    scale = (
        min(_BAR, room / max((entry.share or 0.0 for entry, _ in shown), default=1.0))
        if shown
        else _BAR
    )
    for (entry, row), notes in zip(shown, noted, strict=True):
        bar = Text(
            _bar((entry.share or 0) * scale),
            style=DARK.get(CAUSE_COLOURS[row.cause], CAUSE_COLOURS[row.cause]),
        )
        bold = "bold" if row.cause == bound else ""
        table.add_row(
            Text(row.cause, style=bold),
            Text(f"{row.share}%", style=bold),
            bar,
            Text(notes, style="dim"),
        )
    folded = [each[1] for each in entries if each not in shown]
    if folded:
        share = sum(round(10 * float(row.share)) for row in folded) / 10
        table.add_row(
            Text(f"{len(folded)} other{'s' if len(folded) > 1 else ''}", style="dim"),
            Text(f"{share:.1f}%", style="dim"),
        )
    return table


def _notes(entry: CauseShare, row: CauseRow, summary: Summary, most: float) -> str:
    """What is said beside a bar; `most` is the greatest share of a cause of waiting for batches."""
    bound, notes = summary.verdict.bound_by, [] if row.basis == "measured" else [row.basis]
    if bound is not None and row.cause == bound and entry.seconds:
        behind = share_of_stragglers(summary, (bound,))
        if behind >= _LEAST_SHARE:
            notes.append(f"and {behind:.1%} of stragglers")
    if row.cause == bound and (entry.share or 0.0) < most and (of_workers := by_workers(row)):
        notes.append(of_workers)
    if row.cause == "compute" and (waited := waiting_for_cores(summary)):
        notes.append(f"without a core {waited:.1%} of its runnable time")
    late = late_ranks(summary.steps.straggler_wait_s) if row.cause == "straggler" else []
    if late:
        by = f"rank {late[0].rank}: {late[0].by.replace('_', ' ')}"
        code = entry.details[0].code if entry.details else None
        notes.append(code.label(by) if code else by)
    return "; ".join(notes)


def _place(
    entry: CauseShare, waited: float, bound: str | None, least: float
) -> tuple[float, bool, float]:
    """By what the bars are sorted: the largest first. Waits for batches are one, as in the verdict,
    and begin with its cause.

    The bound has the place of the largest cause after compute and straggler, at `least`: a part of
    straggler may count as it.
    """
    share = entry.share or 0.0
    if bound in LEAVES and entry.cause in LEAVES:
        return -waited, entry.cause != bound, -share
    is_bound = entry.cause == bound and bound != "compute"
    return -max(share, least) if is_bound else -share, not is_bound, -share


def _bar(columns: float) -> str:
    """A bar so many columns long, to an eighth of a column."""
    eighths = max(1, round(8 * columns))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _changes_that_fit(advice: tuple[Finding, ...], lines: int) -> list[RenderableType]:
    """The first of them, at most `_MOST_CHANGES`, as many as so many lines have room for; one
    always, and the next if that one is to buy something, or has no gain that is known. Of others
    that bring something there are two lines at most.
    """
    is_open = advice and (advice[0].costs is Cost.HARDWARE or advice[0].gain is None)
    least = 2 if is_open else 1
    for number in range(min(_MOST_CHANGES, len(advice)), 0, -1):
        block: list[RenderableType] = _block(_changes(advice[:number]), "What to change")
        if hint := proof_hint(advice[:number]):
            block.append(Padding(Text(hint, style="dim"), (0, 0, 0, _INDENT)))
        if number <= least or sum(map(_num_lines, block)) <= lines:
            return [*block, *_in_short(advice[:_MOST_CHANGES], number)]
    return []


def _in_short(advice: tuple[Finding, ...], first: int) -> Iterator[RenderableType]:
    """What each brings and how what to do begins, of those from that place on which bring
    something.
    """
    for number, entry in enumerate(advice[first:], first + 1):
        if (entry.gain or 0.0) >= _LEAST_GAIN:
            text = f"{entry.gain:.2f} ×: {clean(entry.action, ADVICE_LENGTH)}"
            lines = wrap(
                text,
                WIDTH - _INDENT - len("1. "),
                max_lines=2,
                placeholder=" …",
                break_on_hyphens=False,
            )
            table = Table.grid(padding=(0, 1))
            table.add_row(Text(f"  {number}."), Text("\n".join(lines)))
            yield table


def _changes(advice: tuple[Finding, ...]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for number, entry in enumerate(advice, 1):
        table.add_row(Text(f"  {number}."), Text(clean(entry.action, ADVICE_LENGTH)))
        if text := gain_text(entry):
            table.add_row("", Text(text, style="dim"))
    return table


def _looks(summary: Summary, steps: pl.DataFrame) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in _places(summary, steps):
        table.add_row(Text(" -"), Text(line))
    return table


def _places(summary: Summary, steps: pl.DataFrame) -> Iterator[str]:
    """The longest step, the slowest read, and what limits the answer."""
    if len(steps):
        row = views.longest_steps(steps, 1).row(0, named=True)
        median = (
            f", median {duration(summary.steps.p50_s)}" if summary.steps.p50_s is not None else ""
        )
        where = (
            f"step {row['step']} of rank {row['rank']} at {row['start_ns'] / 1e9:,.1f} s took"
            f" {duration(row['wall_ns'] / 1e9)}"
        )
        yield f"{where}{median} ({views.cause_text(row)})"
    read = summary.storage.slowest[0] if summary.storage.slowest else None
    if read and read.path and read.seconds >= _SLOW_READ_S:
        yield f"slowest read {duration(read.seconds)}: {clean(read.path, _LONGEST_PATH)}"
    if reads := summary.findings.reads:
        yield from (
            f"reading: {pattern.seen}" for pattern in reads.patterns if pattern.code == AMPLIFIED
        )
    if names := limits(summary):
        yield f"limits: {', '.join(names)} (see --full)"
