"""What the training process itself read, decoded and transformed: in its main thread, and in
threads that have no batch number.

The main thread is the thread of the rank's `step` spans. While it reads, faults or decodes it does
nothing else, so that time is charged to that, and not to `host` or to a computation on the CPU that
it is part of. What other threads read for a batch that it makes itself (`ingest/joining.py`) counts
as its own: a read in a decode is a read, also where a pool of the decoder makes it.

Other threads of the process work at the same time as the main thread, and no record says when the
main thread waits for them. Where the rank has a `wait` whose batch no `fetch` made, the wait is
divided by what the threads did meanwhile. Where it has no `wait` at all, a stretch of time in which
the main thread did nothing that was recorded is charged to them only if it looks like a wait: the
threads worked for at least half of it, and their last work ended in its last quarter, as it does
where the main thread takes a result as soon as there is one. Both are `derived`. All other time
stays with `host`, because the main thread may have run Python meanwhile.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    covered,
    overlaps,
    pieces_within,
    subtract,
    union,
    union_all,
)
from ioprof.analysis.selection import (
    READS,
    WORK,
    WORKER,
    Activity,
    from_peer,
    intervals,
    of_kind,
    of_work,
    with_worker,
)
from ioprof.format.schema import COMPILATION, OPERATOR

_STAGES: Final = ("decode", "transform", "collate")
_SHORTEST_WAIT_NS: Final = 1_000_000
"""Shorter stretches stay with `host`: between two computations a thread is often busy by
coincidence."""


def _thread() -> pl.Expr:
    return pl.col("pid").fill_null(-1).cast(pl.Int64) * 2**32 + pl.col("tid").fill_null(-1)


def main_threads(spans: pl.DataFrame) -> pl.Series:
    """The threads that made the steps of one rank, each as one number."""
    steps = of_kind(spans, "step").filter(pl.col("tid").is_not_null())
    return steps.select(_thread().unique()).to_series()


def in_main_thread(spans: pl.DataFrame) -> pl.Expr:
    """Spans of one rank that its main thread made."""
    return _thread().is_in(main_threads(spans).implode())


def for_main_thread(spans: pl.DataFrame) -> pl.Expr:
    """Spans of one rank, with their worker, that its main thread made, and reads of others for a
    batch that it makes.
    """
    return pl.col(WORKER).is_in(main_threads(spans).implode()).fill_null(value=False)


def has_processes(spans: pl.DataFrame) -> bool:
    """Whether another process than the one that waits makes batches for this rank."""
    consumers = of_kind(spans, "wait", "step")["pid"].unique()
    return not of_kind(spans, "fetch").filter(~pl.col("pid").is_in(consumers.implode())).is_empty()


def main_thread_work(spans: pl.DataFrame) -> Iterator[Activity]:
    """Collections, reads, decoding and transforms of the main thread, and its sampler, in the order
    in which time is charged.

    What it reads from other processes while it waits for a batch or exchanges gradients is part of
    that, and is not here; nor is what it does while it waits for torch's compiler.
    """
    spans = with_worker(spans)
    compiling = _compilations(spans)
    did = of_kind(spans, "gc", "sampler", *READS, *_STAGES).select(
        "start_ns", "end_ns", "kind", "source", WORKER
    )
    mine = did.filter(for_main_thread(spans))
    collected = intervals(of_kind(mine, "gc"))
    yield Activity("gc", subtract(collected, compiling) if len(compiling) else collected, "main")
    elsewhere = union(intervals(of_kind(spans, "wait", "comm")))
    for cause in WORK:
        work = of_work(mine, cause)
        of_peers = intervals(work.filter(from_peer))
        own = subtract(of_peers, elsewhere) if len(of_peers) else EMPTY
        times = union_all([intervals(work.filter(~from_peer)), own])
        yield Activity(cause, subtract(times, compiling) if len(compiling) else times, "main")
    yield Activity("loader", intervals(of_kind(mine, "sampler")))


def _compilations(spans: pl.DataFrame) -> Intervals:
    """When the main thread of a rank waited for torch's compiler."""
    found = of_kind(spans, "user").filter(pl.col("name").cast(pl.String) == COMPILATION)
    return union(intervals(found.filter(in_main_thread(spans)))) if len(found) else EMPTY


def threads_work(spans: pl.DataFrame, with_peers: bool) -> dict[str, Intervals]:
    """When threads of the training process that have no batch number did which work; empty if there
    are none.

    `with_peers`: reads from sockets and pipes count too. Where worker processes make the batches,
    they come from those.
    """
    processes = of_kind(spans, "wait", "step")["pid"].drop_nulls().unique()
    known = of_kind(spans, "wait", "step", "fetch").select(_thread().unique()).to_series()
    done = of_kind(spans, *READS, *_STAGES).select(
        "start_ns", "end_ns", "kind", "pid", "tid", "batch", "source", "name"
    )
    theirs = done.filter(pl.col("pid").is_in(processes.implode()) & pl.col("batch").is_null())
    theirs = theirs.filter(~_thread().is_in(known.implode()))
    theirs = theirs if with_peers else theirs.filter(~from_peer)
    # a pipeline of DALI makes a batch by one operator after the other, and reads ahead meanwhile
    in_order = pl.col("name").cast(pl.String).str.starts_with(OPERATOR).fill_null(value=False)
    by_operators = union(intervals(of_kind(theirs, *_STAGES).filter(in_order)))
    found = {cause: intervals(of_work(theirs, cause)) for cause in WORK}
    if len(by_operators):
        found |= {
            cause: subtract(union(found[cause]), by_operators)
            for cause in ("storage", "page_cache")
        }
    return {cause: times for cause, times in found.items() if len(times)}


def unrecorded_waits(spans: pl.DataFrame, idle: Intervals) -> tuple[list[Activity], Intervals]:
    """What threads of the process did while the main thread seems to have waited for them, and what
    they did in the rest of `idle`.

    `idle` is when nothing is known of the main thread. A rank with `wait` spans has shown when it
    waits: nothing is added to that.
    """
    if not of_kind(spans, "wait").is_empty():
        return [], EMPTY
    exchanges = intervals(of_kind(spans, "comm"))
    work = {
        cause: subtract(times, exchanges)
        for cause, times in threads_work(spans, with_peers=True).items()
    }
    waits = likely_waits(idle, work)
    found = [Activity(cause, overlaps(times, waits), "threads") for cause, times in work.items()]
    return found, subtract(overlaps(union_all(list(work.values())), idle), waits)


def likely_waits(idle: Intervals, work: Mapping[str, Intervals]) -> Intervals:
    """Those of these stretches of time in which the main thread seems to have waited for the work
    of threads.
    """
    anything = union_all(list(work.values()))
    place, found = pieces_within(idle, anything)
    last = idle[:, 0].copy()
    np.maximum.at(last, place, found[:, 1])
    lengths = idle[:, 1] - idle[:, 0]
    is_long = lengths >= _SHORTEST_WAIT_NS
    is_wait = (
        is_long & (idle[:, 1] - last <= lengths // 4) & (2 * covered(idle, anything) >= lengths)
    )
    return union(idle[is_wait]) if 2 * lengths[is_wait].sum() >= lengths[is_long].sum() else EMPTY
