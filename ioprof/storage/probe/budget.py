"""The time and bytes that a probe may use, and their distribution to its levels."""

from dataclasses import dataclass

from ioprof.clock import monotonic_ns
from ioprof.storage.probe.targets import Limits


@dataclass(frozen=True)
class Allowance:
    """The default limits of a probe. A user can request more; others may share the storage.

    Not included: listing a folder, writing scratch files, and the first eviction of large files.
    """

    seconds: float = 30.0
    bytes: int = 2 << 30


class Budget:
    """Gives each level an equal part of what remains, so that later levels get what earlier ones
    did not use.
    """

    def __init__(self, allowance: Allowance, levels: int) -> None:
        self._begun_ns = monotonic_ns()
        self._end_ns = self._begun_ns + round(allowance.seconds * 1e9)
        self._bytes, self._levels = allowance.bytes, levels
        self.spent_bytes = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return (monotonic_ns() - self._begun_ns) / 1e9

    def next_level(self) -> tuple[Limits, int] | None:
        """Limits of the next level, with half of its time for eviction, and its end; None if no
        time is left.
        """
        now, levels = monotonic_ns(), max(self._levels, 1)
        self._levels -= 1
        share = (self._end_ns - now) // levels
        if share <= 0:
            return None
        return Limits((self._bytes - self.spent_bytes) // levels, now + share // 2), now + share

    def spend(self, num_bytes: int) -> None:
        """Subtract the bytes that a level has read."""
        self.spent_bytes += num_bytes
