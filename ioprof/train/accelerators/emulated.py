"""A device that is a clock: copy engine, compute engine and gradient exchange as real threads that take the time a device would.

Loading, reading, decoding, ranks and waiting are real. An operation begins when it was launched, its engine is free and all that
it depends on has ended, and ends that much later on the device's own clock; a late wake-up of the engine's thread is the host's
affair and does not slow the device. Each bucket of gradients becomes ready during the backward pass, as in DistributedDataParallel;
its exchange begins when the slowest rank has it ready, and takes 2L(p-1)/p over the link (ring all-reduce of L bytes, p ranks).
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from ioprof.clock import monotonic_ns
from ioprof.loaders.base import Batch
from ioprof.record.span import emit
from ioprof.train.accelerators import COMM_STREAM, COMPUTE_STREAM, COPY_STREAM
from ioprof.train.accelerators.staging import StagingBuffers
from ioprof.train.config import EmulatedDevice

RESNET50_GRADIENT_BYTES: Final = 25_557_032 * 4
"""Parameters of ResNet-50 in 32 bits (He et al., arXiv 1512.03385)."""
_FIRST_BUCKET_BYTES: Final = 1 << 20  # DistributedDataParallel's defaults
_BUCKET_BYTES: Final = 25 << 20
_FORWARD: Final = 1 / 3  # of a step's compute: the backward pass does twice the forward's arithmetic


class Completion:
    """When an operation began and ended, in monotonic ns of the device's clock, for those who wait for it."""

    def __init__(self) -> None:
        self._begun, self._ended = threading.Event(), threading.Event()
        self._begin_ns = self._end_ns = 0
        self._error: BaseException | None = None

    def begin(self, time_ns: int) -> None:
        """The operation occupies its engine from `time_ns` on."""
        self._begin_ns = time_ns
        self._begun.set()

    def end(self, time_ns: int) -> None:
        """The operation is over."""
        self._end_ns = time_ns
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """The operation will never end; whoever waits gets `error`."""
        self._error = error
        self._begun.set()
        self._ended.set()

    def begin_ns(self) -> int:
        """Wait until the operation has begun, and say when."""
        self._begun.wait()
        if self._error:
            raise self._error
        return self._begin_ns

    def end_ns(self) -> int:
        """Wait until the operation has ended, and say when."""
        self._ended.wait()
        if self._error:
            raise self._error
        return self._end_ns


class Engine:
    """One queue of a device: does one operation at a time, in the order of their launch."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[int], None], Completion] | None] = queue.SimpleQueue()
        self._free_ns = 0
        self._thread = threading.Thread(target=self._run, name=f"emulated {name}", daemon=True)
        self._thread.start()

    def launch(self, operation: Callable[[int], int], completion: Completion) -> None:
        """Queue `operation(earliest_ns)`, which returns the device time at which it ended."""
        launched_ns = monotonic_ns()

        def run(free_ns: int) -> None:
            self._free_ns = operation(max(launched_ns, free_ns))
            completion.end(self._free_ns)

        self._work.put((run, completion))

    def close(self) -> None:
        """Stop after what is queued."""
        self._work.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            run, completion = work
            try:
                run(self._free_ns)
            except Exception as error:  # handed to whoever synchronises
                completion.fail(error)


@dataclass(frozen=True)
class Bucket:
    """A part of the gradients that is exchanged at once."""

    name: str
    num_bytes: int
    ready_ratio: float
    """How much of the step's compute is done when the bucket is complete."""


def gradient_buckets(total_bytes: int) -> list[Bucket]:
    """A model's gradients in buckets as DistributedDataParallel makes them, in the order in which the backward pass fills them."""
    sizes = [min(_FIRST_BUCKET_BYTES, total_bytes)]
    while sum(sizes) < total_bytes:
        sizes.append(min(_BUCKET_BYTES, total_bytes - sum(sizes)))
    filled = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [
        Bucket(f"gradients {place}", size, _FORWARD + (1 - _FORWARD) * done / total_bytes)
        for place, (size, done) in enumerate(zip(sizes, filled, strict=True))
    ]


class EmulatedAccelerator:
    """One rank's emulated device. `ranks` > 1 needs torch's process group."""

    def __init__(self, device: EmulatedDevice, ranks: int, batch_shape: tuple[int, ...]) -> None:
        self._device, self._ranks = device, ranks
        self._staging = StagingBuffers(batch_shape, pinned=False)
        self._buckets = gradient_buckets(RESNET50_GRADIENT_BYTES)
        self._copy_engine, self._compute_engine = Engine("copy engine"), Engine("compute engine")
        self._comm_engine = Engine("gradient exchange") if ranks > 1 else None
        self._copies: dict[int, Completion] = {}
        self._steps: dict[int, Completion] = {-1: Completion()}
        self._steps[-1].end(0)

    def launch(self, batch: Batch, step: int) -> None:
        """Start the copy of `batch` and the training step on it; returns once `batch` may be overwritten."""
        staged = self._staging.stage(batch.images, step, lambda earlier: self._wait_for_copy(earlier))
        num_bytes = staged.nbytes + batch.labels.nbytes
        copied, computed = Completion(), Completion()
        self._copies[step] = copied
        self._copy_engine.launch(lambda earliest: self._copy(earliest, num_bytes, batch.number, step), copied)
        previous, samples, number = self._steps[step - 1], len(staged), batch.number
        self._compute_engine.launch(
            lambda earliest: self._compute(max(earliest, copied.end_ns(), previous.end_ns()), samples, number, step, computed),
            computed,
        )
        self._steps[step] = self._launch_exchange(computed, samples, step) if self._comm_engine else computed

    def synchronize(self, step: int) -> None:
        """Wait until `step` has been computed and its gradients exchanged; raises what went wrong in an engine."""
        self._steps[step].end_ns()
        self._steps.pop(step - 2, None)

    def close(self) -> None:
        """Stop the engines' threads."""
        for engine in (self._copy_engine, self._compute_engine, self._comm_engine):
            if engine:
                engine.close()

    def _wait_for_copy(self, step: int) -> None:
        self._copies.pop(step).end_ns()

    def _copy(self, earliest_ns: int, num_bytes: int, batch: int, step: int) -> int:
        end_ns = _spend(earliest_ns, num_bytes / self._device.h2d_bytes_per_s)
        emit("h2d", earliest_ns, end_ns, bytes=num_bytes, batch=batch, step=step, stream=COPY_STREAM)
        return end_ns

    def _compute(self, begin_ns: int, samples: int, batch: int, step: int, computed: Completion) -> int:
        computed.begin(begin_ns)
        end_ns = _spend(begin_ns, samples / self._device.samples_per_s)
        emit("compute", begin_ns, end_ns, batch=batch, step=step, stream=COMPUTE_STREAM)
        return end_ns

    def _launch_exchange(self, computed: Completion, samples: int, step: int) -> Completion:
        assert self._comm_engine is not None
        exchanged = Completion()
        self._comm_engine.launch(lambda earliest: self._exchange(earliest, computed, samples, step), exchanged)
        return exchanged

    def _exchange(self, earliest_ns: int, computed: Completion, samples: int, step: int) -> int:
        """Exchange all buckets in turn. One rendezvous a step is enough: when a bucket is ready follows from when compute began."""
        compute_ns = round(samples / self._device.samples_per_s * 1e9)
        begin_ns = computed.begin_ns()
        own = [begin_ns + round(bucket.ready_ratio * compute_ns) for bucket in self._buckets]
        slowest = _latest_over_ranks(own)
        free_ns = earliest_ns
        for bucket, own_ns, ready_ns in zip(self._buckets, own, slowest, strict=True):
            own_ns, ready_ns = max(own_ns, free_ns), max(ready_ns, free_ns)
            seconds = 2 * bucket.num_bytes * (self._ranks - 1) / self._ranks / self._device.exchange_bytes_per_s
            free_ns = _spend(ready_ns, seconds)
            emit("comm", own_ns, free_ns, bucket.name, bytes=bucket.num_bytes, step=step, stream=COMM_STREAM)
        computed.end_ns()
        return free_ns


def _latest_over_ranks(times_ns: list[int]) -> list[int]:
    """The latest of each time over all ranks: the ranks of an emulated job share a host, and so a clock."""
    times = torch.tensor(times_ns)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return [int(time_ns) for time_ns in times.tolist()]


def _spend(begin_ns: int, seconds: float) -> int:
    """Wait until `seconds` after `begin_ns`, and return that moment, whenever this thread is woken."""
    end_ns = begin_ns + round(seconds * 1e9)
    while (left_ns := end_ns - monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)
    return end_ns
