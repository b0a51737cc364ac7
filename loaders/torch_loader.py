"""Batches on torch's DataLoader: worker processes make whole batches, so that each is followed by its number from read to step."""

import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from ioprof.clock import monotonic_ns
from ioprof.errors import DatasetError, IoprofError, LoaderError
from ioprof.loaders.base import Batch, LoaderOptions, Record
from ioprof.loaders.crops import sample_random
from ioprof.loaders.images import load_sample
from ioprof.loaders.order import BatchRequest
from ioprof.loaders.records import Records
from ioprof.process import die_with_parent, signal_name
from ioprof.record import recorder
from ioprof.record.span import emit, span

_SWITCH_INTERVAL_S: Final = 0.0002
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  where shm_open makes its files (man 7 shm_overview)
_LESS: Final = "use fewer --workers or a smaller --batch-size"
_LARGER: Final = "make it larger (mount -o remount,size=16G /dev/shm; in a container: docker run --shm-size=16g)"


@dataclass(frozen=True)
class WorkerFailure:
    """What a worker sends instead of a batch it could not make: torch would bury the message in a traceback."""

    kind: type[IoprofError]
    message: str


class _Made(NamedTuple):
    """A batch on its way to the rank. Labels are no tensor: each one costs a connection to the worker, to fetch its descriptor."""

    number: int
    images: torch.Tensor
    labels: np.ndarray
    ready_ns: int = 0


class BatchMaker(Dataset[Any]):
    """Makes the batch of a `BatchRequest`, in a worker process or in the rank itself."""

    def __init__(self, records: Records, options: LoaderOptions) -> None:
        self._records = records
        self._options = options
        self.failure: WorkerFailure | None = None
        """Why this worker makes no batches at all."""

    def __getitem__(self, request: BatchRequest) -> "_Made | WorkerFailure":
        if self.failure is not None:
            return self.failure
        try:
            with span("fetch", batch=request.number, step=request.number):
                samples = [self._sample(index, request) for index in request.indices]
                with span("collate", batch=request.number):
                    made = _Made(request.number, *_collate(samples))
            return made._replace(ready_ns=monotonic_ns())
        except Exception as error:
            return _failure(f"batch {request.number} could not be made", error)

    def _sample(self, index: int, request: BatchRequest) -> tuple[np.ndarray, int]:
        try:
            record = self._records.read(index, request.number)
        except Exception as error:
            raise _about(f"{self._records.name(index)}: cannot be read", error) from None
        choice = sample_random(self._options.seed, request.epoch, index)
        try:
            return load_sample(record, choice, self._options.crop, request.number), record.label
        except Exception as error:  # Pillow's decoders raise whatever their plugin's author thought of
            raise _about(f"{self._records.name(index)}: {_what(record)} cannot be decoded", error, DatasetError) from None


class TorchLoader:
    """The batches of one rank, made by `options.workers` processes in turn and delivered in order."""

    def __init__(self, records: Records, options: LoaderOptions) -> None:
        self._options = options
        self._workers: list[Any] = []
        self._loader: DataLoader[Any] = DataLoader(
            BatchMaker(records, options),
            sampler=_Requests(records, options),
            batch_size=None,
            collate_fn=_as_it_is,  # type: ignore[arg-type]  # takes what the dataset returns where batch_size is None
            num_workers=options.workers,
            prefetch_factor=options.prefetch if options.workers else None,
            worker_init_fn=_PrepareWorker(options.rank, options.spool) if options.workers else None,
        )

    def __iter__(self) -> Iterator[Batch]:
        before = set(multiprocessing.active_children())
        try:
            batches = iter(self._loader)  # starts the workers here and now, not at the first batch
        except OSError as error:
            raise LoaderError(_no_shared_memory("no loader worker can be started", error)) from None
        self._workers = [child for child in multiprocessing.active_children() if child not in before]
        return self._deliver(batches)

    def lost_worker(self) -> str | None:
        """Which worker process died, and how; waits up to a second for the kernel to say so. For the main thread only."""
        # A dying worker's sockets close before its parent gets SIGCHLD. When that comes at last, while this waits, torch's handler
        # would raise: a second error, in place of the answer.
        before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            return self._first_lost()
        finally:
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)

    def _first_lost(self) -> str | None:
        for worker in self._workers:
            worker.join(timeout=1 / len(self._workers))
            if worker.exitcode:
                return f"lost a loader worker: pid {worker.pid} {_ended(worker.exitcode)}"
        return None

    def _deliver(self, batches: "Iterator[_Made | WorkerFailure]") -> Iterator[Batch]:
        for number in range(self._options.first_batch, self._options.num_batches):
            begin_ns = monotonic_ns()
            batch = next(batches)
            end_ns = monotonic_ns()
            if isinstance(batch, WorkerFailure):
                raise batch.kind(batch.message)
            emit("wait", begin_ns, end_ns, batch=number, step=number)
            emit("deliver", max(begin_ns, batch.ready_ns), end_ns, batch=number, step=number)
            yield Batch(number, batch.images, torch.from_numpy(batch.labels), batch.ready_ns)


class _Requests(Sampler[BatchRequest]):
    """The batch requests of one rank, made as they are needed: those of many epochs would not fit into memory."""

    def __init__(self, records: Records, options: LoaderOptions) -> None:
        self._records, self._options = records, options

    def __iter__(self) -> Iterator[BatchRequest]:
        return self._records.requests()

    def __len__(self) -> int:
        return max(0, self._options.num_batches - self._options.first_batch)


def _end_quietly(_number: int, _frame: FrameType | None) -> None:
    recorder.stop()
    os._exit(0)  # what torch's own handler in a worker does


@dataclass(frozen=True)
class _PrepareWorker:
    """Prepares a worker process; holds all it needs to know, since a worker may be spawned, not forked."""

    rank: int
    spool: Path | None

    def __call__(self, worker: int) -> None:
        try:
            self._prepare(worker)
        except Exception as error:
            info = get_worker_info()
            assert info is not None
            assert isinstance(info.dataset, BatchMaker)
            info.dataset.failure = _failure(f"loader worker {worker} could not begin", error)

    def _prepare(self, worker: int) -> None:
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the rank's to answer; it then ends its workers
        signal.signal(signal.SIGTERM, _end_quietly)
        # A finished batch is sent by a thread that must first get the interpreter from the thread that makes the next batch: every
        # 5 ms by default, which was a median 5 ms of `delivery` for each late batch.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        if self.spool is not None:
            recorder.start(self.spool, rank=self.rank, role="worker", worker=worker)


def _collate(samples: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, np.ndarray]:
    images = _empty((len(samples), *samples[0][0].shape))
    whole = images.numpy()
    for place, (image, _) in enumerate(samples):
        whole[place] = image
    return images, np.array([label for _, label in samples])


def _empty(shape: tuple[int, ...]) -> torch.Tensor:
    """An uninitialised uint8 tensor; in a worker it lies in shared memory at once, which saves a copy when it is sent."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    num_bytes = int(np.prod(shape))
    try:
        storage = torch.UntypedStorage._new_shared(num_bytes)  # noqa: SLF001  as torch's default_collate does
    except (RuntimeError, OSError) as error:
        raise LoaderError(_no_shared_memory(f"a batch takes {num_bytes / 1e6:,.1f} MB of it", error)) from None
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


def _as_it_is(batch: _Made | WorkerFailure) -> _Made | WorkerFailure:
    return batch


def _what(record: Record) -> str:
    return f"image of {len(record.data)} bytes"


# ------------------------------------------------------------------------------------------------ what went wrong


def _failure(what: str, error: Exception) -> WorkerFailure:
    ours = _about(what, error)
    return WorkerFailure(type(ours), str(ours))


def _about(what: str, error: Exception, kind: type[IoprofError] = LoaderError) -> IoprofError:
    """The error in one line about `what`; one of ioprof's own is such a line already."""
    if isinstance(error, IoprofError):
        return error
    if isinstance(error, MemoryError):
        return LoaderError(f"{what}: no memory left ({_said(error)}); give the job more memory, or {_LESS}")
    return kind(f"{what} ({_said(error)})")


def _said(error: Exception) -> str:
    """Type and first line: torch's errors go on with the stack of its C++."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _no_shared_memory(what: str, error: Exception) -> str:
    try:
        free = f"{shutil.disk_usage(_SHARED_MEMORY).free / 1e6:,.1f} MB free"
    except OSError as missing:
        free = str(missing.strerror)
    return f"{_SHARED_MEMORY}: {free}, {what} ({_said(error)}); {_LARGER}, or {_LESS}"


def _ended(code: int) -> str:
    """How a process ended, from its exit code as multiprocessing gives it."""
    if code >= 0:
        return f"exited with {code}"
    if -code == signal.SIGBUS:  # the kernel does not say which of its mappings it was
        return f"was killed by SIGBUS: /dev/shm is full, or a dataset file was cut short while it was read; {_LARGER}, or {_LESS}"
    return f"was killed by {signal_name(-code)}"
