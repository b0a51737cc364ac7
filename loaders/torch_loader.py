"""Batches on torch's DataLoader: worker processes make whole batches, so that each is followed by
its number from read to step.
"""

import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from ioprof.clock import monotonic_ns
from ioprof.errors import DatasetError, IoprofError, LoaderError
from ioprof.format.dataset import Dataset as DatasetRecords
from ioprof.instrument import manual
from ioprof.instrument.span import emit
from ioprof.jpeg import CorruptJpegError
from ioprof.loaders.base import QUARANTINE, Batch, LoaderOptions, LoadingFacts, Record
from ioprof.loaders.crops import sample_random
from ioprof.loaders.images import Decoding, load_sample
from ioprof.loaders.order import BatchRequest, batches_per_epoch
from ioprof.process import die_with_parent, signal_name

_SWITCH_INTERVAL_S: Final = 0.0002
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  where shm_open makes its files (man 7 shm_overview)
_LESS: Final = "use fewer --workers or a smaller --batch-size"
_OTHERWISE: Final = (
    "--on-corrupt quarantine leaves such images out, accept decodes them as Pillow does"
)
_LARGER: Final = (
    "make it larger (mount -o remount,size=16G /dev/shm; in a container: docker run --shm-size=16g)"
)


@dataclass(frozen=True)
class WorkerFailure:
    """What a worker sends instead of a batch that it could not make: torch would send the traceback
    around the message.
    """

    kind: type[IoprofError]
    message: str


class MadeBatch(NamedTuple):
    """A batch on its way to the rank. Labels are no tensor: each one costs a connection to the
    worker, to fetch its descriptor.
    """

    number: int
    images: torch.Tensor
    labels: np.ndarray
    ready_ns: int
    """Monotonic time at which it was complete."""
    left_out: tuple[str, ...]


class RecordSource(Protocol):
    """What batches are made of; `Records` is one."""

    @property
    def dataset(self) -> DatasetRecords:
        """Its manifest."""
        ...

    def name(self, index: int) -> str:
        """Where a record is, for messages."""
        ...

    def requests(self) -> Iterator[BatchRequest]:
        """The batches of a rank."""
        ...

    def of_batch(self, request: BatchRequest) -> Iterator[Record]:
        """The records of a batch."""
        ...

    def facts(self) -> LoadingFacts:
        """How records are read and decoded."""
        ...


class BatchMaker(Dataset[Any]):
    """Makes the samples of a `BatchRequest`, in a worker process or in the rank itself."""

    def __init__(self, records: RecordSource, options: LoaderOptions) -> None:
        self._records = records
        self._options = options
        # Where damage ends the job, what lies below a crop was seen to be good in the first epoch.
        self._checks_all = options.on_corrupt == QUARANTINE
        self._first_epoch = options.first_batch // batches_per_epoch(
            records.dataset.records, options
        )

    @cached_property
    def _decoding(self) -> Decoding:  # cached here, not in __init__: it cannot be pickled
        return Decoding.of(self._options)

    def __getitem__(self, request: BatchRequest) -> "MadeBatch | WorkerFailure":
        """The whole batch, each sample written to its place as it is made."""
        try:
            records = self._records.of_batch(request)
            crop, size = self._options.crop, len(request.indices)
            images, labels = _empty((size, 3, crop, crop)), np.empty(size, np.int64)
            whole, count, left_out = images.numpy(), 0, []
            for index in request.indices:
                made = self._sample(index, request, records, whole[count])
                if isinstance(made, str):
                    left_out.append(made)
                else:
                    labels[count] = made
                    count += 1
            if not count:
                raise DatasetError(
                    f"batch {request.number}: all of its images are left out as corrupt"
                    f" ({left_out[0]})"
                )
            return MadeBatch(
                request.number, images[:count], labels[:count], monotonic_ns(), tuple(left_out)
            )
        except Exception as error:
            return _failure(request.number, error)

    def _sample(
        self, index: int, request: BatchRequest, records: Iterator[Record], out: np.ndarray
    ) -> int | str:
        """Writes the sample to `out`, and returns its label; or why it is left out."""
        try:
            record = next(records)
        except Exception as error:
            raise _about(f"{self._records.name(index)}: cannot be read", error) from None
        choice = (
            None
            if self._options.evaluates
            else sample_random(self._options.seed, request.epoch, index)
        )
        try:
            to_end = self._checks_all or request.epoch == self._first_epoch
            load_sample(record, choice, self._options.crop, self._decoding, to_end, out)
            return record.label
        except Exception as error:  # each of Pillow's decoders has exceptions of its own
            what = f"image of {len(record.data)} bytes"
            found = _about(
                f"{self._records.name(index)}: {what} cannot be decoded", error, DatasetError
            )
            if self._options.on_corrupt == QUARANTINE and not isinstance(error, MemoryError):
                return str(found)
            if isinstance(error, CorruptJpegError):
                raise DatasetError(f"{found}; {_OTHERWISE}") from None
            raise found from None


class TorchLoader:
    """The batches of one rank, made by `options.workers` processes in turn and delivered in
    order.
    """

    def __init__(self, records: RecordSource, options: LoaderOptions) -> None:
        self._options = options
        self._facts = records.facts()  # before workers get the records
        self._workers: list[Any] = []
        self._loader: DataLoader[Any] = DataLoader(
            BatchMaker(records, options),
            sampler=_Requests(records, options),
            batch_size=None,
            collate_fn=_as_made,  # type: ignore[arg-type]  # takes what the dataset returns where batch_size is None
            num_workers=options.workers,
            prefetch_factor=options.prefetch if options.workers else None,
            worker_init_fn=_prepare_worker if options.workers else None,
        )

    def __iter__(self) -> Iterator[Batch]:
        before = set(multiprocessing.active_children())
        try:
            batches = iter(self._loader)  # starts the workers here and now, not at the first batch
        except OSError as error:
            raise LoaderError(_no_shared_memory("no loader worker can be started", error)) from None
        self._workers = [
            child for child in multiprocessing.active_children() if child not in before
        ]
        return self._deliver(batches)

    def facts(self) -> LoadingFacts:
        """How records are read and decoded."""
        return self._facts

    def lost_worker(self) -> str | None:
        """Which worker process died, and how; waits up to a second for its exit status. For the
        main thread only.
        """
        # A dying worker's sockets close before its parent gets SIGCHLD. When that comes at last,
        # while this waits, torch's handler would raise: a second error, in place of the answer.
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

    def _deliver(self, batches: "Iterator[MadeBatch | WorkerFailure]") -> Iterator[Batch]:
        for number in range(self._options.first_batch, self._options.num_batches):
            begin_ns = monotonic_ns()
            batch = next(batches)
            if isinstance(batch, WorkerFailure):
                raise batch.kind(batch.message)
            emit(
                "deliver",
                max(begin_ns, batch.ready_ns),
                monotonic_ns(),
                batch=manual.consumed_batch(number),
            )
            yield Batch(number, batch.images, torch.from_numpy(batch.labels), batch.left_out)


class _Requests(Sampler[BatchRequest]):
    """The batch requests of one rank, made as they are needed: those of many epochs would not fit
    into memory.
    """

    def __init__(self, records: RecordSource, options: LoaderOptions) -> None:
        self._records, self._options = records, options

    def __iter__(self) -> Iterator[BatchRequest]:
        return self._records.requests()

    def __len__(self) -> int:
        return max(0, self._options.num_batches - self._options.first_batch)


def _end_worker(_number: int, _frame: FrameType | None) -> None:
    manual.stop()
    os._exit(0)  # as torch's own handler in a worker does


def _prepare_worker(_worker: int) -> None:
    die_with_parent()
    # Ctrl-C is handled by the rank, which then ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_worker)
    # A finished batch is sent by a thread that must first get the interpreter from the thread that
    # makes the next batch: every 5 ms by default, which was a median 5 ms of `delivery` for each
    # late batch.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def _as_made(batch: MadeBatch | WorkerFailure) -> MadeBatch | WorkerFailure:
    """In place of a collation: the samples lie in their batch already."""
    return batch


def _empty(shape: tuple[int, ...]) -> torch.Tensor:
    """An uninitialised uint8 tensor; in a worker it lies in shared memory at once, which saves a
    copy when it is sent.
    """
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    num_bytes = int(np.prod(shape))
    try:
        storage = torch.UntypedStorage._new_shared(num_bytes)  # noqa: SLF001  as torch's default_collate does
    except (RuntimeError, OSError) as error:
        raise LoaderError(
            _no_shared_memory(f"a batch takes {num_bytes / 1e6:,.1f} MB of it", error)
        ) from None
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


# ---------------------------------------------------------------------------------- what went wrong


def _failure(number: int, error: Exception) -> WorkerFailure:
    ours = _about(f"batch {number} could not be made", error)
    return WorkerFailure(type(ours), str(ours))


def _about(what: str, error: Exception, kind: type[IoprofError] = LoaderError) -> IoprofError:
    """The error in one line about `what`; one of ioprof's own is such a line already."""
    if isinstance(error, IoprofError):
        return error
    if isinstance(error, MemoryError):
        return LoaderError(
            f"{what}: no memory left ({_said(error)}); give the job more memory, or {_LESS}"
        )
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
    if -code == signal.SIGBUS:  # which mapping it was is not known
        return (
            "was killed by SIGBUS: /dev/shm is full, or a dataset file was cut short while it was"
            f" read; {_LARGER}, or {_LESS}"
        )
    return f"was killed by {signal_name(-code)}"
