"""How long the main threads of ranks waited for Python's interpreter lock (the GIL), and which
threads held it meanwhile.

A thread of Python needs this lock for all but what C code does without it, such as torch's
operators, reads and sleeping. Where another thread of the process computes in Python, the main
thread waits for the lock after each such operator, by default for 5 ms. No span shows that: the
wait lies within what the main thread was just doing, mostly within a computation on the CPU.

The lock is a condition of the C library, for which a thread waits 5 ms at a time, so that blocks
say when the main thread waited, and who ended that. Where none were recorded, samples of stacks say
whether the main thread waited, and who held the lock then: the part of the samples of a cause in
which it waited is that part of the cause's time. It counts as `host`, since it is Python of the
training process that takes it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from ioprof.analysis.graph.wakers import followed_on
from ioprof.analysis.intervals import EMPTY, Intervals, is_within, overlaps, total, union_all
from ioprof.analysis.selection import intervals
from ioprof.format.schema import CAUSES, HOLDER
from ioprof.format.trace import Trace

FEWEST_WAITS: Final = 5
"""Samples of a rank in which it waited for the lock, or waits, below which nothing is said of
it."""
_SWITCH_NS: Final = (3_000_000, 10_000_000)
"""Of a wait that ends without the lock: 5 ms by default (sys.setswitchinterval)."""
_GAP_NS: Final = 300_000
"""Between two such waits in a row."""
_LONG_NS: Final = 3 * _SWITCH_NS[1]
_LOCK_BYTES: Final = 512
"""Between the two conditions of the lock: that it is free, and that another thread has it."""
_FEW: Final = 0.25
"""Other waits of two threads for each other, such as when one is started, over those at length."""
_MOST_HOLDERS: Final = 3
"""Threads that are named."""
_LEAST_SWITCHES: Final = 0.1
"""Part of the waits that end so, where only the main thread had to wait."""
_IS_HOLDER: Final = pl.col("stack").cat.starts_with(f"{HOLDER}:")
_NOT_WAITED: Final = ("h2d", "exchange", "straggler")
"""Causes that go on without the main thread."""


def of_main_threads(stacks: pl.DataFrame) -> pl.DataFrame:
    """The samples of main threads."""
    return stacks.filter(pl.col("tid") == pl.col("pid"))


def of_holders(stacks: pl.DataFrame) -> pl.DataFrame:
    """The samples of threads that held the lock while the main thread of their process waited for
    it.
    """
    return stacks.filter(pl.col("tid") != pl.col("pid"), _IS_HOLDER)


def of_threads(stacks: pl.DataFrame) -> pl.DataFrame:
    """The samples of all threads that were taken of each by itself, not because it held the
    lock.
    """
    return stacks.filter(~_IS_HOLDER)


def causes_with_waits(trace: Trace) -> tuple[str, ...]:
    """Causes of which a part may be waits for the lock, `host` included. While a device computes
    nothing is lost by them.
    """
    is_on_cpu = trace.run.device_name in (None, "cpu")
    return tuple(
        cause for cause in CAUSES if cause not in _NOT_WAITED and (is_on_cpu or cause != "compute")
    )


def thread_of(stack: str) -> str:
    """The name of the thread of a sample of `of_holders`."""
    return stack.partition("\n")[0].rpartition(":")[2]


class _Waits(NamedTuple):
    """When the main thread of a rank waited for the lock, and who ended that."""

    rank: int
    lock: int
    """The condition that the lock is."""
    pid: int
    tid: int
    times: Intervals


def _waits(trace: Trace) -> Iterator[_Waits]:
    """By the thread that ended them; only of ranks that waited."""
    conditions = trace.blocks.filter(pl.col("object") == "condition", pl.col("id").is_not_null())
    by = ["host", "pid", "rank"]
    for (_, pid, rank), part in conditions.partition_by(by, as_dict=True).items():
        waits = followed_on(part)
        lock = lock_of(
            waits.filter(pl.col("waker_pid").is_null() | (pl.col("waker_pid") == pid)), pid
        )
        if rank is None or lock is None:
            continue
        mine = waits.filter(pl.col("tid") == pid, pl.col("id") == lock)
        for (tid,), times in mine.partition_by("waker_tid", as_dict=True).items():
            yield _Waits(rank, lock, pid, tid, intervals(times))


def lock_blocks(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """By rank, when its main thread waited for the lock, by the name of the thread that ended the
    wait. Only of ranks that waited.
    """
    names = {
        (rank, pid, tid): thread_of(stack)
        for rank, pid, tid, stack in of_holders(trace.stacks)
        .select("rank", "pid", "tid", pl.col("stack").cast(pl.String))
        .unique(["rank", "pid", "tid"])
        .iter_rows()
    }
    found: dict[int, dict[str, Intervals]] = {}
    for each in _waits(trace):
        name = names.get((each.rank, each.pid, each.tid), f"{each.tid}")
        of_rank = found.setdefault(each.rank, {})
        of_rank[name] = union_all([of_rank.get(name, EMPTY), each.times])
    return found


def long_holds(trace: Trace) -> dict[int, Intervals]:
    """By rank, when its main thread waited for the lock until C code of another thread had ended,
    such as an encoder of JSON, and did not get it after a turn of 5 ms. Only of threads that make
    no batches, and for which the main thread waits in no other way, nor they for it: how often they
    do so depends on the time that goes by, and not on the steps.
    """
    makers = set(trace.rows(kinds=["fetch"]).select("pid", "tid").unique().iter_rows())
    found: dict[int, Intervals] = {}
    for each in _waits(trace):
        begins = np.append(True, each.times[1:, 0] - each.times[:-1, 1] > _GAP_NS)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(begins)) - 1
        whole = np.column_stack([each.times[first, 0], each.times[last, 1]])
        whole = whole[whole[:, 1] - whole[:, 0] >= _LONG_NS]
        pair = (each.pid, each.tid)
        if not len(whole) or pair in makers:
            continue
        is_of_lock = (pl.col("object") == "condition") & (
            (pl.col("id") - each.lock).abs() < _LOCK_BYTES
        )
        others = trace.blocks.filter(
            pl.col("rank") == each.rank,
            pl.col("tid").is_in(pair),
            pl.col("waker_tid").is_in(pair),
            ~is_of_lock.fill_null(value=False),
        )
        if len(others) < _FEW * len(whole):
            found[each.rank] = union_all([found.get(each.rank, EMPTY), whole])
    return found


def lock_of(waits: pl.DataFrame, main: int) -> int | None:
    """The condition that the interpreter's lock is, of the waits of one process: the main thread
    and those that end its waits wait for it, or the main thread does so for 5 ms at a time.
    """
    most, lock = 0, None
    for (number,), part in waits.partition_by("id", as_dict=True).items():
        mine = part.filter(pl.col("tid") == main)
        others = part.filter(pl.col("tid") != main)
        if len(mine) < FEWEST_WAITS:
            continue
        is_mutual = (others["waker_tid"] == main).any() and mine["waker_tid"].is_in(
            others["tid"].unique().implode()
        ).any()
        length = pl.col("end_ns") - pl.col("start_ns")
        switches = mine.filter(pl.col("timed_out"), length.is_between(*_SWITCH_NS))
        if (is_mutual or len(switches) >= _LEAST_SWITCHES * len(mine)) and len(mine) > most:
            most, lock = len(mine), number
    return lock


class LockWaits:
    """The parts of causes in which the main thread of each rank waited for the lock, piece by
    piece.
    """

    def __init__(self, trace: Trace) -> None:
        self.causes = causes_with_waits(trace)
        self._blocks = lock_blocks(trace)
        self._samples: dict[int, pl.DataFrame] = {}
        holders = of_holders(trace.stacks)
        for (rank,), of_rank in (
            holders.filter(pl.col("rank").is_not_null()).partition_by("rank", as_dict=True).items()
        ):
            if len(of_rank) >= FEWEST_WAITS:
                names = of_rank.select("host", "pid", "time_ns", name="stack")
                of_main = of_main_threads(trace.stacks.filter(pl.col("rank") == rank)).sort(
                    "time_ns"
                )
                self._samples[rank] = of_main.join(
                    names, on=["host", "pid", "time_ns"], how="left", maintain_order="left"
                )
        ranks = [*self._samples, *self._blocks]
        self._numbers: dict[int, Counter[str]] = {rank: Counter() for rank in ranks}
        self._waits: dict[int, Counter[tuple[str, str]]] = {rank: Counter() for rank in ranks}

    def is_seen(self, rank: int) -> bool:
        """Whether the rank waited for the lock at all."""
        return rank in self._numbers

    def add(self, rank: int, instants: Mapping[str, Intervals]) -> None:
        """Add the instants of a rank that were charged to each of the `causes`."""
        for name, times in self._blocks.get(rank, {}).items():
            for cause in self.causes:
                self._waits[rank][cause, name] += total(overlaps(instants[cause], times))
        if rank in self._blocks:
            self._numbers[rank].update({each: total(instants[each]) for each in self.causes})
            return
        samples = self._samples[rank]
        times = samples["time_ns"].to_numpy()
        for cause in self.causes:
            inside = samples.filter(pl.Series(is_within(times, instants[cause]), dtype=pl.Boolean))
            self._numbers[rank][cause] += len(inside)
            for (stack,) in inside.select("name").drop_nulls().iter_rows():
                self._waits[rank][cause, thread_of(stack)] += 1

    def parts(self, rank: int) -> dict[str, float]:
        """Of each cause the part in which the rank waited, 0 to 1."""
        if not self.is_seen(rank) or self._waits[rank].total() < FEWEST_WAITS:
            return {}
        found = Counter[str]()
        for (cause, _), count in self._waits[rank].items():
            found[cause] += count
        return {cause: count / self._numbers[rank][cause] for cause, count in (+found).items()}

    @property
    def holders(self) -> str:
        """The names of the threads that held the lock, the longest first."""
        found = Counter[str]()
        for waits in self._waits.values():
            for (_, name), count in (+waits).items():
                found[name] += count
        found = Counter({name: n for name, n in found.items() if not name.isdecimal()}) or found
        return ", ".join(name for name, _ in found.most_common(_MOST_HOLDERS))
