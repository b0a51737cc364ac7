"""Observes the copy of a batch into page-locked memory: `deliver` spans named "pin", most of them
in a thread of the consumer's.
"""

from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.span import emit


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.utils.data._utils.pin_memory`."""
    state.wrap(module, "pin_memory", _observe_pin)


def _observe_pin(original: Function, state: HookState) -> Function:
    def pin_memory(*args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not state.is_on or thread.pinning:  # it calls itself for what a batch consists of
            return original(*args, **kwargs)
        thread.pinning = True
        start_ns = monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            thread.pinning = False
            emit("deliver", start_ns, end_ns, "pin")

    return pin_memory
