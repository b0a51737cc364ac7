"""Limits how often an expensive source is read."""

from collections.abc import Callable
from typing import Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.samplers.readings import Readings

LARGEST_SHARE: Final = 0.003
"""Maximum share of time that reading one source may take: a file system with 500 targets has as
many files."""


class RateLimitedSource:
    """A source whose interval between two readings is proportional to the duration of a reading."""

    def __init__(
        self, read: Callable[[], Readings], clock: Callable[[], int] = monotonic_ns
    ) -> None:
        self._read, self._clock = read, clock
        self._due_ns = clock()

    def read(self, *, force: bool = False) -> tuple[int, Readings] | None:
        """The time and the values, or None if it is too early. `force` reads in any case, for the
        last sample of a job.
        """
        before_ns = self._clock()
        if before_ns < self._due_ns and not force:
            return None
        readings = self._read()
        took_ns = self._clock() - before_ns
        self._due_ns = before_ns + int(took_ns / LARGEST_SHARE)
        return before_ns, readings
