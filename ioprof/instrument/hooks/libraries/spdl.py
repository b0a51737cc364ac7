"""Observes SPDL: `wait` spans of the loop that takes items from a pipeline, in this process or in a
process of the pipeline's own.

In this process the threads of a pipeline make items (`futures` observes their tasks). An item that
the loop takes is known by its identity: the `fetch` is the task that returned it, in the last stage
that runs in a thread. Earlier stages are found by time. A list that SPDL made of items of a thread
is that of its newest item. In a process of its own the `fetch` is what lies between two items that
it sends; numbers travel as those of torch's DataLoader do (`batch_numbering`).
"""

from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.batch_numbering import PublishedNumbers, Series, consumer_pid, pipe_of
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.products import Products
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require
from ioprof.instrument.hooks.waits import wait_for, with_waits
from ioprof.instrument.span import emit

_AHEAD = 512
"""Items that a process may have made before the loop takes them."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `spdl.pipeline._pipeline`, or a module that runs pipelines in processes of their
    own.
    """
    if module.__name__.endswith("._pipeline"):
        state.wrap(module, "Pipeline.get_item", _observe_get_item)
        state.wrap(module, "Pipeline.start", _observe_start)
        state.products = Products()
    elif module.__name__.endswith("._subprocess"):
        state.wrap(module, "_SubprocessIterable.__iter__", _observe_iter)
    else:
        require(module, "_Status")
        require(module._Status, "ITERATOR_SUCCESS", "ITERATION_STARTED")  # noqa: SLF001
        state.wrap(
            module,
            "_execute_iterable",
            lambda original, state: _observe_process(module, original, state),
        )


def _observe_start(original: Function, state: HookState) -> Function:
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        if state.is_consumer(state.per_thread.current):
            state.record_fact(loader="SPDL pipeline")
        return original(self, *args, **kwargs)

    return start


def _observe_get_item(original: Function, state: HookState) -> Function:
    def number_of(item: Any) -> int:
        product = None if state.products is None else state.products.take(item)
        if product is None:
            return state.take_number()
        if product.number < 0:
            product.number = state.take_number()
        product.maker.feeds_loop = True
        return product.number

    def get_item(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if thread.waiting or not state.is_consumer(thread):
            return original(self, *args, **kwargs)
        return wait_for(partial(original, self, *args, **kwargs), state, number_of, EOFError)

    return get_item


def _observe_iter(original: Function, state: HookState) -> Function:
    """Of what a process of its own sends; the original is a generator function."""

    def iterate(self: Any) -> Iterator[Any]:
        items, thread = original(self), state.per_thread.current
        if thread.waiting or not state.is_consumer(thread):
            yield from items
            return
        state.start_rank()
        series = _series(self, state)
        _reach_ahead(series, state)

        def number_of(_item: Any) -> int:
            series.got += 1
            _reach_ahead(series, state)
            return series.number(series.got)

        yield from with_waits(items, state, number_of)
        series.sent = series.got + 1
        series.end_epoch()

    return iterate


def _reach_ahead(series: Series, state: HookState) -> None:
    """Take numbers for the items that may be sent before the loop has the next one."""
    if series.got + _AHEAD > series.limit:
        series.sent = series.got + _AHEAD
        series.reach(state.spool, state.identity.rank)


def _series(iterable: Any, state: HookState) -> Series:
    """The numbers of the items of another epoch."""
    queue = getattr(getattr(iterable, "_interface", None), "data_q", None)
    series: Series | None = vars(iterable).get("_ioprof_series")
    if series is None:
        series = vars(iterable)["_ioprof_series"] = Series(state.batch_numbers, pipe_of(queue))
        state.record_fact(loader="SPDL pipeline", workers=1)
    series.begin_epoch()
    series.got = -1
    return series


def _observe_process(module: ModuleType, original: Function, state: HookState) -> Function:
    def execute(cmd_q: Any, data_q: Any, *args: Any, **kwargs: Any) -> Any:
        if state.is_on:
            state.start_deferred()
            state.identity.become_worker(-1, 0)
            numbers = PublishedNumbers(state.spool, consumer_pid(), pipe_of(data_q))
            data_q = _Sender(data_q, numbers, module._Status, state)  # noqa: SLF001
        return original(cmd_q, data_q, *args, **kwargs)

    return execute


class _Sender:
    """The queue on which a process sends its items."""

    def __init__(
        self, queue: Any, numbers: PublishedNumbers, status: Any, state: HookState
    ) -> None:
        self._queue = queue
        self._numbers = numbers
        self._status = status
        self._state = state
        self._count = -1
        self._begin_ns = 0

    def put(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        status = getattr(message, "status", None)
        if status is self._status.ITERATION_STARTED:
            if self._count >= 0:
                self._numbers.begin_epoch()
            self._count = 0
        elif status is self._status.ITERATOR_SUCCESS and self._begin_ns:
            number = self._numbers.number(self._count)
            self._count += 1
            emit("fetch", self._begin_ns, monotonic_ns(), batch=number)
            identity = self._state.identity
            if identity.rank != self._numbers.rank:
                identity.become_worker(self._numbers.rank, identity.worker)
        try:
            return self._queue.put(message, *args, **kwargs)
        finally:
            self._begin_ns = monotonic_ns()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
