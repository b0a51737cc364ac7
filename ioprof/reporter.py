"""Messages and progress of work that runs long: whoever starts the work passes in a `Reporter`; the
default is silent.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, runtime_checkable

_MEGABYTE: Final = 1_000_000


class Advance(Protocol):
    """A callback for progress: called with the number of units that were done since the last
    call.
    """

    def __call__(self, count: int, /) -> object: ...


@runtime_checkable
class NotedAdvance(Advance, Protocol):
    """An `Advance` that also shows what the work is doing."""

    def note(self, text: str, /) -> object:
        """Show this beside the progress, instead of what was shown before."""


def note(advance: Advance, text: str) -> None:
    """Show what the work is doing, where the progress can show it."""
    if isinstance(advance, NotedAdvance):
        advance.note(text)


class Reporter(Protocol):
    """Where work that runs long sends its messages. `ioprof.cli.console` has the one that writes to
    a terminal.
    """

    def say(self, text: str) -> None:
        """Show one line to the user; never a result."""

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """Show progress from 0 to `total` units while the block runs."""


class SilentReporter:
    """Shows nothing."""

    def say(self, text: str) -> None:
        """Discard the message."""

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Advance]:
        """Discard the progress."""
        yield ignore_progress


def ignore_progress(_count: int, /) -> None:
    """An `Advance` that does nothing."""


SILENT: Final[Reporter] = SilentReporter()
"""The default of every function that takes a reporter."""


def in_megabytes(advance: Advance) -> Advance:
    """An `Advance` for bytes that reports to `advance` in megabytes (10^6 bytes); the remainder is
    carried over.
    """
    remainder = 0

    def advance_bytes(num_bytes: int, /) -> None:
        nonlocal remainder
        megabytes, remainder = divmod(remainder + num_bytes, _MEGABYTE)
        if megabytes:
            advance(megabytes)

    return advance_bytes


def megabytes(num_bytes: int) -> int:
    """The total of a progress display in megabytes; at least 1."""
    return max(1, round(num_bytes / _MEGABYTE))


def stoppable(advance: Advance, num_interrupts: Callable[[], int]) -> Advance:
    """The same `Advance`, except that it raises KeyboardInterrupt once `num_interrupts()` is not
    0.
    """

    def advance_or_stop(count: int, /) -> None:
        advance(count)
        if num_interrupts():
            raise KeyboardInterrupt

    return advance_or_stop
