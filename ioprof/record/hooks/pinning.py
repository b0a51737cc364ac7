"""Observes the copy of a batch into page-locked memory: `deliver` spans named "pin", most of them in a thread of the consumer's."""

import threading
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session
from ioprof.record.span import emit


class _Thread(threading.local):
    pinning = False


_here = _Thread()


def observe(module: ModuleType) -> None:
    """Observe `torch.utils.data._utils.pin_memory`."""
    patches.wrap(module, "pin_memory", _pinning)


def _pinning(original: Function) -> Function:
    def pin_memory(*args: Any, **kwargs: Any) -> Any:
        if not session.is_on or _here.pinning:  # it calls itself for what a batch consists of
            return original(*args, **kwargs)
        _here.pinning = True
        start_ns = monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            _here.pinning = False
            emit("deliver", start_ns, end_ns, "pin")

    return pin_memory
