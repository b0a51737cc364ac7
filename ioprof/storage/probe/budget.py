"""Time and bytes that a probe may take, and what is left of them for each level."""

from dataclasses import dataclass

from ioprof.clock import monotonic_ns
from ioprof.storage.probe.material import Limits


@dataclass(frozen=True)
class Allowance:
    """What a probe may take by itself; more is for the user to ask for, since others may share the storage.

    Not in it: listing a folder, writing scratch files, and dropping large files from memory for the first time.
    """

    seconds: float = 30.0
    bytes: int = 2 << 30


class Budget:
    """Gives each level an equal part of what is left, so that what one does not use goes to those after it."""

    def __init__(self, allowance: Allowance, levels: int) -> None:
        self._begun_ns = monotonic_ns()
        self._end_ns = self._begun_ns + round(allowance.seconds * 1e9)
        self._bytes, self._levels = allowance.bytes, levels
        self.spent_bytes = 0

    @property
    def seconds(self) -> float:
        """Since the begin."""
        return (monotonic_ns() - self._begun_ns) / 1e9

    def next_level(self) -> tuple[Limits, int] | None:
        """What the next level may take: half of its time for emptying the cache, and when it is to end; null if no time is left."""
        now, levels = monotonic_ns(), max(self._levels, 1)
        self._levels -= 1
        share = (self._end_ns - now) // levels
        if share <= 0:
            return None
        return Limits((self._bytes - self.spent_bytes) // levels, now + share // 2), now + share

    def spend(self, num_bytes: int) -> None:
        """Note what a level has read."""
        self.spent_bytes += num_bytes
