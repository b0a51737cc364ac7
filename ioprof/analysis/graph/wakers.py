"""Which thread worked while another one was blocked: back along the calls that woke them.

A thread that is blocked at an instant does what the thread did then that woke it afterwards; was
that one blocked itself, it is the thread that woke that one; and so on, across processes. So a line
that only waits, for a lock, a pool or a queue, stands for the line of who works meanwhile. A thread
that nobody woke, as from a sleep, is the end of the way.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import EMPTY, Intervals, pack, pieces_within, subtract, union_all
from ioprof.format.trace import Trace

_MOST_STEPS: Final = 8
"""From one thread to the next."""
_NEAR_NS: Final = 500_000_000
"""How far a sample of the working thread may be from the instant: other threads than the main one
are sampled each tenth of a second or so."""

_Array = NDArray[np.int64]


@dataclass(frozen=True)
class _Thread:
    """The blocks of a thread whose waker is known, in order."""

    starts: _Array
    ends: _Array
    wakers: _Array
    """The thread that ended each."""
    woken: _Array
    """When it did: until then the thread was blocked, then it waited for a core."""


class Wakers:
    """The blocks of the threads of one host, by the ids of the threads."""

    def __init__(self, blocks: pl.DataFrame) -> None:
        self._threads: dict[int, _Thread] = {}
        threads = pl.concat(
            [
                blocks.select(pl.col("tid", "pid").cast(pl.Int64)),
                blocks.select(
                    tid=pl.col("waker_tid").cast(pl.Int64), pid=pl.col("waker_pid").cast(pl.Int64)
                ),
            ]
        )
        self._processes = dict(threads.drop_nulls().unique("tid").iter_rows())
        columns = pl.col("start_ns", "end_ns", "waker_tid", "woken_ns").cast(pl.Int64)
        for (tid,), part in followed_on(blocks).partition_by("tid", as_dict=True).items():
            rows = part.select(columns)
            self._threads[int(tid)] = _Thread(*(rows[name].to_numpy() for name in rows.columns))

    def way(self, tids: _Array, times: _Array) -> list[_Array]:
        """The threads that worked for these at these instants, step by step: the first are they
        themselves, the last are not blocked. 0: the way has ended before.
        """
        found, now = [tids], tids
        for _ in range(_MOST_STEPS):
            following = np.zeros(len(tids), np.int64)
            for tid in np.unique(now[now > 0]).tolist():
                if (thread := self._threads.get(tid)) is None:
                    continue
                rows = np.flatnonzero(now == tid)
                place = np.searchsorted(thread.starts, times[rows], side="right") - 1
                at = np.maximum(place, 0)
                is_blocked = (place >= 0) & (times[rows] < thread.ends[at])
                following[rows] = np.where(is_blocked, thread.wakers[at], 0)
            if not following.any():
                break
            found.append(following)
            now = following
        return found

    def working(self, tid: int, times: Intervals) -> dict[int, Intervals]:
        """When which thread worked for this one at these times, which are a normal set: it itself
        where it was not blocked. Where threads seem to wait for each other none did.
        """
        found: dict[int, list[Intervals]] = {}
        now = {tid: times}
        for _ in range(_MOST_STEPS):
            following: dict[int, list[Intervals]] = {}
            for each, when in now.items():
                thread = self._threads.get(each)
                if thread is None or not len(when):
                    found.setdefault(each, []).append(when)
                    continue
                first = int(np.searchsorted(thread.woken, when[0, 0], side="right"))
                last = int(np.searchsorted(thread.starts, when[-1, 1], side="left"))
                near = pack(thread.starts[first:last], thread.woken[first:last])
                place, blocked = pieces_within(near, when)
                wakers = thread.wakers[first:last][place]
                for waker in np.unique(wakers).tolist():
                    following.setdefault(waker, []).append(blocked[wakers == waker])
                found.setdefault(each, []).append(subtract(when, blocked))
            now = {each: union_all(parts) for each, parts in following.items()}
        return {each: union_all(parts) for each, parts in found.items()}

    def in_others(self, tid: int, times: Intervals) -> Intervals:
        """When a thread of another process worked for this one at these times."""
        own = self._processes.get(tid)
        at_work = self.working(tid, times) if tid in self._threads else {}
        others = (when for each, when in at_work.items() if self._processes.get(each, own) != own)
        return union_all([EMPTY, *others])


def by_host(blocks: pl.DataFrame) -> dict[str | None, Wakers]:
    """The blocks of each host."""
    parts = blocks.with_columns(pl.col("host").cast(pl.String)).partition_by("host", as_dict=True)
    return {host: Wakers(part) for (host,), part in parts.items()}


def wakers_by_rank(trace: Trace) -> dict[int, Wakers]:
    """Of each rank the blocks of its host; of those alone of whose hosts some are known."""
    if trace.blocks.is_empty():
        return {}
    wakers = by_host(trace.blocks)
    ranks = trace.rows(pl.col("rank").is_not_null(), kinds=["step", "wait"])
    hosts = ranks.select("rank", pl.col("host").cast(pl.String)).unique("rank")
    return {rank: wakers[host] for rank, host in hosts.iter_rows() if host in wakers}


def followed_on(blocks: pl.DataFrame) -> pl.DataFrame:
    """The blocks that another thread ended, in order. A wait whose time was over, and that the
    thread then went on with, was ended by who ended that: so a thread waits for the interpreter
    lock, 5 ms at a time.
    """
    ordered = blocks.sort("tid", "start_ns")
    same = pl.struct("tid", "object", "id").rle_id()
    goes_on = pl.col("timed_out") & pl.col("id").is_not_null()
    waker = pl.when(~goes_on).then(pl.col("waker_tid").fill_null(-1)).cast(pl.Int64)
    found = ordered.with_columns(waker_tid=waker.backward_fill().over(same))
    woken = pl.min_horizontal("woken_ns", "end_ns").clip(lower_bound=pl.col("start_ns"))
    return found.with_columns(woken_ns=pl.when(goes_on).then("end_ns").otherwise(woken)).filter(
        pl.col("waker_tid") > 0, pl.col("waker_tid") != pl.col("tid")
    )


def with_blocked(stacks: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The samples with `is_blocked`: whether their own thread was blocked then. Null where the host
    has no blocks.
    """
    if blocks.is_empty() or stacks.is_empty():
        return stacks.with_columns(is_blocked=pl.lit(None, pl.Boolean))
    whose = (pl.col("host").cast(pl.String).fill_null(""), pl.col("tid").cast(pl.Int64))
    sought = stacks.select(*whose, "time_ns").with_row_index("row").sort("time_ns")
    begun = blocks.select(*whose, "start_ns", "end_ns").sort("start_ns")
    # one may have others within it
    until = pl.col("end_ns").cum_max().over("host", "tid")
    near = sought.join_asof(
        begun.with_columns(end_ns=until),
        left_on="time_ns",
        right_on="start_ns",
        by=["host", "tid"],
        strategy="backward",
        check_sortedness=False,
    ).sort("row")
    is_within = (near["time_ns"] < near["end_ns"]).fill_null(value=False)
    has_blocks = near["host"].is_in(blocks["host"].cast(pl.String).fill_null("").unique().implode())
    return stacks.with_columns(is_blocked=pl.when(has_blocks).then(is_within))


def of_working_threads(stacks: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The samples, those of blocked threads with the stack of the thread that worked meanwhile, as
    far as there is a sample of it near that time.
    """
    if stacks.is_empty() or blocks.is_empty():
        return stacks
    wakers, tables = by_host(blocks), list[pl.DataFrame]()
    for (host,), part in stacks.partition_by("host", as_dict=True).items():
        known = wakers.get(None if host is None else str(host))
        tables.append(part if known is None else _followed(part, known))
    return pl.concat(tables)


def _followed(samples: pl.DataFrame, wakers: Wakers) -> pl.DataFrame:
    samples = samples.with_row_index("row").sort("time_ns")
    times = samples["time_ns"].to_numpy().astype(np.int64)
    way = wakers.way(samples["tid"].fill_null(0).to_numpy().astype(np.int64), times)
    if len(way) == 1:
        return samples.sort("row").drop("row")
    at_work = samples.filter(pl.Series(way[1] == 0))
    taken = at_work.select(pl.col("tid").cast(pl.Int64), at="time_ns", stack_then="stack")
    found = samples.with_columns(found=pl.lit(None, samples.schema["stack"]))
    for step in way[1:]:  # the last thread of which there is a sample counts
        sought = pl.DataFrame({"by": step, "time_ns": samples["time_ns"]}).with_row_index("place")
        near = sought.filter(pl.col("by") > 0).join_asof(
            taken,
            left_on="time_ns",
            right_on="at",
            by_left="by",
            by_right="tid",
            strategy="nearest",
            tolerance=_NEAR_NS,
            check_sortedness=False,
        )
        then = sought.join(near.select("place", "stack_then"), on="place", how="left").sort("place")
        found = found.with_columns(found=pl.coalesce(then["stack_then"], "found"))
    stack = pl.coalesce("found", "stack").alias("stack")
    return found.with_columns(stack).sort("row").drop("row", "found")
