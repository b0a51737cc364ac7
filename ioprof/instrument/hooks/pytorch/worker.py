"""Observes the loop of a DataLoader's worker: the number of the batch that it fetches next."""

from functools import partial
from types import ModuleType
from typing import Any, Final

from ioprof.instrument.hooks.batch_numbering import PublishedNumbers, consumer_pid, pipe_of
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch.kept_data import KeptData
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import UnknownVersionError, require

_PARAMETERS: Final = {"dataset": 1, "index_queue": 2, "data_queue": 3, "worker_id": 10}
"""Of the loop's parameters those that are observed, and their places."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.utils.data._utils.worker`."""
    require(module, "_worker_loop", "_ResumeIteration")
    check_loop(module._worker_loop)  # noqa: SLF001
    state.wrap(module, "_worker_loop", partial(observe_loop, module._ResumeIteration))  # noqa: SLF001


class _TaskQueue:
    """The queue of a worker's tasks; it keeps the number of the batch that the newest task is
    for.
    """

    def __init__(
        self,
        queue: Any,
        numbers: PublishedNumbers,
        resume: type,
        kept: KeptData,
        state: HookState,
    ) -> None:
        self._queue = queue
        self._kept = kept
        self._numbers = numbers
        self._resume = resume
        self._state = state
        self._rank = -1
        self._num_tasks = 0

    def get(self, *args: Any, **kwargs: Any) -> Any:
        if self._num_tasks == 1:  # the first batch is delivered: its libraries have their threads
            self._num_tasks += 1
            self._state.record_thread_pools()
        self._kept.end_batch()
        task = self._queue.get(*args, **kwargs)
        if isinstance(task, self._resume):
            self._numbers.begin_epoch()
            self._kept.record(self._state)  # a worker that is kept may be killed at the job's end
        elif isinstance(task, tuple):  # other loaders send other messages too
            self._num_tasks += 1
            self._state.per_thread.current.next_batch = self._numbers.number(task[0])
            if self._rank != self._numbers.rank:
                self._rank = self._numbers.rank
                identity = self._state.identity
                identity.become_worker(self._rank, identity.worker)
            self._kept.begin_batch(task[1])
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def check_loop(loop: Function) -> None:
    """Raise `UnknownVersionError` if a worker's loop does not have the parameters that are used
    here, where they are looked for.
    """
    while hasattr(loop, "__wrapped__"):
        loop = loop.__wrapped__
    names = loop.__code__.co_varnames[: loop.__code__.co_argcount]
    if [names.index(name) if name in names else -1 for name in _PARAMETERS] != [
        *_PARAMETERS.values()
    ]:
        raise UnknownVersionError(f"{loop.__name__} has the parameters {', '.join(names)}")


def observe_loop(resume: type, original: Function, state: HookState) -> Function:
    """An observer of a worker's loop, in which a message of the class `resume` begins another
    epoch.
    """

    def _worker_loop(
        dataset_kind: Any,
        dataset: Any,
        index_queue: Any,
        data_queue: Any,
        done_event: Any,
        auto_collation: Any,
        collate_fn: Any,
        drop_last: Any,
        base_seed: Any,
        init_fn: Any,
        worker_id: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        kept = KeptData(dataset)
        if state.is_on:
            state.start_deferred()
            state.identity.become_worker(-1, worker_id)
            numbers = PublishedNumbers(state.spool, consumer_pid(), pipe_of(data_queue))
            index_queue = _TaskQueue(index_queue, numbers, resume, kept, state)
        ended = original(
            dataset_kind,
            dataset,
            index_queue,
            data_queue,
            done_event,
            auto_collation,
            collate_fn,
            drop_last,
            base_seed,
            init_fn,
            worker_id,
            *rest,
            **named,
        )
        kept.record(state)
        return ended

    return _worker_loop
