"""Who does the work: the cores of this machine, or those of a Dask cluster that runs already."""

import copy
import importlib.metadata
from collections import deque
from collections.abc import Callable, Generator, Iterable
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

    def __call__(self, function: Callable[[Task], Result], tasks: Iterable[Task], num_tasks: int, /) -> Generator[Result]: ...


def local(workers: int | None) -> Engine:
    """Processes of this machine; null: one per core that may be used."""

    def run(function: Callable[[Task], Result], tasks: Iterable[Task], num_tasks: int) -> Generator[Result]:
        return ordered_map(function, tasks, max(1, min(workers or num_cores(), num_tasks)))

    return run


def dask(scheduler: str) -> Engine:
    """The workers of the cluster whose scheduler has that address, or is described by that file.

    They must see the source under the same path, and have the same versions of what makes the bytes. Raises `CommandError`.
    """
    try:
        import distributed
    except ImportError:
        raise CommandError("--engine dask needs Dask; install it with: pip install 'ioprof[dask]'") from None

    def run(function: Callable[[Task], Result], tasks: Iterable[Task], _: int) -> Generator[Result]:
        with _connected(distributed, scheduler) as client:
            _check_alike(client, scheduler)
            window = _WINDOW_PER_THREAD * max(1, sum(client.nthreads().values()))
            yield from _ordered(distributed, client, function, tasks, window)

    return run


def engine_for(name: str, workers: int | None, scheduler: str | None) -> Engine:
    """The engine that the command line names; raises `CommandError`."""
    if name not in ENGINES:
        raise CommandError(f"--engine {name!r}: choose one of {', '.join(ENGINES)}")
    if (name == "dask") != (scheduler is not None):
        raise CommandError("--engine dask and --scheduler ADDRESS go together: the scheduler of a Dask cluster that runs already")
    return local(workers) if scheduler is None else dask(scheduler)


def versions() -> dict[str, str]:
    """Of everything that the bytes of a record depend on."""
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
