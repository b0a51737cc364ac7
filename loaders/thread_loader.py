"""Batches made by threads of the rank's own process: no worker processes, no shared memory, no
transport.

Reading, decoding and resizing release the interpreter lock, so threads do them at the same time;
what is left in Python is done by one thread at a time, but for a free-threaded Python. Each sample
is written to its place in the batch as soon as it is made.

Thread `w` of `n` makes every n-th batch, as worker processes do, so each layout has the order that
it has with worker processes. Each thread has its own open files. Values of `lmdb` and `raw` are
read by pread, and the job refuses `--lmdb-read mmap`: a page fault of a memory map keeps the
interpreter lock while it waits for the device, and stops all threads; a read releases it.
"""

import atexit
import threading
from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from ioprof.clock import monotonic_ns
from ioprof.errors import LoaderError
from ioprof.format.dataset import Dataset
from ioprof.instrument import manual
from ioprof.instrument.span import emit
from ioprof.loaders.base import LMDB_READS, Batch, Loader, LoaderOptions, LoadingFacts
from ioprof.loaders.order import BatchRequest
from ioprof.loaders.torch_loader import BatchMaker, MadeBatch, TorchLoader, WorkerFailure

if TYPE_CHECKING:
    from ioprof.loaders.records import Records


class ThreadLoader:
    """The batches of one rank, made by `options.workers` threads in turn and delivered in order."""

    def __init__(self, records: "Records", options: LoaderOptions) -> None:
        self._records, self._options = records, options
        self._facts = records.facts()

    def __iter__(self) -> Iterator[Batch]:
        # starts them here and now, not at the first batch
        return self._deliver(_Threads(self._records, self._options))

    def facts(self) -> LoadingFacts:
        """How records are read and decoded."""
        return self._facts

    def lost_worker(self) -> str | None:
        """None: there are no workers, only threads."""
        return None

    def _deliver(self, threads: "_Threads") -> Iterator[Batch]:
        try:
            for number in range(self._options.first_batch, self._options.num_batches):
                recorded = threads.begin()
                with manual.wait_for_batch(recorded):
                    begin_ns = monotonic_ns()
                    made = threads.take()
                    if isinstance(made, WorkerFailure):
                        raise made.kind(made.message)
                    emit("deliver", max(begin_ns, made.ready_ns), monotonic_ns(), batch=recorded)
                yield Batch(number, made.images, torch.from_numpy(made.labels), made.left_out)
        finally:
            threads.stop()


class _Task(NamedTuple):
    request: BatchRequest
    recorded: int
    """Number of the batch in the recording."""


class _Threads:
    """Makes batches ahead: each thread has up to `options.prefetch` of them under way or ready."""

    def __init__(self, records: "Records", options: LoaderOptions) -> None:
        self._requests = records.requests()
        self._limit = options.workers * options.prefetch
        self._changed = threading.Condition()
        self._is_over = False
        self._num_sent = self._num_taken = 0
        self._numbers: deque[int] = deque()
        self._tasks: list[deque[_Task]] = [deque() for _ in range(options.workers)]
        self._made: list[deque[MadeBatch | WorkerFailure]] = [
            deque() for _ in range(options.workers)
        ]
        records.name(0)  # loads the index once, for the copies of all threads
        ready = threading.Barrier(options.workers + 1)
        num_threads = torch.get_num_threads()
        self._threads = [
            threading.Thread(
                target=self._work, args=(place, copy(records), options, ready), daemon=True
            )
            for place in range(options.workers)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            ready.abort()
            raise LoaderError(
                f"no loader thread can be started ({error}); use fewer --workers"
            ) from None
        # a thread that the interpreter's end finds in torch's C++ would abort the process
        atexit.register(self.stop)
        ready.wait()
        # What a thread sets is its own number, and that of all threads that use torch for the first
        # time later: those of backward.
        torch.set_num_threads(num_threads)
        self._send()

    def begin(self) -> int:
        """The number that the recording has for the batch that `take` returns next."""
        return self._numbers[0]

    def take(self) -> MadeBatch | WorkerFailure:
        """The next batch in order; waits for it."""
        made = self._made[self._num_taken % len(self._made)]
        with self._changed:
            self._changed.wait_for(lambda: made)
            found = made.popleft()
        self._numbers.popleft()
        self._num_taken += 1
        self._send()
        return found

    def stop(self) -> None:
        """End the threads after the batches that they are making now."""
        atexit.unregister(self.stop)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with self._changed:
            while self._num_sent < self._num_taken + self._limit:
                request = next(self._requests, None)
                if request is None:
                    break
                task = _Task(request, manual.new_batch_number(request.number))
                self._numbers.append(task.recorded)
                self._tasks[self._num_sent % len(self._tasks)].append(task)
                self._num_sent += 1
            self._changed.notify_all()

    def _work(
        self, place: int, records: "Records", options: LoaderOptions, ready: threading.Barrier
    ) -> None:
        torch.set_num_threads(1)  # the batches are what is made in parallel
        try:
            ready.wait()
        except threading.BrokenBarrierError:
            return
        maker, tasks = BatchMaker(records, options), self._tasks[place]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: tasks or self._is_over)
                if self._is_over:
                    return
                task = tasks.popleft()
            with manual.making_batch(task.recorded):
                made = maker[task.request]
            with self._changed:
                self._made[place].append(made)
                self._changed.notify_all()


class ThreadBackend:
    """Reads every layout as its own loader does; without workers it is that loader."""

    layouts: ClassVar[tuple[str, ...]] = (
        "files",
        "lmdb",
        "webdataset",
        "parquet",
        "raw",
        "indexed",
    )

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        from ioprof.loaders import open_records

        assert dataset is not None
        self._options = replace(options, lmdb_read=LMDB_READS[1])
        self._records = open_records(dataset.layout, dataset, self._options)

    def check(self) -> None:
        """Raise what the loader of the layout would raise."""
        self._records.check()

    def loader(self) -> Loader:
        """The batches of one rank."""
        kind = ThreadLoader if self._options.workers else TorchLoader
        return kind(self._records, self._options)
