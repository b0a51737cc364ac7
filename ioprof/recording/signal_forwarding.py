"""Forwards signals to the recorded command, so that a scheduler or a user reaches it as if ioprof
had not started it.

Slurm, systemd, `timeout` and a terminal signal whole groups of processes. What was sent to the
group has reached the command already, and many programs exit at once on a second signal. The kernel
does not say whether a signal was sent to the group, so another process of the group blocks all
signals: what is pending there (man proc_pid_status, ShdPnd) was not sent to ioprof alone.
"""

import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, Protocol

from ioprof.recording.interrupts import handle_signals

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""They ask the job to end; ioprof itself goes on until it has ended."""
_ALWAYS: Final = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
_NOT_FORWARDED: Final = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGCHLD,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    }
)
"""They cannot be handled, or the kernel sends them for what ioprof itself did."""
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
_STDERR: Final = 2
_GROUP_WAIT_S: Final = 0.05
"""Within which a group is signalled: at once by one call of kill, one process after the other by
Slurm and systemd."""
_POLL_S: Final = 0.002


class Process(Protocol):
    """What signals are forwarded to."""

    pid: int

    def send_signal(self, number: int, /) -> None:
        """Send it a signal, unless it has ended."""


class SignalForwarder:
    """Forwards signals to a process; those that arrive before the process is known are kept for
    it.
    """

    def __init__(self) -> None:
        self.interrupted = False
        """Whether a signal asked the job to end."""
        self._target: Process | None = None
        self._waiting: list[int] = []
        self._before: set[int] = set()
        """Signals that the group received before the process was one of it."""
        self._group = _GroupProbe()

    def start(self) -> None:
        """Be ready for signals, before the process is started."""
        self._group.start()

    def process_starts(self) -> None:
        """The process is started now: what the group received so far, it did not."""
        self._before = self._group.forget()

    def stop(self) -> None:
        """Forward nothing more."""
        self._target = None
        self._group.stop()

    def forward_to(self, process: Process) -> None:
        """Forward all signals to this process from now on."""
        waiting, self._waiting, self._target = self._waiting, [], process
        for number in waiting:
            if number in self._before:
                _send(process, number)
            else:
                self._forward(number)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        self.interrupted |= number in _ENDING
        if number == signal.SIGXCPU and _is_beyond_cpu_limit():
            return  # the kernel's, for what ioprof itself used; the job has its own
        if self._target is None:
            self._waiting.append(number)
        else:
            self._forward(number)
        if number == signal.SIGTSTP:
            _stop_too()

    def _forward(self, number: int) -> None:
        if self._target is not None and not self._was_sent_to_group(number):
            _send(self._target, number)

    def _was_sent_to_group(self, number: int) -> bool:
        """Whether the process has received the signal already, as one of this process group."""
        assert self._target is not None
        with suppress(OSError):
            if os.getpgid(self._target.pid) != os.getpgrp():
                return False
        return self._group.has_received(number)


def _send(process: Process, number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


@contextmanager
def forwarded_signals() -> Iterator[SignalForwarder]:
    """Forward signals in this block. Those that were ignored before stay ignored, by the job
    too.
    """
    forwarder = SignalForwarder()
    others = signal.valid_signals() - _NOT_FORWARDED - {*_ALWAYS}
    # by a program that calls ioprof
    unused = [number for number in others if signal.getsignal(number) is signal.SIG_DFL]
    with handle_signals([*_ALWAYS, *unused], forwarder.note):
        try:
            yield forwarder
        finally:
            forwarder.stop()


class _GroupProbe:
    """A process of this process group that blocks all signals, and ends when this one does."""

    def __init__(self) -> None:
        self._process: _Blocking | None = None
        self._received: dict[int, float] = {}
        """By signal when it was last found to have been sent to the group."""
        self._unasked: set[int] = set()
        """Signals that were sent to the group and not asked for yet."""

    def start(self) -> None:
        """Start it; where that fails, only what a terminal sends is distinguished."""
        with suppress(OSError):
            self._process = _Blocking()

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def forget(self) -> set[int]:
        """The signals that were sent to the group so far and not asked for: as if there had been
        none.
        """
        self._look()
        found, self._unasked = self._unasked, set()
        return found

    def has_received(self, number: int) -> bool:
        """Whether this signal was sent to the group a moment ago; waits a little where it was
        not.
        """
        if self._process is None:
            return number in _FROM_TERMINAL and _in_foreground()
        end_s = time.monotonic() + _GROUP_WAIT_S
        while not (found := self._find(number)) and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        return found

    def _find(self, number: int) -> bool:
        self._look()
        if number in self._unasked:
            self._unasked.discard(number)
            self._received[number] = time.monotonic()
            return True
        return (
            time.monotonic() - self._received.get(number, -1e9) < _GROUP_WAIT_S
        )  # also sent to this process alone, as by `timeout`

    def _look(self) -> None:
        if self._process is not None and (pending := self._process.pending()):
            self._unasked |= pending
            self._renew()

    def _renew(self) -> None:
        """Have a process for which nothing is pending; both are there for a moment, so that no
        signal is missed.
        """
        former = self._process
        assert former is not None
        with suppress(OSError):
            self._process = _Blocking()
        if self._process is not former:
            self._unasked |= former.pending()
            former.end()


class _Blocking:
    """The process: a `cat` whose input ends when this process does. Raises OSError where none can
    be started.
    """

    def __init__(self) -> None:
        program = shutil.which("cat", path=os.defpath)
        if program is None:
            raise FileNotFoundError("cat")
        closed = [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in inherited_descriptors()]
        streams = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        read, pipe = os.pipe()
        self._pipe: int | None = pipe
        try:
            self._pid = os.posix_spawn(
                program, ["ioprof-signals"], {}, setsigmask=signal.valid_signals(),
                file_actions=[(os.POSIX_SPAWN_DUP2, read, 0), *streams, *closed],
            )  # fmt: skip
        except OSError:
            os.close(pipe)
            raise
        finally:
            os.close(read)

    def pending(self) -> set[int]:
        """What it was sent so far."""
        try:
            with open(f"/proc/{self._pid}/status", "rb") as file:
                lines = dict(line.split(b":", 1) for line in file)
            mask = int(lines[b"SigPnd"], 16) | int(lines[b"ShdPnd"], 16)
        except (OSError, KeyError, ValueError):
            return set()
        return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}

    def end(self) -> None:
        """End it, once: a signal's handler may be interrupted by that of another one, which ends
        the same process.
        """
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        os.close(pipe)
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def inherited_descriptors() -> list[int]:
    """Those above standard error that a program which is started from here has open: of ioprof's
    own it has none.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > _STDERR and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def _is_beyond_cpu_limit() -> bool:
    limit_s = resource.getrlimit(resource.RLIMIT_CPU)[0]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return limit_s != resource.RLIM_INFINITY and usage.ru_utime + usage.ru_stime >= limit_s


def _stop_too() -> None:
    """Stop, as the job does, until SIGCONT; the kernel ignores it for both where nobody could
    continue them.
    """
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(_STDERR) == os.getpgrp()
    except OSError:
        return False
