"""A pool of worker processes: results in the order of the tasks, and a bounded number of tasks in
flight.

Not `concurrent.futures`: there all workers share one result pipe, and a worker killed while it
writes a large result (for example by the OOM killer) leaves the other workers and the parent
waiting forever. Here each worker has its own socket, so its death is an end-of-file at once. A
worker whose parent is killed is killed by the kernel; on systems other than Linux it reads
end-of-file and exits.

A worker is a new interpreter that imports only what it needs, and nothing of the parent's script.
No fork, which would inherit the locks of the parent's threads and its open LMDB environment; no
multiprocessing, whose workers run the parent's script again. Large results are passed through
shared memory: a worker writes into the slot that came with the task.
"""

import contextlib
import mmap
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from ioprof.converters.job.worker_process import SLOT_BYTES, decode_answer, receive, send
from ioprof.errors import CommandError

Task = TypeVar("Task")
Result = TypeVar("Result")

_QUEUED_PER_WORKER: Final = (
    2  # one running and one waiting, so that no worker is idle while the parent writes
)
_WINDOW_PER_WORKER: Final = 4  # tasks sent beyond the oldest unfinished one
_EXIT_TIMEOUT_S: Final = 10.0
_OUT_OF_MEMORY: Final = "; out of memory, most likely: use fewer --workers"
_PROGRAM: Final = """import os, sys
sys.path[:] = {path!r}
os.putenv("OPENBLAS_NUM_THREADS", "1")  # otherwise NumPy starts one thread per core in each worker
from ioprof.process import die_with_parent
die_with_parent(parent={parent})
from ioprof.converters.job.worker_process import serve
serve({socket}, {memory})
"""
_BLOCKED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def ordered_map(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int, views: bool = False
) -> Generator[Result]:
    """`map(function, tasks)` by `workers` processes; with one, in this process.

    `function` and the tasks are pickled; a task should be at most a few kilobytes. An exception of
    `function` is raised here; a worker that dies raises `CommandError`. Close the iterator if it is
    not exhausted: that ends the workers.

    With `views`, bytes that a result pickles as `PickleBuffer` arrive as views that are valid until
    the next result is requested.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    pool = _Pool(function, workers, views)
    try:
        yield from pool.results(tasks)
    finally:
        pool.close()


class _Worker(NamedTuple):
    process: "subprocess.Popen[bytes]"
    socket: socket.socket


class _Pool:
    def __init__(self, function: Callable[[Any], Any], workers: int, views: bool) -> None:
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._slots = list(range(_WINDOW_PER_WORKER * workers))
        self._memory, descriptor = _shared_memory(len(self._slots) * SLOT_BYTES if views else 0)
        # Terminals and batch systems signal all processes; workers start with these signals
        # blocked, and the parent ends them.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
        try:
            work = pickle.dumps(function)
            for _ in range(workers):
                self._start(work, descriptor)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            if descriptor >= 0:
                os.close(descriptor)

    def _start(self, work: bytes, memory: int) -> None:
        with contextlib.ExitStack() as sockets:
            ours, theirs = map(sockets.enter_context, socket.socketpair())
            passed = [theirs.fileno(), *([memory] if memory >= 0 else [])]
            path = [entry for entry in sys.path if isinstance(entry, str)]
            program = _PROGRAM.format(
                path=path, parent=os.getpid(), socket=theirs.fileno(), memory=memory
            )
            worker = _Worker(
                subprocess.Popen([sys.executable, "-c", program], pass_fds=passed), ours
            )
            sockets.pop_all()
            theirs.close()
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self._send(worker, work)

    def results(self, tasks: Iterable[Any]) -> Iterator[Any]:
        numbered = enumerate(tasks)
        free = deque(self._workers * _QUEUED_PER_WORKER)
        done: dict[int, tuple[Any, int]] = {}
        sent = yielded = 0
        while True:
            while free and self._slots and (numbered_task := next(numbered, None)) is not None:
                number, task = numbered_task
                self._send(free.popleft(), pickle.dumps((number, self._slots.pop(), task)))
                sent += 1
            if sent == yielded:
                return
            for key, _ in self._selector.select():
                number, slot, result = self._receive(key.data)
                done[number] = result, slot
                free.append(key.data)
            while yielded in done:
                result, slot = done.pop(yielded)
                yield result
                self._slots.append(slot)
                yielded += 1

    def _send(self, worker: _Worker, message: bytes) -> None:
        try:
            send(worker.socket.fileno(), message)
        except OSError:
            raise self._death(worker) from None

    def _receive(self, worker: _Worker) -> tuple[int, int, Any]:
        try:
            message, num_parts = receive(worker.socket.fileno())
        except (EOFError, OSError):
            raise self._death(worker) from None
        slot, number, result, error = decode_answer(message, num_parts, self._memory)
        if error is not None:
            raise error
        return number, slot, result

    def _death(self, worker: _Worker) -> CommandError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=5)
        code = worker.process.returncode
        why = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        hint = _OUT_OF_MEMORY if code == -signal.SIGKILL else ""
        return CommandError(f"worker process {worker.process.pid} died ({why}){hint}", exit_code=1)

    def close(self) -> None:
        self._selector.close()
        for worker in self._workers:
            worker.socket.close()
            # they have nothing to clean up; a stopped process would not react to SIGTERM
            worker.process.kill()
        for worker in self._workers:
            # blocked in the kernel, for example on a dead file server
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=_EXIT_TIMEOUT_S)
        self._workers.clear()


def _shared_memory(size: int) -> tuple[mmap.mmap | None, int]:
    if not size or not hasattr(os, "memfd_create"):
        return None, -1
    descriptor = os.memfd_create("ioprof", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size), descriptor
    except OSError:  # limits of address space or file size: all results go through the sockets
        os.close(descriptor)
        return None, -1
