"""Observes torch's compiler: `user` spans of the times in which a thread waits for it, whatever is
compiled then.

torch enters one context for each frame that it compiles, and for each backward pass that it
compiles when that is first needed, and calls within it what others registered
(`torch._dynamo.callback`). Frames that are compiled within another one are part of its span. What
is compiled within a forward pass is no computation of the model.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.format.schema import COMPILATION
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.span import emit


class _Compiling(threading.local):
    """Whether this thread compiles."""

    is_on = False


_here = _Compiling()


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch._dynamo.callback`."""
    state.wrap(module, "CompilationCallbackHandler.install_callbacks", _observed)


def _observed(original: Function, state: HookState) -> Function:
    @contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        with original(*args, **kwargs):
            if _here.is_on or not state.is_on:
                yield
                return
            _here.is_on, start_ns = True, monotonic_ns()
            try:
                yield
            finally:
                _here.is_on, end_ns = False, monotonic_ns()
                emit("user", start_ns, end_ns, COMPILATION)
                state.per_thread.current.loop.add_gap(start_ns, end_ns)

    return install_callbacks
