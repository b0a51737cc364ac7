"""Observes `joblib.Parallel`: the waits of the training loop for its results, which processes of
loky or threads make.

The tasks of the processes are those of an executor, see `process_executors`, those of threads those
of a pool, see `process_pools`. joblib takes their results in a thread of its own, and the loop
sleeps and looks until the next one is there. So a wait is the time in which the generator of the
results makes its next step, and its job is the one that was taken meanwhile. A job may be several
results: only the first is waited for.
"""

import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.handover import take
from ioprof.instrument.hooks.libraries.process_executors import number_of, task_of
from ioprof.instrument.hooks.libraries.process_pools import product_of_job
from ioprof.instrument.hooks.library import Library
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.supplies import is_fed, may_be_batch

LIBRARY: Final = Library("joblib", "joblib")
_JOB: Final = "_ioprof_job"


class _Taken(threading.local):
    """The job that this thread has taken the results of: a future of loky, or a job of a pool of
    threads.
    """

    job: Any = None


_taken: Final = _Taken()


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `joblib.parallel`, of joblib 1.3 and newer."""
    state.wrap(module, "Parallel._get_outputs", _observe_outputs)
    state.wrap(module, "BatchCompletionCallBack.register_job", _observe_job)
    state.wrap(module, "BatchCompletionCallBack.get_result", _observe_result)


def _observe_job(original: Function, _state: HookState) -> Function:
    def register_job(self: Any, job: Any) -> None:
        vars(self)[_JOB] = job if hasattr(job, "__dict__") else None
        original(self, job)

    return register_job


def _observe_result(original: Function, _state: HookState) -> Function:
    def get_result(self: Any, *args: Any, **kwargs: Any) -> Any:
        _taken.job = vars(self).pop(_JOB, None)
        return original(self, *args, **kwargs)

    return get_result


def _observe_outputs(original: Function, state: HookState) -> Function:
    def get_outputs(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        outputs = original(self, *args, **kwargs)
        try:
            while True:
                is_observed = is_fed(state)
                _taken.job, start_ns = None, monotonic_ns() if is_observed else 0
                try:
                    result = next(outputs)
                except StopIteration:
                    return
                if is_observed and _taken.job is not None:
                    LIBRARY.use(state)
                    _end_wait(_taken.job, state, result, start_ns)
                _taken.job = None
                yield result
                del result
        finally:
            outputs.close()

    return get_outputs


def _end_wait(job: Any, state: HookState, result: Any, start_ns: int) -> None:
    task, end_ns = task_of(job), monotonic_ns()
    if task is not None:
        task[0].end_wait(state, lambda: number_of(task, state), result, start_ns, end_ns, "joblib")
    elif may_be_batch(result):
        take(state, state.per_thread.current, product_of_job(job, 0), start_ns, end_ns, "joblib")
