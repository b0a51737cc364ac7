"""Work spread over processes, with the results in the order of the tasks and a bounded number of them in flight.

Not `concurrent.futures`: there all workers share one result pipe, and one that is killed while it writes a large result (out of
memory, say) leaves the others and the parent waiting for ever. Here each worker has a socket of its own, so a death is an
end-of-file at once; and a worker whose parent was killed reads end-of-file too, and ends.

Workers are spawned, not forked: a fork would inherit the parent's threads' locks and its open LMDB environment.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeVar

from ioprof.errors import CommandError

Task = TypeVar("Task")
Result = TypeVar("Result")

_QUEUED_PER_WORKER: Final = 2  # one in work and one waiting, so that no worker idles while the parent writes
_WINDOW_PER_WORKER: Final = 4  # tasks handed out ahead of the oldest one that is not done
_END_S: Final = 10.0
_HINTS: Final[dict[int | None, str]] = {
    -signal.SIGKILL: "; out of memory, most likely: use fewer --workers",
    1: '; a script that starts workers needs its: if __name__ == "__main__"',
}


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def ordered_map(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Generator[Result]:
    """`map(function, tasks)` by `workers` processes; with one, in this process.

    `function` and the tasks are pickled, a task to a few kilobytes. What `function` raises is raised here; a worker that dies
    raises `CommandError`. Close the iterator when it is not used up: that ends the workers.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    pool = _Pool(function, workers)
    try:
        yield from pool.results(tasks)
    finally:
        pool.close()


class _Pool:
    def __init__(self, function: Callable[[Any], Any], workers: int) -> None:
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        # An interrupt of the terminal reaches the whole process group; workers are born with it blocked, and the parent ends them.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(workers):
                self._start(function)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _start(self, function: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        self._processes[ours] = process
        process.start()
        theirs.close()

    def results(self, tasks: Iterable[Any]) -> Iterator[Any]:
        numbered = enumerate(tasks)
        free = deque(list(self._processes) * _QUEUED_PER_WORKER)
        window = _WINDOW_PER_WORKER * len(self._processes)
        done: dict[int, Any] = {}
        sent = yielded = 0
        while True:
            while free and sent - yielded < window and (task := next(numbered, None)) is not None:
                self._send(free.popleft(), task)
                sent += 1
            if sent == yielded:
                return
            for connection in wait(list(self._processes)):
                assert isinstance(connection, Connection)
                number, done[number] = self._receive(connection)
                free.append(connection)
            while yielded in done:
                yield done.pop(yielded)
                yielded += 1

    def _send(self, connection: Connection, task: tuple[int, Any]) -> None:
        try:
            connection.send(task)
        except OSError:
            raise self._death(connection) from None

    def _receive(self, connection: Connection) -> tuple[int, Any]:
        try:
            number, result, error = connection.recv()
        except (EOFError, OSError):
            raise self._death(connection) from None
        if error is not None:
            raise error
        return number, result

    def _death(self, connection: Connection) -> CommandError:
        process = self._processes[connection]
        process.join(timeout=5)
        code = process.exitcode
        why = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return CommandError(f"worker process {process.pid} died ({why}){_HINTS.get(code, '')}", exit_code=1)

    def close(self) -> None:
        for connection, process in self._processes.items():
            connection.close()
            if process.pid is not None:
                process.kill()  # they own nothing; SIGTERM would wait for one that is stopped
        for process in self._processes.values():
            if process.pid is not None:
                process.join(timeout=_END_S)
            if process.exitcode is not None:  # not one that hangs in the kernel, on a dead file server
                process.close()
        self._processes.clear()


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        while True:
            number, task = connection.recv()
            connection.send(_outcome(function, number, task))


def _outcome(function: Callable[[Any], Any], number: int, task: Any) -> tuple[int, Any, Exception | None]:
    try:
        return number, function(task), None
    except Exception as error:
        error.add_note("in a worker process:\n" + traceback.format_exc())
        return number, None, error
