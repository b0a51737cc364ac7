"""Ctrl-C and its kin while a job is recorded: counted, and answered where nothing is lost by it."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a person, a scheduler and a closing terminal send."""


class Interrupts:
    """How often somebody has asked for the end."""

    def __init__(self) -> None:
        self.count = 0
        self._raising = self._raised = False

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        if number == signal.SIGHUP and self.count:
            return  # a terminal that closes sends it twice: the kernel to the job, and the shell to its jobs
        self.count += 1
        if self._raising and self.count > 1:
            self._raised = True
            raise KeyboardInterrupt

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Asking a second time raises KeyboardInterrupt in this block; asking once never does.

        So do other errors from then on: native code that was calling back passes on another one, or none. Then the block goes on,
        and whoever asks a third time may be luckier; that it was lost is not printed.
        """
        self._raising = True
        print_lost = sys.unraisablehook
        sys.unraisablehook = lambda lost: None if issubclass(lost.exc_type, KeyboardInterrupt) else print_lost(lost)
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
def held() -> Iterator[Interrupts]:
    """Count these signals in this block."""
    interrupts = Interrupts()
    with handled(_ENDING, interrupts.note):
        yield interrupts


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give these signals to `handler` in this block; those that were ignored before (`nohup`, a shell's `&`) stay ignored."""
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
