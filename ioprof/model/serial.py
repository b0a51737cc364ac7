"""What those who make batches can do only one at a time: what they do while they hold a lock that
others of them wait for, what a process of the job answers for all of them, and, where they are
threads of the loop's process, what they do while they hold its interpreter lock.

It is found in the blocks of their threads (`Trace.blocks`): a maker that waits within a batch is
ended by another maker, or by a process that serves them. How long one of them has the lock is seen
where another one waits for it all that time. How often it takes the lock for a batch is seen where
it had to wait each time. Where makers rarely meet it is not seen, but follows: of N makers that
hold it for a share U of the time together, one finds it taken in U (N - 1) / N of its attempts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.interpreter_lock import lock_of
from ioprof.analysis.graph.wakers import followed_on
from ioprof.analysis.intervals import (
    Intervals,
    intersect,
    subtract,
    total,
    union,
    union_all,
)
from ioprof.analysis.reads.lineage import Axis
from ioprof.analysis.selection import WORK, intervals
from ioprof.model.iterations import at_once

_LOCKS: Final = ("lock", "semaphore", "file lock", "futex")
_FEWEST: Final = 20
"""Blocks below which nothing is said."""
_LEAST_USE: Final = 0.05
"""Share of the time in which a lock is held, or a process serves, from which on it counts."""
_AT_ONCE: Final = 0.5
"""Of the time in which further makers wait for a process, that in which further threads of it work,
from which on it works for several at once."""
_USUAL: Final = 0.9
"""Quantile of the waits of batches that stands for how often a batch takes the lock."""
_MOSTLY: Final = 0.5
"""Part of the batches that must have waited for that."""
_TRIED: Final = 2000
"""Shares of the time for which the interpreter lock may be held."""
_WAITS: Final = {
    "worker": pl.Int64(),
    "batch": pl.Int64(),
    "tid": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "woken_ns": pl.Int64(),
    "waker_tid": pl.Int32(),
    "waker_pid": pl.Int32(),
    "object": pl.String(),
    "id": pl.Int64(),
}


@dataclass(frozen=True)
class Serial:
    """What one at a time does."""

    waits: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_WAITS))
    """When makers waited for it: `worker`, `tid`, `start_ns`, `end_ns`."""
    batch_s: float = 0.0
    """What it takes for a batch."""
    stage: str = "loader"
    """In which stage of making a batch."""
    is_lock: bool = False
    """Whether it is a lock that they hold, which neither Python's interpreter nor a process that
    serves them makes necessary."""
    loop_waits: Intervals = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """When the loop waited for it because a maker had it: the interpreter lock of its process."""
    lock_wait_s: float = 0.0
    """What makers waited for each batch for the interpreter lock; 0: it is something else."""
    answering: Mapping[int, float] = field(default_factory=dict)
    """The processes that answer makers within their batches, one at a time or not, and which part
    of all that each answered that is."""


def serial(
    blocks: pl.DataFrame, spans: pl.DataFrame, fetches: pl.DataFrame, loop_tid: int
) -> Serial:
    """Of one rank, whose batches these workers made: `fetches` has `batch`, `worker`, `pid`,
    `tid`, `start_ns`, `end_ns`. `blocks`: of its host, since threads of other hosts may have the
    same ids; `loop_tid`: the thread that takes the batches.
    """
    if blocks.is_empty():
        return Serial()
    waits = _waits(blocks, fetches)
    found = _one_at_a_time(blocks, spans, fetches, waits, loop_tid)
    return replace(found, answering=_answering(blocks, waits, fetches))


def _answers(waits: pl.DataFrame, fetches: pl.DataFrame) -> pl.DataFrame:
    """The waits that another than a maker ended through a channel."""
    by_maker = pl.col("waker_tid").is_in(fetches["tid"].implode())
    return waits.filter(~by_maker, pl.col("object") == "channel")


def _answering(
    blocks: pl.DataFrame, waits: pl.DataFrame, fetches: pl.DataFrame
) -> dict[int, float]:
    """See `Serial.answering`."""
    of_makers = pl.col("waker_pid").is_in(fetches["pid"].implode())
    own = _answers(waits, fetches).filter(~of_makers)
    often = own.group_by("waker_pid").len().filter(pl.col("len") >= _FEWEST)
    found = {}
    for pid, number in often.iter_rows():
        by = (pl.col("waker_pid") == pid) & (pl.col("object") == "channel")
        found[pid] = min(1.0, number / blocks.filter(by, pl.col("pid") != pid).height)
    return found


def _one_at_a_time(
    blocks: pl.DataFrame,
    spans: pl.DataFrame,
    fetches: pl.DataFrame,
    waits: pl.DataFrame,
    loop_tid: int,
) -> Serial:
    took_s = float(fetches["end_ns"].to_numpy().max() - fetches["start_ns"].to_numpy().min()) / 1e9
    interpreter = _interpreter(blocks, spans, fetches, waits, loop_tid, took_s)
    if (makers := fetches["tid"].n_unique()) < 2:
        return interpreter
    by_maker = pl.col("waker_tid").is_in(fetches["tid"].implode())
    locks = waits.filter(by_maker, pl.col("object").is_in(_LOCKS))
    found = [
        *(
            (_held(part, took_s, makers, len(fetches)), part)
            for _, part in locks.group_by("object", "id", maintain_order=True)
        ),
        *(
            (_serving(blocks, part, took_s), part)
            for _, part in _answers(waits, fetches).group_by("waker_pid", maintain_order=True)
        ),
    ]
    use, part = max(found, key=lambda each: each[0], default=(0.0, waits.clear()))
    is_lock = part["object"].is_in(_LOCKS).any()
    if use < max(_LEAST_USE, interpreter.batch_s * len(fetches) / took_s):
        return interpreter
    batch_s = min(use * took_s, _length_s(fetches) - _length_s(part)) / len(fetches)
    return Serial(part, max(0.0, batch_s), _stage(spans, fetches, part), is_lock)


def _interpreter(
    blocks: pl.DataFrame,
    spans: pl.DataFrame,
    fetches: pl.DataFrame,
    waits: pl.DataFrame,
    loop_tid: int,
    took_s: float,
) -> Serial:
    """Of makers that are threads of the loop's process: its interpreter lock, the only condition
    of the C library for which both they and the loop wait.

    That it is held is seen while somebody waits: who ends the wait had it. For how long without
    that follows from a model in which a thread that does not hold it comes for it at a steady rate
    (the machine repair problem): what thread i holds at once, `once`, is the mean of what is seen,
    its holds with a first wait are (rates of the others) x (held - seen), and held is
    (1 - waited - held) x rate x `once`. Of two threads that leaves one unknown too many: then it is
    what was seen.
    """
    own = pl.col("object") == "condition"
    threads = blocks.filter(own, pl.col("tid").is_in([loop_tid, *fetches["tid"].unique()]))
    if (lock := lock_of(followed_on(threads), loop_tid)) is None:
        return Serial()
    found = waits.filter(own, pl.col("id") == lock)
    if len(found) < _FEWEST:
        return Serial()
    of_loop = _whole(blocks.filter(pl.col("tid") == loop_tid)).filter(own, pl.col("id") == lock)
    tids, makers = fetches["tid"].unique(), at_once(fetches)
    first, last = int(fetches["start_ns"].to_numpy().min()), int(fetches["end_ns"].to_numpy().max())
    of_loop = of_loop.filter(
        pl.col("waker_tid").is_in(tids.implode()),
        pl.col("start_ns") >= first,
        pl.col("end_ns") <= last,
    )
    by_makers = found.filter(pl.col("waker_tid").is_in(tids.implode()))
    by_loop = found.filter(pl.col("waker_tid") == loop_tid)
    waited = (_length_s(of_loop) / took_s, _length_s(found) / makers / took_s)
    rows = [each.select("start_ns", "end_ns") for each in (of_loop, by_makers, by_loop)]
    is_loop = np.repeat([False, False, True], [len(each) for each in rows])
    use = makers * _held_by_maker(pl.concat(rows), is_loop, makers, waited, took_s)
    if use < _LEAST_USE:
        return Serial()
    batch_s = min(use * took_s, _length_s(fetches) - _length_s(by_makers)) / len(fetches)
    stage = _stage(spans, fetches, by_makers)
    waited_s = _length_s(by_makers) / len(fetches)
    loop_waits = intervals(of_loop)
    return Serial(by_makers, max(0.0, batch_s), stage, loop_waits=loop_waits, lock_wait_s=waited_s)


def _held_by_maker(
    waits: pl.DataFrame,
    is_loop: NDArray[np.bool_],
    makers: int,
    waited: tuple[float, float],
    took_s: float,
) -> float:
    """The share of the time in which each of the makers holds the interpreter lock. `is_loop`: of
    each wait, whether the loop ended it, and not a maker; `waited`: shares, of the loop and of each
    maker.
    """
    order = np.argsort(waits["end_ns"].to_numpy())
    starts, ends = (waits[name].to_numpy()[order] / 1e9 for name in ("start_ns", "end_ns"))
    first = np.minimum.accumulate(starts[::-1])[::-1]
    before = np.concatenate(([-np.inf], ends[:-1]))
    part, is_first = np.maximum(0.0, ends - np.maximum(first, before)), first > before

    def of(some: NDArray[np.bool_], number: int) -> tuple[float, float, float]:
        share = float(part[some].sum()) / number / took_s
        fresh = float((some & is_first).sum()) / number / took_s
        return share, fresh, float(part[some].mean()) if some.any() else 0.0

    (seen, fresh, once), mine = of(~is_loop[order], makers), of(is_loop[order], 1)
    most = min((1 - mine[0]) / makers, 1 - waited[1])
    if makers == 1 or not once or seen >= most:
        return min(seen, most)
    held = seen + (most - seen) * np.linspace(0, 1, _TRIED + 2)[1:-1]
    rate = held / ((1 - waited[1] - held) * once)
    by_loop = np.minimum(mine[0] + mine[1] / (makers * rate), 1 - waited[0] - 1e-6)
    of_loop = by_loop / ((1 - waited[0] - by_loop) * mine[2]) if mine[2] else np.zeros(_TRIED)
    missing = fresh - (of_loop + (makers - 1) * rate) * (held - seen)
    return float(held[int(np.argmax(missing <= 0))] if (missing <= 0).any() else held[-1])


def _length_s(rows: pl.DataFrame) -> float:
    return int((rows["end_ns"] - rows["start_ns"]).sum()) / 1e9


def _whole(blocks: pl.DataFrame) -> pl.DataFrame:
    """Waits that somebody ended, by their blocks: one that asks again after a time, as each thread
    does that wants the interpreter lock, waits from the first of them.
    """
    blocks = blocks.filter(pl.col("id").is_not_null()).sort("tid", "start_ns")
    thing = pl.struct("tid", "object", "id")
    soon = pl.col("start_ns") - pl.col("end_ns").shift() < pl.col("end_ns") - pl.col("start_ns")
    again = (thing == thing.shift()) & pl.col("timed_out").shift() & soon
    number = (~again.fill_null(value=False)).cum_sum()
    return (
        blocks.with_columns(start_ns=pl.col("start_ns").min().over(number))
        .filter(pl.col("waker_tid").is_not_null())
        .with_columns(pl.col("object").cast(pl.String))
    )


def _waits(blocks: pl.DataFrame, fetches: pl.DataFrame) -> pl.DataFrame:
    """The waits of the makers' own threads within their batches that somebody ended."""
    makers = fetches.group_by("tid").agg(pl.col("worker").first())
    found = _whole(blocks.filter(pl.col("tid").is_in(makers["tid"].implode())))
    within = (
        found.sort("start_ns")
        .join_asof(
            fetches.select("tid", "batch", begun_ns="start_ns", until_ns="end_ns").sort("begun_ns"),
            left_on="start_ns",
            right_on="begun_ns",
            by="tid",
            check_sortedness=False,
        )
        .filter(pl.col("end_ns") <= pl.col("until_ns"))
    )
    own = pl.coalesce("waker_pid", "pid")
    found = within.join(makers, on="tid").with_columns(waker_pid=own)
    return found.select(list(_WAITS)).cast(pl.Schema(_WAITS))


def _held(waits: pl.DataFrame, took_s: float, num_makers: int, num_batches: int) -> float:
    """The share of the time in which a lock is held, by the waits for it: no less than that in
    which somebody waited.
    """
    waited = total(union(intervals(waits))) / 1e9 / took_s
    waits = waits.sort("woken_ns")
    released, began = (waits[name].to_numpy() for name in ("woken_ns", "start_ns"))
    # between two releases, while somebody waited, one maker had it
    had_it = np.diff(released)[began[1:] <= released[:-1]]
    if len(waits) < _FEWEST:
        return 0.0
    once_s = float(np.median(had_it if len(had_it) >= _FEWEST // 2 else released - began)) / 1e9
    by_chance = np.sqrt(len(waits) * once_s / took_s * num_makers / (num_makers - 1))
    per_batch = waits.group_by("batch").len()["len"].to_numpy()
    often = np.quantile(per_batch, _USUAL) if len(per_batch) >= _MOSTLY * num_batches else 0.0
    return min(1.0, max(waited, float(by_chance), float(often) * once_s * num_batches / took_s))


def _serving(blocks: pl.DataFrame, answers: pl.DataFrame, took_s: float) -> float:
    """The share of the time in which a process works for several makers, one at a time; 0 if
    several of its threads do so at once where several makers wait. Its threads may wait for its
    interpreter lock.
    """
    if len(answers) < _FEWEST or answers["tid"].n_unique() < 2:
        return 0.0
    threads = answers["waker_tid"].unique()
    waits_for = ["channel"] if len(threads) == 1 else ["channel", "condition"]
    idle = blocks.filter(pl.col("object").is_in(waits_for), pl.col("tid").is_in(threads.implode()))
    at_work = [
        subtract(
            union(intervals(part.with_columns(end_ns="woken_ns"))),
            union(intervals(idle.filter(pl.col("tid") == tid))),
        )
        for (tid,), part in answers.group_by("waker_tid")
    ]
    waiting = [union(intervals(part)) for _, part in answers.group_by("tid")]
    if _beyond_one(at_work) > _AT_ONCE * _beyond_one(waiting):
        return 0.0
    return total(union_all(at_work)) / 1e9 / took_s


def _beyond_one(sets: list[Intervals]) -> int:
    """The time in these sets beyond that in any of them."""
    return sum(map(total, sets)) - total(union_all(sets))


def _stage(spans: pl.DataFrame, fetches: pl.DataFrame, waits: pl.DataFrame) -> str:
    """The stage that most of the waits are in."""
    axis = Axis.of(fetches)
    there = spans.filter(axis.has_worker)
    placed = union(axis.place(waits))
    inside = {
        stage: total(intersect(placed, union(axis.place(there.filter(of_stage)))))
        for stage, of_stage in WORK.items()
    }
    most = max(inside, key=lambda stage: inside[stage])
    return most if inside[most] > total(placed) / 2 else "loader"
