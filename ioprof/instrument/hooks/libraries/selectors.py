"""Observes `selectors`: when a thread waited for what it takes next, as an event loop does."""

from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `selectors`."""
    state.wrap(module.DefaultSelector, "select", _observe_select)


def _observe_select(original: Function, state: HookState) -> Function:
    def select(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = monotonic_ns()
        events = original(self, *args, **kwargs)
        state.per_thread.current.selected = (start_ns, monotonic_ns())
        return events

    return select
