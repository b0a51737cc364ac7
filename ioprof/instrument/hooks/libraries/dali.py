"""Observes DALI: `wait` spans of the consumer, from its iterators for torch, or from a pipeline
that is run by hand.

What DALI's own threads do meanwhile calls no Python, so no `fetch` is recorded: it would say that
nothing was decoded. DALI gives the names of its operators to a tool of NVTX, and the capture
library is one (`native/capture/nvtx.c`), unless the job has another.
"""

import ctypes
import os
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument import preload
from ioprof.instrument.hooks.batch_numbering import Series
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.waits import end_wait, end_wait_without_batch
from ioprof.instrument.span import emit


class _Source:
    """The batches of one iterator or pipeline."""

    def __init__(self, state: HookState) -> None:
        self.series = Series(state.batch_numbers)
        self.series.begin_epoch()
        self.prefetched = -1
        """The number of the batch that was waited for, and is not handed out yet; -1: none is."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `nvidia.dali.plugin.pytorch` or `nvidia.dali.pipeline`."""
    if module.__name__ == "nvidia.dali.pipeline":
        _follow_operators()
        state.wrap(module.Pipeline, "run", _observe_next)
        return
    for iterator in (module.DALIGenericIterator, module.DALIRaggedIterator):
        state.wrap(iterator, "__init__", _observe_init)
        state.wrap(iterator, "__next__", _observe_next)


def _follow_operators() -> None:
    """Set what DALI asks for the tool, in the environment of C alone: the job sees no change."""
    process, library = ctypes.CDLL(None), preload.library()
    if library is not None and hasattr(process, "InitializeInjectionNvtx2"):  # it is preloaded
        process.setenv(b"NVTX_INJECTION64_PATH", os.fsencode(library), 0)


def _observe_init(original: Function, state: HookState) -> Function:
    """An iterator may fetch its first batch while it is made, and hand that out when it is first
    asked.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        thread = state.per_thread.current
        if not state.is_consumer(thread):
            original(self, *args, **kwargs)
            return
        state.start_rank()
        source = state.dali_sources[self] = _Source(state)
        start_ns = monotonic_ns()
        thread.begin_batch(-1)  # what it waits for now is not handed out
        try:
            original(self, *args, **kwargs)
        finally:
            thread.end_batch()
        if getattr(self, "_first_batch", None) is not None:
            source.prefetched = source.series.take(state.spool, state.identity.rank)
            emit("wait", start_ns, monotonic_ns(), batch=source.prefetched)

    return init


def _observe_next(original: Function, state: HookState) -> Function:
    def next_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not state.is_consumer(thread):
            return original(self, *args, **kwargs)
        if state.is_deferred or state.identity.role == "other":
            state.start_rank()
        source = state.dali_sources.get(self) or state.dali_sources.setdefault(self, _Source(state))
        is_first = source.prefetched >= 0
        number = (
            source.prefetched if is_first else source.series.take(state.spool, state.identity.rank)
        )
        source.prefetched = -1
        thread.begin_batch(number)
        start_ns = monotonic_ns()
        try:
            batch = original(self, *args, **kwargs)
        except StopIteration:
            source.series.take_back()
            end_wait_without_batch(state, thread, start_ns, monotonic_ns())
            raise
        finally:
            thread.end_batch()
        end_wait(state, thread, start_ns, monotonic_ns(), number, was_recorded=is_first)
        return batch

    return next_batch
