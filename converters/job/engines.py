"""Where the workers run: on the cores of this machine, or on a running Dask cluster."""

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ioprof import __version__
from ioprof.converters.job.worker_pool import num_cores, ordered_map
from ioprof.errors import CommandError, IoprofError

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES: Final = ("local", "dask")

_LIBRARIES: Final = ("pillow", "simplejpeg")  # by which images are decoded and encoded
_CONNECT_S: Final = 3
"""A scheduler that lives answers within milliseconds; one on a busy host within seconds."""
_WINDOW_PER_THREAD: Final = 4


class Engine(Protocol):
    """A parallel `map` with results in the order of the tasks, and a bounded number of pending
    results.
    """

    @property
    def workers_here(self) -> int | None:
        """Number of worker processes on this machine, which see the same files; None: the workers
        run elsewhere.
        """
        ...

    def __call__(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        num_tasks: int,
        /,
        views: bool = False,
    ) -> Generator[Result]:
        """With `views`, bytes that a result pickles as `PickleBuffer` are valid only until the next
        result is requested.
        """
        ...


@dataclass(frozen=True)
class Local:
    """Processes of this machine."""

    workers: int | None
    """None: one per available core. With 1 all work is done in this process."""

    @property
    def workers_here(self) -> int:
        """Number of processes."""
        return self.workers or num_cores()

    def __call__(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        num_tasks: int,
        views: bool = False,
    ) -> Generator[Result]:
        """See `Engine`."""
        return ordered_map(function, tasks, max(1, min(self.workers_here, num_tasks)), views)


def local(workers: int | None) -> Local:
    """Processes of this machine; None: one per available core."""
    return Local(workers)


class Dask:
    """The workers of the cluster whose scheduler has this address, or is described by this
    scheduler file.

    They must see the source under the same path, and have the same versions of the libraries in
    `versions`. Raises `CommandError`.
    """

    workers_here = None

    def __init__(self, scheduler: str) -> None:
        try:
            import distributed
        except ImportError:
            raise CommandError(
                "--engine dask needs Dask; install it with: pip install 'ioprof[dask]'"
            ) from None
        self._distributed: Any = distributed
        self._scheduler = scheduler

    def __call__(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        num_tasks: int,
        views: bool = False,
    ) -> Generator[Result]:
        """See `Engine`."""
        address = "scheduler_file" if Path(self._scheduler).is_file() else "address"
        try:
            client = self._distributed.Client(
                **{address: self._scheduler}, timeout=_CONNECT_S, set_as_default=False
            )
        except (OSError, ValueError, TypeError) as error:
            raise CommandError(
                f"--scheduler {self._scheduler}: no Dask scheduler answers ({error})"
            ) from None
        with client:
            _check_versions(client, self._scheduler)
            window = _WINDOW_PER_THREAD * max(1, sum(client.nthreads().values()))
            yield from _map_ordered(self._distributed, client, function, tasks, window)


def engine_for(name: str, workers: int | None, scheduler: str | None) -> Engine:
    """The engine that the command line names; raises `CommandError`."""
    if name not in ENGINES:
        raise CommandError(f"--engine {name!r}: choose one of {', '.join(ENGINES)}")
    if (name == "dask") != (scheduler is not None):
        raise CommandError(
            "--engine dask and --scheduler ADDRESS need each other: give the scheduler of a running"
            " Dask cluster"
        )
    if scheduler is None:
        return Local(workers)
    if workers is not None:
        raise CommandError(
            f"--workers {workers}: the Dask cluster determines the number of workers; leave"
            " --workers out"
        )
    return Dask(scheduler)


def versions() -> dict[str, str]:
    """The versions of all packages that the bytes of a record depend on."""
    import importlib.metadata  # slow to import, and no worker process needs it

    found = {"ioprof": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _check_versions(client: Any, scheduler: str) -> None:
    answers = client.run(versions, on_error="return")
    if not answers:
        raise CommandError(f"--scheduler {scheduler}: the cluster has no worker", exit_code=1)
    for worker, answer in answers.items():
        if answer != versions():
            what = (
                f"has {answer}, here is {versions()}"
                if isinstance(answer, dict)
                else f"cannot import ioprof ({answer})"
            )
            raise CommandError(
                f"Dask worker {worker} {what}; the bytes could differ: install the same versions",
                exit_code=1,
            )


def _map_ordered(
    distributed: Any, client: Any, function: Callable[[Any], Any], tasks: Iterable[Any], window: int
) -> Generator[Any]:
    pending: deque[Any] = deque()
    try:
        for task in tasks:
            pending.append(client.submit(_call, function, task, pure=False))
            if len(pending) >= window:
                yield _next_result(distributed, pending)
        while pending:
            yield _next_result(distributed, pending)
    finally:
        client.cancel(list(pending))


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    # A copy per task: a Dask worker runs tasks in several threads, and cannot tell which task is
    # the last.
    own = copy.copy(function)
    try:
        return own(task)
    finally:
        getattr(own, "close", lambda: None)()


def _next_result(distributed: Any, pending: deque[Any]) -> Any:
    future = pending.popleft()
    try:
        return future.result()
    except IoprofError:
        raise
    except (
        distributed.KilledWorker,
        distributed.CancelledError,
        distributed.TimeoutError,
        OSError,
    ) as error:
        raise CommandError(
            f"the Dask cluster failed: {' '.join(str(error).split())}", exit_code=1
        ) from None
    finally:
        future.release()
