"""What `ioprof watch` prints: a screen that changes, or a line for each look where there is no
terminal.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from ioprof.format.schema import CAUSES
from ioprof.report.palette import CAUSE_COLOURS
from ioprof.report.texts.units import MISSING, amount, clean, count, duration, percent, rate
from ioprof.watching.live import Live, WorkerSums
from ioprof.watching.watched_job import Totals, WatchedJob

_BAR: Final = 30
_MOST_CAUSES: Final = 7
_MOST_WORKERS: Final = 8
_MOST_READS: Final = 5
_LEAST_SHARE: Final = 0.005


def follow(job: WatchedJob, every_s: float, console: Console) -> None:
    """Show a job until it ends: a screen that changes, or a line for each look where the console is
    no terminal.
    """
    if not console.is_terminal:
        _look_until_end(
            job, every_s, lambda: console.print(line(job.live, job.totals()), markup=False)
        )
        return
    with Screen(console=console, auto_refresh=False, transient=False) as shown:
        _look_until_end(
            job,
            every_s,
            lambda: shown.update(
                screen(job.live, job.totals(), job.name, console.height), refresh=True
            ),
        )


def _look_until_end(job: WatchedJob, every_s: float, show: Callable[[], None]) -> None:
    while True:
        # before the look, so that the last look finds all that was recorded
        is_running = job.is_running
        job.look()
        show()
        if not is_running:
            return
        time.sleep(every_s)


def line(live: Live, per_second: Totals | None) -> str:
    """One look as one line."""
    so_far = Totals.of(live)
    shown = per_second or so_far
    ending = "/s" if per_second else ""
    parts = [
        f"{count(so_far.steps)} steps",
        f"{rate(shown.steps)} steps{ending}",
        *([f"{rate(shown.samples)} samples{ending}"] if so_far.samples else []),
        f"storage {amount(shown.storage_bytes)}{ending}",
        f"page cache {amount(shown.cached_bytes)}{ending}",
        f"waiting {percent(shown.waited)}",
    ]
    top = next(_causes(live), None)
    return ", ".join([*parts, f"most: {top[0]} {percent(top[1])}"] if top else parts)


def screen(live: Live, per_second: Totals | None, name: str, height: int = 0) -> RenderableType:
    """All that is known. `height` is that of the terminal: lists are cut so that it holds them."""
    blocks: list[RenderableType] = [
        Text(f"{clean(name, 50)}: {line(live, per_second)}", style="bold")
    ]
    if live.skipped:
        share = live.skipped / (live.skipped + live.spans)
        blocks.append(
            Text(
                f"{percent(share)} of the records were written faster than they are read here",
                style="dim",
            )
        )
    if not live.ranks:
        return Group(*blocks, Text("no rank has recorded anything yet", style="dim"))
    room = max(3, height - 12) if height else _MOST_WORKERS
    blocks += [Text(""), _cause_table(live)]
    if live.workers:
        blocks += [Text(""), _worker_table(live, min(_MOST_WORKERS, room))]
    if live.slowest:
        blocks += [Text(""), _read_table(live, min(_MOST_READS, room))]
    return Group(*blocks)


def _causes(live: Live) -> Iterator[tuple[str, float]]:
    """Shares of the steps' time, largest first."""
    whole = sum(sums.step_ns for sums in live.ranks.values())
    shares = (
        {
            cause: sum(sums.cause_ns[cause] for sums in live.ranks.values()) / whole
            for cause in CAUSES
        }
        if whole
        else {}
    )
    yield from sorted(
        ((cause, share) for cause, share in shares.items() if share), key=lambda each: -each[1]
    )


def _cause_table(live: Live) -> RenderableType:
    table = _table("so far (estimate)", "share", "")
    shown = [each for each in _causes(live) if each[1] >= _LEAST_SHARE][:_MOST_CAUSES]
    for cause, share in shown:
        bar = Text("█" * max(1, round(share * _BAR)), style=CAUSE_COLOURS.get(cause, ""))
        table.add_row(Text(cause), Text(percent(share)), bar)
    return table if shown else Text("no step has ended yet", style="dim")


def _worker_table(live: Live, most: int) -> Table:
    table = _table("worker", "busy", "batches", "mostly")
    workers = sorted(
        live.workers.values(),
        key=lambda sums: (sums.who.rank or 0, sums.who.worker or 0, sums.who.pid),
    )
    for sums in workers[:most]:
        name = (
            f"rank {sums.who.rank}"
            if sums.who.worker is None
            else f"rank {sums.who.rank} worker {sums.who.worker}"
        )
        stage, share = _mostly(sums)
        table.add_row(
            Text(name),
            Text(percent(_busy(sums), 0)),
            Text(count(sums.batches)),
            Text(f"{stage} {percent(share, 0)}"),
        )
    if len(workers) > most:
        table.add_row(Text(f"and {len(workers) - most} more", style="dim"), "", "", "")
    return table


def _busy(sums: WorkerSums) -> float | None:
    """Share of the time from its first fetch to its last in which it fetched."""
    whole = sums.last_ns - sums.first_ns
    return min(1.0, sums.fetch_ns / whole) if whole > 0 else None


def _mostly(sums: WorkerSums) -> tuple[str, float | None]:
    if not sums.fetch_ns:
        return MISSING, None
    stages = {**sums.stage_ns, "Python": sums.fetch_ns - sum(sums.stage_ns.values())}
    stage = max(stages, key=lambda each: stages[each])
    return stage, stages[stage] / sums.fetch_ns


def _read_table(live: Live, most: int) -> Table:
    table = _table("slowest reads", "took", "bytes", "from")
    for read in live.slowest[:most]:
        table.add_row(
            Text(clean(read.path, 44)),
            Text(duration(read.took_ns / 1e9)),
            Text(amount(max(0, read.bytes))),
            Text(clean(read.source)),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(
            name,
            justify="right" if name in ("share", "busy", "batches", "took", "bytes") else "left",
            no_wrap=True,
        )
    return table
