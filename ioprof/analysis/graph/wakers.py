"""Which thread worked while another one was blocked: back in time along the calls that woke them.

A thread that was blocked was woken by another one, which had run since it was woken itself, by a
third one, and so on, across processes, to the beginning of the block: so each of its instants is
of one thread, that without which the block would have ended earlier. What else a thread on this way
did before, for others or woken by a timer, is not on it. So a line that only waits, for a lock, a
pool or a queue, stands for the line of who works meanwhile. A thread that nobody woke, as from a
sleep, is the end of the way.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    pack,
    pieces_within,
    subtract,
    union,
    union_all,
)
from ioprof.format.trace import Trace

_MOST_STEPS: Final = 1000
"""From one thread to the next: two that take turns with a lock make many."""
_MOST_KEPT: Final = 8
"""Steps of a way that are told; the last one stands for all after it."""
_NEAR_NS: Final = 500_000_000
"""How far a sample of the working thread may be from the instant: other threads than the main one
are sampled each tenth of a second or so."""

_NEVER: Final = np.iinfo(np.int64).min

_Array = NDArray[np.int64]


@dataclass(frozen=True)
class _Thread:
    """The blocks of a thread whose waker is known, in order, none within another one."""

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
        before = pl.col("end_ns").cum_max().shift().over("tid")
        followed = followed_on(blocks)
        outer = followed.filter((pl.col("end_ns") > before).fill_null(value=True))
        for (tid,), part in outer.partition_by("tid", as_dict=True).items():
            rows = part.select(columns)
            self._threads[int(tid)] = _Thread(*(rows[name].to_numpy() for name in rows.columns))

    def way(self, tids: _Array, times: _Array) -> list[_Array]:
        """The threads on the way from these at these instants, step by step: the first are they
        themselves, the last worked then. 0: the way has ended before.
        """
        found = [tids]
        wakers, woken = np.zeros(len(tids), np.int64), np.zeros(len(tids), np.int64)
        for rows, thread in self._each(tids):
            place = np.searchsorted(thread.starts, times[rows], side="right") - 1
            at = np.maximum(place, 0)
            is_blocked = (place >= 0) & (times[rows] < thread.woken[at])
            wakers[rows] = np.where(is_blocked, thread.wakers[at], 0)
            woken[rows] = thread.woken[at]
        blocked = np.flatnonzero(wakers)
        for rows, threads, _, _ in self._back(wakers[blocked], woken[blocked], times[blocked]):
            if len(found) < _MOST_KEPT:
                found.append(np.zeros(len(tids), np.int64))
            found[-1][blocked[rows]] = threads
        return found

    def working(
        self, tid: int, times: Intervals, *, or_waited: bool = False
    ) -> dict[int, Intervals]:
        """When which thread worked for this one at these times, which are a normal set: it itself
        where it was not blocked. Where threads seem to wait for each other none did. `or_waited`:
        also when it was itself blocked, for who worked for it.
        """
        thread = self._threads.get(tid)
        if thread is None or not len(times):
            return {tid: times}
        first = int(np.searchsorted(thread.woken, times[0, 0], side="right"))
        last = int(np.searchsorted(thread.starts, times[-1, 1], side="left"))
        near = pack(thread.starts[first:last], thread.woken[first:last])
        place, blocked = pieces_within(near, times)
        found = {tid: [subtract(times, blocked)]}
        of_wakers = thread.wakers[first:last][place], near[place, 1]
        for rows, threads, starts, ends in self._back(*of_wakers, blocked[:, 0]):
            ends = np.minimum(ends, blocked[rows, 1])
            if or_waited:
                starts = blocked[rows, 0]
            is_other = (starts < ends) & (threads != tid)
            for each in np.unique(threads[is_other]).tolist():
                which = is_other & (threads == each)
                found.setdefault(each, []).append(pack(starts[which], ends[which]))
        return {each: union(np.concatenate(parts)) for each, parts in found.items()}

    def _each(self, tids: _Array) -> Iterator[tuple[_Array, _Thread]]:
        """The rows of each of these threads of which there are blocks."""
        order = np.argsort(tids, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(tids[order])) + 1):
            thread = self._threads.get(int(tids[rows[0]])) if len(rows) else None
            if thread is not None:
                yield rows, thread

    def _back(
        self, threads: _Array, times: _Array, until: _Array
    ) -> Iterator[tuple[_Array, _Array, _Array, _Array]]:
        """Back from threads that woke others at these times, each to an earlier instant. Of each
        step the rows that are not there yet, who ran, and from when to when.
        """
        rows = np.arange(len(threads))
        for _ in range(_MOST_STEPS):
            if not len(rows):
                return
            since, wakers = np.full(len(rows), _NEVER), np.zeros(len(rows), np.int64)
            for mine, thread in self._each(threads):
                place = np.searchsorted(thread.ends, times[mine], side="right") - 1
                at = np.maximum(place, 0)
                since[mine] = np.where(place >= 0, thread.woken[at], _NEVER)
                wakers[mine] = thread.wakers[at]
            yield rows, threads, np.maximum(since, until[rows]), times
            goes_on = since > until[rows]
            rows, threads, times = rows[goes_on], wakers[goes_on], since[goes_on]

    def process_of(self, tid: int) -> int:
        """The process of a thread; -1: not known."""
        return int(self._processes.get(tid, -1))

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
    """The samples with `is_blocked`: whether their own thread was blocked then, null where the host
    has no blocks; `asks`: whether until another process of the job answered it, by a pipe or a
    socket; and `of_other`, which is false until `of_working_threads` knows more.
    """
    stacks = stacks.with_columns(of_other=pl.lit(value=False), asks=pl.lit(value=False))
    if blocks.is_empty() or stacks.is_empty():
        return stacks.with_columns(is_blocked=pl.lit(None, pl.Boolean))
    whose = (pl.col("host").cast(pl.String).fill_null(""), pl.col("tid").cast(pl.Int64))
    sought = stacks.select(*whose, "time_ns").with_row_index("row").sort("time_ns")
    of_process = (pl.col("object") == "channel") & (pl.col("waker_pid") != pl.col("pid"))
    begun = blocks.select(*whose, "start_ns", "end_ns", of_process=of_process).sort("start_ns")
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
    asks = is_within & near["of_process"].fill_null(value=False)
    return stacks.with_columns(is_blocked=pl.when(has_blocks).then(is_within), asks=asks)


def of_working_threads(
    stacks: pl.DataFrame, blocks: pl.DataFrame, loops: Collection[int] = ()
) -> pl.DataFrame:
    """The samples of `with_blocked`, those of blocked threads with the stack of the thread that
    worked meanwhile, as far as there is a sample of it near that time: these are `of_other`.

    `loops` are the threads of the ranks' loops. What one of them does is no work of the threads of
    its process that wait for it, such as for the interpreter lock.
    """
    if stacks.is_empty() or blocks.is_empty():
        return stacks
    wakers, tables = by_host(blocks), list[pl.DataFrame]()
    for (host,), part in stacks.partition_by("host", as_dict=True).items():
        known = wakers.get(None if host is None else str(host))
        tables.append(part if known is None else _followed(part, known, loops))
    return pl.concat(tables)


def _followed(samples: pl.DataFrame, wakers: Wakers, loops: Collection[int]) -> pl.DataFrame:
    samples = samples.with_row_index("row").sort("time_ns")
    times = samples["time_ns"].to_numpy().astype(np.int64)
    way = wakers.way(samples["tid"].fill_null(0).to_numpy().astype(np.int64), times)
    if len(way) == 1:
        return samples.sort("row").drop("row")
    at_work = samples.filter(pl.Series(way[1] == 0))
    taken = at_work.select(
        pl.col("tid").cast(pl.Int64),
        at="time_ns",
        stack_then="stack",
        of_loop=pl.when(pl.col("tid").is_in(list(loops))).then("pid"),
    )
    found = samples.with_columns(found=pl.lit(None, samples.schema["stack"]))
    for step in way[1:]:  # the last thread of which there is a sample counts
        sought = samples.select("pid", "time_ns", by=pl.Series(step)).with_row_index("place")
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
        near = near.filter((pl.col("pid") != pl.col("of_loop")).fill_null(value=True))
        then = sought.join(near.select("place", "stack_then"), on="place", how="left").sort("place")
        found = found.with_columns(found=pl.coalesce(then["stack_then"], "found"))
    of_other = pl.col("found").is_not_null()
    stack = pl.coalesce("found", "stack")
    return found.with_columns(stack=stack, of_other=of_other).sort("row").drop("row", "found")
