"""Observes torch's DataLoader where batches are consumed: `wait` spans, with the number of the batch that was waited for.

A wait that no batch ended has no number: "start" is for the workers that an epoch begins with, "end" for learning that there is no
further batch. A wait within the making of another batch is no wait of the job, nor is one in a worker.
"""

from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.record.hooks import compute
from ioprof.record.hooks.compiler import of_torch
from ioprof.record.hooks.numbers import Allotment, Series, pipe_of
from ioprof.record.hooks.patches import Function, Observer, patches
from ioprof.record.hooks.session import session
from ioprof.record.hooks.steps import steps
from ioprof.record.span import emit

_SERIES: Final = "_ioprof_series"

allotment = Allotment()
"""Never begun anew: a forked child that consumes batches itself, or a second recording, shares no number with what was before."""


def observe(module: ModuleType) -> None:
    """Observe `torch.utils.data.dataloader`."""
    patches.wrap(module.DataLoader, "__iter__", _starting)
    patches.wrap(module._BaseDataLoaderIter, "__next__", _waiting)  # noqa: SLF001
    many = module._MultiProcessingDataLoaderIter  # noqa: SLF001
    patches.wrap(many, "_reset", _resetting(many))


def waited(start_ns: int, end_ns: int, number: int, was_recorded: bool = False) -> None:
    """The batch of that number is here, and this thread waited for it; the wait may have been recorded before."""
    if not was_recorded:
        # Where no gradient is wanted from this batch, though the process trains; else nothing is known of it.
        purpose = "validate" if steps.trains and not of_torch.is_grad_enabled() else None
        emit("wait", start_ns, end_ns, purpose, batch=number)
    steps.consumed(start_ns, number)
    compute.here.loop.mark(end_ns)


def exhausted(start_ns: int, end_ns: int) -> None:
    """There is no further batch, and this thread waited to learn that."""
    emit("wait", start_ns, end_ns, "end")
    steps.exhausted(start_ns)
    compute.here.loop.mark(end_ns)


def is_consumer() -> bool:
    """Whether a wait here and now is one of the job's: if so, this process is a rank."""
    role = session.who.role
    if not session.is_on or role == "worker" or session.thread.here.fetching:
        return False
    if session.asleep:
        session.wake()
    if role == "other":
        session.train()
    return True


def _series(iterator: Any) -> Series:
    found: Series | None = vars(iterator).get(_SERIES)
    if found is None:
        found = Series(allotment, pipe_of(getattr(iterator, "_worker_result_queue", None)))
        vars(iterator)[_SERIES] = found
    return found


def _starting(original: Function) -> Function:
    def start(self: Any) -> Any:
        if not getattr(self, "num_workers", 0) or not is_consumer():
            return original(self)
        start_ns = monotonic_ns()
        steps.began(start_ns)
        iterator = original(self)
        emit("wait", start_ns, monotonic_ns(), "start")
        return iterator

    return start


def _resetting(many: Any) -> Observer:
    def observer(original: Function) -> Function:
        def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
            if session.is_on:
                series = _series(self)
                series.begin_epoch()
                series.sent = self._prefetch_factor * self._num_workers  # the original sends as many, if there are
                series.reach(session.spool, session.who.rank)
                series.in_order = getattr(loader, "in_order", True)
                if not series.in_order:
                    patches.wrap(many, "_get_data", _getting)
                _tell(loader)
            return original(self, loader, *args, **kwargs)

        return _reset

    return observer


def _getting(original: Function) -> Function:
    """Of loaders that hand out batches in the order in which they arrive."""

    def _get_data(self: Any) -> Any:
        received = original(self)
        series = vars(self).get(_SERIES)
        if series is not None:
            series.got = received[0]
        return received

    return _get_data


def _waiting(original: Function) -> Function:
    def wait(self: Any) -> Any:
        if not self._num_workers:
            return _make(original, self)
        series: Series | None = vars(self).get(_SERIES)
        if series is not None:  # else it was made before this process was recorded
            series.sent = self._send_idx + self._num_workers + 1  # one for this batch, and one for each worker that has no more
            if series.sent > series.limit:
                series.reach(session.spool, session.who.rank)
        if not is_consumer():
            return original(self)
        start_ns = monotonic_ns()
        try:
            batch = original(self)
        except StopIteration:
            end_ns = monotonic_ns()
            if series is not None:
                series.sent = self._send_idx
                series.end_epoch()
            exhausted(start_ns, end_ns)
            raise
        end_ns = monotonic_ns()
        number = -1 if series is None else series.number(self._rcvd_idx - 1 if series.in_order else series.got)
        waited(start_ns, end_ns, number)
        return batch

    return wait


def _make(original: Function, iterator: Any) -> Any:
    """A batch that the consumer makes itself while it waits."""
    if not is_consumer():
        return original(iterator)
    series = _series(iterator)
    if series.epoch < 0:
        series.begin_epoch()
        _tell(iterator)
    number = session.thread.here.number = series.take(session.spool, session.who.rank)
    start_ns = monotonic_ns()
    try:
        batch = original(iterator)
    except StopIteration:
        end_ns = monotonic_ns()
        series.take_back()
        series.end_epoch()
        exhausted(start_ns, end_ns)
        raise
    finally:
        session.thread.here.number = -1
    waited(start_ns, monotonic_ns(), number)
    return batch


def _tell(loader: Any) -> None:
    """What the report may want to know of a loader, from it or its iterator. Nothing of the user's is called, not even `len`."""

    def found(*names: str) -> Any:
        return next((value for name in names if (value := getattr(loader, name, None)) is not None), None)

    sizes = found("batch_size"), getattr(found("batch_sampler", "_index_sampler"), "batch_size", None)
    session.tell(
        loader="torch DataLoader",
        dataset=type(found("dataset", "_dataset")).__name__,
        workers=found("num_workers", "_num_workers"),
        batch_size=next((size for size in sizes if isinstance(size, int)), None),
        prefetch=found("prefetch_factor"),
        persistent_workers=found("persistent_workers", "_persistent_workers"),
    )
