"""Observes the loops of Lightning: the batch of each step where batches are fetched ahead, and
`validate` spans.

A loader whose length is not known is fetched one batch ahead, so that the loop knows which batch is
the last.
"""

from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.library import Library
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.span import emit

_MODULE_ENDING: Final = "evaluation_loop"

Ahead = WeakKeyDictionary[Any, list[int]]
"""Fetchers, each with the numbers of the batches that it has and has not handed out yet."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe the module `fetchers` or `evaluation_loop` of Lightning's loops, under either of its
    package names.
    """
    library = Library("Lightning", module.__name__.partition(".")[0])
    if module.__name__.endswith(_MODULE_ENDING):
        loop = module._EvaluationLoop  # noqa: SLF001
        library.wrap(state, loop, "run", lambda original: _observe_run(original, state))
        return
    ahead: Ahead = WeakKeyDictionary()
    base, fetching_ahead = module._DataFetcher, module._PrefetchDataFetcher  # noqa: SLF001
    if library.wrap(
        state, base, "__next__", lambda original: _observe_fetch(original, state, library, ahead)
    ):
        library.wrap(
            state,
            fetching_ahead,
            "__next__",
            lambda original: _observe_next(original, state, ahead),
        )
        library.wrap(
            state, fetching_ahead, "reset", lambda original: _observe_reset(original, state, ahead)
        )


def _observe_fetch(
    original: Function, state: HookState, library: Library, ahead: Ahead
) -> Function:
    """A batch is fetched from the loader, which may be one that is kept for later."""

    def next_batch(self: Any) -> Any:
        looks_ahead = state.is_on and self.length is None and hasattr(self, "batches")
        if state.is_on:
            library.use(state)
        if not looks_ahead:
            return original(self)
        state.steps.looks_ahead = True
        try:
            batch = original(self)
        finally:
            state.steps.looks_ahead = False
        ahead.setdefault(self, []).append(state.steps.waited[-1])
        return batch

    return next_batch


def _observe_next(original: Function, state: HookState, ahead: Ahead) -> Function:
    """A batch is handed to the loop."""

    def next_batch(self: Any) -> Any:
        start_ns = monotonic_ns()
        batch = original(self)
        numbers = ahead.get(self)
        if numbers:
            state.steps.consume(start_ns, numbers.pop(0))
        return batch

    return next_batch


def _observe_reset(original: Function, state: HookState, ahead: Ahead) -> Function:
    """The loop is over, or begins."""

    def reset(self: Any) -> None:
        original(self)
        if ahead.pop(self, None) is not None:
            state.steps.end_epoch(monotonic_ns())

    return reset


def _observe_run(original: Function, state: HookState) -> Function:
    """Of an evaluation; one within training, or before it as a check, is a validation."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self.trainer
        is_check = bool(getattr(trainer, "sanity_checking", False))
        if not state.is_on or not (is_check or state.steps.trains):
            return original(self, *args, **kwargs)
        state.start_rank()
        start_ns = monotonic_ns()
        before, state.validates = state.validates, True
        try:
            return original(self, *args, **kwargs)
        finally:
            state.validates = before
            if is_check:
                state.steps.restart()
            emit("validate", start_ns, monotonic_ns(), "sanity check" if is_check else "validation")

    return run
