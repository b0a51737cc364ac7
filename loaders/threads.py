"""Batches made by threads of the rank itself, instead of by processes: nothing is sent, and nothing lies in shared memory.

Each thread makes whole batches, in turn with the others. Reading, decoding and resizing run outside of Python's global lock; what
lies between them is Python, for which the threads and the training loop take turns, except on a free-threaded Python. So threads
suit images whose decoding takes most of the time, and a training loop that is in Python for little of its time.
"""

import atexit
import threading
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import ClassVar, Final

from ioprof.clock import monotonic_ns
from ioprof.dataset import Dataset
from ioprof.instrument import manual
from ioprof.instrument.span import emit, span
from ioprof.loaders.base import LMDB_READS, Batch, Loader, LoaderOptions, LoadingFacts
from ioprof.loaders.order import BatchRequest
from ioprof.loaders.records import Records

_PREAD: Final = LMDB_READS[1]
LAYOUTS: Final = ("files", "lmdb", "webdataset", "parquet", "raw", "indexed")


class ThreadsBackend:
    """Reads a dataset as the loader of its layout does, and yields the very same batches."""

    layouts: ClassVar[tuple[str, ...]] = LAYOUTS

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        assert dataset is not None
        # A page fault in a memory map would hold Python's lock, and with it all threads, until storage has answered.
        self._dataset, self._options = dataset, replace(options, lmdb_read=_PREAD)

    def records(self) -> Records:
        """The records of the dataset, for one thread."""
        from ioprof.loaders import open_records

        return open_records(self._dataset.layout, self._dataset, self._options)

    def check(self) -> None:
        """Raise what the loader of the layout would raise."""
        self.records().check()

    def loader(self) -> Loader:
        """The batches of one rank; imports torch. Without threads the rank makes them itself, as the loader of the layout does."""
        return ThreadsLoader(self, self._options) if self._options.workers else self.records().loader()


class ThreadsLoader:
    """The batches of one rank, made by `options.workers` threads in turn and delivered in order."""

    def __init__(self, backend: ThreadsBackend, options: LoaderOptions) -> None:
        self._backend, self._options = backend, options
        self._first = backend.records()
        self._facts = self._first.facts()

    def facts(self) -> LoadingFacts:
        """How records are read and decoded."""
        return self._facts

    def lost_worker(self) -> str | None:
        """None: threads end with their process only."""
        return None

    def __iter__(self) -> Iterator[Batch]:
        first, end, ahead = self._options.first_batch, self._options.num_batches, self._options.prefetch * self._options.workers
        lanes = [_Lane(self._backend.records(), self._options, worker) for worker in range(self._options.workers)]
        requests = self._first.requests()
        numbers: dict[int, int] = {}
        """Of each batch that was asked for, the number in the recording, where several loaders may take turns."""

        def ask() -> None:
            request = next(requests, None)
            if request is not None:
                numbers[request.number] = manual.new_batch(request.number)
                lanes[request.number % len(lanes)].ask(request, numbers[request.number])

        def stop() -> None:
            for lane in lanes:
                lane.stop()

        atexit.register(stop)  # a thread that the interpreter's end finds in torch's C++ would abort the process
        try:
            for _ in range(ahead):
                ask()
            for number in range(first, end):
                with manual.wait_for_batch(numbers[number]):
                    batch = lanes[number % len(lanes)].take(numbers.pop(number))
                ask()
                yield batch
        finally:
            atexit.unregister(stop)
            stop()


class _Lane:
    """A thread, what it was asked for, and what it has made."""

    def __init__(self, records: Records, options: LoaderOptions, worker: int) -> None:
        from ioprof.loaders.torch_loader import BatchMaker

        self._maker = BatchMaker(records, options)
        self._requests: SimpleQueue[tuple[BatchRequest, int] | None] = SimpleQueue()
        self._made: SimpleQueue[object] = SimpleQueue()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ioprof loader {worker}", daemon=True)
        self._thread.start()

    def ask(self, request: BatchRequest, number: int) -> None:
        """Have a batch made, whose number in the recording is `number`."""
        self._requests.put((request, number))

    def take(self, number: int) -> Batch:
        """The next batch that was asked for; raises what its making raised."""
        import torch

        from ioprof.loaders.torch_loader import MadeBatch, WorkerFailure

        begin_ns = monotonic_ns()
        made = self._made.get()
        if isinstance(made, WorkerFailure):
            raise made.kind(made.message)
        assert isinstance(made, MadeBatch)
        emit("deliver", max(begin_ns, made.ready_ns), monotonic_ns(), batch=number)
        return Batch(made.number, made.images, torch.from_numpy(made.labels), made.left_out)

    def stop(self) -> None:
        """End the thread, after the batch that it is making."""
        self._stops.set()
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        from ioprof.loaders.torch_loader import collate

        while (asked := self._requests.get()) is not None and not self._stops.is_set():
            request, number = asked
            with manual.making_batch(number):
                samples = self._maker[request]
                with span("collate", batch=number):
                    made = collate(samples)
            self._made.put(made)
