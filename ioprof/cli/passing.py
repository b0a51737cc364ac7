"""Signals for the recorded command: passed on to it, so that a scheduler or a person reaches it as if ioprof were not there."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from ioprof.cli.interrupts import handled

_PASSED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What ends a job or warns it; ioprof itself goes on until the job has ended."""
_OF_THE_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to all of its foreground group, the job included."""


class Passing:
    """Where signals go to; those that come before there is a job wait for it."""

    def __init__(self) -> None:
        self.interrupted = False
        """Whether somebody asked for the end."""
        self._pid: int | None = None
        self._waiting: list[int] = []

    def to(self, pid: int) -> None:
        """From now on to this process."""
        self._pid = pid
        while self._waiting:
            self._send(self._waiting.pop(0))

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        self.interrupted |= number not in (signal.SIGUSR1, signal.SIGUSR2)
        if number in _OF_THE_TERMINAL and _in_foreground():
            return  # the job has it already, and would take a second one for impatience
        self._send(number)

    def _send(self, number: int) -> None:
        if self._pid is None:
            self._waiting.append(number)
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)


@contextmanager
def passed_on() -> Iterator[Passing]:
    """Pass these signals on in this block; the job, too, goes on ignoring those that were ignored before."""
    passing = Passing()
    with handled(_PASSED, passing.note):
        yield passing


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
