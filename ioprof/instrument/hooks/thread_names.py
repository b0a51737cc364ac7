"""Observes `threading`: the names of threads by the kernel's numbers of them, for the stack samples of a thread that held the lock.

They are written once, when the recording of the process ends: an interpreter before 3.14 tells the kernel none of them.
"""

import os
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.host import host

if TYPE_CHECKING:
    from ioprof.instrument.hooks.state import HookState

MOST: Final = 256
"""Threads of a process whose names are kept: the first ones, which mostly live as long as the process."""


def observe(module: ModuleType, state: "HookState") -> None:
    """Observe `threading`."""
    state.wrap(module.Thread, "_set_native_id", _observe_start)


def _observe_start(original: Function, state: "HookState") -> Function:
    def set_native_id(self: Any) -> None:
        original(self)
        if state.is_on and len(state.thread_names) < MOST:
            state.thread_names[self._native_id] = str(self.name)[:80]  # the thread itself may hold the user's data

    return set_native_id


def record_thread_names(state: "HookState") -> None:
    """Record the names as a fact of this process."""
    if names := dict(state.thread_names):
        state.record_fact(thread_names=names, host=host(), pid=os.getpid())
