"""The only module that reads time: monotonic nanoseconds, and what ties them to the wall clock.

All spans of one host share CLOCK_MONOTONIC, which every process of a kernel reads alike (man clock_gettime). Between hosts the
wall clock is the bridge: an offset between CLOCK_MONOTONIC and CLOCK_REALTIME is constant until somebody steps the wall clock.
"""

import time
from dataclasses import dataclass

monotonic_ns = time.monotonic_ns
"""Nanoseconds of CLOCK_MONOTONIC: the clock of every span."""


@dataclass(frozen=True)
class Anchor:
    """One reading of the wall clock between two readings of the monotonic clock, all in nanoseconds."""

    before_ns: int
    wall_ns: int
    after_ns: int

    @property
    def offset_ns(self) -> int:
        """What to add to a monotonic time to get wall time."""
        return self.wall_ns - (self.before_ns + self.after_ns) // 2

    @property
    def uncertainty_ns(self) -> int:
        """How far `offset_ns` can be off: half the bracket, rounded up. High means that the process was interrupted."""
        return (self.after_ns - self.before_ns + 1) // 2


def anchor(attempts: int = 100) -> Anchor:
    """The narrowest of `attempts` brackets of the wall clock between two monotonic readings."""
    return min((_bracket() for _ in range(attempts)), key=lambda bracket: bracket.uncertainty_ns)


def wall_text(wall_ns: int) -> str:
    """Wall time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ns / 1e9))


def _bracket() -> Anchor:
    return Anchor(time.monotonic_ns(), time.time_ns(), time.monotonic_ns())
