"""Observes accelerate's loaders, which wait one batch ahead: a step gets the batch that the loop
was given, not the newest.

A `DataLoaderDispatcher` has rank 0 load the batches of all ranks, and broadcast them: the facts
name that rank. On the other ranks the wait for a batch is the wait for these broadcasts, which are
`comm` spans.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.library import Library
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState

LIBRARY: Final = Library("accelerate", "accelerate")
_LOADING_RANK: Final = 0

Fetched = WeakKeyDictionary[Any, list[int]]
"""Loaders, each with the numbers of the batches that it has and has not handed out yet."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `accelerate.data_loader`."""
    fetched: Fetched = WeakKeyDictionary()
    LIBRARY.wrap(
        state, module.DataLoaderShard, "__iter__", lambda original: _observe_shard(original, state)
    )
    dispatcher = module.DataLoaderDispatcher
    if LIBRARY.wrap(
        state,
        dispatcher,
        "_fetch_batches",
        lambda original: _observe_fetch(original, state, fetched),
    ):
        LIBRARY.wrap(
            state,
            dispatcher,
            "__iter__",
            lambda original: _observe_dispatcher(original, state, fetched),
        )


def _observe_shard(original: Function, state: HookState) -> Function:
    def iterate(self: Any) -> Iterator[Any]:
        if not state.is_on:
            yield from original(self)
            return
        LIBRARY.use(state)
        ahead: int | None = None
        for start_ns, batch in _handed_out(original(self), state):
            before, last = state.steps.waited
            if ahead is None:  # two batches were waited for, unless there is only one
                ahead = last if self.end_of_dataloader else before
            state.steps.consume(start_ns, ahead)
            ahead = last
            yield batch

    return iterate


def _handed_out(batches: Iterator[Any], state: HookState) -> Iterator[tuple[int, Any]]:
    """The batches of a loader that waits ahead, each with when the loop asked for it."""
    while True:
        start_ns = monotonic_ns()
        state.steps.looks_ahead = True
        try:
            batch = next(batches)
        except StopIteration:
            state.steps.looks_ahead = False
            state.steps.end_epoch(start_ns)
            return
        finally:
            state.steps.looks_ahead = False
        yield start_ns, batch


def _observe_fetch(original: Function, state: HookState, fetched: Fetched) -> Function:
    """What rank 0 waits for to make one batch of all ranks: the last of these batches stands for
    it.
    """

    def fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if self in fetched:
            fetched[self].append(state.steps.waited[-1])
        return result

    return fetch


def _observe_dispatcher(original: Function, state: HookState, fetched: Fetched) -> Function:
    def iterate(self: Any) -> Iterator[Any]:
        if not state.is_on:
            yield from original(self)
            return
        LIBRARY.use(state)
        state.start_rank()
        if self.state.num_processes > 1:
            state.record_fact(loading_rank=_LOADING_RANK)
        numbers = fetched[self] = []
        for start_ns, batch in _handed_out(original(self), state):
            if self.state.process_index == _LOADING_RANK and numbers:
                state.steps.consume(start_ns, numbers.pop(0))
            yield batch
        fetched.pop(self, None)

    return iterate
