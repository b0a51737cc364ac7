"""Estimates the offset between the clocks of two hosts from messages, from collectives of both, or
from their wall clocks.

No rank leaves an all-reduce, all-gather or barrier before the last rank has entered it. Each such
collective therefore gives a lower and an upper bound of the offset between two clocks:

    first host    enter ────────────── leave          other's leave + offset >= first's enter
    other host              enter ──── leave          other's enter + offset <= first's leave

A message that the first host sent, and whose answer carries a reading of the other's clock, gives
both bounds at once, and closer ones: the reading was made between sending and receiving
(`ioprof.instrument.clock_exchange`).

Over a run the bounds form a narrow strip. Clocks drift at a nearly constant rate, so the offset is
a line within the strip. The uncertainty is the largest distance between the chosen line and any
other line within the strip (Duda and others, Estimating global time in distributed systems, 1987),
from the first bound to the last. It grows before and after these, where no times are compared
across ranks. Without messages and common collectives the wall clocks remain; their error is known
only if a daemon (chrony, ntpd) synchronises them and reports it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor
from ioprof.format.run_record import ClockTie

MOST_DRIFT_RATIO: Final = 2e-4
"""Maximum drift between two clocks: quartz is within 50 ppm, and a daemon may slew a clock by more
for some time."""
SLACK_NS: Final = 5_000
"""Maximum error of a time within its own host if it was converted from another clock (GPU, log of
DDP) to the monotonic clock."""
SAME_NS: Final = 10_000_000
"""Maximum step of the wall clock between two readings that still count as the same clock."""

_OF_ALL: Final = (
    r"^(?:gradients|(?:monitored_)?barrier|all_reduce(?:_coalesced)?|all_gather(?:_\w+)?|reduce_scatter(?:_\w+)?)(?:"
    r" \d+)?$"
    r"|^(?:AllReduce|AllGather|ReduceScatter) \d+$"
)
"""Names of `comm` spans that end only after all ranks have entered: not broadcast and the like, nor
those of smaller groups."""
_SEARCH_STEPS: Final = 80  # each leaves two thirds of the interval

_Array = npt.NDArray[Any]
Messages = Sequence[tuple[int, int, int]]
"""Sent and received by the first clock, and in between a reading of the other:
`(sent_ns, read_ns, received_ns)`."""


@dataclass(frozen=True)
class Clock:
    """What is known about the CLOCK_MONOTONIC of one host."""

    name: str
    anchor: Anchor | None = None
    kernel: str | None = None
    """Boot id. Clocks with equal boot ids are the same, except for `shift_ns`."""
    shift_ns: int = 0
    """Offset from the CLOCK_MONOTONIC of the kernel itself (time namespace)."""
    wall_error_ns: int | None = None
    """Maximum error of the wall clock; None: unknown."""


@dataclass(frozen=True)
class OffsetEstimate:
    """What to add to the times of a clock to get times of the first clock, and the uncertainty of
    that.
    """

    offset_ns: int = 0
    uncertainty_ns: int | None = 0
    """Maximum error from the first bound to the last; None: unbounded."""
    method: str = "the boot id of one kernel"
    drift_ratio: float = 0.0
    """Growth of the offset per unit of time, relative to `reference_ns`."""
    reference_ns: int = 0
    collectives: int = 0
    """Number of collectives that both hosts took part in."""
    messages: int = 0
    """Number of messages between them."""

    def to_first(self, time_ns: int) -> int:
        """Convert a time to the first clock."""
        return time_ns + self.offset_ns + round(self.drift_ratio * (time_ns - self.reference_ns))

    def column_to_first(self, column: str) -> pl.Expr:
        """Convert a column of times to the first clock."""
        times = pl.col(column) + self.offset_ns
        if not self.drift_ratio:
            return times
        return times + ((pl.col(column) - self.reference_ns) * self.drift_ratio).round().cast(
            pl.Int64
        )

    def facts(self, name: str, to: str) -> ClockTie:
        """Its entry in `ClockRecord.ties`."""
        return ClockTie(
            clock=name,
            to=to,
            offset_ns=self.offset_ns,
            reference_ns=self.reference_ns,
            drift_ppm=self.drift_ratio * 1e6,
            uncertainty_ns=self.uncertainty_ns,
            method=self.method,
            collectives=self.collectives,
            messages=self.messages,
        )


def synchronisation_points(spans: pl.DataFrame) -> pl.DataFrame:
    """Collectives over all ranks in these spans: `step`, `name`, `last_enter_ns`,
    `first_leave_ns`.
    """
    collectives = spans.filter(
        pl.col("kind") == "comm", pl.col("name").cast(pl.String).str.contains(_OF_ALL)
    )
    named = collectives.drop_nulls(["step", "name", "rank"]).with_columns(
        pl.col("name").cast(pl.String)
    )
    # cannot be matched across hosts
    is_ambiguous = pl.struct("rank", "step", "name").is_duplicated().any().over("step", "name")
    return (
        named.filter(~is_ambiguous)
        .group_by("step", "name")
        .agg(last_enter_ns=pl.col("start_ns").max(), first_leave_ns=pl.col("end_ns").min())
    )


def estimate_offset(
    first: Clock,
    first_points: pl.DataFrame,
    other: Clock,
    other_points: pl.DataFrame,
    messages: Messages = (),
) -> OffsetEstimate:
    """Estimate the offset of the `other` clock from the `first`, given the `synchronisation_points`
    of both, and their messages.
    """
    if _is_same_clock(first, other):
        return OffsetEstimate(offset_ns=first.shift_ns - other.shift_ns)
    wall = _wall_clock_estimate(first, other)
    common = first_points.join(other_points, on=["step", "name"], suffix="_other")
    if common.is_empty() and not messages:
        return wall
    by_messages, by_collectives = (
        "messages" * bool(messages),
        "their collectives" * (not common.is_empty()),
    )
    found = " and ".join(filter(None, (by_messages, by_collectives)))
    strip = _OffsetStrip.of(common, messages)
    method = found
    best = strip.narrowed_by(wall).best_line()
    if best is None:
        best, method = strip.best_line(), f"{found}, which the wall clocks contradict"
    # spans of collectives may be of other ends than the messages are
    if best is None and messages and len(common):
        strip = _OffsetStrip.of(common.clear(), messages)
        best, method = strip.best_line(), "messages, which their collectives contradict"
    if best is None:
        why = f"{wall.method}, because {found} contradict each other"
        return OffsetEstimate(
            wall.offset_ns,
            wall.uncertainty_ns,
            why,
            collectives=len(common),
            messages=len(messages),
        )
    offset, drift, uncertainty = best
    return OffsetEstimate(
        offset_ns=strip.guess_ns + math.floor(offset + 0.5),
        uncertainty_ns=math.ceil(uncertainty) + 1,
        method=method,
        drift_ratio=drift,
        reference_ns=strip.reference_ns,
        collectives=len(common),
        messages=len(messages),
    )


def _is_same_clock(first: Clock, other: Clock) -> bool:
    """Whether both run on one kernel. A cloned virtual machine keeps its boot id; its wall clock
    offset then differs.
    """
    if first.kernel is None or first.kernel != other.kernel:
        return False
    if first.anchor is None or other.anchor is None:
        return True
    difference_ns = (first.anchor.offset_ns + first.shift_ns) - (
        other.anchor.offset_ns + other.shift_ns
    )
    return abs(difference_ns) < SAME_NS


def _wall_clock_estimate(first: Clock, other: Clock) -> OffsetEstimate:
    if first.anchor is None or other.anchor is None:
        return OffsetEstimate(0, None, "nothing")
    offset_ns = other.anchor.offset_ns - first.anchor.offset_ns
    if first.wall_error_ns is None or other.wall_error_ns is None:
        return OffsetEstimate(
            offset_ns, None, "their wall clocks, at least one of which is not synchronised"
        )
    reading_ns = first.anchor.uncertainty_ns + other.anchor.uncertainty_ns
    return OffsetEstimate(
        offset_ns, reading_ns + first.wall_error_ns + other.wall_error_ns, "their wall clocks"
    )


@dataclass(frozen=True)
class _OffsetStrip:
    """Bounds of the offset, relative to `guess_ns`, at times of the other clock, relative to
    `reference_ns`.
    """

    guess_ns: int
    reference_ns: int
    ends: tuple[float, float]
    """The first and the last time."""
    low_times: _Array
    low: _Array
    high_times: _Array
    high: _Array

    @classmethod
    def of(cls, common: pl.DataFrame, messages: Messages) -> "_OffsetStrip":
        """The bounds that collectives of both clocks, columns of the other with `_other`, and
        messages give; there are some.
        """
        names = ("last_enter_ns", "first_leave_ns", "last_enter_ns_other", "first_leave_ns_other")
        enter, leave, other_enter, other_leave = (
            common[name].cast(pl.Int64).to_numpy() for name in names
        )
        sent, read, received = np.array(messages, np.int64).reshape(-1, 3).T
        begin_ns = int(np.concatenate([other_enter, read]).min())
        end_ns = int(np.concatenate([other_leave, read]).max())
        if len(sent):
            shortest = int((received - sent).argmin())
            guess_ns = int((sent[shortest] + received[shortest]) // 2 - read[shortest])
        else:
            guess_ns = int(enter.max()) - int(other_enter.max())
        reference_ns = (begin_ns + end_ns) // 2
        low = np.concatenate([enter - other_leave - SLACK_NS, sent - read]) - guess_ns
        high = np.concatenate([leave - other_enter + SLACK_NS, received - read]) - guess_ns
        return cls(
            guess_ns,
            reference_ns,
            (float(begin_ns - reference_ns), float(end_ns - reference_ns)),
            (np.concatenate([other_leave, read]) - reference_ns).astype(np.float64),
            low.astype(np.float64),
            (np.concatenate([other_enter, read]) - reference_ns).astype(np.float64),
            high.astype(np.float64),
        )

    def narrowed_by(self, wall: OffsetEstimate) -> "_OffsetStrip":
        """Add the bounds of the wall clock estimate, if it has any."""
        if wall.uncertainty_ns is None:
            return self
        times, middle, distance = (
            np.array(self.ends),
            float(wall.offset_ns - self.guess_ns),
            float(wall.uncertainty_ns),
        )
        low, high = (
            np.concatenate([bounds, np.full(2, wall_bound)])
            for bounds, wall_bound in (
                (self.low, middle - distance),
                (self.high, middle + distance),
            )
        )
        low_times, high_times = (
            np.concatenate([bound_times, times])
            for bound_times in (self.low_times, self.high_times)
        )
        return replace(self, low_times=low_times, low=low, high_times=high_times, high=high)

    def best_line(self) -> tuple[float, float, float] | None:
        """Offset at the reference time, slope, and maximum distance to any other line in the strip;
        None: no line fits.
        """
        slope = (
            0.0
            if self._gap(0.0) >= 0
            else _argmax_of_concave(self._gap, -MOST_DRIFT_RATIO, MOST_DRIFT_RATIO)
        )
        if self._gap(slope) < 0:
            return None
        offset = (self._upper(slope, 0.0) + self._lower(slope, 0.0)) / 2
        slopes = (
            self._extreme_slope(slope, -MOST_DRIFT_RATIO),
            self._extreme_slope(slope, MOST_DRIFT_RATIO),
        )
        distances = []
        for time in self.ends:
            value = offset + slope * time
            steepest_up, steepest_down = self._steepest(time, *slopes)
            distances += [
                self._upper(steepest_up, time) - value,
                value - self._lower(steepest_down, time),
            ]
        return offset, slope, max(distances)

    def _steepest(self, at: float, *slopes: float) -> tuple[float, float]:
        """Slopes of the lines through the strip that are highest and lowest at a time."""
        return (
            _argmax_of_concave(lambda each: self._upper(each, at), *slopes),
            _argmax_of_concave(lambda each: -self._lower(each, at), *slopes),
        )

    def _upper(self, slope: float, time: float) -> float:
        """Value at `time` of the highest line with that slope."""
        return float((self.high - slope * (self.high_times - time)).min())

    def _lower(self, slope: float, time: float) -> float:
        """Value at `time` of the lowest line with that slope."""
        return float((self.low - slope * (self.low_times - time)).max())

    def _gap(self, slope: float) -> float:
        """Width of the strip for lines of that slope; negative: none fits. Concave in the slope."""
        return self._upper(slope, 0.0) - self._lower(slope, 0.0)

    def _extreme_slope(self, slope: float, limit: float) -> float:
        """The slope nearest to `limit` for which a line still fits, by bisection from a slope for
        which one does.
        """
        if self._gap(limit) >= 0:
            return limit
        for _ in range(_SEARCH_STEPS):
            middle = (slope + limit) / 2
            slope, limit = (middle, limit) if self._gap(middle) >= 0 else (slope, middle)
        return slope


def _argmax_of_concave(function: Callable[[float], float], low: float, high: float) -> float:
    """The argument at which a concave function is greatest, by ternary search."""
    for _ in range(_SEARCH_STEPS):
        third = (high - low) / 3
        if function(low + third) < function(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2
