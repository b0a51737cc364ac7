"""Observes DALI's dynamic mode: `wait` spans of the loop for the next batch of a reader, and for
results of operators ("operator").

There a batch is taken from a reader, and operators are applied to it by calls that return at once;
the loop waits where it uses a result. Such a wait belongs to the batch that the loop took last.
What DALI's own threads do meanwhile calls no Python, so there is no `fetch`: it would say that
nothing was decoded.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.handover import SHORTEST_WAIT_NS, is_loop
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.waits import wait_for, with_waits
from ioprof.instrument.span import emit

_CALL_SITES = "nvidia.dali.experimental.dynamic._call_site"


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `_ops`, `_capture` or `_invocation` of `nvidia.dali.experimental.dynamic`."""
    if module.__name__.endswith("._invocation"):
        state.wrap(module, "Invocation.run", _observe_run)
    elif module.__name__.endswith("._capture"):
        state.wrap(module, "CapturedEpochIterator.batches", _observe_epoch)
    else:
        for path in ("Reader._batches", "Reader._samples"):
            state.wrap(module, path, _observe_epoch)


def _observe_epoch(original: Function, state: HookState) -> Function:
    """Of generator functions whose generators yield the batches of an epoch."""

    def iterate(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        batches = original(self, *args, **kwargs)
        if state.is_consumer(state.per_thread.current):
            state.record_fact(loader="DALI dynamic mode")
        yield from with_waits(batches, state)

    _hide_from_call_sites(iterate)
    _hide_from_call_sites(with_waits)
    _hide_from_call_sites(wait_for)
    return iterate


def _observe_run(original: Function, state: HookState) -> Function:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not thread.trains or thread.waiting or not is_loop(state, thread):
            return original(self, *args, **kwargs)
        thread.waiting = True
        start_ns = monotonic_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            thread.waiting = False
            if end_ns - start_ns >= SHORTEST_WAIT_NS:
                emit(
                    "wait",
                    start_ns,
                    end_ns,
                    "operator",
                    batch=thread.taken,
                    step=state.steps.known_number,
                )
                thread.loop.add_gap(start_ns, end_ns)

    _hide_from_call_sites(run)
    return run


def _hide_from_call_sites(function: Any) -> None:
    """DALI identifies operators by the code that calls them, and passes over functions that it was
    told of.
    """
    module: Any = sys.modules.get(_CALL_SITES)
    if module is not None and hasattr(module, "mark_transparent"):
        module.mark_transparent(function)
