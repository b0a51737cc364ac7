"""Observes the making of a batch, in a worker or in the consumer itself: `fetch` spans, and `collate` spans within them."""

import functools
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session
from ioprof.record.span import emit


def observe(module: ModuleType) -> None:
    """Observe `torch.utils.data._utils.fetch`."""
    patches.wrap(module._BaseDatasetFetcher, "__init__", _made)  # noqa: SLF001
    for fetcher in (module._MapDatasetFetcher, module._IterableDatasetFetcher):  # noqa: SLF001
        patches.wrap(fetcher, "fetch", _fetching)


def _made(original: Function) -> Function:
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if session.is_on and callable(getattr(self, "collate_fn", None)):
            self.collate_fn = _collating(self.collate_fn)

    return make


def _collating(original: Function) -> Function:
    @functools.wraps(original)
    def collate(*args: Any, **kwargs: Any) -> Any:
        here = session.thread.here
        if not here.fetching or here.nested:
            return original(*args, **kwargs)
        start_ns = monotonic_ns()
        batch = original(*args, **kwargs)
        emit("collate", start_ns, monotonic_ns(), batch=here.batch)
        return batch

    return collate


def _fetching(original: Function) -> Function:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        here = session.thread.here
        if not session.is_on:
            return original(self, possibly_batched_index)
        if here.fetching:
            return _fetch_within(original, self, possibly_batched_index)
        number = here.number
        here.begin_batch(number)
        here.number, here.nested = -1, False
        start_ns = monotonic_ns()
        try:
            batch = original(self, possibly_batched_index)
        finally:
            end_ns = monotonic_ns()
            here.end_batch()
        emit("fetch", start_ns, end_ns, batch=number)
        return batch

    return fetch


def _fetch_within(original: Function, fetcher: Any, index: Any) -> Any:
    """What another loader makes while a batch is being made belongs to that batch."""
    here = session.thread.here
    before, here.nested = here.nested, True
    try:
        return original(fetcher, index)
    finally:
        here.nested = before
