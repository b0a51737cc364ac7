"""Observes the fetch of a batch, in a worker or in the consumer itself: `fetch` spans, and
`collate` spans within them.

What is collated is a list of samples, whose length is the `offset` of the `fetch` span. Of datasets
that make batches themselves it is known where a library's hooks tell.
"""

import functools
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch.sent_batches import record_batch
from ioprof.instrument.hooks.pytorch.tokens import record_tokens
from ioprof.instrument.hooks.state import HookState, ThreadState
from ioprof.instrument.span import emit


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.utils.data._utils.fetch`."""
    state.wrap(module, "_MapDatasetFetcher.fetch", _observe_fetch)
    state.wrap(module, "_IterableDatasetFetcher.fetch", _observe_fetch)
    state.wrap(module, "_BaseDatasetFetcher.__init__", _observe_init)


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if state.is_on and callable(getattr(self, "collate_fn", None)):
            self.collate_fn = _observe_collate(
                self.collate_fn, state, bool(getattr(self, "auto_collation", False))
            )

    return init


def _observe_collate(original: Function, state: HookState, of_samples: bool) -> Function:
    """An observer of a `collate_fn`. `of_samples`: it is given a list of samples, else what the
    dataset makes a batch.
    """

    @functools.wraps(original)
    def collate(*args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not thread.fetching or thread.nested:
            return original(*args, **kwargs)
        start_ns = monotonic_ns()
        batch = original(*args, **kwargs)
        emit("collate", start_ns, monotonic_ns(), batch=thread.batch)
        if of_samples and args and type(args[0]) is list:
            thread.num_samples = len(args[0])
        return batch

    return collate


def _observe_fetch(original: Function, state: HookState) -> Function:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        thread = state.per_thread.current
        if not state.is_on:
            return original(self, possibly_batched_index)
        if thread.fetching:
            return _fetch_nested(original, self, possibly_batched_index, thread)
        number = thread.next_batch
        thread.begin_batch(number)
        thread.next_batch, thread.nested = -1, False
        start_ns = monotonic_ns()
        try:
            batch = original(self, possibly_batched_index)
        finally:
            end_ns = monotonic_ns()
            thread.end_batch()
        emit("fetch", start_ns, end_ns, batch=number, offset=thread.num_samples)
        thread.fetches += 1
        record_batch(batch, number, thread.fetches, is_sent=state.identity.worker >= 0)
        record_tokens(batch, number, thread.fetches)
        return batch

    return fetch


def _fetch_nested(original: Function, fetcher: Any, index: Any, thread: ThreadState) -> Any:
    """What another loader fetches within the fetch of a batch belongs to that batch."""
    before, thread.nested = thread.nested, True
    try:
        return original(fetcher, index)
    finally:
        thread.nested = before
