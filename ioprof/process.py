"""Parent death signals, signal names, memory of threads, and priority."""

import ctypes
import os
import signal
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
_M_MMAP_THRESHOLD: Final = -3  # <malloc.h> of glibc
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 1 << 20
_OF_POLARS: Final = "_RJEM_MALLOC_CONF"
"""Settings of the allocator in polars (man jemalloc, TUNING), which reads them when it is loaded."""
_SETTINGS: Final = "narenas:1,dirty_decay_ms:50,muzzy_decay_ms:0"


def die_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send `number` to this process when its parent dies (man prctl, PR_SET_PDEATHSIG); does nothing but on Linux.

    A rank killed by SIGKILL cannot stop its loader workers; without this they would continue to read during the next run.
    `parent` is the parent's process id, passed by the parent itself: a process that calls getppid() only seconds after its start
    does not notice if the parent has died before.
    """
    parent = os.getppid() if parent is None else parent
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), number)


def return_freed_memory(environment: MutableMapping[str, str]) -> None:
    """Have this process soon return what it freed; does nothing without glibc. To be called before polars is imported.

    `environment` is os.environ: polars looks there when it is imported, adds its own settings before, and overwrites what only the
    C library knows.

    Threads allocate from one arena (man mallopt), since each keeps what it freed in one of its own. Large blocks are mapped and
    unmapped: glibc else stops to do so once a large one was freed. Nothing is set that `environment` sets for polars. So that a job
    has no such setting, it is to be started with an environment of before.
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
    """Return what is free between blocks that are in use (man malloc_trim); does nothing without glibc."""
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
