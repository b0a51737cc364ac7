"""What those who make batches can do only one at a time: what they do while they hold a lock that
others of them wait for, and what a thread of the job answers for all of them.

It is found in the blocks of their threads (`Trace.blocks`): a maker that waits within a batch is
ended by another maker, or by a thread that serves them. How long one of them has the lock is seen
where another one waits for it all that time. How often it takes the lock for a batch is seen where
it had to wait each time. Where makers rarely meet it is not seen, but follows: of N makers that
hold it for a share U of the time together, one finds it taken in U (N - 1) / N of its attempts.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.intervals import intersect, pack, total, union
from ioprof.analysis.reads.lineage import Axis
from ioprof.analysis.selection import WORK, intervals
from ioprof.format.trace import Trace

_LOCKS: Final = ("lock", "semaphore", "file lock", "futex")
_FEWEST: Final = 20
"""Blocks below which nothing is said."""
_LEAST_USE: Final = 0.05
"""Share of the time in which a lock is held, or a thread serves, from which on it counts."""
_USUAL: Final = 0.9
"""Quantile of the waits of batches that stands for how often a batch takes the lock."""
_MOSTLY: Final = 0.5
"""Part of the batches that must have waited for that."""
_WAITS: Final = {
    "worker": pl.Int64(),
    "batch": pl.Int64(),
    "pid": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "woken_ns": pl.Int64(),
    "waker_tid": pl.Int32(),
    "object": pl.String(),
    "id": pl.Int64(),
}


@dataclass(frozen=True)
class Serial:
    """What one at a time does."""

    waits: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_WAITS))
    """When makers waited for it: `worker`, `pid`, `start_ns`, `end_ns`."""
    batch_s: float = 0.0
    """What it takes for a batch."""
    stage: str = "loader"
    """In which stage of making a batch."""


def serial(trace: Trace, spans: pl.DataFrame, fetches: pl.DataFrame) -> Serial:
    """Of one rank, whose batches these workers made: `fetches` has `batch`, `worker`, `pid`,
    `start_ns`, `end_ns`.
    """
    makers = fetches.group_by("pid").agg(pl.col("worker").first())
    if len(makers) < 2 or trace.blocks.is_empty():
        return Serial()
    waits = _waits(trace, makers, fetches)
    took_s = float(fetches["end_ns"].to_numpy().max() - fetches["start_ns"].to_numpy().min()) / 1e9
    by_maker = pl.col("waker_tid").is_in(makers["pid"].implode())
    locks = waits.filter(by_maker, pl.col("object").is_in(_LOCKS))
    answers = waits.filter(~by_maker, pl.col("object") == "channel")
    found = [
        *(
            (_held(part, took_s, len(makers), len(fetches)), part)
            for _, part in locks.group_by("object", "id", maintain_order=True)
        ),
        *(
            (_serving(trace, int(str(tid)), part, took_s), part)
            for (tid,), part in answers.group_by("waker_tid", maintain_order=True)
        ),
    ]
    use, part = max(found, key=lambda each: each[0], default=(0.0, waits.clear()))
    if use < _LEAST_USE:
        return Serial()
    own_s = int((fetches["end_ns"] - fetches["start_ns"]).sum()) / 1e9
    waited_s = int((part["end_ns"] - part["start_ns"]).sum()) / 1e9
    batch_s = min(use * took_s, own_s - waited_s) / len(fetches)
    return Serial(part, max(0.0, batch_s), _stage(spans, fetches, part))


def _waits(trace: Trace, makers: pl.DataFrame, fetches: pl.DataFrame) -> pl.DataFrame:
    """The blocks of the makers' own threads within their batches that somebody ended."""
    blocks = trace.blocks.filter(
        pl.col("pid").is_in(makers["pid"].implode()),
        pl.col("tid") == pl.col("pid"),
        pl.col("waker_tid").is_not_null(),
        pl.col("id").is_not_null(),
    ).with_columns(pl.col("object").cast(pl.String))
    within = (
        blocks.sort("start_ns")
        .join_asof(
            fetches.select("pid", "batch", begun_ns="start_ns", until_ns="end_ns").sort("begun_ns"),
            left_on="start_ns",
            right_on="begun_ns",
            by="pid",
            check_sortedness=False,
        )
        .filter(pl.col("end_ns") <= pl.col("until_ns"))
    )
    return within.join(makers, on="pid").select(list(_WAITS)).cast(pl.Schema(_WAITS))


def _held(waits: pl.DataFrame, took_s: float, num_makers: int, num_batches: int) -> float:
    """The share of the time in which a lock is held, by the waits for it."""
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
    return min(1.0, max(float(by_chance), float(often) * once_s * num_batches / took_s))


def _serving(trace: Trace, tid: int, answers: pl.DataFrame, took_s: float) -> float:
    """The share of the time in which a thread does not wait for something to do, if it answers
    several makers.
    """
    if len(answers) < _FEWEST or answers["pid"].n_unique() < 2:
        return 0.0
    first, last = int(answers["start_ns"].to_numpy().min()), int(answers["end_ns"].to_numpy().max())
    idle = trace.blocks.filter(pl.col("tid") == tid, pl.col("object") == "channel")
    waited = intersect(union(intervals(idle)), pack(np.array([first]), np.array([last])))
    return max(0.0, 1 - total(waited) / max(1, last - first)) * (last - first) / 1e9 / took_s


def _stage(spans: pl.DataFrame, fetches: pl.DataFrame, waits: pl.DataFrame) -> str:
    """The stage that most of the waits are in."""
    axis = Axis.of(fetches["worker"].to_numpy(), intervals(fetches))
    there = spans.filter(pl.col("worker").is_in(pl.Series(axis.workers).implode()))
    placed = union(axis.place(waits))
    inside = {
        stage: total(intersect(placed, union(axis.place(there.filter(of_stage)))))
        for stage, of_stage in WORK.items()
    }
    most = max(inside, key=lambda stage: inside[stage])
    return most if inside[most] > total(placed) / 2 else "loader"
