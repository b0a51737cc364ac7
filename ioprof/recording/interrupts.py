"""Ctrl-C, SIGTERM and SIGHUP while a job is recorded: counted, and acted upon where nothing is lost
by it.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent by a user's Ctrl-C, by a scheduler, and by a terminal that closes."""


class Interrupts:
    """How many signals have asked for the end."""

    def __init__(self) -> None:
        self.count = 0
        self._raising = self._raised = False

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        if number == signal.SIGHUP and self.count:
            # a terminal that closes sends it twice: the kernel to the job, and the shell to its
            # jobs
            return
        self.count += 1
        if self._raising and self.count > 1:
            self._raised = True
            raise KeyboardInterrupt

    @contextmanager
    def raising(self) -> Iterator[None]:
        """The second signal raises KeyboardInterrupt in this block; the first never does.

        So do other errors from then on: native code that called back into Python may replace the
        KeyboardInterrupt by an error of its own, or drop it. If it was dropped the block goes on,
        nothing is printed about it, and the next signal raises again.
        """
        self._raising = True
        print_lost = sys.unraisablehook
        sys.unraisablehook = lambda lost: (
            None if issubclass(lost.exc_type, KeyboardInterrupt) else print_lost(lost)
        )
        try:
            yield
        except Exception:
            if self._raised:
                raise KeyboardInterrupt from None
            raise
        finally:
            sys.unraisablehook = print_lost
            self._raising = False


@contextmanager
def count_interrupts() -> Iterator[Interrupts]:
    """Count SIGINT, SIGTERM and SIGHUP in this block instead of ending."""
    interrupts = Interrupts()
    with handle_signals(_ENDING, interrupts.note):
        yield interrupts


@contextmanager
def interrupted_by_any() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt in this block, as Ctrl-C does, so that what
    it has to remove is removed.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handle_signals((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextmanager
def handle_signals(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Give these signals to `handler` in this block; those that were ignored before (`nohup`, a
    shell's `&`) stay ignored.

    Does nothing outside of the main thread, where Python permits no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
