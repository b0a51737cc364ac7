"""Collectives across ranks: when the last rank arrived, and what it did while the others waited for it.

A collective is all `comm` spans of one step and name. Until the last rank, the straggler, has arrived the others wait; from then on
gradients are transferred. The wait itself does not say why the straggler is late, so that time is divided by what the straggler did
at the same instants. Where it waited for another rank itself, in a step or not, what that one did counts. Where that leads to ranks
which wait for each other, the chain has no end: then the first late rank is named, with `straggler` as what it did.

A message between two ranks is a collective of two, whose `offset` is the sender. The sender arrives when it hands the message over,
and goes on; it waits for the receiver only in a later span of that name, if there is one. A stage of a pipeline that waits for the
message of another one has nothing to compute: a bubble.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import EMPTY, Intervals, charge, overlaps, pack, pieces_within, union
from ioprof.analysis.selection import Activity, Piece, intervals, of_kind
from ioprof.trace import Trace

COLLECTIVE: Final = ["step", "name"]
"""Columns that name a collective, the same on every rank."""

Classes = Sequence[Activity]
"""Causes and when they were going on, in the order in which time is charged."""


def arrivals(trace: Trace) -> pl.DataFrame:
    """One row per rank and collective: `rank`, `step`, `name`, `own_ns`, `complete_ns`, `late_rank`, `is_message`.

    `own_ns` is when the rank arrived, or, of the sender of a message, when it began to wait for the receiver. `complete_ns` is when
    the last rank arrived, `late_rank` which that was.
    A wait no longer than the clocks' uncertainty counts as none: then `complete_ns` is `own_ns`. Collectives without a step or a
    name cannot be matched across ranks, and are not here.
    """
    rows = trace.rows(kinds=["comm"]).lazy().select("rank", "start_ns", "end_ns", "offset", *COLLECTIVE)
    spans = rows.drop_nulls(["rank", "start_ns", *COLLECTIVE])
    is_sent = pl.col("offset").eq(pl.col("rank")).fill_null(value=False).any()
    arrived = (
        spans.group_by("rank", *COLLECTIVE)
        .agg(
            arrived_ns=pl.col("start_ns").min(),
            own_ns=pl.when(is_sent).then(pl.col("start_ns").max()).otherwise(pl.col("start_ns").min()),
            until_ns=pl.col("end_ns").max(),
            goes_on=is_sent & (pl.len() == 1),
            is_message=pl.col("offset").is_not_null().any(),
        )
        .sort("rank")
        .collect()
    )
    last = pl.col("arrived_ns").max().over(COLLECTIVE)
    until = pl.when("is_message").then(pl.min_horizontal(last, "until_ns")).otherwise(last)
    is_wait = (until - pl.col("own_ns") > trace.run.uncertainty_ns) & ~pl.col("goes_on")
    return arrived.with_columns(
        complete_ns=pl.when(is_wait).then(until).otherwise(pl.col("own_ns")),
        late_rank=pl.col("rank").get(pl.col("arrived_ns").arg_max()).over(COLLECTIVE),
    ).select("rank", *COLLECTIVE, "own_ns", "complete_ns", "late_rank", "is_message")


def exchange(spans: pl.DataFrame, arrived: pl.DataFrame) -> tuple[Intervals, Intervals]:
    """When a rank's gradients were transferred, and when it waited for stragglers. What could not be matched is all transfer."""
    own = of_kind(spans, "comm")
    near = pl.col("rank").is_in(own["rank"].unique().implode()), pl.col("step").is_between(own["step"].min(), own["step"].max())
    found = own.join(arrived.filter(*near), on=["rank", *COLLECTIVE], how="left")
    starts, ends = found["start_ns"].to_numpy(), found["end_ns"].to_numpy()
    complete = np.clip(found["complete_ns"].fill_null(0).to_numpy(), starts, np.maximum(starts, ends))
    hands_over = starts < found["own_ns"].fill_null(0).to_numpy()  # a message, which it does not wait for yet
    complete = np.where(hands_over, starts, complete)
    return pack(complete, ends), pack(starts, complete)


def late_windows(arrived: pl.DataFrame, rank: int) -> Intervals:
    """When others may have waited for this rank."""
    late = arrived.filter(pl.col("late_rank") == rank).group_by(COLLECTIVE)
    return union(intervals(late.agg(pl.col("own_ns").min(), pl.col("complete_ns").max()), "own_ns", "complete_ns"))


class Waits:
    """When a rank may have waited for stragglers, and for which one. An instant belongs to the collective that began first."""

    def __init__(self, arrived: pl.DataFrame, rank: int) -> None:
        own = arrived.filter(pl.col("rank") == rank, pl.col("complete_ns") > pl.col("own_ns")).sort("own_ns", "late_rank")
        starts, ends = own["own_ns"].to_numpy(), own["complete_ns"].to_numpy()
        reached = np.maximum.accumulate(ends)
        self._starts, self._ends = np.maximum(starts, np.concatenate((starts[:1], reached[:-1]))), ends
        self._reached, self._late = reached, own["late_rank"].to_numpy().astype(np.int64)
        self._is_message, self._rank = own["is_message"].to_numpy(), rank

    def charged(self, piece: Piece, charged: Intervals) -> "Waited":
        """The instants of a piece that are charged as such, and for which rank it waited."""
        low = int(np.searchsorted(self._reached, piece.start_ns, side="right"))
        high = int(np.searchsorted(self._starts, piece.end_ns, side="left"))
        place, found = pieces_within(pack(self._starts[low:high], self._ends[low:high]), charged)
        return Waited(self._rank, self._late[low:high][place], self._is_message[low:high][place], found)


class Waited(NamedTuple):
    """What a rank waited for others in a piece of its time."""

    rank: int
    late: NDArray[np.int64]
    """For which rank, of each of `times`."""
    is_message: NDArray[np.bool_]
    """Whether it waited for a message of that rank: a bubble of a pipeline."""
    times: Intervals


class Doing(NamedTuple):
    """What a rank did in a piece of its time."""

    piece: Piece
    """Without its spans."""
    classes: Classes


def straggler_waits(
    waited: Sequence[Waited], outside: Sequence[Waited], doing: Mapping[int, Sequence[Doing]], bubbles: bool = False
) -> dict[int, dict[str, int]]:
    """For each late rank, how long the others waited for it, summed over them, in nanoseconds by what it did meanwhile.

    `waited` is the time of steps, `outside` that of late ranks outside of their steps, which only explains what others waited.
    `bubbles`: only waits for messages.
    """
    if not waited:
        return {}
    late = np.concatenate([each.late for each in waited])
    times = np.concatenate([each.times for each in waited])
    if bubbles:
        chosen = np.concatenate([each.is_message for each in waited])
        late, times = late[chosen], times[chosen]
    if not len(late):
        return {}
    own: dict[int, list[Waited]] = {}
    for each in (*waited, *outside):
        own.setdefault(each.rank, []).append(each)
    late, times = _to_first_causes(late, times, own)
    return {rank: _sums(times[late == rank], doing.get(rank, ())) for rank in np.unique(late).tolist()}


def _to_first_causes(
    late: NDArray[np.int64], times: Intervals, own: Mapping[int, Sequence[Waited]]
) -> tuple[NDArray[np.int64], Intervals]:
    """The same instants, where a late rank waited for another one with that rank instead: the last of such a chain.

    An instant whose chain has no end keeps its late rank.
    """
    done: list[tuple[NDArray[np.int64], Intervals]] = []
    given = late
    for _ in own:  # a chain of different ranks is no longer than this
        moved: list[tuple[NDArray[np.int64], NDArray[np.int64], Intervals]] = []
        for rank in np.unique(late).tolist():
            windows, asked = times[late == rank], given[late == rank]
            pieces = own.get(rank, ())
            waits = np.concatenate([each.times for each in pieces]) if pieces else EMPTY
            ranks = np.concatenate([each.late for each in pieces]) if pieces else np.empty(0, np.int64)
            order = np.argsort(waits[:, 0], kind="stable")
            waits, ranks = waits[order], ranks[order]
            for other in np.unique(ranks).tolist():
                place, found = pieces_within(windows, union(waits[ranks == other]))
                moved.append((np.full(len(found), other), asked[place], found))
            kept = _without(windows, union(waits))
            done.append((np.full(len(kept), rank), kept))
        if not moved:
            break
        late, given, times = (np.concatenate(column) for column in zip(*moved, strict=True))
    else:
        done.append((given, times))
    return np.concatenate([ranks for ranks, _ in done]).astype(np.int64), np.concatenate([found for _, found in done])


def _without(windows: Intervals, drop: Intervals) -> Intervals:
    """What of each window the normal set `drop` does not cover; windows may overlap."""
    if not len(drop) or not len(windows):
        return windows
    low, high = min(windows[:, 0].min(), drop[0, 0]), max(windows[:, 1].max(), drop[-1, 1])
    return overlaps(windows, pack(np.concatenate(([low], drop[:, 1])), np.concatenate((drop[:, 0], [high]))))


def _sums(windows: Intervals, pieces: Sequence[Doing]) -> dict[str, int]:
    sums: dict[tuple[int, str], int] = {}  # by place and cause, so that the order is that of the classes
    ordered = windows[np.argsort(windows[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    for piece, classes in pieces:
        low, high = np.searchsorted(reached, piece.start_ns, side="right"), np.searchsorted(ordered[:, 0], piece.end_ns)
        charged = charge(ordered[low:high], [activity.times for activity in classes])[:, :-1].sum(axis=0).tolist()
        for place, (activity, waited_ns) in enumerate(zip(classes, charged, strict=True)):
            sums[place, activity.cause] = sums.get((place, activity.cause), 0) + waited_ns
    found: dict[str, int] = {}
    for (_, cause), waited_ns in sorted(sums.items()):
        if waited_ns:
            found[cause] = found.get(cause, 0) + waited_ns
    left_ns = int((windows[:, 1] - windows[:, 0]).sum()) - sum(found.values())
    return {**found, "host": left_ns} if left_ns else found
