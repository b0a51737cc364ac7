"""What ioprof asks the kernel about its own processes."""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>


def die_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send `number` to this process when its parent dies (man prctl, PR_SET_PDEATHSIG); does nothing but on Linux.

    A rank killed by SIGKILL cannot tell its loader workers to stop; without this they would read on beside the next run.
    `parent` is the parent's process id, handed over by the parent itself: who asks the kernel for it seconds after the start does
    not notice that it has died before.
    """
    parent = os.getppid() if parent is None else parent
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), number)


def signal_name(number: int) -> str:
    """What a signal is called; real-time ones have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
