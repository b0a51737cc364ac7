"""Who does the work: the cores of this machine, or those of a Dask cluster that runs already."""

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ioprof import __version__
from ioprof.converters.pool import num_cores, ordered_map
from ioprof.errors import CommandError, IoprofError

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES: Final = ("local", "dask")

_LIBRARIES: Final = ("pillow", "simplejpeg")  # by which images are decoded and encoded
_CONNECT_S: Final = 30
_WINDOW_PER_THREAD: Final = 4


class Engine(Protocol):
    """`map` in the order of the tasks, with a bounded number of results that wait."""

    @property
    def workers_here(self) -> int | None:
        """How many processes of this machine do the work, which see the same files; null: others do it."""
        ...

    def __call__(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], num_tasks: int, /, views: bool = False
    ) -> Generator[Result]:
        """With `views`, bytes that a result pickles as `PickleBuffer` may hold only until the next result is asked for."""
        ...


@dataclass(frozen=True)
class Local:
    """Processes of this machine."""

    workers: int | None
    """Null: one per core that may be used. With one, all work is done in this process."""

    @property
    def workers_here(self) -> int:
        """How many there are."""
        return self.workers or num_cores()

    def __call__(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], num_tasks: int, views: bool = False
    ) -> Generator[Result]:
        """As `Engine` says."""
        return ordered_map(function, tasks, max(1, min(self.workers_here, num_tasks)), views)


def local(workers: int | None) -> Local:
    """Processes of this machine; null: one per core that may be used."""
    return Local(workers)


class Dask:
    """The workers of the cluster whose scheduler has that address, or is described by that file.

    They must see the source under the same path, and have the same versions of what makes the bytes. Raises `CommandError`.
    """

    workers_here = None

    def __init__(self, scheduler: str) -> None:
        try:
            import distributed
        except ImportError:
            raise CommandError("--engine dask needs Dask; install it with: pip install 'ioprof[dask]'") from None
        self._distributed: Any = distributed
        self._scheduler = scheduler

    def __call__(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], num_tasks: int, views: bool = False
    ) -> Generator[Result]:
        """As `Engine` says."""
        with _connected(self._distributed, self._scheduler) as client:
            _check_alike(client, self._scheduler)
            window = _WINDOW_PER_THREAD * max(1, sum(client.nthreads().values()))
            yield from _ordered(self._distributed, client, function, tasks, window)


def engine_for(name: str, workers: int | None, scheduler: str | None) -> Engine:
    """The engine that the command line names; raises `CommandError`."""
    if name not in ENGINES:
        raise CommandError(f"--engine {name!r}: choose one of {', '.join(ENGINES)}")
    if (name == "dask") != (scheduler is not None):
        raise CommandError("--engine dask and --scheduler ADDRESS go together: the scheduler of a Dask cluster that runs already")
    if scheduler is None:
        return Local(workers)
    if workers is not None:
        raise CommandError(f"--workers {workers}: a Dask cluster has the workers that it has; leave --workers out")
    return Dask(scheduler)


def versions() -> dict[str, str]:
    """Of everything that the bytes of a record depend on."""
    import importlib.metadata  # takes longer to load than all else here, and no worker needs it

    found = {"ioprof": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _connected(distributed: Any, scheduler: str) -> Any:
    place = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
    try:
        return distributed.Client(**place, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"--scheduler {scheduler}: no Dask scheduler answers ({error})") from None


def _check_alike(client: Any, scheduler: str) -> None:
    answers = client.run(versions, on_error="return")
    if not answers:
        raise CommandError(f"--scheduler {scheduler}: the cluster has no worker", exit_code=1)
    for worker, answer in answers.items():
        if answer != versions():
            what = f"has {answer}, here is {versions()}" if isinstance(answer, dict) else f"cannot import ioprof ({answer})"
            raise CommandError(f"Dask worker {worker} {what}; the bytes could differ: install the same versions", exit_code=1)


def _ordered(distributed: Any, client: Any, function: Callable[[Any], Any], tasks: Iterable[Any], window: int) -> Generator[Any]:
    flying: deque[Any] = deque()
    try:
        for task in tasks:
            flying.append(client.submit(_call, function, task, pure=False))
            if len(flying) >= window:
                yield _result(distributed, flying)
        while flying:
            yield _result(distributed, flying)
    finally:
        client.cancel(list(flying))


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    # A copy of its own: a Dask worker runs tasks in threads, and no task knows which is the last.
    own = copy.copy(function)
    try:
        return own(task)
    finally:
        getattr(own, "close", lambda: None)()


def _result(distributed: Any, flying: deque[Any]) -> Any:
    future = flying.popleft()
    try:
        return future.result()
    except IoprofError:
        raise
    except (distributed.KilledWorker, distributed.CancelledError, distributed.TimeoutError, OSError) as error:
        raise CommandError(f"the Dask cluster failed: {' '.join(str(error).split())}", exit_code=1) from None
    finally:
        future.release()
