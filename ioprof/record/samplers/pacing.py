"""Reading a dear source as seldom as it takes to stay cheap."""

from collections.abc import Callable
from typing import Final

from ioprof.clock import monotonic_ns
from ioprof.record.samplers.readings import Readings

LARGEST_SHARE: Final = 0.003
"""Of the time that passes, how much reading one source may take: a file system of 500 targets has as many files."""


class Paced:
    """A source that is asked again only when it has been left alone for long enough, by what asking it took."""

    def __init__(self, read: Callable[[], Readings], clock: Callable[[], int] = monotonic_ns) -> None:
        self._read, self._clock = read, clock
        self._due_ns = clock()

    def read(self, *, whatever_it_takes: bool = False) -> tuple[int, Readings] | None:
        """The time and the values, or None while it is left alone; the last sample of a job is taken whatever it takes."""
        before_ns = self._clock()
        if before_ns < self._due_ns and not whatever_it_takes:
            return None
        readings = self._read()
        took_ns = self._clock() - before_ns
        self._due_ns = before_ns + int(took_ns / LARGEST_SHARE)
        return before_ns, readings
