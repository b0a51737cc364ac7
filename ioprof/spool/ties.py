"""How the clock of one host is tied to that of another: by what both did together, or by their wall clocks.

Nobody leaves an all-reduce, an all-gather or a barrier before the last has come to it. So whatever two clocks show, each such
collective says of the difference between them that it is no less than one number and no more than another:

    first host    come ────────────── leave           other's leave + difference >= first's come
    other host             come ──── leave            other's come  + difference <= first's leave

Over a run these bounds leave a narrow strip, and what is known of the difference is that it is a line within the strip: clocks run
at rates of their own, but steadily. The uncertainty is how far the farthest of all such lines is from the one that is taken (Duda
and others, Estimating global time in distributed systems, 1987), from the first collective to the last: before and after, where
nothing is compared across ranks, it grows. Where nothing was done together the wall clocks remain, and how far they agree is known
only if they are kept (chrony, ntpd), by their keepers' own word.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor

MOST_DRIFT_RATIO: Final = 2e-4
"""How fast the difference of two clocks may change: quartz is within 50 ppm, and its keeper may slew it by more for a while."""
SLACK_NS: Final = 5_000
"""What a time may be off within its own host, where it was brought from another clock (the GPU's, DDP's log) to the monotonic."""
SAME_NS: Final = 10_000_000
"""By how much the wall clock may have been set between two readings on one host."""

_OF_ALL: Final = (
    r"^(?:gradients|(?:monitored_)?barrier|all_reduce(?:_coalesced)?|all_gather(?:_\w+)?|reduce_scatter(?:_\w+)?)(?: \d+)?$"
    r"|^(?:AllReduce|AllGather|ReduceScatter) \d+$"
)
"""Names of `comm` spans whose end needs the part of all ranks: not broadcast and the like, nor those of smaller groups."""
_SEARCH_STEPS: Final = 80  # each leaves two thirds of the interval

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Clock:
    """What is known of one host's CLOCK_MONOTONIC."""

    name: str
    anchor: Anchor | None = None
    kernel: str | None = None
    """Its boot id: equal ones are one clock, but for `shift_ns`."""
    shift_ns: int = 0
    """How far it is ahead of the kernel's own."""
    wall_error_ns: int | None = None
    """How far its wall clock may be off; None: not known."""


@dataclass(frozen=True)
class Tie:
    """What to add to a clock's times to get those of the first clock, and how well that is known."""

    offset_ns: int = 0
    uncertainty_ns: int | None = 0
    """The farthest that the truth can be from it, from the first collective to the last; None: nothing bounds it."""
    method: str = "being one kernel's"
    drift_ratio: float = 0.0
    """By how much the offset grows per unit of time, from `reference_ns` on."""
    reference_ns: int = 0
    collectives: int = 0
    """How many things both hosts did together."""

    def of(self, time_ns: int) -> int:
        """A time on the first clock."""
        return time_ns + self.offset_ns + round(self.drift_ratio * (time_ns - self.reference_ns))

    def moved(self, column: str) -> pl.Expr:
        """The same for a column of times."""
        times = pl.col(column) + self.offset_ns
        if not self.drift_ratio:
            return times
        return times + ((pl.col(column) - self.reference_ns) * self.drift_ratio).round().cast(pl.Int64)

    def facts(self, name: str, to: str) -> dict[str, Any]:
        """What goes into `run["clocks"]["ties"]`."""
        return {
            "clock": name,
            "to": to,
            "offset_ns": self.offset_ns,
            "reference_ns": self.reference_ns,
            "drift_ppm": self.drift_ratio * 1e6,
            "uncertainty_ns": self.uncertainty_ns,
            "method": self.method,
            "collectives": self.collectives,
        }


def meetings(spans: pl.DataFrame) -> pl.DataFrame:
    """What the ranks of these spans did together with all others: `step`, `name`, when the last came and the first left."""
    together = spans.filter(pl.col("kind") == "comm", pl.col("name").cast(pl.String).str.contains(_OF_ALL))
    named = together.drop_nulls(["step", "name", "rank"]).with_columns(pl.col("name").cast(pl.String))
    twice = pl.struct("rank", "step", "name").is_duplicated().any().over("step", "name")  # then nobody knows which was which
    return named.filter(~twice).group_by("step", "name").agg(came_ns=pl.col("start_ns").max(), left_ns=pl.col("end_ns").min())


def tie(first: Clock, its: pl.DataFrame, other: Clock, others: pl.DataFrame) -> Tie:
    """Tie the `other` clock to the `first`, by the `meetings` of both."""
    if _is_same(first, other):
        return Tie(offset_ns=first.shift_ns - other.shift_ns)
    wall = _wall(first, other)
    both = its.join(others, on=["step", "name"], suffix="_other")
    if both.is_empty():
        return wall
    strip = _Strip.of(both)
    kept = strip.with_wall(wall)
    method = "their collectives"
    found = kept.line()
    if found is None:
        found, method = strip.line(), "their collectives, which the wall clocks contradict"
    if found is None:
        why = f"{wall.method}, since their collectives contradict each other"
        return Tie(wall.offset_ns, wall.uncertainty_ns, why, collectives=len(both))
    offset, drift, uncertainty = found
    return Tie(
        offset_ns=strip.guess_ns + math.floor(offset + 0.5),
        uncertainty_ns=math.ceil(uncertainty) + 1,
        method=method,
        drift_ratio=drift,
        reference_ns=strip.reference_ns,
        collectives=len(both),
    )


def _is_same(first: Clock, other: Clock) -> bool:
    """One kernel, unless its readings of the wall clock say that it is two: a machine that was cloned has one boot id."""
    if first.kernel is None or first.kernel != other.kernel:
        return False
    if first.anchor is None or other.anchor is None:
        return True
    apart_ns = (first.anchor.offset_ns + first.shift_ns) - (other.anchor.offset_ns + other.shift_ns)
    return abs(apart_ns) < SAME_NS


def _wall(first: Clock, other: Clock) -> Tie:
    if first.anchor is None or other.anchor is None:
        return Tie(0, None, "nothing")
    offset_ns = other.anchor.offset_ns - first.anchor.offset_ns
    if first.wall_error_ns is None or other.wall_error_ns is None:
        return Tie(offset_ns, None, "their wall clocks, which nobody keeps on one or both")
    read_ns = first.anchor.uncertainty_ns + other.anchor.uncertainty_ns
    return Tie(offset_ns, read_ns + first.wall_error_ns + other.wall_error_ns, "their wall clocks")


@dataclass(frozen=True)
class _Strip:
    """Bounds of the difference of two clocks, and when each holds: relative to a guess, and to a time of the other clock."""

    guess_ns: int
    reference_ns: int
    ends: tuple[float, float]
    """The first time and the last."""
    low_times: _Array
    low: _Array
    high_times: _Array
    high: _Array

    @classmethod
    def of(cls, both: pl.DataFrame) -> "_Strip":
        came, left, other_came, other_left = (both[name] for name in ("came_ns", "left_ns", "came_ns_other", "left_ns_other"))
        begin_ns, end_ns = int(other_came.to_numpy().min()), int(other_left.to_numpy().max())
        guess_ns, reference_ns = int(came.to_numpy().max()) - int(other_came.to_numpy().max()), (begin_ns + end_ns) // 2
        return cls(
            guess_ns,
            reference_ns,
            (float(begin_ns - reference_ns), float(end_ns - reference_ns)),
            (other_left - reference_ns).to_numpy().astype(np.float64),
            (came - other_left - guess_ns - SLACK_NS).to_numpy().astype(np.float64),
            (other_came - reference_ns).to_numpy().astype(np.float64),
            (left - other_came - guess_ns + SLACK_NS).to_numpy().astype(np.float64),
        )

    def with_wall(self, wall: Tie) -> "_Strip":
        """The same, as far as the wall clocks leave it room."""
        if wall.uncertainty_ns is None:
            return self
        times, middle, away = np.array(self.ends), float(wall.offset_ns - self.guess_ns), float(wall.uncertainty_ns)
        low, high = (
            np.concatenate([mine, np.full(2, its)]) for mine, its in ((self.low, middle - away), (self.high, middle + away))
        )
        low_times, high_times = (np.concatenate([mine, times]) for mine in (self.low_times, self.high_times))
        return replace(self, low_times=low_times, low=low, high_times=high_times, high=high)

    def line(self) -> tuple[float, float, float] | None:
        """Offset at the reference, slope, and how far any other line within the strip is from it; None: there is none."""
        slope = 0.0 if self._gap(0.0) >= 0 else _greatest(self._gap, -MOST_DRIFT_RATIO, MOST_DRIFT_RATIO)
        if self._gap(slope) < 0:
            return None
        offset = (self._highest(slope, 0.0) + self._lowest(slope, 0.0)) / 2
        slopes = (self._last(slope, -MOST_DRIFT_RATIO), self._last(slope, MOST_DRIFT_RATIO))
        away = [self._away(at, slopes, offset + slope * at) for at in self.ends]
        return offset, slope, max(away)

    def _highest(self, slope: float, at: float) -> float:
        """Where the highest line of that slope is at a time."""
        return float((self.high - slope * (self.high_times - at)).min())

    def _lowest(self, slope: float, at: float) -> float:
        return float((self.low - slope * (self.low_times - at)).max())

    def _gap(self, slope: float) -> float:
        """How much room lines of that slope have; less than 0: there is none. Concave in the slope."""
        return self._highest(slope, 0.0) - self._lowest(slope, 0.0)

    def _last(self, slope: float, limit: float) -> float:
        """The slope nearest to `limit` that still has room, from one on that has."""
        if self._gap(limit) >= 0:
            return limit
        for _ in range(_SEARCH_STEPS):
            middle = (slope + limit) / 2
            slope, limit = (middle, limit) if self._gap(middle) >= 0 else (slope, middle)
        return slope

    def _away(self, at: float, slopes: tuple[float, float], value: float) -> float:
        """How far a line may be from `value` at that time."""
        highest = _greatest(lambda slope: self._highest(slope, at), *slopes)
        lowest = _greatest(lambda slope: -self._lowest(slope, at), *slopes)
        return max(self._highest(highest, at) - value, value - self._lowest(lowest, at))


def _greatest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is greatest."""
    for _ in range(_SEARCH_STEPS):
        third = (high - low) / 3
        if function(low + third) < function(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2
