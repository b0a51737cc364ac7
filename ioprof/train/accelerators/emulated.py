"""A device that is a clock: copy engine, compute engine and gradient exchange as real threads that
take the time a device would.

Loading, reading, decoding, ranks and waiting are real. An operation begins when it was launched,
its engine is free and all that it depends on has ended, and ends that much later on the device's
own clock; a late wake-up of the engine's thread does not slow the device. Each bucket of gradients
becomes ready during the backward pass, as in DistributedDataParallel; its exchange begins when the
slowest rank has it ready, and takes the time of its scheme (`exchange.py`).

Batches are copied in one of three ways (`ioprof.train.copies`): on an engine of their own while the
device computes, on that of the computation between two steps, or the same from pageable memory
while the host waits.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from ioprof.clock import monotonic_ns
from ioprof.instrument.manual import unrecorded_collectives
from ioprof.instrument.span import emit as emit_span
from ioprof.loaders.base import Batch
from ioprof.train.accelerators.exchange import Exchange
from ioprof.train.accelerators.host_buffers import StagingBuffers
from ioprof.train.accelerators.interface import COMM_STREAM, COMPUTE_STREAM, COPY_STREAM, Score
from ioprof.train.copies import COPIES
from ioprof.train.devices import EmulatedDevice
from ioprof.train.models import MODELS

_FIRST_BUCKET_BYTES: Final = 1 << 20  # DistributedDataParallel's defaults
_BUCKET_BYTES: Final = 25 << 20
_BYTES_PER_PARAMETER: Final = 4
# of a step's compute: the backward pass does twice the forward's arithmetic
_FORWARD: Final = 1 / 3


class Completion:
    """When an operation began and ended, in monotonic ns of the device's clock."""

    def __init__(self) -> None:
        self._begun, self._ended = threading.Event(), threading.Event()
        self._begin_ns = self._end_ns = 0
        self._error: BaseException | None = None

    @classmethod
    def at(cls, time_ns: int) -> "Completion":
        """That of something which ended at `time_ns`."""
        completion = cls()
        completion.begin(time_ns)
        completion.end(time_ns)
        return completion

    def begin(self, time_ns: int) -> None:
        """The operation occupies its engine from `time_ns` on."""
        self._begin_ns = time_ns
        self._begun.set()

    def end(self, time_ns: int) -> None:
        """The operation is over."""
        self._end_ns = time_ns
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """The operation will never end; `begin_ns` and `end_ns` raise `error`."""
        self._error = error
        self._begun.set()
        self._ended.set()

    def begin_ns(self) -> int:
        """Wait until the operation has begun; the time at which it did."""
        self._begun.wait()
        if self._error:
            raise self._error
        return self._begin_ns

    def end_ns(self) -> int:
        """Wait until the operation has ended; the time at which it did."""
        self._ended.wait()
        if self._error:
            raise self._error
        return self._end_ns


class Engine:
    """One queue of a device: does one operation at a time, in the order of their launch."""

    def __init__(self, name: str, now_ns: Callable[[], int] = monotonic_ns) -> None:
        """`now_ns` reads the clock by which operations are launched."""
        self._now_ns = now_ns
        self._work: queue.SimpleQueue[tuple[Callable[[int], None], Completion] | None] = (
            queue.SimpleQueue()
        )
        self._free_ns = 0
        self._thread = threading.Thread(target=self._run, name=f"emulated {name}", daemon=True)
        self._thread.start()

    def launch(self, operation: Callable[[int], int], completion: Completion) -> None:
        """Queue `operation(earliest_ns)`, which returns the device time at which it ended."""
        launched_ns = self._now_ns()

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
            except Exception as error:  # raised by `synchronize`
                completion.fail(error)


@dataclass(frozen=True)
class Bucket:
    """A part of the gradients that is exchanged at once."""

    name: str
    num_bytes: int
    ready_ratio: float
    """How much of the step's compute is done when the bucket is complete."""


def gradient_buckets(total_bytes: int) -> list[Bucket]:
    """A model's gradients in buckets as DistributedDataParallel makes them, in the order in which
    the backward pass fills them.
    """
    sizes = [min(_FIRST_BUCKET_BYTES, total_bytes)]
    while sum(sizes) < total_bytes:
        sizes.append(min(_BUCKET_BYTES, total_bytes - sum(sizes)))
    filled = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [
        Bucket(f"gradients {place}", size, _FORWARD + (1 - _FORWARD) * done / total_bytes)
        for place, (size, done) in enumerate(zip(sizes, filled, strict=True))
    ]


def latest_over_ranks(times_ns: list[int], clock_offset_ns: int = 0) -> list[int]:
    """The latest of each time over all ranks; rank 0's clock shows that much more than this
    rank's.
    """
    times = torch.tensor(times_ns) + clock_offset_ns
    # the device's clock, and not this rendezvous, says how long the exchange takes
    with unrecorded_collectives():
        dist.all_reduce(times, dist.ReduceOp.MAX)
    return [int(time_ns) - clock_offset_ns for time_ns in times.tolist()]


class EmulatedAccelerator:
    """One rank's emulated device. More than one rank needs torch's process group, unless another
    `latest` is given.

    `is_constant` says that all batches are one, which is never overwritten. `emit` records a span,
    `now_ns` reads the clock by which operations are launched, and `latest` is called with the times
    at which this rank has its buckets of gradients ready, and returns when the slowest rank has.
    """

    def __init__(
        self,
        device: EmulatedDevice,
        exchange: Exchange,
        batch_shape: tuple[int, ...],
        *,
        parameters: int = MODELS["resnet50"].parameters,
        copy: str = COPIES[0],
        is_constant: bool = False,
        emit: Callable[..., None] = emit_span,
        now_ns: Callable[[], int] = monotonic_ns,
        latest: Callable[[list[int]], list[int]] = latest_over_ranks,
    ) -> None:
        self._device, self._exchange_plan, self._parameters = device, exchange, parameters
        self._emit, self._latest = emit, latest
        self._is_overlapped, self._is_pageable = copy == "overlapped", copy == "pageable"
        self._staging = (
            None if is_constant or self._is_pageable else StagingBuffers(batch_shape, pinned=False)
        )
        self._buckets = gradient_buckets(parameters * _BYTES_PER_PARAMETER)
        self._copy_engine, self._compute_engine = (
            Engine("copy engine", now_ns),
            Engine("compute engine", now_ns),
        )
        self._comm_engine = Engine("gradient exchange", now_ns) if exchange.num_ranks > 1 else None
        self._copies: dict[int, Completion] = {}
        self._steps: dict[int, Completion] = {}
        self._state: dict[str, Any] = {}

    def launch(self, batch: Batch, step: int) -> None:
        """Start the copy of `batch` and the training step on it; returns once `batch` may be
        overwritten.
        """
        if self._staging is not None:
            self._staging.stage(batch.images, step, self._wait_for_copy)
        previous = self._steps.get(step - 1) or Completion.at(0)
        copied, computed = self._launch_copy(batch, step, previous), Completion()
        samples, number = len(batch.images), batch.number
        self._compute_engine.launch(
            lambda earliest: self._compute(
                max(earliest, copied.end_ns(), previous.end_ns()), samples, number, step, computed
            ),
            computed,
        )
        self._steps[step] = (
            self._launch_exchange(computed, samples, step) if self._comm_engine else computed
        )
        if self._is_pageable:
            copied.end_ns()

    def synchronize(self, step: int) -> float | None:
        """Wait until `step` has been computed and its gradients exchanged; raises what went wrong
        in an engine.
        """
        self._steps[step].end_ns()
        self._steps.pop(step - 2, None)
        return None

    def evaluate(self, batch: Batch, step: int) -> Score:
        """Copy `batch`, and take the time of a forward pass: a third of a step."""
        previous, computed, samples = self._steps[step], Completion(), len(batch.images)
        copied = self._launch_copy(batch, step, previous)
        self._compute_engine.launch(
            lambda earliest: self._compute(
                max(earliest, copied.end_ns()), samples, batch.number, step, computed, _FORWARD
            ),
            computed,
        )
        computed.end_ns()
        return Score(samples)

    def state(self) -> dict[str, Any]:
        """As many bytes as the weights and a momentum for each of them: all zero."""
        if not self._state:
            self._state = {name: torch.zeros(self._parameters) for name in ("model", "optimizer")}
        return self._state

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Stop the engines' threads."""
        for engine in (self._copy_engine, self._compute_engine, self._comm_engine):
            if engine:
                engine.close()

    def _wait_for_copy(self, step: int) -> None:
        if copied := self._copies.get(step):
            copied.end_ns()

    def _launch_copy(self, batch: Batch, step: int, previous: Completion) -> Completion:
        copied, num_bytes, number = (
            Completion(),
            batch.images.nbytes + batch.labels.nbytes,
            batch.number,
        )
        self._copies[step] = copied
        self._copies.pop(step - 3, None)
        if self._is_overlapped:
            self._copy_engine.launch(
                lambda earliest: self._copy(earliest, num_bytes, number, step), copied
            )
        else:
            self._compute_engine.launch(
                lambda earliest: self._copy(
                    max(earliest, previous.end_ns()), num_bytes, number, step
                ),
                copied,
            )
        return copied

    def _copy(self, begin_ns: int, num_bytes: int, batch: int, step: int) -> int:
        bytes_per_s = (
            self._device.pageable_bytes_per_s if self._is_pageable else self._device.h2d_bytes_per_s
        )
        end_ns = _spend(begin_ns, num_bytes / bytes_per_s)
        self._emit(
            "h2d", begin_ns, end_ns, bytes=num_bytes, batch=batch, step=step, stream=COPY_STREAM
        )
        return end_ns

    def _compute(
        self,
        begin_ns: int,
        samples: int,
        batch: int,
        step: int,
        computed: Completion,
        share: float = 1.0,
    ) -> int:
        computed.begin(begin_ns)
        end_ns = _spend(begin_ns, share * samples / self._device.samples_per_s)
        self._emit("compute", begin_ns, end_ns, batch=batch, step=step, stream=COMPUTE_STREAM)
        return end_ns

    def _launch_exchange(self, computed: Completion, samples: int, step: int) -> Completion:
        assert self._comm_engine is not None
        exchanged = Completion()
        self._comm_engine.launch(
            lambda earliest: self._exchange(earliest, computed, samples, step), exchanged
        )
        return exchanged

    def _exchange(self, earliest_ns: int, computed: Completion, samples: int, step: int) -> int:
        """Exchange all buckets in turn. One rendezvous a step is enough: when a bucket is ready
        follows from when compute began.
        """
        compute_ns = round(samples / self._device.samples_per_s * 1e9)
        begin_ns = computed.begin_ns()
        own = [begin_ns + round(bucket.ready_ratio * compute_ns) for bucket in self._buckets]
        slowest = self._latest(own)
        free_ns = earliest_ns
        for bucket, own_ns, ready_ns in zip(self._buckets, own, slowest, strict=True):
            own_ns, ready_ns = max(own_ns, free_ns), max(ready_ns, free_ns)
            free_ns = _spend(ready_ns, self._exchange_plan.seconds(bucket.num_bytes))
            self._emit(
                "comm",
                own_ns,
                free_ns,
                bucket.name,
                bytes=bucket.num_bytes,
                step=step,
                stream=COMM_STREAM,
            )
        computed.end_ns()
        return free_ns


def _spend(begin_ns: int, seconds: float) -> int:
    """Wait until `seconds` after `begin_ns`, and return that moment, whenever this thread is
    woken.
    """
    end_ns = begin_ns + round(seconds * 1e9)
    while (left_ns := end_ns - monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)
    return end_ns
