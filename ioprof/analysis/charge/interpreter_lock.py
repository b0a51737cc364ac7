"""How long the main threads of ranks waited for Python's interpreter lock (the GIL), and which
threads held it meanwhile.

A thread of Python needs this lock for all but what C code does without it, such as torch's
operators, reads and sleeping. Where another thread of the process computes in Python, the main
thread waits for the lock after each such operator, by default for 5 ms. No span shows that: the
wait lies within what the main thread was just doing, mostly within a computation on the CPU.

Samples of stacks say whether the main thread waited for the lock, and who held it then. So the part
of the samples of a cause in which it waited is that part of the cause's time. It counts as `host`,
since it is Python of the training process that takes it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import Intervals
from ioprof.format.schema import CAUSES, HOLDER
from ioprof.format.trace import Trace

FEWEST_WAITS: Final = 5
"""Samples of a rank in which it waited for the lock, below which nothing is said of it."""
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


class LockWaits:
    """The parts of causes in which the main thread of each rank waited for the lock, piece by
    piece.
    """

    def __init__(self, trace: Trace) -> None:
        self.causes = causes_with_waits(trace)
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
        self._numbers: dict[int, Counter[str]] = {rank: Counter() for rank in self._samples}
        self._waits: dict[int, Counter[tuple[str, str]]] = {
            rank: Counter() for rank in self._samples
        }

    def is_seen(self, rank: int) -> bool:
        """Whether the rank waited for the lock at all."""
        return rank in self._samples

    def add(self, rank: int, instants: Mapping[str, Intervals]) -> None:
        """Count the samples at the instants of a rank that were charged to each of the `causes`."""
        samples = self._samples[rank]
        times = samples["time_ns"].to_numpy()
        for cause in self.causes:
            inside = samples.filter(pl.Series(is_within(times, instants[cause]), dtype=pl.Boolean))
            self._numbers[rank][cause] += len(inside)
            for (stack,) in inside.select("name").drop_nulls().iter_rows():
                self._waits[rank][cause, thread_of(stack)] += 1

    def parts(self, rank: int) -> dict[str, tuple[int, dict[str, int]]]:
        """Of each cause the number of samples, and of those in which it waited, by the name of the
        thread that held it.
        """
        if not self.is_seen(rank) or self._waits[rank].total() < FEWEST_WAITS:
            return {}
        found: dict[str, tuple[int, dict[str, int]]] = {}
        for (cause, name), count in self._waits[rank].items():
            found.setdefault(cause, (self._numbers[rank][cause], {}))[1][name] = count
        return found


def is_within(times: NDArray[np.int64], instants: Intervals) -> NDArray[np.bool_]:
    """Which of these times are within these intervals, which are disjoint and in order."""
    place = np.searchsorted(instants[:, 0], times, side="right") - 1
    return (place >= 0) & (times < np.append(instants[:, 1], 0)[place])
