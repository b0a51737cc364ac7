"""What made a rank late at a collective: what it spent more time on than the rank that waited for
it, since the two met last.

The law. A rank r waits at a collective for the late rank l. Both had left an earlier collective,
their last meeting, and each is described by what its time was charged to from there until it
arrived. By cause, the excess is l's time less r's; that l left the meeting later than r counts as
`exchange`. So the sum of the excess over all causes is exactly how much later l arrived. Causes for
which r needed longer have a negative excess, which made l less late: it is taken from the positive
ones in proportion. What r's steps were charged with as waiting, which is less where something hid
it, has the same proportions, in whole nanoseconds.

What the late rank did while the other one waited is no reason: where ranks meet every N steps, it
then makes the steps that the other one has made before.

A meeting is a collective in which both were at the same time, and in which both stopped: the last
instant of each one's span was charged to `exchange` or `straggler`. A collective that runs beside a
computation, such as that of the first gradients, stops no rank: one that is ahead stays ahead. A
message between two ranks is no meeting, since its sender goes on.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    clip,
    covered,
    pack,
    partition,
    subtract,
    union_all,
)
from ioprof.analysis.selection import Activity, Piece
from ioprof.format.schema import CAUSES

_EXCHANGE: Final = CAUSES.index("exchange")
_STOPPED: Final = ("exchange", "straggler")
_UNSEEN: Final = len(CAUSES)
"""Column of the time of steps in which the device was not recorded."""


class BetweenCollectives:
    """What a rank's time was charged to between the instants at which it arrived at collectives and
    left them, in steps or not.
    """

    def __init__(self, arrived: pl.DataFrame, unseen: Intervals) -> None:
        """`arrived`: the rank's rows of `arrivals` that are no messages, with the number of each
        `collective`.
        """
        own = arrived.sort("collective")
        self.collectives = own["collective"].to_numpy().astype(np.int64)
        self.arrived_ns, self.left_ns = own["own_ns"].to_numpy(), own["end_ns"].to_numpy()
        self.has_stopped = self.left_ns <= self.arrived_ns
        self._bounds = np.unique(np.concatenate((self.arrived_ns, self.left_ns)))
        # in the row of a bound: since the one before
        self._spent_ns = np.zeros((len(self._bounds), len(CAUSES) + 1), np.int64)
        self._add(self._stretches(), _UNSEEN, unseen)

    def add(
        self,
        piece: Piece,
        windows: Intervals,
        activities: Sequence[Activity],
        exclusive: Sequence[Activity],
    ) -> None:
        """Add a piece of the rank's time: what went on, and what the instants of its steps, the
        `windows`, were charged to.
        """
        all_times = clip(
            [(int(self._bounds[0]), int(self._bounds[-1]))], piece.start_ns, piece.end_ns
        )
        *outside, left = partition(
            subtract(all_times, windows), [activity.times for activity in activities]
        )
        found = [
            (activity.cause, times) for activity, times in zip(activities, outside, strict=True)
        ]
        found += [("host", left), *((activity.cause, activity.times) for activity in exclusive)]
        low = max(int(np.searchsorted(self._bounds, piece.start_ns, side="right")) - 1, 0)
        high = int(np.searchsorted(self._bounds, piece.end_ns, side="left"))
        for cause, times in found:
            self._add(self._stretches()[low:high], CAUSES.index(cause), times, low)
        here = np.flatnonzero((self.left_ns > piece.start_ns) & (self.left_ns <= piece.end_ns))
        stopped = union_all([EMPTY, *(times for cause, times in found if cause in _STOPPED)])
        self.has_stopped[here] |= (
            covered(pack(self.left_ns[here] - 1, self.left_ns[here]), stopped) > 0
        )

    def spent(self, since_ns: NDArray[np.int64], until_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nanoseconds by cause between two such instants, one row for each pair, when all pieces
        were added.
        """
        return (
            self._sums[np.searchsorted(self._bounds, until_ns)]
            - self._sums[np.searchsorted(self._bounds, since_ns)]
        )

    @cached_property
    def _sums(self) -> NDArray[np.int64]:
        return np.cumsum(self._spent_ns, axis=0, out=self._spent_ns)

    def _stretches(self) -> Intervals:
        return pack(self._bounds[:-1], self._bounds[1:])

    def _add(self, stretches: Intervals, column: int, times: Intervals, place: int = 0) -> None:
        if len(times) and len(stretches):
            self._spent_ns[place + 1 : place + 1 + len(stretches), column] += covered(
                stretches, times
            )


def excess(
    waiting: BetweenCollectives,
    late: BetweenCollectives,
    collectives: NDArray[np.int64],
    uncertainty_ns: int,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """For each of these collectives at which one rank waited for the other: whether it is known
    when they met before, and the excess of the late rank in nanoseconds by cause, in the order of
    `CAUSES`.
    """
    both, mine, theirs = np.intersect1d(
        waiting.collectives, late.collectives, assume_unique=True, return_indices=True
    )
    left, left_late = waiting.left_ns[mine], late.left_ns[theirs]
    first, last = np.minimum(left, left_late), np.maximum(left, left_late)
    arrived = np.maximum(waiting.arrived_ns[mine], late.arrived_ns[theirs])
    meetings = np.flatnonzero(
        waiting.has_stopped[mine] & late.has_stopped[theirs] & (first + uncertainty_ns >= arrived)
    )
    meetings = meetings[np.lexsort((first[meetings], last[meetings]))]
    place = np.searchsorted(both, collectives)
    until, until_late = waiting.arrived_ns[mine][place], late.arrived_ns[theirs][place]
    before = np.searchsorted(last[meetings], np.minimum(until, until_late), side="right") - 1
    is_known = before >= 0
    found = np.zeros((len(collectives), len(CAUSES)), np.int64)
    met = meetings[before[is_known]]
    of_late = late.spent(left_late[met], until_late[is_known])
    of_waiting = waiting.spent(left[met], until[is_known])
    more = (of_late - of_waiting)[:, :_UNSEEN]
    more[:, _EXCHANGE] += left_late[met] - left[met]
    found[is_known] = more
    is_known[is_known] = (of_late[:, _UNSEEN] == 0) & (of_waiting[:, _UNSEEN] == 0)
    return is_known, found


def shared_out(waited_ns: NDArray[np.int64], excess_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each time in the proportions of the positive excess by cause in its row, in whole numbers
    that sum to it exactly.
    """
    reached = np.cumsum(np.maximum(excess_ns, 0), axis=1)
    shares = np.rint(waited_ns[:, None] * (reached / reached[:, -1:])).astype(np.int64)
    found: NDArray[np.int64] = np.diff(shares, axis=1, prepend=0)
    return found
