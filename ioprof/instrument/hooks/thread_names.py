"""Observes `threading`: the names of threads by the kernel's numbers of them, for the stack samples
of a thread that held the lock.

They are written once, when the recording of the process ends: an interpreter before 3.14 tells the
kernel none of them.
"""

from types import ModuleType
from typing import Any, Final

from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState

MOST: Final = 256
"""Threads of a process whose names are kept: the first ones, which mostly live as long as the
process."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `threading`."""
    state.wrap(module.Thread, "_set_native_id", _observe_start)


def _observe_start(original: Function, state: HookState) -> Function:
    def set_native_id(self: Any) -> None:
        original(self)
        if state.is_on and len(state.thread_names) < MOST:
            # Not the thread itself, which may hold the user's data.
            state.thread_names[self._native_id] = str(self.name)[:80]

    return set_native_id
