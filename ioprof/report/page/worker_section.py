"""The sections on workers and ranks: what each spent its time on."""

from typing import Final

import polars as pl

from ioprof.format.run_record import Summary
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace
from ioprof.report import views
from ioprof.report.lanes import LEAVES, worker_numbers
from ioprof.report.page.markup import Html, element, join, table
from ioprof.report.page.sections import nothing, rank_table, swatch, term
from ioprof.report.palette import KIND_CAUSES
from ioprof.report.texts.units import count, duration, percent

MOST_WORKERS: Final = 64
_READS: Final = ("read", "fault", "open")


def worker_section(trace: Trace) -> Html:
    """Processes that made batches: the share of their time in each stage, and how much of it they
    were fetching.
    """
    sums = trace.sums.with_columns(pl.col("kind", "source").cast(pl.String)).filter(
        pl.col("kind").is_in([*LEAVES, "fetch"])
    )
    in_batch = sums.filter(pl.col("in_batch"))
    if not len(in_batch):
        return nothing("no work for a batch was recorded")
    cause = (
        pl.when(pl.col("kind").is_in(_READS))
        .then(
            pl.when(pl.col("source") == "page_cache")
            .then(pl.lit("page_cache"))
            .otherwise(pl.lit("storage"))
        )
        .otherwise(pl.col("kind").replace(KIND_CAUSES))
    )
    by = (
        in_batch.with_columns(cause=cause)
        .group_by("rank", "pid", "cause")
        .agg(pl.col("took_ns").sum(), pl.col("spans").sum())
    )
    extents = _extents(trace)
    numbers = worker_numbers(trace)
    makers = sorted(
        by.select("rank", "pid").unique().rows(),
        key=lambda key: (key[0] or 0, numbers.get(key[1] or -1, -1), key[1] or 0),
    )
    rows = [
        _row(
            by.filter(pl.col("rank").eq_missing(rank), pl.col("pid").eq_missing(pid)),
            rank,
            pid,
            numbers,
            extents,
        )
        for rank, pid in makers[:MOST_WORKERS]
    ]
    headings = ("worker", "rank", "batches", "per batch", term("busy"), "time by stage")
    more = len(makers) - MOST_WORKERS
    stages = [name for name in CAUSES if name in set(by["cause"])]
    keys = (element("li", swatch(name), name.replace("_", " ")) for name in stages)
    note = (
        "Busy: the share of the time from its first batch to its last in which a worker made"
        " batches. Near 100%: more workers, or less work for each, would help."
    )
    return join(
        element("ul", *keys, class_="keys"),
        element("div", table(headings, rows, frozenset({1, 2, 3, 4})), class_="workers"),
        element("p", f"and {more} more", class_="note") if more > 0 else None,
        element("p", note, class_="note"),
    )


def _extents(trace: Trace) -> dict[tuple[int | None, int | None], tuple[int, int, int, int]]:
    """For each process its batches, the time that it fetched, the start of the first fetch and the
    end of the last.
    """
    fetches = trace.rows(kinds=("fetch",))
    found = fetches.group_by("rank", "pid").agg(
        pl.len(),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("took"),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
    )
    return {
        (rank, pid): (number, took, first, last)
        for rank, pid, number, took, first, last in found.iter_rows()
    }


def _row(
    mine: pl.DataFrame,
    rank: int | None,
    pid: int | None,
    numbers: dict[int, int],
    extents: dict[tuple[int | None, int | None], tuple[int, int, int, int]],
) -> tuple[str, ...]:
    times = dict(mine.filter(pl.col("cause") != "fetch").select("cause", "took_ns").iter_rows())
    batches, fetched, first, last = extents.get((rank, pid), (0, 0, 0, 0))
    number = numbers.get(pid) if pid is not None else None
    return (
        f"worker {number}" if number is not None else f"process {pid}",
        "" if rank is None else str(rank),
        count(batches) if batches else "",
        duration(fetched / batches / 1e9) if batches else "",
        percent(min(1.0, fetched / (last - first)) if last > first else None),
        _stack(times, fetched),
    )


def _stack(times: dict[str, float], least: float = 0.0) -> Html:
    """A bar divided by cause, and its three greatest parts in words; it stands for at least so
    much time.
    """
    total = max(sum(times.values()), least)
    shares = {cause: times[cause] / (total or 1.0) for cause in CAUSES if times.get(cause)}
    parts = (
        element(
            "i",
            class_=f"cause-{cause}",
            style=f"width:{share * 100:.2f}%",
            title=f"{cause} {percent(share)}",
        )
        for cause, share in shares.items()
    )
    greatest = sorted(shares, key=lambda cause: -shares[cause])[:3]
    said = ", ".join(f"{cause.replace('_', ' ')} {percent(shares[cause], 0)}" for cause in greatest)
    return join(
        element("div", *parts, class_="stack", role="img", aria_label=said or "no time"),
        element("small", said),
    )


def rank_section(summary: Summary, steps: pl.DataFrame) -> Html:
    """The time of each rank by cause, and who waited for whom."""
    shown = set(views.bars_of_time_by_cause(steps)) if len(steps) else set()
    ranks = [entry for entry in summary.steps.per_rank if entry.rank in shown]
    if not ranks:
        return nothing("no step was recorded")
    thinned = views.thinning_of_ranks(steps, sorted(shown))
    rows = [
        (
            f"rank {entry.rank}",
            count(entry.steps),
            duration(entry.wall_s),
            _stack({cause: entry.seconds(cause) or 0.0 for cause in CAUSES}),
        )
        for entry in ranks
    ]
    headings = ("rank", "steps", "time of its steps", "by cause")
    return join(
        element("div", table(headings, rows, frozenset({1, 2})), class_="workers"),
        element("p", f"{thinned[:1].upper()}{thinned[1:]}.", class_="note") if thinned else None,
        _waits(summary),
        rank_table(summary, steps),
    )


def _waits(summary: Summary) -> Html | None:
    """Which rank the others waited for, and what made that rank late."""
    waits = summary.steps.straggler_wait_s
    if not waits:
        return None
    rows = []
    for rank, found in sorted(waits.items(), key=lambda entry: -sum(entry[1].values()))[:10]:
        greatest = sorted(found.items(), key=lambda each: -each[1])[:4]
        said = ", ".join(f"{what} {duration(value)}" for what, value in greatest)
        rows.append((f"rank {rank}", duration(sum(found.values())), said))
    headings = ("slower rank", "others waited", "what made it late")
    return join(element("h3", "Waiting for a slower rank"), table(headings, rows, frozenset({1})))
