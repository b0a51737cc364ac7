"""Whether the storage that a run read from was bound by its latency or by its rate.

Reads that are bound by latency take about as long each, however many bytes they deliver: over time,
the number of reads per second is what stays the same. Reads that are bound by a rate share it: the
bytes per second stay the same, so that there are fewer reads while they are larger, and the time of
a read follows from what others read meanwhile. So a run is called bound by rate if the times of its
reads differ widely, and reads per second fall as bytes per read grow, over windows of half a
second. By Little's law the first kind of storage serves more readers at the same latency, and the
second makes each of them wait longer.

Reads of equal size that take as long as each other fit both kinds: a rate divides by the size to a
constant time, too. What holds them up is then not known. That the device was busy does not decide
it either: one that serves many requests at a time counts as busy while it serves a single one
(Documentation/admin-guide/iostats.rst, field 10), and a limit of a control group holds requests
before they reach the device.
"""

import math
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.format.run_record import Sentence, sentence

WAITED_NS: Final = 50_000
"""Reads that took at least so long waited for storage; shorter ones found what readahead had
fetched."""
WINDOW_NS: Final = 500_000_000
LEAST_WINDOWS: Final = 5
_LEAST_READS: Final = 8
"""Per window."""
_USUAL: Final = 0.6
"""Of the median, what a window must have at least."""
_LEAST_LOG_ODDS: Final = 2.0
"""How much more likely the slope has to be under the one kind of storage than under the other: 7
times."""
_MOST_SLOPE_ERROR: Final = 0.35
_LEAST_SLOPE_ERROR: Final = 0.1
"""No storage is exactly of one kind."""
_LEAST_SPREAD: Final = 0.3
"""Difference of the quartiles of the times of reads, relative to their median, below which reads
take as long as each other."""
_LEAST_SIZE_SPREAD: Final = 2 * _LEAST_SPREAD
"""The same of their bytes, from which on a rate would have made their times differ."""


class StorageBound(NamedTuple):
    """What limits reads from storage."""

    kind: Literal["latency", "throughput"] | None
    """None: the reads do not show it."""
    why: Sentence
    """What was seen."""


class Quartiles(NamedTuple):
    """Of some quantity of the reads that waited."""

    low: float
    middle: float
    high: float

    @property
    def spread(self) -> float:
        """Difference of the outer ones over the middle one."""
        return (self.high - self.low) / self.middle if self.middle else 0.0


def storage_bound(
    took_ns: Quartiles, size: Quartiles, reads: NDArray[np.float64], num_bytes: NDArray[np.float64]
) -> StorageBound:
    """What the times and bytes of reads that waited, and the reads and their bytes in consecutive
    windows of time, show.

    The first window, in which workers start, is left out.
    """
    if took_ns.spread < _LEAST_SPREAD:
        facts = {"low_s": took_ns.low / 1e9, "high_s": took_ns.high / 1e9}
        if size.spread >= _LEAST_SIZE_SPREAD:
            facts |= {"low_bytes": size.low, "high_bytes": size.high}
            return StorageBound("latency", sentence("equal_times", **facts))
        return StorageBound(None, sentence("equal_reads", **facts, each_bytes=size.middle))
    slope, error, freedom = _slope(reads[1:], num_bytes[1:])
    if error > _MOST_SLOPE_ERROR:
        return StorageBound(None, sentence("unclear_times"))
    # By Student's distribution of the slope around 0 and around -1.
    least = max(error, _LEAST_SLOPE_ERROR) ** 2 * freedom
    log_odds = (
        (freedom + 1) / 2 * (math.log1p(slope**2 / least) - math.log1p((slope + 1) ** 2 / least))
    )
    is_unclear = abs(log_odds) < _LEAST_LOG_ODDS
    why = sentence("reads_by_size", power=slope, error=error, is_unclear=is_unclear)
    if is_unclear:
        return StorageBound(None, why)
    return StorageBound("throughput" if log_odds > 0 else "latency", why)


def by_window(
    edges: NDArray[np.int64], reads: pl.DataFrame, weight: str | None = None
) -> NDArray[np.float64]:
    """How many reads, or how much of a column of theirs, fall between each two edges: each read
    evenly over its time.

    Counted at their ends alone, the few reads of a window would vary more than the storage does.
    """
    weights = np.ones(len(reads)) if weight is None else reads[weight].to_numpy()
    return spread(edges, reads["start_ns"].to_numpy(), reads["end_ns"].to_numpy(), weights)[0]


def spread(
    edges: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    *weights: NDArray[Any],
) -> list[NDArray[np.float64]]:
    """For each of these weights of reads how much of it falls between each two edges: that of a
    read evenly over its time.
    """
    if len(edges) < 2:
        return [np.zeros(0) for _ in weights]
    took = np.maximum(ends - starts, 1)
    instants = starts, starts + took
    places = [np.searchsorted(edges, each, side="left") for each in instants]
    found = []
    for weight in weights:
        per_ns = weight / took
        begun, ended = (
            _up_to(edges, each, place, per_ns) for each, place in zip(instants, places, strict=True)
        )
        found.append(np.diff(begun - ended))
    return found


def _up_to(
    edges: NDArray[np.int64],
    instants: NDArray[np.int64],
    place: NDArray[np.int64],
    per_ns: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What has come until each edge, of that much per nanosecond from each instant on; `place` is
    the first edge after it.
    """
    rates, sums = (
        np.bincount(place, weights, len(edges) + 1).cumsum()[:-1]
        for weights in (per_ns, per_ns * (instants - edges[0]))
    )
    found: NDArray[np.float64] = rates * (edges - edges[0]) - sums
    return found


def _slope(reads: NDArray[np.float64], num_bytes: NDArray[np.float64]) -> tuple[float, float, int]:
    """How reads per second follow from bytes per read, both as logarithms, over windows; its
    standard error, and of how many degrees of freedom.

    -1: when reads are larger there are fewer of them, as the bytes per second stay the same. 0:
    there are as many.
    """
    if len(reads) < LEAST_WINDOWS:
        return 0.0, math.inf, 0
    # In a window in which something else held all up both are small, which says nothing of the
    # storage.
    usual = (
        (reads >= _LEAST_READS)
        & (reads >= _USUAL * np.median(reads))
        & (num_bytes >= _USUAL * np.median(num_bytes))
    )
    if usual.sum() < LEAST_WINDOWS:
        return 0.0, math.inf, 0
    size, count = np.log(num_bytes[usual] / reads[usual]), np.log(reads[usual])
    size, count = size - size.mean(), count - count.mean()
    spread = float((size**2).sum())
    if spread <= 0:
        return 0.0, math.inf, 0
    slope = float((size * count).sum()) / spread
    rest = float(((count - slope * size) ** 2).sum()) / (len(size) - 2)
    return slope, math.sqrt(rest / spread), len(size) - 2
