"""Which spans an analysis looks at: rank by rank, and those of a rank with many in pieces of time,
so that memory is bounded.

Spans are cut where a piece ends. What an analysis sums over instants is the same for all pieces
together as for the whole, since nothing depends on where a span is cut. Steps, waits and fetches
tell what holds for the whole rank, such as which process is a worker: each piece has the first of
each thread. Of a batch that is made, queued or waited for in a piece, it has all waits and fetches.
Those that lie outside of the piece have a length of 0 at its border.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import Intervals, pack
from ioprof.format.run_record import JobKind
from ioprof.format.schema import DENSE_KINDS, KINDS
from ioprof.format.trace import Trace

COMPUTE: Final = ("compute", "kernel")
"""Kinds during which an accelerator does useful work."""
COPIES: Final = ("h2d", "d2h")
TIMES: Final = ("start_ns", "end_ns", "kind")
"""Columns without which no analysis can do."""
READS: Final = ("open", "read", "fault")
"""Kinds that wait for a file."""

WORK: Final = {
    "storage": pl.col("kind").is_in(READS) & (pl.col("source") != "page_cache").fill_null(True),
    "page_cache": pl.col("kind").is_in(READS) & (pl.col("source") == "page_cache").fill_null(False),
    "decode": pl.col("kind") == "decode",
    "transform": pl.col("kind") == "transform",
    "collate": pl.col("kind") == "collate",
}
"""Causes of work that makes batches, and their spans. Where several cover an instant the first
counts: a read in a decode is a read."""

_is_cached: Final = (pl.col("source") == "page_cache").fill_null(False)
_IS_SOURCE: Final = {"storage": ~_is_cached, "page_cache": _is_cached}

from_peer: Final = pl.col("source").is_in(["socket", "pipe"]).fill_null(False)
"""Reads of bytes that another process sent."""

on_stream: Final = (pl.col("stream") >= 0).fill_null(False)
"""Spans on a stream of a device."""

RAY_TASK: Final = "Ray Data task"
"""Name of the spans of what a task of Ray Data took to make a block."""

WORKER: Final = "worker"
"""Column that `with_worker` adds."""

_KIND: Final = pl.Enum(KINDS)
_FEW_ROWS: Final = 5000
"""Rows that are filtered in less time than it takes to look for those of a kind."""
_ROWS_AT_ONCE: Final = 100_000
_PIECES: Final = 64
"""Of a run with more spans than so many pieces hold the pieces are larger: each takes time of its
own."""
_LARGE_RUN: Final = 8_000_000
"""Spans from which on a run is analysed in `_LARGE_PIECES` pieces, or more. It may take more memory
than a job of five minutes."""
_LARGE_PIECES: Final = 8
_MOST_ROWS: Final = 1_250_000
"""Spans of the largest piece."""
_THREADS: Final = 2
_OF_WHOLE_RANK: Final = ("step", "wait", "fetch")
_ALWAYS: Final = (-(1 << 62), 1 << 62)


class Activity(NamedTuple):
    """What a rank's time may be charged to, and when that was going on."""

    cause: str
    times: Intervals
    origin: str = ""
    """`main`: the rank's main thread did it. `threads`: other threads of its process did it, and
    that the main thread waited for them is derived from the times. Empty: all else."""


def kind_in(kinds: Sequence[str]) -> pl.Expr:
    """Rows of one of these kinds."""
    return pl.col("kind").is_in(list(kinds))


def of_kind(spans: pl.DataFrame, *kinds: str) -> pl.DataFrame:
    """The rows of these kinds. They are not copied where the spans are in the order of kinds, as
    those of a piece are.
    """
    codes = _codes(spans["kind"]) if len(spans) > _FEW_ROWS else None
    if codes is None or bool(np.any(codes[1:] < codes[:-1])):
        return spans.filter(kind_in(kinds))
    wanted = np.array(sorted(map(KINDS.index, kinds)), codes.dtype)
    firsts, ends = np.searchsorted(codes, wanted), np.searchsorted(codes, wanted, side="right")
    bounds = [
        (int(first), int(end)) for first, end in zip(firsts, ends, strict=True) if first < end
    ]
    runs = [
        bound for place, bound in enumerate(bounds) if not place or bounds[place - 1][1] != bound[0]
    ]
    lasts = [
        bound[1]
        for place, bound in enumerate(bounds)
        if place + 1 == len(bounds) or bounds[place + 1][0] != bound[1]
    ]
    parts = [spans[first:end] for (first, _), end in zip(runs, lasts, strict=True)]
    return pl.concat(parts) if len(parts) > 1 else parts[0] if parts else spans.clear()


def of_work(spans: pl.DataFrame, cause: str) -> pl.DataFrame:
    """The rows of work of this cause, see `WORK`."""
    if cause not in _IS_SOURCE:
        return of_kind(spans, cause)
    return of_kind(spans, *READS).filter(_IS_SOURCE[cause])


def in_order_of_kinds(spans: pl.DataFrame) -> pl.DataFrame:
    """The same rows, those of each kind together, and in the order that they have."""
    codes = _codes(spans["kind"])
    if codes is None or not bool(np.any(codes[1:] < codes[:-1])):
        return spans
    return spans.rechunk()[np.argsort(codes, kind="stable")]


def with_worker(spans: pl.DataFrame) -> pl.DataFrame:
    """Spans of one rank with the column `worker`, unless they have it: which worker did it, as one
    number.

    Reads that have a batch are of the thread that fetches, where a training process has one,
    whichever of its threads made them.
    """
    if WORKER in spans.columns:
        return spans
    consumers = of_kind(spans, "wait", "step")["pid"].unique()
    fetchers = (
        of_kind(spans, "fetch")
        .group_by("pid")
        .agg(pl.col("tid").n_unique(), fetcher=pl.col("tid").first())
    )
    alone, is_consumer = pl.col("tid") == 1, pl.col("pid").is_in(consumers.implode())
    workers = fetchers.filter(alone, ~is_consumer)["pid"]
    thread = (
        pl.when(pl.col("pid").is_in(workers.implode()))
        .then(0)
        .otherwise(pl.col("tid").fill_null(-1))
    )
    for pid, fetcher in (
        fetchers.filter(alone, is_consumer).drop_nulls().select("pid", "fetcher").iter_rows()
    ):
        is_read_for_it = kind_in(READS) & (pl.col("pid") == pid) & pl.col("batch").is_not_null()
        thread = pl.when(is_read_for_it).then(fetcher).otherwise(thread)
    return spans.with_columns(worker=pl.col("pid").fill_null(-1).cast(pl.Int64) * 2**32 + thread)


def _codes(kinds: pl.Series) -> NDArray[np.uint8] | None:
    """The place of each kind in `KINDS`; None: some are not known."""
    if kinds.null_count() or kinds.dtype != _KIND:
        return None
    return kinds.to_physical().to_numpy()


class Piece(NamedTuple):
    """Spans of a rank and of its workers in a stretch of time."""

    rank: int
    spans: pl.DataFrame
    """In the order of kinds. Times are clipped to the piece; `begin_ns` and `finish_ns` are the
    times of the whole spans."""
    start_ns: int
    end_ns: int
    is_first: bool
    """Whether it is the first piece of its rank."""

    @property
    def is_cut(self) -> bool:
        """Whether the rank has other pieces."""
        return (self.start_ns, self.end_ns) != _ALWAYS

    def clip(self, times: Intervals) -> Intervals:
        """The part of each interval that lies in the piece; one outside of it has a length of 0."""
        return pack(
            np.clip(times[:, 0], self.start_ns, self.end_ns),
            np.clip(times[:, 1], self.start_ns, self.end_ns),
        )


class Analysis(Protocol):
    """What looks at the pieces of all ranks, in their order."""

    @property
    def kinds(self) -> Sequence[str]:
        """Kinds of spans that it needs; it sees others, too."""

    @property
    def columns(self) -> Sequence[str]:
        """Columns that it needs besides times, kind and rank; `WORKER` is that of `with_worker`."""

    def add(self, piece: Piece) -> None:
        """Look at the next piece."""


def analyse(trace: Trace, *analyses: Analysis) -> None:
    """Give all pieces to each of the analyses. The spans are read once; of a stored trace while the
    piece before is looked at.
    """
    kinds = dict.fromkeys(kind for each in analyses for kind in each.kinds)
    columns = dict.fromkeys(name for each in analyses for name in each.columns)
    pieces = pieces_by_rank(trace, tuple(kinds), tuple(columns))
    if not trace.is_stored:
        for piece in pieces:
            for each in analyses:
                each.add(piece)
        return
    with ThreadPoolExecutor(_THREADS) as threads:
        following = threads.submit(next, pieces, None)
        while (found := following.result()) is not None:
            following = threads.submit(next, pieces, None)
            for looking in [threads.submit(each.add, found) for each in analyses]:
                looking.result()


class Looking(Protocol):
    """What looks at all spans, in parts of bounded size."""

    @property
    def columns(self) -> Mapping[str, pl.Expr]:
        """What it needs of spans, by the names of columns. Two that use one name mean the same by
        it.
        """

    def add(self, part: pl.DataFrame) -> None:
        """Look at the next part."""


def look(trace: Trace, *lookings: Looking) -> None:
    """Give all spans to each of these. They are read once; of a stored trace the next part while
    one is looked at.
    """
    columns = {name: expr for each in lookings for name, expr in each.columns.items()}
    for part in trace.in_parts(lambda spans: spans.select(**columns)):
        for each in lookings:
            each.add(part)


def by_rank(
    trace: Trace, kinds: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Each rank that recorded one of the kinds, in order, and those spans of it and of its workers,
    all at once.
    """
    for piece in _pieces(trace, kinds, columns, rows_at_once=None):
        yield piece.rank, piece.spans


def pieces_by_rank(trace: Trace, kinds: Sequence[str], columns: Sequence[str]) -> Iterator[Piece]:
    """Each rank that recorded one of the kinds, in order, and those spans of it and of its workers,
    in pieces in the order of time.

    All of a rank's time is in one of its pieces. A rank is not divided where one piece does not
    tell what holds in another: where threads of the training process work for it, see
    `training_process`.
    """
    number = trace.num_spans
    rows_at_once = min(_MOST_ROWS, number // (_PIECES if number < _LARGE_RUN else _LARGE_PIECES))
    yield from _pieces(trace, kinds, columns, max(_ROWS_AT_ONCE, rows_at_once))


def _pieces(
    trace: Trace, kinds: Sequence[str], columns: Sequence[str], rows_at_once: int | None
) -> Iterator[Piece]:
    if trace.run.job_kind is JobKind.RAY:
        trace = with_tasks(trace)
    kept, is_placed = (
        ["start_ns", "end_ns", "kind", "rank", *(name for name in columns if name != WORKER)],
        WORKER in columns,
    )
    of_kind = trace.sums.filter(kind_in(kinds), pl.col("rank").is_not_null())
    is_dense = kind_in(DENSE_KINDS)
    counts = (
        of_kind.group_by("rank")
        .agg(pl.col("spans").sum(), dense=pl.col("spans").filter(is_dense).sum())
        .sort("rank")
    )
    for ranks in _batches(counts["rank"].to_list(), counts["spans"].to_list()):
        is_large = len(ranks) == 1 and counts.filter(pl.col("rank") == ranks[0])["dense"].item() > (
            rows_at_once or np.inf
        )
        if is_large and not (
            _has_threads(trace, ranks[0]) and _may_wait_for_threads(trace, ranks[0])
        ):
            yield from _of_large_rank(trace, ranks[0], kinds, kept, is_placed, rows_at_once or 0)
            continue
        rows = (
            trace.scan()
            .filter(pl.col("rank").is_in(ranks), kind_in(kinds))
            .select(kept)
            .collect()
            .rechunk()
        )
        parts = rows.partition_by("rank", as_dict=True) if len(ranks) > 1 else {(ranks[0],): rows}
        del rows
        for rank in ranks:
            yield Piece(rank, _prepared(parts.pop((rank,)), is_placed), *_ALWAYS, True)


def _of_large_rank(
    trace: Trace,
    rank: int,
    kinds: Sequence[str],
    kept: list[str],
    is_placed: bool,
    rows_at_once: int,
) -> Iterator[Piece]:
    is_dense = (pl.col("rank") == rank) & kind_in([kind for kind in kinds if kind in DENSE_KINDS])
    bounds = _bounds(trace.starts.filter(pl.col("rank") == rank), rows_at_once)
    others = _Others(trace.rows(pl.col("rank") == rank, kinds=[*set(kinds) - set(DENSE_KINDS)]))
    dense = trace.near(lambda part: part.filter(is_dense).select(kept), frozenset([rank]))
    for start_ns, end_ns in bounds:
        loaded = pl.concat(
            [others.near(start_ns, end_ns).select(kept), dense.between(start_ns, end_ns)]
        )
        spans = _prepared(loaded, is_placed)
        del loaded
        clipped = spans.with_columns(pl.col("start_ns", "end_ns").clip(start_ns, end_ns))
        yield Piece(rank, clipped, start_ns, end_ns, start_ns == bounds[0][0])


class _Others:
    """The spans of one rank that are not of `DENSE_KINDS`, to be found by time."""

    def __init__(self, spans: pl.DataFrame) -> None:
        is_whole = kind_in(_OF_WHOLE_RANK)
        is_of_batch = kind_in(["wait", "fetch"]) & pl.col("batch").is_not_null()
        batches = (
            spans.filter(is_of_batch)
            .group_by("batch")
            .agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
        )
        # What a validation is shows in all waits of the rank.
        is_validated = (spans["kind"] == "wait") & (
            spans["name"].cast(pl.String) == "validate"
        ).fill_null(value=False)
        is_everywhere = is_whole & (
            pl.struct("kind", "pid", "tid").is_first_distinct() | pl.lit(bool(is_validated.any()))
        )
        found = (
            spans.sort("start_ns")
            .with_columns(is_everywhere=is_everywhere)
            .join(batches, on="batch", how="left")
            .with_columns(
                first_ns=pl.when(is_of_batch).then("first_ns").otherwise("start_ns"),
                last_ns=pl.when(is_of_batch).then("last_ns").otherwise("end_ns"),
            )
            .sort("first_ns")
        )
        self._everywhere, self._rest = (
            found.filter("is_everywhere"),
            found.filter(~pl.col("is_everywhere")),
        )
        self._first_ns = self._rest["first_ns"].to_numpy()
        self._reached_ns = self._rest["last_ns"].cum_max().to_numpy()

    def near(self, start_ns: int, end_ns: int) -> pl.DataFrame:
        """Those that a piece with these bounds needs."""
        low = int(np.searchsorted(self._reached_ns, start_ns, side="left"))
        high = int(np.searchsorted(self._first_ns, end_ns, side="left"))
        return pl.concat(
            [self._everywhere, self._rest[low:high].filter(pl.col("last_ns") >= start_ns)]
        )


def _has_threads(trace: Trace, rank: int) -> bool:
    """Whether threads of the training process worked that have no batch number."""
    mine = trace.sums.filter(pl.col("rank") == rank)
    processes = mine.filter(kind_in(["wait", "step"]))["pid"].drop_nulls().unique()
    theirs = mine.filter(
        pl.col("pid").is_in(processes.implode()),
        ~pl.col("in_batch"),
        pl.any_horizontal(*WORK.values()),
    )
    known = mine.filter(kind_in(["wait", "step", "fetch"])).select("pid", "tid").unique()
    return not theirs.join(known, on=["pid", "tid"], how="anti", nulls_equal=True).is_empty()


def _may_wait_for_threads(trace: Trace, rank: int) -> bool:
    """Whether a rank has no `wait`, or one for a batch that none of its other processes made; see
    `training_process`.
    """
    spans = trace.rows(pl.col("rank") == rank, kinds=["wait", "fetch"])
    waits, fetches = spans.filter(pl.col("kind") == "wait"), spans.filter(pl.col("kind") == "fetch")
    for_batch = ~pl.col("name").cast(pl.String).is_in(["start", "end"]).fill_null(value=False)
    made = waits.filter(for_batch).join(
        fetches.select("batch", maker="pid").unique(), on="batch", how="left"
    )
    return waits.is_empty() or bool(
        (made["maker"].is_null() | made["maker"].eq_missing(made["pid"])).any()
    )


def _prepared(spans: pl.DataFrame, is_placed: bool) -> pl.DataFrame:
    """The spans of a piece with all columns; `is_placed`: with their worker."""
    ordered = in_order_of_kinds(spans).with_columns(begin_ns="start_ns", finish_ns="end_ns")
    return with_worker(ordered) if is_placed else ordered


def _bounds(starts: pl.DataFrame, rows_at_once: int) -> list[tuple[int, int]]:
    """Stretches of time in which about so many spans begin; together they are all time. `starts`
    are rows of `Trace.starts`.
    """
    ordered = starts.sort("since_ns")
    number = (np.cumsum(ordered["spans"].to_numpy()) - 1) // rows_at_once
    ends = ordered["until_ns"].to_numpy()[np.flatnonzero(np.diff(number))]
    return list(pairwise([_ALWAYS[0], *ends.tolist(), _ALWAYS[1]]))


def with_tasks(trace: Trace) -> Trace:
    """The trace of a job with Ray Data: what its tasks did, in processes of no rank, as if threads
    of each rank had done it.

    What a rank itself receives from other processes are these tasks' results. Of the tasks'
    processes only the threads count in which tasks run: others talk to Ray's own processes.
    """
    thread = ["host", "pid", "tid"]
    spans = trace.spans.with_columns(pl.col("host").cast(pl.String))
    is_task = (
        (pl.col("kind") == "transform")
        & (pl.col("name").cast(pl.String) == RAY_TASK)
        & pl.col("rank").is_null()
    )
    tasks = spans.filter(pl.col("rank").is_null()).join(
        spans.filter(is_task).select(thread).unique(), on=thread, how="semi"
    )
    ranks = (
        spans.filter(pl.col("kind") == "step", pl.col("rank").is_not_null())
        .select("rank", "pid")
        .unique("rank")
    )
    adopted = tasks.drop("rank", "pid").join(ranks, how="cross").select(spans.columns)
    kept = spans.filter(~(from_peer & pl.col("rank").is_not_null()))
    return Trace(
        trace.run,
        pl.concat([kept, adopted]).with_columns(pl.col("host").cast(trace.spans["host"].dtype)),
    )


def intervals(spans: pl.DataFrame, start: str = "start_ns", end: str = "end_ns") -> Intervals:
    """The times of the rows, as they stand."""
    return pack(spans[start].to_numpy(), spans[end].to_numpy())


def first_and_last(spans: pl.DataFrame) -> tuple[int, int]:
    """When the first of these rows began and the last ended; there is at least one."""
    return int(spans["start_ns"].to_numpy().min()), int(spans["end_ns"].to_numpy().max())


def span_s(spans: pl.DataFrame) -> float:
    """Seconds from the start of the first of these rows to the end of the last; 0 without any."""
    first_ns, last_ns = first_and_last(spans) if len(spans) else (0, 0)
    return (last_ns - first_ns) / 1e9


def _batches(ranks: list[int], rows: list[int]) -> Iterator[list[int]]:
    """Ranks in groups that hold a bounded number of rows, each at least one rank."""
    group: list[int] = []
    held = 0
    for rank, count in zip(ranks, rows, strict=True):
        if group and held + count > _ROWS_AT_ONCE:
            yield group
            group, held = [], 0
        group.append(rank)
        held += count
    if group:
        yield group
