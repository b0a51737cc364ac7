"""Collectives across ranks: when the last rank arrived, and what made it late.

A collective is all `comm` spans of one step and name. Until the last rank, the straggler, has
arrived the others wait; from then on gradients are transferred. The wait itself does not say why
the straggler is late, so that time is divided by what the straggler spent more time on than the
rank that waited, since the two met last, see `lateness`.

Where it is not known when they met, that time is divided by what the straggler did at the same
instants. So is the time in which the straggler waited for another rank itself, in a step or not:
what that one did counts then. Where that leads to ranks which wait for each other, the chain has no
end: then the first late rank is named, with `straggler` as what it did.

A message between two ranks is a collective of two, whose `offset` is the sender. The sender arrives
when it hands the message over, and goes on; it waits for the receiver only in a later span of that
name, if there is one. A stage of a pipeline that waits for the message of another one has nothing
to compute: a bubble, which is divided by what the sender did at the same instants.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.lateness import BetweenCollectives, excess, shared_out
from ioprof.analysis.intervals import EMPTY, Intervals, charge, pack, pieces_within, union
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.selection import Activity, Piece, intervals, of_kind
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace

COLLECTIVE: Final = ["step", "name"]
"""Columns that name a collective, the same on every rank."""

Classes = Sequence[Activity]
"""Causes and when they were going on, in the order in which time is charged."""


class Late(NamedTuple):
    """A rank that others waited for."""

    rank: str
    waited_s: float
    """Summed over the others."""
    by: str
    """What made it late most: a cause, or `batches`, which are one here; they are named by one of
    their causes where that is half of them."""
    by_s: float
    """Of `waited_s`."""


def late_ranks(waits_s: Mapping[str, Mapping[str, float]]) -> list[Late]:
    """The ranks that others waited for, the longest first; `waits_s` as `Steps.straggler_wait_s`
    has them.
    """
    found = [
        Late(rank, sum(each.values()), *_late_by(each)) for rank, each in waits_s.items() if each
    ]
    return sorted(found, key=lambda late: -late.waited_s)


def _late_by(causes: Mapping[str, float]) -> tuple[str, float]:
    batches = {cause: waited_s for cause, waited_s in causes.items() if cause in LEAVES}
    parts = {cause: waited_s for cause, waited_s in causes.items() if cause not in LEAVES}
    if batches:
        parts["batches"] = sum(batches.values())
    most = max(parts, key=lambda cause: parts[cause])
    if most != "batches":
        return most, parts[most]
    largest = max(batches, key=lambda cause: batches[cause])
    name = largest if batches[largest] >= parts[most] / 2 else most
    return name, batches.get(name, parts[most])


def arrivals(trace: Trace) -> pl.DataFrame:
    """One row per rank and collective: `rank`, `step`, `name`, `own_ns`, `complete_ns`, `end_ns`,
    `late_rank`, `is_message`.

    `own_ns` is when the rank arrived, or, of the sender of a message, when it began to wait for the
    receiver. `complete_ns` is when the last rank arrived, `late_rank` which that was, and `end_ns`
    when the rank itself was done. A wait no longer than the clocks' uncertainty counts as none:
    then `complete_ns` is `own_ns`. Collectives without a step or a name cannot be matched across
    ranks, and are not here.
    """
    rows = (
        trace.rows(kinds=["comm"])
        .lazy()
        .select("rank", "start_ns", "end_ns", "offset", *COLLECTIVE)
    )
    spans = rows.drop_nulls(["rank", "start_ns", *COLLECTIVE])
    is_sent = pl.col("offset").eq(pl.col("rank")).fill_null(value=False).any()
    arrived = (
        spans.group_by("rank", *COLLECTIVE)
        .agg(
            arrived_ns=pl.col("start_ns").min(),
            own_ns=pl.when(is_sent)
            .then(pl.col("start_ns").max())
            .otherwise(pl.col("start_ns").min()),
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
    ).select(
        "rank",
        *COLLECTIVE,
        "own_ns",
        "complete_ns",
        pl.col("until_ns").alias("end_ns"),
        "late_rank",
        "is_message",
    )


def numbered(arrived: pl.DataFrame) -> pl.DataFrame:
    """The arrivals with a `collective`, which is the same number on all of its ranks; -1 for a
    message.
    """
    known = (
        arrived.filter(~pl.col("is_message"))
        .select(COLLECTIVE)
        .unique(maintain_order=True)
        .with_row_index("collective")
    )
    found = arrived.join(known, on=COLLECTIVE, how="left", maintain_order="left")
    return found.with_columns(
        pl.when("is_message")
        .then(None)
        .otherwise("collective")
        .cast(pl.Int64)
        .fill_null(-1)
        .alias("collective")
    )


def exchange(spans: pl.DataFrame, arrived: pl.DataFrame) -> tuple[Intervals, Intervals]:
    """When a rank's gradients were transferred, and when it waited for stragglers. What could not
    be matched is all transfer.
    """
    own = of_kind(spans, "comm")
    near = (
        pl.col("rank").is_in(own["rank"].unique().implode()),
        pl.col("step").is_between(own["step"].min(), own["step"].max()),
    )
    found = own.join(arrived.filter(*near), on=["rank", *COLLECTIVE], how="left")
    starts, ends = found["start_ns"].to_numpy(), found["end_ns"].to_numpy()
    complete = np.clip(
        found["complete_ns"].fill_null(0).to_numpy(), starts, np.maximum(starts, ends)
    )
    # a message, which it does not wait for yet
    hands_over = starts < found["own_ns"].fill_null(0).to_numpy()
    complete = np.where(hands_over, starts, complete)
    return pack(complete, ends), pack(starts, complete)


def late_windows(arrived: pl.DataFrame, rank: int) -> Intervals:
    """When others may have waited for this rank."""
    late = arrived.filter(pl.col("late_rank") == rank).group_by(COLLECTIVE)
    return union(
        intervals(
            late.agg(pl.col("own_ns").min(), pl.col("complete_ns").max()), "own_ns", "complete_ns"
        )
    )


class Waits:
    """When a rank may have waited for stragglers, and for which one. An instant belongs to the
    collective that began first.
    """

    def __init__(self, arrived: pl.DataFrame, rank: int) -> None:
        own = arrived.filter(pl.col("rank") == rank, pl.col("complete_ns") > pl.col("own_ns"))
        own = own.sort("own_ns", "late_rank", "complete_ns")
        starts, ends = own["own_ns"].to_numpy(), own["complete_ns"].to_numpy()
        reached = np.maximum.accumulate(ends)
        self._starts, self._ends = (
            np.maximum(starts, np.concatenate((starts[:1], reached[:-1]))),
            ends,
        )
        self._reached, self._late = reached, own["late_rank"].to_numpy().astype(np.int64)
        self._is_message, self._collective, self._rank = (
            own["is_message"].to_numpy(),
            own["collective"].to_numpy(),
            rank,
        )

    def charged(self, piece: Piece, charged: Intervals) -> "Waited":
        """The instants of a piece that are charged as such, and for which rank it waited."""
        low = int(np.searchsorted(self._reached, piece.start_ns, side="right"))
        high = int(np.searchsorted(self._starts, piece.end_ns, side="left"))
        place, found = pieces_within(pack(self._starts[low:high], self._ends[low:high]), charged)
        late, collective = (each[low:high][place] for each in (self._late, self._collective))
        return Waited(self._rank, late, self._is_message[low:high][place], collective, found)


class Waited(NamedTuple):
    """What a rank waited for others in a piece of its time."""

    rank: int
    late: NDArray[np.int64]
    """For which rank, of each of `times`."""
    is_message: NDArray[np.bool_]
    """Whether it waited for a message of that rank: a bubble of a pipeline."""
    collective: NDArray[np.int64]
    """In which collective, see `numbered`."""
    times: Intervals


class Doing(NamedTuple):
    """What a rank did in a piece of its time."""

    piece: Piece
    """Without its spans."""
    classes: Classes


class StragglerWaits(NamedTuple):
    """For each late rank, how long the others waited for it, summed over them, in nanoseconds by
    cause.
    """

    by_excess: dict[int, dict[str, int]]
    """By what it spent more time on than those did."""
    meanwhile: dict[int, dict[str, int]]
    """By what it, or the rank that it waited for, did while they waited: where they did not meet
    before, as far as is known."""

    @property
    def total(self) -> dict[int, dict[str, int]]:
        """Both together."""
        found: dict[int, dict[str, int]] = {}
        for rank in sorted({*self.by_excess, *self.meanwhile}):
            parts = self.by_excess.get(rank, {}), self.meanwhile.get(rank, {})
            causes = dict.fromkeys(cause for part in parts for cause in part)
            found[rank] = {cause: sum(part.get(cause, 0) for part in parts) for cause in causes}
        return found


def straggler_waits(
    waited: Sequence[Waited],
    outside: Sequence[Waited],
    doing: Mapping[int, Sequence[Doing]],
    between: Mapping[int, BetweenCollectives],
    uncertainty_ns: int,
    bubbles: bool = False,
) -> StragglerWaits:
    """How long ranks waited for stragglers.

    `waited` is the time of steps, `outside` that of late ranks outside of their steps, which only
    explains what others waited. `bubbles`: only waits for messages.
    """
    if not waited:
        return StragglerWaits({}, {})
    late, collective, times = (
        np.concatenate(column)
        for column in (
            [each.late for each in waited],
            [each.collective for each in waited],
            [each.times for each in waited],
        )
    )
    waiting = np.repeat([each.rank for each in waited], [len(each.times) for each in waited])
    if bubbles:
        chosen = np.concatenate([each.is_message for each in waited])
        late, collective, times, waiting = (
            late[chosen],
            collective[chosen],
            times[chosen],
            waiting[chosen],
        )
    if not len(late):
        return StragglerWaits({}, {})
    own: dict[int, list[Waited]] = {}
    for each in (*waited, *outside):
        own.setdefault(each.rank, []).append(each)
    late, source, times = _to_first_causes(late, times, own)
    collective, waiting = np.where(source < 0, -1, collective[source]), waiting[source]
    by_excess, is_explained = _by_excess(late, collective, waiting, times, between, uncertainty_ns)
    late, times = late[~is_explained], times[~is_explained]
    return StragglerWaits(
        by_excess,
        {
            rank: _sums(times[late == rank], doing.get(rank, ()))
            for rank in np.unique(late).tolist()
        },
    )


def _by_excess(
    late: NDArray[np.int64],
    collective: NDArray[np.int64],
    waiting: NDArray[np.int64],
    times: Intervals,
    between: Mapping[int, BetweenCollectives],
    uncertainty_ns: int,
) -> tuple[dict[int, dict[str, int]], NDArray[np.bool_]]:
    """The times that the excess of late ranks explains by cause, and which those are."""
    sums: dict[int, NDArray[np.int64]] = {}
    is_explained = np.zeros(len(late), np.bool_)
    places = np.flatnonzero(collective >= 0)
    pairs, which = np.unique(np.stack((waiting[places], late[places])), axis=1, return_inverse=True)
    in_order = places[np.argsort(which, kind="stable")]
    of_pairs = (
        np.split(in_order, np.cumsum(np.bincount(which.ravel(), minlength=pairs.shape[1]))[:-1])
        if len(places)
        else []
    )
    for (rank, late_rank), rows in zip(pairs.T.tolist(), of_pairs, strict=True):
        numbers, which = np.unique(collective[rows], return_inverse=True)
        waited_ns = np.zeros(len(numbers), np.int64)
        np.add.at(waited_ns, which, times[rows, 1] - times[rows, 0])
        is_known, excess_ns = excess(between[rank], between[late_rank], numbers, uncertainty_ns)
        found = shared_out(waited_ns[is_known], excess_ns[is_known]).sum(axis=0)
        sums[late_rank] = sums.get(late_rank, np.zeros(len(CAUSES), np.int64)) + found
        is_explained[rows] = is_known[which]
    named = {
        rank: {cause: ns for cause, ns in zip(CAUSES, found.tolist(), strict=True) if ns}
        for rank, found in sums.items()
    }
    return {rank: causes for rank, causes in named.items() if causes}, is_explained


def _to_first_causes(
    late: NDArray[np.int64], times: Intervals, own: Mapping[int, Sequence[Waited]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Intervals]:
    """The same instants, where a late rank waited for another one with that rank instead: the last
    of such a chain; and for each its place in `times`, or -1 where the rank has changed.

    An instant whose chain has no end keeps its late rank.
    """
    done: list[tuple[NDArray[np.int64], NDArray[np.int64], Intervals]] = []
    given, source = late, np.arange(len(late))
    for _ in own:  # a chain of different ranks is no longer than this
        moved: list[tuple[NDArray[np.int64], NDArray[np.int64], Intervals]] = []
        for rank in np.unique(late).tolist():
            windows, asked, places = times[late == rank], given[late == rank], source[late == rank]
            pieces = own.get(rank, ())
            waits = np.concatenate([each.times for each in pieces]) if pieces else EMPTY
            ranks = (
                np.concatenate([each.late for each in pieces]) if pieces else np.empty(0, np.int64)
            )
            order = np.argsort(waits[:, 0], kind="stable")
            waits, ranks = waits[order], ranks[order]
            for other in np.unique(ranks).tolist():
                place, found = pieces_within(windows, union(waits[ranks == other]))
                moved.append((np.full(len(found), other), asked[place], found))
            place, kept = _without(windows, union(waits))
            done.append((np.full(len(kept), rank), places[place], kept))
        if not moved:
            break
        late, given, times = (np.concatenate(column) for column in zip(*moved, strict=True))
        source = np.full(len(late), -1)
    else:
        done.append((given, np.full(len(given), -1), times))
    of_ranks, places, found = (np.concatenate(column) for column in zip(*done, strict=True))
    return of_ranks.astype(np.int64), places, found


def _without(windows: Intervals, drop: Intervals) -> tuple[NDArray[np.int64], Intervals]:
    """What of each window the normal set `drop` does not cover, and of which window each part is;
    windows may overlap.
    """
    if not len(drop) or not len(windows):
        return np.arange(len(windows)), windows
    low, high = min(windows[:, 0].min(), drop[0, 0]), max(windows[:, 1].max(), drop[-1, 1])
    return pieces_within(
        windows, pack(np.concatenate(([low], drop[:, 1])), np.concatenate((drop[:, 0], [high])))
    )


def _sums(windows: Intervals, pieces: Sequence[Doing]) -> dict[str, int]:
    # by place and cause, so that the order is that of the classes
    sums: dict[tuple[int, str], int] = {}
    ordered = windows[np.argsort(windows[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    for piece, classes in pieces:
        low, high = (
            np.searchsorted(reached, piece.start_ns, side="right"),
            np.searchsorted(ordered[:, 0], piece.end_ns),
        )
        charged = (
            charge(ordered[low:high], [activity.times for activity in classes])[:, :-1]
            .sum(axis=0)
            .tolist()
        )
        for place, (activity, waited_ns) in enumerate(zip(classes, charged, strict=True)):
            sums[place, activity.cause] = sums.get((place, activity.cause), 0) + waited_ns
    found: dict[str, int] = {}
    for (_, cause), waited_ns in sorted(sums.items()):
        if waited_ns:
            found[cause] = found.get(cause, 0) + waited_ns
    left_ns = int((windows[:, 1] - windows[:, 0]).sum()) - sum(found.values())
    return {**found, "host": left_ns} if left_ns else found
