"""Observes the loop of a DataLoader's worker: which batch it is told to make next."""

import multiprocessing
import os
from types import ModuleType
from typing import Any

from ioprof.record.hooks.numbers import Followed, pipe_of
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session


def observe(module: ModuleType) -> None:
    """Observe `torch.utils.data._utils.worker`."""
    patches.wrap(module, "_worker_loop", _working(module))


class _Tasks:
    """The queue of a worker's tasks, which notes the number of the batch that each is for."""

    def __init__(self, queue: Any, followed: Followed, resume: type) -> None:
        self._queue = queue
        self._followed = followed
        self._resume = resume
        self._rank = -1

    def get(self, *args: Any, **kwargs: Any) -> Any:
        task = self._queue.get(*args, **kwargs)
        if isinstance(task, self._resume):
            self._followed.begin_epoch()
        elif task is not None:
            session.thread.here.number = self._followed.number(task[0])
            if self._rank != self._followed.rank:
                self._rank = self._followed.rank
                session.who.work(self._rank, session.who.worker)
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _working(module: ModuleType) -> Any:
    def observer(original: Function) -> Function:
        def _worker_loop(
            dataset_kind: Any, dataset: Any, index_queue: Any, data_queue: Any, done_event: Any, auto_collation: Any,
            collate_fn: Any, drop_last: Any, base_seed: Any, init_fn: Any, worker_id: Any, *rest: Any, **named: Any,
        ) -> Any:  # fmt: skip
            if session.is_on:
                session.wake()
                session.who.work(-1, worker_id)
                followed = Followed(session.spool, _consumer(), pipe_of(data_queue))
                index_queue = _Tasks(index_queue, followed, module._ResumeIteration)  # noqa: SLF001
            return original(
                dataset_kind, dataset, index_queue, data_queue, done_event, auto_collation, collate_fn, drop_last, base_seed,
                init_fn, worker_id, *rest, **named,
            )  # fmt: skip

        return _worker_loop

    return observer


def _consumer() -> int:
    """The process that made this one; a forkserver lies between the two."""
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid
