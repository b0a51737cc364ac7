"""Observes torchdata's StatefulDataLoader, a subclass of torch's DataLoader with iterators and a
worker loop of its own.

Its iterators inherit `__next__` from torch's, which is observed there. Batches that it only skips,
to restore a state while an epoch begins, are part of the wait for that.
"""

from functools import partial
from types import ModuleType
from typing import Any

from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch.consumer import observe_iter, observe_reset
from ioprof.instrument.hooks.pytorch.made_loaders import observe_init
from ioprof.instrument.hooks.pytorch.worker import check_loop, observe_loop
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torchdata.stateful_dataloader.stateful_dataloader`, or the module of its workers."""
    if module.__name__.endswith(".worker"):
        require(module, "_worker_loop", "_ResumeIteration")
        check_loop(module._worker_loop)  # noqa: SLF001
        state.wrap(module, "_worker_loop", partial(observe_loop, module._ResumeIteration))  # noqa: SLF001
        return
    require(module, "StatefulDataLoader", "_StatefulMultiProcessingDataLoaderIter")
    with_workers = module._StatefulMultiProcessingDataLoaderIter  # noqa: SLF001
    require(with_workers, "_reset", "_try_put_index", "_next_data")
    state.wrap(module.StatefulDataLoader, "__init__", observe_init)
    state.wrap(module.StatefulDataLoader, "__iter__", _observe_iter)
    state.wrap(
        with_workers, "_reset", partial(observe_reset, with_workers, "torchdata StatefulDataLoader")
    )


def _observe_iter(original: Function, state: HookState) -> Function:
    def skip_batches(self: Any) -> Any:
        thread = state.per_thread.current
        if thread.fetching:
            return original(self)
        thread.begin_batch(-1)
        try:
            return original(self)
        finally:
            thread.end_batch()

    return observe_iter(skip_batches, state)
