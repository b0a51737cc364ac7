"""Collectives across ranks: when the last rank arrived, and what it did while the others waited for it.

A collective is all `comm` spans of one step and name. Until the last rank has arrived the others *wait for peers*; from then on it
is *transfer*. Waiting for a peer says nothing about why the peer is late, so that time is followed to the late rank and shared out
by what was going on there at the same instants.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.facts import Facts
from ioprof.analysis.intervals import Intervals, charge, overlaps, pack, pieces_within, subtract, union, union_all
from ioprof.analysis.selection import intervals
from ioprof.trace import Trace

COLLECTIVE: Final = ["step", "name"]
"""Columns that name a collective, the same on every rank."""

Classes = Sequence[tuple[str, Intervals]]
"""Causes and when they were going on, in the order in which time is charged."""


def arrivals(trace: Trace) -> pl.DataFrame:
    """One row per rank and collective: `rank`, `step`, `name`, `own_ns`, `complete_ns`, `late_rank`.

    `own_ns` is when the rank arrived, `complete_ns` when the last did, `late_rank` which that was.
    Waiting no longer than the clocks' uncertainty is not told from none: then `complete_ns` is `own_ns`. Collectives without a step
    or a name cannot be matched across ranks, and are not here.
    """
    spans = trace.spans.lazy().filter(pl.col("kind") == "comm").select("rank", "start_ns", *COLLECTIVE).drop_nulls()
    arrived = spans.group_by("rank", *COLLECTIVE).agg(own_ns=pl.col("start_ns").min()).sort("rank").collect()
    last = pl.col("own_ns").max().over(COLLECTIVE)
    told_apart = last - pl.col("own_ns") > Facts.of(trace.run).uncertainty_ns
    return arrived.with_columns(
        complete_ns=pl.when(told_apart).then(last).otherwise(pl.col("own_ns")),
        late_rank=pl.col("rank").get(pl.col("own_ns").arg_max()).over(COLLECTIVE),
    )


def exchange(spans: pl.DataFrame, arrived: pl.DataFrame) -> tuple[Intervals, Intervals]:
    """When a rank's gradients moved, and when it waited for peers. What could not be matched across ranks is all transfer."""
    found = spans.filter(pl.col("kind") == "comm").join(arrived, on=["rank", *COLLECTIVE], how="left")
    starts, ends = found["start_ns"].to_numpy(), found["end_ns"].to_numpy()
    complete = np.clip(found["complete_ns"].fill_null(0).to_numpy(), starts, np.maximum(starts, ends))
    return pack(complete, ends), pack(starts, complete)


def late_windows(arrived: pl.DataFrame, rank: int) -> Intervals:
    """When others waited for this rank, at the most."""
    late = arrived.filter(pl.col("late_rank") == rank).group_by(COLLECTIVE)
    return union(intervals(late.agg(pl.col("own_ns").min(), pl.col("complete_ns").max()), "own_ns", "complete_ns"))


def waited_for(arrived: pl.DataFrame, rank: int, classes: Classes, steps: Intervals) -> tuple[NDArray[np.int64], Intervals]:
    """The instants of these steps that a rank is charged as waiting for peers (the last class), and for which rank it waited.

    An instant belongs to the collective that began first.
    """
    *before, (_, waiting) = classes
    waiting = union_all([overlaps(waiting, union(steps))])
    charged = subtract(waiting, union_all([overlaps(times, waiting) for _, times in before]))
    own = arrived.filter(pl.col("rank") == rank, pl.col("complete_ns") > pl.col("own_ns")).sort("own_ns", "late_rank")
    starts, ends = own["own_ns"].to_numpy(), own["complete_ns"].to_numpy()
    taken = np.maximum.accumulate(np.concatenate((starts[:1], ends[:-1])))
    place, found = pieces_within(pack(np.maximum(starts, taken), ends), charged)
    return own["late_rank"].to_numpy().astype(np.int64)[place], found


def behind_peers(waited: Sequence[tuple[NDArray[np.int64], Intervals]], doing: Mapping[int, Classes]) -> dict[int, dict[str, int]]:
    """For each late rank, how long the others waited for it, summed over them, in nanoseconds by what it did meanwhile."""
    if not waited:
        return {}
    late = np.concatenate([ranks for ranks, _ in waited])
    times = np.concatenate([found for _, found in waited])
    return {rank: _sums(times[late == rank], doing.get(rank, ())) for rank in np.unique(late).tolist()}


def _sums(windows: Intervals, classes: Classes) -> dict[str, int]:
    sums = charge(windows, [times for _, times in classes]).sum(axis=0).tolist()
    found: dict[str, int] = {}
    for cause, waited_ns in zip([*(cause for cause, _ in classes), "host"], sums, strict=True):
        if waited_ns:
            found[cause] = found.get(cause, 0) + waited_ns
    return found
