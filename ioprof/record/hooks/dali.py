"""Observes DALI: `wait` spans of the consumer, from its iterators for torch, or from a pipeline that is run by hand.

What DALI's own threads do meanwhile passes through no Python, so no `fetch` is recorded: it would say that nothing was decoded.
"""

import weakref
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.record.hooks.consumer import allotment, exhausted, is_consumer, waited
from ioprof.record.hooks.numbers import Series
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session
from ioprof.record.span import emit


class _Source:
    """The batches of one iterator or pipeline."""

    def __init__(self) -> None:
        self.series = Series(allotment)
        self.series.begin_epoch()
        self.prefetched = -1
        """The number of the batch that was waited for, and is not handed out yet; -1: none is."""

    def next_number(self) -> int:
        return self.series.take(session.spool, session.who.rank)


_sources: "weakref.WeakKeyDictionary[Any, _Source]" = weakref.WeakKeyDictionary()
session.renew(_sources.clear)


def observe(module: ModuleType) -> None:
    """Observe `nvidia.dali.plugin.pytorch` or `nvidia.dali.pipeline`."""
    if module.__name__ == "nvidia.dali.pipeline":
        patches.wrap(module.Pipeline, "run", _waiting)
        return
    for iterator in (module.DALIGenericIterator, module.DALIRaggedIterator):
        patches.wrap(iterator, "__init__", _making)
        patches.wrap(iterator, "__next__", _waiting)


def _making(original: Function) -> Function:
    """An iterator may fetch its first batch while it is made, and hand that out when it is first asked."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_consumer():
            original(self, *args, **kwargs)
            return
        source = _sources[self] = _Source()
        start_ns = monotonic_ns()
        session.thread.here.begin_batch(-1)  # what it waits for now is not handed out
        try:
            original(self, *args, **kwargs)
        finally:
            session.thread.here.end_batch()
        if getattr(self, "_first_batch", None) is not None:
            source.prefetched = source.next_number()
            emit("wait", start_ns, monotonic_ns(), batch=source.prefetched)

    return make


def _waiting(original: Function) -> Function:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_consumer():
            return original(self, *args, **kwargs)
        source = _sources.get(self) or _sources.setdefault(self, _Source())
        is_first = source.prefetched >= 0
        number = source.prefetched if is_first else source.next_number()
        source.prefetched = -1
        session.thread.here.begin_batch(number)
        start_ns = monotonic_ns()
        try:
            batch = original(self, *args, **kwargs)
        except StopIteration:
            source.series.take_back()
            exhausted(start_ns, monotonic_ns())
            raise
        finally:
            session.thread.here.end_batch()
        waited(start_ns, monotonic_ns(), number, was_recorded=is_first)
        return batch

    return wait
