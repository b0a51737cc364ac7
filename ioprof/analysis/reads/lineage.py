"""What each wait for a batch was for: the batch walked backwards, from its delivery to the reads
that made it.

At an instant of the wait for batch k, whose worker ended fetch(k) at `ready`:

    at or after ready    `storage`, `page_cache`: a thread of the worker that only sends batches
                         read what is in one, see `_sent`; `storage`: a read of a worker kept the
                         batch from being sent, see `blocked_sends`; what the worker did for another
                         batch, where that kept the batch from being sent; else `delivery`: the
                         batch was made, and on its way or queued
    before ready         what that worker did: `storage`, `page_cache`, `decode`, `transform`,
                         `collate` (before fetch(k) began the same worker was busy with an earlier
                         batch, or was starting up)
    not covered by that  `loader`: Python between the stages, queues, a worker without work
    fetch(k) unknown     what threads of the rank's own process did at that time, see
                         `training_process`; else `loader`: the worker was killed, or is not
                         recorded

A *worker* is all threads of a process that fetches in one thread and is not the consumer itself,
else a single thread. Where a damaged record shows two leaves at once, the earlier in `LEAVES` wins;
so a read inside a decode is a read. What a worker read from a socket or a pipe counts within its
`fetch` spans only: outside of them it waits there for its next task.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.blocked_sends import blocked, held, late_arrivals, may_block
from ioprof.analysis.charge.training_process import (
    has_processes,
    likely_waits,
    main_threads,
    threads_work,
)
from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    charge,
    covered,
    end_to_end,
    overlaps,
    pack,
    subtract,
    total,
    union,
    union_all,
)
from ioprof.analysis.selection import (
    READS,
    TIMES,
    WORK,
    WORKER,
    Activity,
    by_rank,
    from_peer,
    intervals,
    kind_in,
    of_kind,
    of_work,
    with_worker,
)
from ioprof.format.span_parts import Where
from ioprof.format.trace import Trace

LEAVES: Final = ("storage", "page_cache", "decode", "transform", "collate", "delivery", "loader")
"""Causes that a wait is charged to, in the order of `ioprof.format.schema.CAUSES`."""
KINDS: Final = ("wait", "fetch", "step", *READS, "decode", "transform", "collate")
"""Kinds that `wait_leaves` looks at."""
COLUMNS: Final = ("pid", "tid", "batch", "source", "name")
"""Columns that it needs besides times, kind and rank."""
MOST_ELSEWHERE: Final = 0.05
"""Part of the time in which a thread reads that may lie outside of the delivery of batches, if it
is one that sends them."""


@dataclass(frozen=True)
class Axis:
    """The time of all workers of a rank, laid end to end, so that one sorted array holds them
    all.
    """

    workers: NDArray[np.int64]
    """Sorted."""
    origin_ns: int
    stride_ns: int
    """Longer by one than the time of any worker: the end of one does not touch the start of the
    next."""

    @classmethod
    def of(cls, workers: NDArray[np.int64], times: Intervals) -> "Axis":
        """An axis that holds these workers from the first to the last of these times."""
        first, last = (int(times[:, 0].min()), int(times[:, 1].max())) if len(times) else (0, 0)
        return cls(np.unique(workers), first, max(last - first, 0) + 1)

    def place(self, spans: pl.DataFrame, end: str = "end_ns") -> Intervals:
        """Where spans with a known `worker` lie on the axis, clipped to it."""
        times = intervals(spans, "start_ns", end)
        return end_to_end(
            times, spans[WORKER].to_numpy(), self.workers, self.origin_ns, self.stride_ns
        )

    def times(self, placed: Intervals) -> Intervals:
        """When that was."""
        return placed - placed[:, :1] // self.stride_ns * self.stride_ns + self.origin_ns


Threads = frozenset[tuple[int | None, int | None]]
"""Processes and threads."""


@dataclass(frozen=True)
class Sending:
    """What all spans of a rank show of how its batches are sent."""

    threads: Threads = frozenset()
    """Threads of the workers that only send the batches that others made."""
    blocked: Intervals = field(default_factory=lambda: EMPTY)
    """When a batch that was made came late because a worker read, see `blocked_sends`."""
    held: pl.DataFrame | None = None
    """The same because its worker made another batch: `start_ns`, `end_ns`, `worker`."""


def wait_leaves(
    spans: pl.DataFrame, measured: Collection[str] = LEAVES, sending: Sending | None = None
) -> list[Activity]:
    """What this rank waited for and when; an instant belongs to the first that covers it. The last,
    `loader`, covers every wait.

    `spans` are those of one rank; what is not in `measured` goes to `loader`. `sending` is
    `sending_of` the rank; None: these are all of its spans, and show it.
    """
    sending = sending_in(spans) if sending is None else sending
    spans = _of_lineage(spans)
    waits = _with_fetch(spans)
    known = waits.filter(pl.col("ready_ns").is_not_null())
    held_up = _held(spans, known) if sending.held is None else sending.held
    work, making = _work(spans, known, held_up)
    found = [Activity(cause, times) for cause, times in work.items()]
    found += [
        Activity(cause, times) for cause, times in _sent(spans, known, sending.threads).items()
    ]
    found.append(Activity("storage", sending.blocked))
    found.append(Activity("loader", making))
    found.append(
        Activity(
            "delivery",
            pack(
                np.maximum(known["start_ns"].to_numpy(), known["ready_ns"].to_numpy()),
                known["end_ns"].to_numpy(),
            ),
        )
    )
    found += _threads(spans, waits, union_all([activity.times for activity in found]))
    return [
        *(activity for activity in found if activity.cause in measured),
        Activity("loader", intervals(waits)),
    ]


def _of_lineage(spans: pl.DataFrame) -> pl.DataFrame:
    # each filter copies all columns
    return with_worker(of_kind(spans, *KINDS)).select(*TIMES, "finish_ns", *COLUMNS, WORKER)


def sending_in(spans: pl.DataFrame) -> Sending:
    """How the batches of a rank are sent, of all of its spans."""
    spans = _of_lineage(spans)
    known = _known(spans)
    return Sending(
        _senders(*_sent_reads(spans, known)), _blocked(spans, known), _held(spans, known)
    )


def sending_of(trace: Trace, rank: int) -> Sending:
    """How the batches of a rank are sent, of a trace whose spans need not fit in memory.

    A thread that only sends fetches nothing, and hardly reads while no batch of its process is on
    its way; a thread that helps to make batches does.
    """
    columns = [*TIMES, *COLUMNS]
    structure = trace.rows(pl.col("rank") == rank, kinds=["wait", "fetch", "step"]).select(columns)
    known = _known(with_worker(structure.with_columns(finish_ns="end_ns")))
    late = late_arrivals(_of_processes(known))
    is_read = kind_in(READS), pl.col("rank") == rank, ~from_peer
    where = Where.of_rank(rank)
    near = [structure.clear()]
    if len(late):
        found = trace.in_parts(lambda part: part.filter(*is_read, may_block).select(columns), where)
        near += [part.filter(_overlap(part, late)) for part in found]
    thread, mine = ["pid", "tid"], trace.sums.filter(pl.col("rank") == rank)
    fetching = mine.filter(pl.col("kind") == "fetch").select(thread).unique()
    reading = mine.filter(kind_in(READS), ~from_peer).join(fetching, on="pid", how="semi")
    others = reading.join(fetching, on=thread, how="anti").select(thread).unique()
    is_theirs = pl.col("tid").is_in(others["tid"].implode())
    reads = structure.clear()
    if not others.is_empty():
        reads = trace.found(lambda part: part.filter(*is_read, is_theirs).select(columns), where)
    threads, blocking = (
        with_worker(pl.concat([structure, *parts]).with_columns(finish_ns="end_ns"))
        for parts in ([reads], near)
    )
    return Sending(
        _senders(*_sent_reads(threads, known)),
        _blocked(blocking, known),
        _held(with_worker(structure), known),
    )


def kept_back(spans: pl.DataFrame) -> pl.DataFrame:
    """`Sending.held` of all spans of a rank, which `with_worker` has seen."""
    found = of_kind(spans, "wait", "fetch").with_columns(finish_ns="end_ns")
    return _held(found, _known(found))


def _overlap(spans: pl.DataFrame, normal: Intervals) -> pl.Series:
    return pl.Series(covered(intervals(spans), normal) > 0)


def _known(spans: pl.DataFrame) -> pl.DataFrame:
    return _with_fetch(spans).filter(pl.col("ready_ns").is_not_null())


def _of_processes(known: pl.DataFrame) -> pl.DataFrame:
    """Of waits with a known fetch, those for workers that are whole processes."""
    return known.filter(pl.col("worker") % 2**32 == 0)


def _blocked(spans: pl.DataFrame, known: pl.DataFrame) -> Intervals:
    late = late_arrivals(_of_processes(known))
    return (
        blocked(late, spans.filter(pl.col("worker") % 2**32 == 0, may_block))
        if len(late)
        else EMPTY
    )


def _held(spans: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    return held(_of_processes(known), of_kind(spans, "fetch"))


def _sent_reads(spans: pl.DataFrame, known: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Waits for workers that are whole processes, and reads of the threads of these that fetch
    nothing.
    """
    fetching = of_kind(spans, "fetch").select("pid", "tid").unique()
    whole = _of_processes(known)
    is_of_whole = pl.col("worker").is_in(whole["worker"].unique().implode())
    others = of_kind(spans, *READS).join(fetching, on=["pid", "tid"], how="anti")
    return whole, others.filter(is_of_whole, ~from_peer)


def _sending_axis(whole: pl.DataFrame, reads: pl.DataFrame) -> Axis:
    times = np.concatenate(
        [intervals(whole), intervals(whole, "ready_ns", "end_ns"), intervals(reads)]
    )
    return Axis.of(whole["worker"].to_numpy(), times)


def _senders(whole: pl.DataFrame, reads: pl.DataFrame) -> Threads:
    if reads.is_empty():
        return frozenset()
    axis, found = _sending_axis(whole, reads), set()
    on_way = union(axis.place(whole.with_columns(start_ns=pl.col("ready_ns"))))
    for (pid, tid), of_thread in reads.group_by("pid", "tid"):
        placed = union(axis.place(of_thread))
        if total(subtract(placed, on_way)) <= MOST_ELSEWHERE * total(placed):
            found.add((pid, tid))
    return frozenset(found)


def _sent(spans: pl.DataFrame, known: pl.DataFrame, sending: Threads) -> dict[str, Intervals]:
    """What sending threads of workers read while the rank waited for a batch that was made: data
    that is mapped is read when it is copied.
    """
    if not sending:
        return {}
    whole, reads = _sent_reads(spans, known)
    if reads.is_empty():
        return {}
    axis = _sending_axis(whole, reads)
    waited = union(
        axis.place(whole.with_columns(start_ns=pl.max_horizontal("start_ns", "ready_ns")))
    )
    found: dict[str, list[Intervals]] = {}
    for thread, of_thread in reads.group_by("pid", "tid"):
        if thread in sending:
            for cause in ("storage", "page_cache"):
                times = overlaps(axis.place(of_work(of_thread, cause)), waited)
                found.setdefault(cause, []).append(axis.times(times))
    return {cause: union_all(times) for cause, times in found.items()}


def _threads(spans: pl.DataFrame, waits: pl.DataFrame, explained: Intervals) -> list[Activity]:
    """What threads without a batch did in the rank's process while it waited for a batch that none
    of its other processes made.
    """
    other_process = pl.col("worker").is_not_null() & (
        pl.col("worker") // 2**32 != pl.col("pid").fill_null(-1)
    )
    for_batch = ~pl.col("name").cast(pl.String).is_in(["start", "end"]).fill_null(False)
    own = waits.filter(~other_process, for_batch)
    if own.is_empty():
        return []
    work = threads_work(spans, with_peers=not has_processes(spans))
    if not work:
        return []
    by_main = pl.col("worker").is_in(main_threads(spans).implode()).fill_null(False)
    idle = subtract(union(intervals(own.filter(by_main))), explained)
    times = union_all([intervals(own.filter(~by_main)), likely_waits(idle, work)])
    return [Activity(cause, overlaps(done, times), "threads") for cause, done in work.items()]


def fetchers(spans: pl.DataFrame) -> pl.DataFrame:
    """The waits of one rank for batches whose fetch is known: `start_ns`, `end_ns`, and the worker
    as `pid` and `thread`.

    A `thread` of 0 is any thread of that process.
    """
    worker = pl.col("worker")
    waits = (
        _with_fetch(with_worker(of_kind(spans, "wait", "step", "fetch")))
        .drop_nulls("worker")
        .sort("start_ns", "end_ns")
    )
    return waits.select(
        "start_ns", "end_ns", pid=(worker // 2**32).cast(pl.Int32), thread=worker % 2**32
    )


def waits(trace: Trace) -> pl.DataFrame:
    """One row per wait: `rank`, `batch`, `start_ns`, `end_ns`, and `<leaf>_ns` for each of
    `LEAVES`, which sum to the wait exactly.

    This is the whole wait, whether the accelerator computed meanwhile or not; `blame` charges only
    what was exposed.
    """
    parts = [_empty_waits()]
    for rank, spans in by_rank(trace, KINDS, COLUMNS):
        rows = (
            spans.filter(pl.col("kind") == "wait")
            .select("rank", "batch", "start_ns", "end_ns")
            .sort("start_ns", "batch")
        )
        found = wait_leaves(spans)
        leaves = charge(intervals(rows), [activity.times for activity in found])
        columns = [
            pl.Series(
                f"{cause}_ns",
                leaves[
                    :, [place for place, activity in enumerate(found) if activity.cause == cause]
                ].sum(1),
            )
            for cause in LEAVES
        ]
        parts.append(rows.with_columns(columns) if len(rows) else _empty_waits())
        assert not leaves[:, -1].any(), f"a wait of rank {rank} is not fully charged"
    return pl.concat(parts)


def _empty_waits() -> pl.DataFrame:
    columns = dict.fromkeys(
        ("batch", "start_ns", "end_ns", *(f"{cause}_ns" for cause in LEAVES)), pl.Int64
    )
    return pl.DataFrame(schema={"rank": pl.Int32, **columns})


def _with_fetch(spans: pl.DataFrame) -> pl.DataFrame:
    """The waits, each with the `worker` that made its batch and when it was `ready_ns`; null where
    that is not known.

    Where two workers claim one batch, the one that was ready first delivered it.
    """
    ready = (
        of_kind(spans, "fetch").group_by("batch", "worker").agg(ready_ns=pl.col("finish_ns").max())
    )
    first = ready.sort("ready_ns", "worker").unique("batch", keep="first")
    waits = of_kind(spans, "wait").select("start_ns", "end_ns", "batch", "pid", "name")
    return waits.join(first, on="batch", how="left")


def _work(
    spans: pl.DataFrame, known: pl.DataFrame, held_up: pl.DataFrame
) -> tuple[dict[str, Intervals], Intervals]:
    """What the workers did while the rank waited for a batch of theirs; and when they made others,
    which held that one up.
    """
    axis = Axis.of(known["worker"].to_numpy(), intervals(known))
    later = axis.place(held_up.filter(pl.col("worker").is_in(pl.Series(axis.workers).implode())))
    windows = union(
        np.concatenate(
            [
                axis.place(
                    known.with_columns(until=pl.min_horizontal("end_ns", "ready_ns")), "until"
                ),
                later,
            ]
        )
    )
    is_there = (
        pl.col("worker").is_in(pl.Series(axis.workers).implode()),
        pl.col("end_ns") > axis.origin_ns,
    )
    there = spans.select(*TIMES, "source", "worker").filter(*is_there)
    fetching = union(axis.place(of_kind(there, "fetch")))
    has_peers = there.select(from_peer.any()).item()
    found = {}
    for cause in WORK:
        work = of_work(there, cause)
        if has_peers:
            placed = np.concatenate(
                (
                    axis.place(work.filter(~from_peer)),
                    overlaps(axis.place(work.filter(from_peer)), fetching),
                )
            )
        else:
            placed = axis.place(work)
        found[cause] = axis.times(overlaps(placed, windows))
    return found, axis.times(overlaps(fetching, union(later)))
