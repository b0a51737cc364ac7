"""Which thread worked while another one was blocked: back along the calls that woke them.

A thread that is blocked at an instant does what the thread did then that woke it afterwards; was
that one blocked itself, it is the thread that woke that one; and so on, across processes. So a line
that only waits, for a lock, a pool or a queue, stands for the line of who works meanwhile. A thread
that nobody woke, as from a sleep, is the end of the way.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

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


class Wakers:
    """The blocks of a run, by thread. A thread is known by its id, which is unique on a host."""

    def __init__(self, blocks: pl.DataFrame) -> None:
        known = blocks.filter(
            pl.col("waker_tid").is_not_null(), pl.col("waker_tid") != pl.col("tid")
        ).sort("start_ns")
        self._threads: dict[tuple[str | None, int], _Thread] = {}
        columns = pl.col("start_ns", "end_ns", "waker_tid").cast(pl.Int64)
        for (host, tid), part in known.partition_by("host", "tid", as_dict=True).items():
            rows = part.select(columns)
            self._threads[host, int(tid)] = _Thread(
                *(rows[name].to_numpy() for name in rows.columns)
            )

    def way(self, host: str | None, tids: _Array, times: _Array) -> list[_Array]:
        """The threads that worked for these at these instants, step by step: the first are they
        themselves, the last are not blocked. 0: the way has ended before.
        """
        found, now = [tids], tids
        for _ in range(_MOST_STEPS):
            following = np.zeros(len(tids), np.int64)
            for tid in np.unique(now[now > 0]).tolist():
                if (thread := self._threads.get((host, tid))) is None:
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


def of_working_threads(stacks: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The samples, those of blocked threads with the stack of the thread that worked meanwhile, as
    far as there is a sample of it near that time.
    """
    if stacks.is_empty() or blocks.is_empty():
        return stacks
    wakers, tables = Wakers(blocks), list[pl.DataFrame]()
    for (host,), part in stacks.partition_by("host", as_dict=True).items():
        tables.append(_followed(part, wakers, host))
    return pl.concat(tables)


def _followed(samples: pl.DataFrame, wakers: Wakers, host: Any) -> pl.DataFrame:
    samples = samples.with_row_index("row").sort("time_ns")
    times = samples["time_ns"].to_numpy().astype(np.int64)
    way = wakers.way(host, samples["tid"].fill_null(0).to_numpy().astype(np.int64), times)
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
