"""What a timeline shows: lanes from top to bottom, and bars in them, as plain tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import polars as pl

from ioprof.format.span_parts import Where
from ioprof.format.trace import Trace
from ioprof.report.texts.units import duration

MOST_BARS: Final = 2500
"""Bars in one view: beyond some 4,000 a browser becomes slow."""
MOST_WORKERS: Final = 8
"""Worker lanes of one rank."""
THREADS: Final = "other threads"
"""The name of the lane of a rank's process for what threads of it make that are not its main
one."""
READS: Final = ("read", "fault")
LEAVES: Final = ("open", "read", "fault", "decode", "transform", "collate")
MAIN_KINDS: Final = {
    "wait": "wait",
    "deliver": "wait",
    "h2d": "copies",
    "d2h": "copies",
    "compute": "compute",
    "kernel": "compute",
    "comm": "exchange",
}
"""Kinds in the process of the rank itself, and the lane that shows them."""
MAIN_LANES: Final = ("wait", "copies", "compute", "exchange")

_COLUMNS: Final = (
    "kind",
    "source",
    "rank",
    "pid",
    "by_thread",
    "start_ns",
    "end_ns",
    "file",
    "bytes",
    "batch",
    "step",
)


_Maker = tuple[int, int, bool]
"""What makes batches: a rank, a process, and whether its main thread does not."""


class Window(NamedTuple):
    """A stretch of the run, in nanoseconds."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Lane:
    """One row of a timeline."""

    name: str
    rank: int


@dataclass(frozen=True)
class Timeline:
    """Lanes, bars, boundaries of steps, and what was left out."""

    window: Window
    lanes: tuple[Lane, ...]
    bars: pl.DataFrame
    """Columns `lane row rows kind source start_ns end_ns busy_ns count path bytes batch
    step`, drawn in this order.

    `lane` is the place in `lanes`; the bar lies in part `row` of `rows` of the lane's height. A bar
    may be `count` spans joined, which took `busy_ns` together.
    """
    boundaries: pl.DataFrame
    """Columns `rank step start_ns`: steps that begin in the window."""
    notes: tuple[str, ...]
    """What was thinned, in sentences."""


def timeline_of(
    trace: Trace, window: Window, ranks: Sequence[int], limit: int = MOST_BARS
) -> Timeline:
    """The lanes and bars of `ranks` in `window`, at most `limit` bars."""
    inside = (
        (pl.col("end_ns") > window.start_ns)
        & (pl.col("start_ns") < window.end_ns)
        & pl.col("rank").is_in(list(ranks))
    )
    where = Where(frozenset(ranks), window.start_ns, window.end_ns)
    spans = trace.found(lambda part: part.filter(inside), where).with_columns(
        pl.col("kind").cast(pl.String)
    )
    source = pl.col("source").cast(pl.String).fill_null("unknown")  # a recording need not say it
    spans = spans.with_columns(
        source=pl.when(pl.col("kind").is_in(READS)).then(source), by_thread=by_thread(trace)
    )
    workers, notes = _workers(trace, spans, ranks)
    lanes, placed = _place(spans.select(*_COLUMNS), workers, ranks)
    bars, thinned = _thin(placed, window, limit)
    paths = trace.files.select("file", "path")
    boundaries = (
        spans.filter(pl.col("kind") == "step")
        .select("rank", "step", "start_ns")
        .sort("rank", "start_ns")
    )
    return Timeline(
        window,
        lanes,
        bars.join(paths, on="file", how="left", maintain_order="left").drop("file"),
        boundaries,
        (*notes, *thinned),
    )


def by_thread(trace: Trace) -> pl.Expr:
    """Whether a span of making batches is of another thread of a rank's process than the one that
    makes its steps.
    """
    steps = (
        trace.sums.filter(pl.col("kind").cast(pl.String) == "step")
        .select(_process(), _thread())
        .unique()
    )
    processes, threads = (steps.to_series(place).drop_nulls().implode() for place in range(2))
    makes = pl.col("kind").cast(pl.String).is_in([*LEAVES, "fetch"])
    return (makes & _process().is_in(processes) & ~_thread().is_in(threads)).fill_null(False)


def _process() -> pl.Expr:
    return (pl.col("rank").cast(pl.Int64) * 2**32 + pl.col("pid")).alias("process")


def _thread() -> pl.Expr:
    return (pl.col("rank").cast(pl.Int64) * 2**32 + pl.col("tid")).alias("thread")


def worker_numbers(trace: Trace) -> dict[int, int]:
    """The number of each loader worker by its process id, as the run recorded it."""
    numbers = [(process.pid, process.worker) for process in trace.run.processes]
    return {
        pid: worker
        for pid, worker in numbers
        if pid is not None and worker is not None and worker >= 0
    }


def _workers(
    trace: Trace, spans: pl.DataFrame, ranks: Sequence[int]
) -> tuple[dict[_Maker, str], list[str]]:
    """The lane name of each process that made batches, and what was left out."""
    numbers = worker_numbers(trace)
    makers = (
        spans.filter(pl.col("kind").is_in([*LEAVES, "fetch"]))
        .select("rank", "pid", "by_thread")
        .unique()
        .drop_nulls("pid")
    )
    names: dict[_Maker, str] = {}
    left_out = 0
    for rank in ranks:
        mine = sorted(
            makers.filter(pl.col("rank") == rank).select("pid", "by_thread").rows(),
            key=lambda maker: (numbers.get(maker[0], -1), *maker),
        )
        left_out += len(mine[MOST_WORKERS:])
        for pid, is_thread in mine[:MOST_WORKERS]:
            name = (
                f"worker {numbers[pid]}"
                if pid in numbers
                else THREADS
                if is_thread
                else "main process"
            )
            names[rank, pid, is_thread] = name
    if not names:
        return names, ["no worker was making a batch in this window"]
    note = f"{left_out} worker processes are not drawn: at most {MOST_WORKERS} per rank have a lane"
    return names, [note] if left_out else []


def _place(
    spans: pl.DataFrame, workers: dict[_Maker, str], ranks: Sequence[int]
) -> tuple[tuple[Lane, ...], pl.DataFrame]:
    lanes: list[Lane] = []
    parts: list[pl.DataFrame] = []
    for rank in ranks:
        mine = spans.filter(pl.col("rank") == rank)
        makers = [maker for maker in workers if maker[0] == rank]
        keys = {"pid": pl.Int32, "by_thread": pl.Boolean, "row": pl.Int64}
        rows = pl.DataFrame(
            [(pid, is_thread, row) for row, (_, pid, is_thread) in enumerate(makers)],
            schema=keys,
            orient="row",
        )
        reads = mine.filter(pl.col("kind").is_in(READS)).join(
            rows, on=["pid", "by_thread"], maintain_order="left"
        )
        if len(reads):
            parts.append(_in_lane(reads, len(lanes), len(makers)))
            lanes.append(Lane("reads", rank))
        for maker in makers:
            _, pid, is_thread = maker
            made = mine.filter(
                pl.col("pid") == pid,
                pl.col("by_thread") == is_thread,
                pl.col("kind").is_in(["fetch", *LEAVES]),
            )
            parts.append(_in_lane(made, len(lanes), 1))
            lanes.append(Lane(workers[maker], rank))
        for name in MAIN_LANES:
            own = mine.filter(
                pl.col("kind").is_in([kind for kind, lane in MAIN_KINDS.items() if lane == name])
            )
            if len(own):
                parts.append(_in_lane(own, len(lanes), 1))
                lanes.append(Lane(name, rank))
    return tuple(lanes), pl.concat(parts) if parts else _in_lane(spans.clear(), 0, 1)


def _in_lane(spans: pl.DataFrame, lane: int, rows: int) -> pl.DataFrame:
    row = (
        pl.col("row").cast(pl.Int64)
        if "row" in spans.columns
        else pl.lit(0, dtype=pl.Int64).alias("row")
    )
    took = pl.col("end_ns") - pl.col("start_ns")
    placed = spans.with_columns(
        pl.lit(lane, dtype=pl.Int64).alias("lane"), row, pl.lit(rows, dtype=pl.Int64).alias("rows")
    )
    placed = placed.with_columns(took.alias("busy_ns"), pl.lit(1, dtype=pl.Int64).alias("count"))
    keys = [
        "lane",
        "row",
        "rows",
        "kind",
        "source",
        "start_ns",
        "end_ns",
        "busy_ns",
        "count",
        "file",
        "bytes",
        "batch",
        "step",
    ]
    return placed.select(keys)


def _thin(bars: pl.DataFrame, window: Window, limit: int) -> tuple[pl.DataFrame, list[str]]:
    """Join short leaves with neighbours until at most `limit` bars are left; if that is not enough,
    keep the longest.
    """
    ordered, joined = _draw_order(bars), bars
    if len(bars) <= limit:
        return ordered, []
    resolution = max(1, (window.end_ns - window.start_ns) // 2000)
    while len(joined) > limit and resolution < window.end_ns - window.start_ns:
        joined = _join(bars, resolution)
        resolution *= 2
    short = duration(resolution / 2e9)
    notes = [
        f"{len(bars):,} spans drawn as {len(joined):,} bars: spans below {short} are joined with"
        " neighbours of their kind"
    ]
    if len(joined) > limit:
        notes.append(f"the {limit:,} longest bars of {len(joined):,} are drawn")
        joined = joined.sort("busy_ns", descending=True).head(limit)
    return _draw_order(joined), notes


def _join(bars: pl.DataFrame, resolution: int) -> pl.DataFrame:
    short = pl.col("kind").is_in(LEAVES) & (pl.col("end_ns") - pl.col("start_ns") < resolution)
    keys = ["lane", "row", "rows", "kind", "source"]
    ordered = bars.filter(short).sort(*keys, "start_ns")
    gap = pl.col("start_ns") - pl.col("end_ns").shift().over(keys) > resolution
    grouped = ordered.with_columns(
        cluster=gap.fill_null(True).cum_sum().over(keys),
        slot=pl.col("start_ns") // (4 * resolution),
    )
    one = [
        pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name)
        for name in ("file", "batch", "step")
    ]
    joined = grouped.group_by(*keys, "cluster", "slot").agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("busy_ns").sum(),
        pl.col("count").sum(),
        pl.col("bytes").sum(),
        *one,
    )
    return pl.concat([bars.filter(~short), joined.select(bars.columns)])


def _draw_order(bars: pl.DataFrame) -> pl.DataFrame:
    """Wide things first, so that what lies inside is drawn on top."""
    depth: dict[str, Any] = {"fetch": 0, "wait": 0, "decode": 1, "transform": 1, "collate": 1}
    order = pl.col("kind").replace_strict(depth, default=2, return_dtype=pl.Int64)
    return bars.sort(order, "lane", "start_ns", "end_ns", "kind", "source", nulls_last=True)
