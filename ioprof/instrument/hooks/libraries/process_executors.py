"""Observes `concurrent.futures.ProcessPoolExecutor`: the tasks of its processes, and which task
made the result of a future.

A task is known by its number in the executor, which travels with the task and its result. All else
is as in `process_pools`: an executor counts as one job, and the loop's waits for results ("future")
are those of `futures`.
"""

from types import ModuleType
from typing import Any, Final

from ioprof.instrument.hooks.batch_numbering import pipe_of
from ioprof.instrument.hooks.libraries.process_pools import TaskNumbers, WatchedQueue
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.supplies import Supply, supply_of

LOADER: Final = "process pool"
_TASK: Final = "_ioprof_task"


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `concurrent.futures.process`, or loky's module that is derived from it."""
    state.wrap(module, "_process_worker", _observe_worker)
    state.wrap(module, "ProcessPoolExecutor.submit", _observe_submit)


def _observe_submit(original: Function, state: HookState) -> Function:
    def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
        future: Any = original(self, *args, **kwargs)
        number = getattr(self, "_queue_count", 0) - 1
        pending = getattr(self, "_pending_work_items", {}).get(number)
        # else another thread has submitted a task meanwhile
        if pending is None or pending.future is future:
            supply = supply_of(self)
            if not supply.workers:
                supply.pipe, supply.workers = (
                    pipe_of(getattr(self, "_result_queue", None)),
                    getattr(self, "_max_workers", 0),
                )
            supply.give(*args, *kwargs.values(), _calls_of_joblib(args))
            vars(future)[_TASK] = supply, number
            if supply.feeds_loop and state.is_on:
                supply.numbers(supply, LOADER, number, state)
        return future

    return submit


def _calls_of_joblib(args: tuple[Any, ...]) -> Any:
    """The calls with their arguments that are one task of joblib's; it has no other arguments."""
    return args[0].items if args and type(args[0]).__name__ == "BatchedCalls" else ()


def task_of(future: Any) -> tuple[Supply, int] | None:
    """What is known of the executor of a future, and the number of its task there; None: it has no
    processes.
    """
    task: tuple[Supply, int] | None = vars(future).get(_TASK)
    return task


def number_of(task: tuple[Supply, int], state: HookState) -> int:
    """The number of the batch that a task made; -1: it is not known."""
    supply, place = task
    series = supply.numbers(supply, LOADER, place, state)
    return -1 if series is None else series.number(place)


def _observe_worker(original: Function, state: HookState) -> Function:
    def process_worker(call_queue: Any, result_queue: Any, *args: Any, **kwargs: Any) -> Any:
        pipe = pipe_of(result_queue)
        if state.is_on and pipe:
            state.start_deferred()
            numbers = TaskNumbers(state, pipe)
            numbers.watch(getattr(call_queue, "_reader", None))
            call_queue, result_queue = _Calls(call_queue, numbers), _Results(result_queue, numbers)
        return original(call_queue, result_queue, *args, **kwargs)

    return process_worker


class _Calls(WatchedQueue):
    """The queue from which a worker gets its tasks."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        call = self._queue.get(*args, **kwargs)
        if hasattr(call, "work_id"):
            self._numbers.begin(0, call.work_id)
        return call


class _Results(WatchedQueue):
    """The queue on which it sends what it made."""

    def put(self, result: Any) -> Any:
        if hasattr(result, "work_id"):
            self._numbers.end(0, result.work_id)
        return self._queue.put(result)
