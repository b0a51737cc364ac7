"""Observes torch's DataLoader where batches are consumed: `wait` spans, with the number of the
batch that was waited for.

A wait that no batch ended has no number: "start" is for the workers that an epoch begins with,
"end" for learning that there is no further batch. A wait within the fetch of another batch is no
wait of the training loop, nor is one in a worker.

The time in which the loader's sampler chooses the samples of a batch is a `sampler` span with the
name of the loader; the sampler runs in the consumer. So is the time in which it chooses those of a
whole epoch, when that begins, with the name of its class.
"""

import inspect
from functools import partial
from types import ModuleType
from typing import Any, Final
from weakref import ref

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.batch_numbering import Series, pipe_of
from ioprof.instrument.hooks.loader_use import LoaderUse
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch.made_loaders import observe_init, observe_subclasses
from ioprof.instrument.hooks.state import HookState, ThreadState
from ioprof.instrument.hooks.versions import require, require_names
from ioprof.instrument.hooks.waits import end_wait, end_wait_without_batch
from ioprof.instrument.span import emit

_SERIES: Final = "_ioprof_series"
_LEAST_CHOOSING_NS: Final = 100_000
"""Time in which the samples of a whole epoch are chosen, from which on it gets a span."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.utils.data.dataloader`."""
    require(module, "DataLoader", "_BaseDataLoaderIter", "_MultiProcessingDataLoaderIter")
    with_workers = module._MultiProcessingDataLoaderIter  # noqa: SLF001
    require(with_workers, "_reset", "_get_data")
    require_names(module._BaseDataLoaderIter.__init__, "_num_workers")  # noqa: SLF001
    require_names(with_workers.__init__, "_prefetch_factor", "_worker_result_queue")
    require_names(with_workers._reset, "_send_idx", "_rcvd_idx")  # noqa: SLF001
    state.wrap(module.DataLoader, "__init__", observe_init)
    if state.loader_change is not None:
        observe_subclasses(module.DataLoader, state)
    for name in ("__iter__", "_get_iterator"):  # some loaders call only the second one
        state.wrap(module.DataLoader, name, observe_iter)
    state.wrap(module._BaseDataLoaderIter, "__next__", _observe_next)  # noqa: SLF001
    state.wrap(module._BaseDataLoaderIter, "_next_index", _observe_next_index)  # noqa: SLF001
    state.wrap(with_workers, "_reset", partial(observe_reset, with_workers, "torch DataLoader"))


def _use(loader: Any, state: HookState) -> LoaderUse:
    """What the batches of a loader are used for, by whichever of its iterators."""
    key, uses = id(loader), state.loader_uses
    if key not in uses:
        reference = ref(loader, lambda _: uses.pop(key, None))
        uses[key] = reference, LoaderUse(loader, state.record_fact)
    return uses[key][1]


def _series(iterator: Any, state: HookState) -> Series:
    found: Series | None = vars(iterator).get(_SERIES)
    if found is None:
        found = Series(
            state.batch_numbers, pipe_of(getattr(iterator, "_worker_result_queue", None))
        )
        found.loader = state.loader_names.name_of(getattr(iterator, "_dataset", None))
        vars(iterator)[_SERIES] = found
    return found


def observe_iter(original: Function, state: HookState) -> Function:
    """An observer of a loader's `__iter__`, which starts its workers, or of `_get_iterator`, which
    it calls for that.
    """

    def iterate(self: Any) -> Any:
        thread = state.per_thread.current
        if thread.waiting or not state.is_consumer(thread):
            return original(self)
        _observe_sampler(self, state)
        if not getattr(self, "num_workers", 0):
            iterator = original(self)
        else:
            state.start_rank()
            thread.waiting = True
            start_ns = monotonic_ns()
            try:
                iterator = original(self)
            finally:
                thread.waiting = False
            state.steps.begin(start_ns, end_ns := monotonic_ns())
            emit("wait", start_ns, end_ns, "start")
        # a subclass may return anything else
        if "_num_workers" in getattr(iterator, "__dict__", ()):
            series = _series(iterator, state)
            series.use = series.use or _use(self, state)
        return iterator

    return iterate


def _observe_sampler(loader: Any, state: HookState) -> None:
    """Observe a sampler that chooses the samples of an epoch before the first batch; a generator
    chooses when it is asked.
    """
    # that of batches, where the loader makes batches
    sampler = getattr(loader, "_index_sampler", None)
    owner = next((each for each in type(sampler).__mro__ if "__iter__" in vars(each)), None)
    chooses = None if owner is None else vars(owner)["__iter__"]
    if inspect.isfunction(chooses) and not inspect.isgeneratorfunction(inspect.unwrap(chooses)):
        state.wrap(owner, "__iter__", _observe_choosing)


def _observe_choosing(original: Function, state: HookState) -> Function:
    def chosen(self: Any) -> Any:
        if not state.is_on or not state.is_consumer(state.per_thread.current):
            return original(self)
        start_ns = monotonic_ns()
        found = original(self)
        if (end_ns := monotonic_ns()) - start_ns >= _LEAST_CHOOSING_NS:
            emit("sampler", start_ns, end_ns, type(self).__name__)
        return found

    return chosen


def observe_reset(with_workers: Any, name: str, original: Function, state: HookState) -> Function:
    """An observer of the start of an epoch, of iterators of the class `with_workers` of the loader
    `name`.
    """

    def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        if state.is_on:
            series = _series(self, state)
            series.begin_epoch()
            # the original sends as many, if there are
            series.sent = self._prefetch_factor * self._num_workers
            series.reach(state.spool, state.identity.rank)
            series.in_order = getattr(loader, "in_order", True)
            # some loaders make their iterators themselves, and others in `__iter__`
            series.use = series.use or _use(loader, state)
            if not series.in_order:
                state.patches.wrap(with_workers, "_get_data", _observe_get_data)
            _record_loader(loader, state, name)
        return original(self, loader, *args, **kwargs)

    return _reset


def _observe_get_data(original: Function) -> Function:
    """Of loaders that hand out batches in the order in which they arrive."""

    def _get_data(self: Any) -> Any:
        received = original(self)
        series = vars(self).get(_SERIES)
        if series is not None:
            series.got = received[0]
        return received

    return _get_data


def _observe_next(original: Function, state: HookState) -> Function:
    def next_batch(self: Any) -> Any:
        thread = state.per_thread.current
        if not self._num_workers:
            return _fetch_and_wait(original, self, state, thread)
        series: Series | None = vars(self).get(_SERIES)
        if series is not None:  # else it was made before this process was recorded
            # one for this batch, and one for each worker that has no more
            series.sent = self._send_idx + self._num_workers + 1
            if series.sent > series.limit:
                series.reach(state.spool, state.identity.rank)
        if not state.is_consumer(thread):
            return original(self)
        if state.is_deferred or state.identity.role == "other":
            state.start_rank()
        thread.loop.begin_wait()
        thread.waiting = True
        start_ns = monotonic_ns()
        try:
            batch = original(self)
        except StopIteration:
            end_ns = monotonic_ns()
            if series is not None:
                series.sent = self._send_idx
                series.end_epoch()
            end_wait_without_batch(state, thread, start_ns, end_ns)
            raise
        finally:
            thread.waiting = False
        end_ns = monotonic_ns()
        number = (
            -1
            if series is None
            else series.number(self._rcvd_idx - 1 if series.in_order else series.got)
        )
        end_wait(
            state, thread, start_ns, end_ns, number, use=None if series is None else series.use
        )
        return batch

    return next_batch


def _fetch_and_wait(
    original: Function, iterator: Any, state: HookState, thread: ThreadState
) -> Any:
    """A batch that the consumer fetches itself while it waits."""
    if not state.is_consumer(thread):
        return original(iterator)
    if state.is_deferred or state.identity.role == "other":
        state.start_rank()
    series = _series(iterator, state)
    if series.epoch < 0:
        series.begin_epoch()
        is_stateful = type(iterator).__module__.startswith("torchdata.")
        _record_loader(
            iterator, state, "torchdata StatefulDataLoader" if is_stateful else "torch DataLoader"
        )
    number = thread.next_batch = series.take(state.spool, state.identity.rank)
    thread.loop.begin_wait()
    thread.waiting = True
    start_ns = monotonic_ns()
    try:
        batch = original(iterator)
    except StopIteration:
        end_ns = monotonic_ns()
        series.take_back()
        series.end_epoch()
        end_wait_without_batch(state, thread, start_ns, end_ns)
        raise
    finally:
        thread.next_batch = -1
        thread.waiting = False
    end_wait(state, thread, start_ns, monotonic_ns(), number, use=series.use)
    return batch


def _observe_next_index(original: Function, state: HookState) -> Function:
    """Of what the sampler chose for a batch; it may raise StopIteration."""

    def _next_index(self: Any) -> Any:
        thread = state.per_thread.current
        if not state.is_consumer(thread) or state.is_deferred:
            return original(self)
        start_ns = monotonic_ns()
        index = original(self)
        end_ns = monotonic_ns()
        series: Series | None = vars(self).get(_SERIES)
        # of a loader without workers, which chooses samples when it fetches them
        number = thread.next_batch
        if self._num_workers:
            number = -1 if series is None else series.number(self._send_idx)
        emit("sampler", start_ns, end_ns, None if series is None else series.loader, batch=number)
        return index

    return _next_index


def _record_loader(loader: Any, state: HookState, name: str) -> None:
    """Record the settings of a loader, from it or its iterator. Nothing of the user's is called,
    not even `len`.
    """

    def found(*names: str) -> Any:
        return next(
            (value for name in names if (value := getattr(loader, name, None)) is not None), None
        )

    sizes = (
        found("batch_size"),
        getattr(found("batch_sampler", "_index_sampler"), "batch_size", None),
    )
    state.record_fact(
        loader=name,
        dataset=type(found("dataset", "_dataset")).__name__,
        workers=found("num_workers", "_num_workers"),
        batch_size=next((size for size in sizes if isinstance(size, int)), None),
        prefetch=found("prefetch_factor"),
        persistent_workers=found("persistent_workers", "_persistent_workers"),
    )
