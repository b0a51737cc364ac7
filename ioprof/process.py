"""How processes of ioprof start and end: interpreter, environment, parent death signals, memory of
threads, and priority.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
_M_MMAP_THRESHOLD: Final = -3  # <malloc.h> of glibc
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 1 << 20
_OF_POLARS: Final = "_RJEM_MALLOC_CONF"
"""Settings of the allocator in polars (man jemalloc, TUNING), which reads them when it is
loaded."""
_SETTINGS: Final = "narenas:1,dirty_decay_ms:50,muzzy_decay_ms:0"
_COERCED: Final = "LC_CTYPE"
"""Set by Python itself in its own environment where the locale is C (PEP 538)."""


def own_python(isolated: bool | None = None) -> list[str]:
    """The interpreter of this process with options by which a further process finds the same
    modules, as words of a command line.

    `isolated`: without what PYTHONPATH, PYTHONHOME and other variables say; by default as this
    process.
    """
    without = sys.flags.ignore_environment if isolated is None else isolated
    user_site = ["-s"] if sys.flags.no_user_site else []
    return [sys.executable, *(["-E"] if without else []), "-P", *user_site]


def started_environment() -> dict[str, str]:
    """The environment that this process was started with, without what Python added; to be called
    before libraries add more.
    """
    variables = dict(os.environ)
    with suppress(OSError), open("/proc/self/environ", "rb") as file:
        if not any(each.startswith(f"{_COERCED}=".encode()) for each in file.read().split(b"\0")):
            variables.pop(_COERCED, None)
    return variables


def printable(text: str) -> str:
    r"""Text of the operating system, such as an argument or a path, with \xff for each byte that is
    no UTF-8.
    """
    return os.fsencode(text).decode(errors="backslashreplace")


def end_by_signal(number: int) -> int:
    """End this process by a signal that ended a process which it stands for, without a core dump of
    its own.

    Returns the exit code of a shell where that signal does not end it, as for the first process of
    a container.
    """
    import resource

    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


class Fork:
    """A copy of this process, with all its memory, that calls a function and ends with the exit
    code that this returns.
    """

    def __init__(self, function: Callable[[], int]) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # full, closed, or none
                stream.flush()
        self.pid = os.fork()
        self._status: int | None = None
        if self.pid == 0:
            code = 1
            try:
                _drop_handlers()
                code = function()
                sys.stdout.flush()
            finally:
                os._exit(code)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._status is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end; returns its exit code, or the negative number of the signal that ended
        it.
        """
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        return os.waitstatus_to_exitcode(self._status)


def _drop_handlers() -> None:
    """Handle signals as a program does that was just started."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )


def die_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send `number` to this process when its parent dies (man prctl,
    PR_SET_PDEATHSIG); does nothing but on Linux.

    A rank killed by SIGKILL cannot stop its loader workers; without this they would continue to
    read during the next run. `parent` is the parent's process id, passed by the parent itself: a
    process that calls getppid() only seconds after its start does not notice if the parent has died
    before.
    """
    parent = os.getppid() if parent is None else parent
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), number)


def return_freed_memory(environment: MutableMapping[str, str]) -> None:
    """Have this process soon return what it freed; does nothing without glibc. To be called before
    polars is imported.

    `environment` is os.environ: polars looks there when it is imported, adds its own settings
    before, and overwrites what only the C library knows.

    Threads allocate from one arena (man mallopt), since each keeps what it freed in one of its own.
    Large blocks are mapped and unmapped: glibc else stops to do so once a large one was freed.
    Nothing is set that `environment` sets for polars. So that a job has no such setting, it is to
    be started with an environment of before.
    """
    try:
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_M_ARENA_MAX, 1)
        allocator.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    except (AttributeError, OSError):
        return
    if _OF_POLARS not in environment:
        environment[_OF_POLARS] = _SETTINGS


def trim_heap() -> None:
    """Return what is free between blocks that are in use (man malloc_trim); does nothing without
    glibc.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def yield_cores() -> None:
    """Run only when a core has nothing else to do, where the kernel has such a policy."""
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def signal_name(number: int) -> str:
    """The name of a signal; `signal N` for real-time signals, which have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
