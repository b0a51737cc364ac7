"""Ctrl-C and its kin while a job is recorded: counted, and answered where nothing is lost by it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a person, a scheduler and a closing terminal send."""


class Interrupts:
    """How often somebody has asked for the end."""

    def __init__(self) -> None:
        self.count = 0
        self.raising = False
        """Whether to ask a second time raises KeyboardInterrupt; asking once never does."""

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        if number == signal.SIGHUP and self.count:
            return  # a terminal that closes sends it twice: the kernel to the job, and the shell to its jobs
        self.count += 1
        if self.raising and self.count > 1:
            raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[Interrupts]:
    """Count these signals in this block; those that were ignored before (`nohup`, a shell's `&`) stay ignored."""
    interrupts = Interrupts()
    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupts.note) for number in heard}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
