"""Observes `concurrent.futures`: what threads of a pool make for the training loop, and the loop's
waits for it ("future").

`asyncio` runs what it hands to an executor in such threads too, and waits in a selector. Tasks of
processes are observed by `process_executors`.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.handover import (
    SHORTEST_WAIT_NS,
    is_loop,
    maker_of,
    mark,
    may_make,
    product_of,
    take,
)
from ioprof.instrument.hooks.libraries.process_executors import number_of, task_of
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.supplies import is_fed, may_be_batch


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `concurrent.futures._base` or `concurrent.futures.thread`."""
    if module.__name__ == "concurrent.futures.thread":
        state.wrap(module, "_WorkItem.run", _observe_run)
        return
    state.wrap(module, "Future.result", _observe_result)
    state.wrap(module, "Future.set_result", _observe_set_result)
    state.wrap_exported(module, "concurrent.futures", "wait", _observe_wait)
    state.wrap_exported(module, "concurrent.futures", "as_completed", _observe_as_completed)


def _observe_run(original: Function, state: HookState) -> Function:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not may_make(state, thread):
            return original(self, *args, **kwargs)
        maker = maker_of(thread)
        product = thread.product = maker.begin(monotonic_ns(), state.take_number)
        mark(self.future, product)
        if state.products is not None:
            state.products.use(getattr(self, "args", ()))
        thread.begin_product(product.number)
        try:
            return original(self, *args, **kwargs)
        finally:
            thread.end_product()

    return run


def _observe_set_result(original: Function, state: HookState) -> Function:
    """Of the moment in which a task of a thread pool has ended, before anybody can learn of
    that.
    """

    def set_result(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        product = state.per_thread.current.product
        if (
            product is not None
            and product_of(self) is product
            and not state.per_thread.current.trains
        ):
            product.maker.end(product, monotonic_ns())
            if state.products is not None and result is not None:
                state.products.add(result, product)
        return original(self, result, *args, **kwargs)

    return set_result


def _observe_result(original: Function, state: HookState) -> Function:
    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not thread.trains or not is_loop(state, thread):
            return original(self, *args, **kwargs)
        start_ns = monotonic_ns()
        found = original(self, *args, **kwargs)
        _take(state, self, found, start_ns)
        return found

    return result


def _take(state: HookState, future: Any, result: Any, start_ns: int) -> None:
    """The loop has taken the result of a future. One that can be no batch was made by what does not
    feed the loop.
    """
    task, end_ns = task_of(future), monotonic_ns()
    if task is None:
        if may_be_batch(result):
            thread = state.per_thread.current
            if _runs_loop() and end_ns - start_ns < SHORTEST_WAIT_NS:
                start_ns, end_ns = thread.selected or (start_ns, end_ns)
                thread.selected = None
            take(state, thread, product_of(future), start_ns, end_ns, "future")
    elif is_fed(state):
        task[0].end_wait(state, lambda: number_of(task, state), result, start_ns, end_ns, "future")


def _runs_loop() -> bool:
    """Whether an event loop of asyncio runs in this thread."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None  # noqa: SLF001


def _result_of(future: Any) -> Any:
    """Of a future that has ended; None: it has none."""
    return None if future.cancelled() or future.exception() is not None else future._result  # noqa: SLF001


def _observe_wait(original: Function, state: HookState) -> Function:
    def wait(*args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not thread.trains or not is_loop(state, thread):
            return original(*args, **kwargs)
        start_ns = monotonic_ns()
        ended = original(*args, **kwargs)
        done = [
            future
            for future in ended.done
            if task_of(future) is not None or may_be_batch(_result_of(future))
        ]
        products = ((future, product_of(future)) for future in done)
        ends = {future: product.end_ns for future, product in products if product is not None}
        last = max(ends, key=ends.__getitem__, default=next(iter(done), None))
        if last is not None:
            _take(state, last, _result_of(last), start_ns)
        return ended

    return wait


def _observe_as_completed(original: Function, state: HookState) -> Function:
    def as_completed(*args: Any, **kwargs: Any) -> Iterator[Any]:
        futures = original(*args, **kwargs)
        try:
            while True:
                thread = state.per_thread.current
                is_observed = thread.trains and is_loop(state, thread)
                start_ns = monotonic_ns() if is_observed else 0
                try:
                    future = next(futures)
                except StopIteration:
                    return
                if is_observed:
                    _take(state, future, _result_of(future), start_ns)
                yield future
                del future  # as the original does, which keeps no future that it has yielded
        finally:
            futures.close()

    return as_completed
