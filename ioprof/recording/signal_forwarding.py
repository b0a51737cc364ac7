"""Forwards signals to the recorded command, so that a scheduler or a user reaches it as if ioprof had not started it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from ioprof.recording.interrupts import handle_signals

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a job or warn it; ioprof itself goes on until the job has ended."""
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to its whole foreground process group, which includes the job."""
_STDERR: Final = 2


class SignalForwarder:
    """Forwards signals to a process; those that arrive before the process is known are kept for it."""

    def __init__(self) -> None:
        self.interrupted = False
        """Whether a signal asked the job to end."""
        self._pid: int | None = None
        self._waiting: list[int] = []

    def forward_to(self, pid: int) -> None:
        """Forward all signals to this process from now on."""
        self._pid = pid
        while self._waiting:
            self._send(self._waiting.pop(0))

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        self.interrupted |= number not in (signal.SIGUSR1, signal.SIGUSR2)
        if number in _FROM_TERMINAL and _in_foreground():
            return  # the job has received it already; many programs exit at once on a second one
        self._send(number)

    def _send(self, number: int) -> None:
        if self._pid is None:
            self._waiting.append(number)
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)


@contextmanager
def forwarded_signals() -> Iterator[SignalForwarder]:
    """Forward these signals in this block. Signals that were ignored before stay ignored, by the job too."""
    forwarder = SignalForwarder()
    with handle_signals(_FORWARDED, forwarder.note):
        yield forwarder


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(_STDERR) == os.getpgrp()
    except OSError:
        return False
