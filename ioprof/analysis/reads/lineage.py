"""What each wait for a batch was for: the batch walked backwards, from its delivery to the reads
that made it.

At an instant of the wait for batch k, whose worker ended fetch(k) at `ready`:

    at or after ready    the thread for which the rank waited, see `analysis/graph`: what it read,
                         as a thread that sends data which is mapped; what it did for another batch,
                         while it kept the interpreter lock, or the queue, from those that send;
                         else `delivery`: the batch was made, and on its way or queued
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

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.training_process import (
    has_processes,
    likely_waits,
    main_threads,
    threads_work,
)
from ioprof.analysis.graph.wakers import Wakers
from ioprof.analysis.intervals import (
    Intervals,
    end_to_end,
    overlaps,
    pack,
    subtract,
    union,
    union_all,
)
from ioprof.analysis.selection import (
    READS,
    TIMES,
    WORK,
    WORKER,
    Activity,
    first_and_last,
    from_peer,
    intervals,
    of_kind,
    of_work,
    with_worker,
)

LEAVES: Final = ("storage", "page_cache", "decode", "transform", "collate", "delivery", "loader")
"""Causes that a wait is charged to, in the order of `ioprof.format.schema.CAUSES`."""
KINDS: Final = ("wait", "fetch", "step", *READS, "decode", "transform", "collate")
"""Kinds that `wait_leaves` looks at."""
COLUMNS: Final = ("pid", "tid", "batch", "source", "name")
"""Columns that it needs besides times, kind and rank."""


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
    def of(cls, spans: pl.DataFrame) -> "Axis":
        """An axis that holds the workers of these spans from the first of them to the last."""
        first, last = first_and_last(spans) if len(spans) else (0, 0)
        return cls(np.unique(spans[WORKER].to_numpy()), first, max(last - first, 0) + 1)

    @property
    def has_worker(self) -> pl.Expr:
        """Whether a span is of one of its workers."""
        return pl.col(WORKER).is_in(pl.Series(self.workers).implode())

    def place(self, spans: pl.DataFrame, end: str = "end_ns") -> Intervals:
        """Where spans with a known `worker` lie on the axis, clipped to it."""
        times = intervals(spans, "start_ns", end)
        return end_to_end(
            times, spans[WORKER].to_numpy(), self.workers, self.origin_ns, self.stride_ns
        )

    def times(self, placed: Intervals) -> Intervals:
        """When that was."""
        return placed - placed[:, :1] // self.stride_ns * self.stride_ns + self.origin_ns


def wait_leaves(
    spans: pl.DataFrame, measured: Collection[str] = LEAVES, wakers: Wakers | None = None
) -> list[Activity]:
    """What this rank waited for and when; an instant belongs to the first that covers it. The last,
    `loader`, covers every wait.

    `spans` are those of one rank; what is not in `measured` goes to `loader`. `wakers` are those of
    its host; None: nothing is known of who woke whom.
    """
    # each filter copies all columns
    spans = with_worker(of_kind(spans, *KINDS)).select(*TIMES, "finish_ns", *COLUMNS, WORKER)
    waits = _with_fetch(spans)
    known = waits.filter(pl.col("ready_ns").is_not_null())
    when, own = _while_late(known, wakers), spans.filter(~from_peer)
    found = [
        *_work(spans, known),
        *(Activity(cause, _done(of_work(own, cause), when)) for cause in WORK if when),
        Activity("loader", _done(of_kind(own, "fetch"), when)),
        Activity("delivery", _late(known)),
    ]
    found += _threads(spans, waits, union_all([activity.times for activity in found]))
    return [
        *(activity for activity in found if activity.cause in measured),
        Activity("loader", intervals(waits)),
    ]


def kept_back(spans: pl.DataFrame, wakers: Wakers | None) -> Intervals:
    """When a rank waited for a batch that was made because who sends it waited for who made others,
    of all spans of the rank, which `with_worker` has seen.
    """
    found = of_kind(spans, "wait", "fetch").with_columns(finish_ns="end_ns")
    known = _with_fetch(found).filter(pl.col("ready_ns").is_not_null())
    return _done(of_kind(found, "fetch"), _while_late(known, wakers))


def _late(known: pl.DataFrame) -> Intervals:
    """When a batch that was made was waited for."""
    ready = np.maximum(known["start_ns"].to_numpy(), known["ready_ns"].to_numpy())
    return pack(ready, np.maximum(ready, known["end_ns"].to_numpy()))


def _while_late(known: pl.DataFrame, wakers: Wakers | None) -> dict[int, Intervals]:
    """For which threads a rank waited when the batch was made, and when."""
    found: dict[int, list[Intervals]] = {}
    threads = known.drop_nulls("tid").partition_by("tid", as_dict=True) if wakers else {}
    for (consumer,), part in threads.items():
        assert wakers is not None
        working = wakers.working(int(consumer), union(_late(part)))
        for tid in working.keys() - {consumer}:
            found.setdefault(tid, []).append(working[tid])
    return {tid: union_all(times) for tid, times in found.items()}


def _done(work: pl.DataFrame, when: Mapping[int, Intervals]) -> Intervals:
    """The parts of these spans that threads did at these times."""
    parts = [
        overlaps(intervals(work.filter(pl.col("tid") == tid)), times) for tid, times in when.items()
    ]
    return union_all(parts)


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


def _with_fetch(spans: pl.DataFrame) -> pl.DataFrame:
    """The waits, each with the `worker` that made its batch and when it was `ready_ns`; null where
    that is not known.

    Where two workers claim one batch, the one that was ready first delivered it.
    """
    ready = (
        of_kind(spans, "fetch").group_by("batch", "worker").agg(ready_ns=pl.col("finish_ns").max())
    )
    first = ready.sort("ready_ns", "worker").unique("batch", keep="first")
    waits = of_kind(spans, "wait").select("start_ns", "end_ns", "batch", "pid", "tid", "name")
    return waits.join(first, on="batch", how="left")


def _work(spans: pl.DataFrame, known: pl.DataFrame) -> list[Activity]:
    """What the workers did while the rank waited for a batch of theirs that was not made yet."""
    axis = Axis.of(known)
    until_ready = known.with_columns(until=pl.min_horizontal("end_ns", "ready_ns"))
    windows = union(axis.place(until_ready, "until"))
    there = spans.select(*TIMES, "source", "worker").filter(
        axis.has_worker, pl.col("end_ns") > axis.origin_ns
    )
    fetching = union(axis.place(of_kind(there, "fetch")))
    has_peers = there.select(from_peer.any()).item()
    found = []
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
        found.append(Activity(cause, axis.times(overlaps(placed, windows))))
    return found
