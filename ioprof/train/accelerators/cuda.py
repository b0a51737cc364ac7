"""A CUDA device: the real model, batches copied in one of three ways (`ioprof.train.copies`), every
span timed by CUDA events.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from ioprof.clock import monotonic_ns
from ioprof.instrument.span import emit
from ioprof.loaders.base import Batch
from ioprof.train.accelerators.ddp import exchanging
from ioprof.train.accelerators.host_buffers import StagingBuffers
from ioprof.train.accelerators.interface import COMM_STREAM, COMPUTE_STREAM, COPY_STREAM, Score
from ioprof.train.config import JobConfig
from ioprof.train.learner import Learner

_ANCHOR_EVERY_NS: Final = (
    10_000_000_000  # elapsed_time is a 32-bit float of milliseconds: after 10 s its step is 1 µs
)


@dataclass
class _Timed:
    """Events around pieces of device work of one step, and what to record of each."""

    pieces: list[tuple[torch.cuda.Event, torch.cuda.Event, Callable[[int, int], None]]] = field(
        default_factory=list
    )
    copied: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None
    loss: torch.Tensor | None = None
    """In page-locked memory, from `done` on."""


class EventClock:
    """Turns CUDA events into monotonic time: an event between two readings of the clock is the
    anchor for those after it.
    """

    def __init__(self) -> None:
        self._event, self._anchor_ns = self._anchor()

    def time_ns(self, event: "torch.cuda.Event") -> int:
        """Monotonic time of an event that has happened."""
        elapsed_ms: float = self._event.elapsed_time(event)
        return self._anchor_ns + round(elapsed_ms * 1e6)

    def refresh(self) -> None:
        """Take a new anchor if the old one is too long ago for a 32-bit float; waits for the
        device.
        """
        if monotonic_ns() - self._anchor_ns > _ANCHOR_EVERY_NS:
            self._event, self._anchor_ns = self._anchor()

    @staticmethod
    def _anchor() -> tuple["torch.cuda.Event", int]:
        torch.cuda.synchronize()
        brackets = []
        for _ in range(10):
            event = _event()
            before_ns = monotonic_ns()
            event.record()
            event.synchronize()
            after_ns = monotonic_ns()
            brackets.append((after_ns - before_ns, (before_ns + after_ns) // 2, event))
        _, anchor_ns, event = min(brackets, key=lambda bracket: bracket[0])
        return event, anchor_ns


class CudaAccelerator:
    """One rank's CUDA device: the one of its place among the host's ranks."""

    def __init__(
        self,
        config: JobConfig,
        num_classes: int,
        rank: int,
        local_rank: int,
        batch_shape: tuple[int, ...],
    ) -> None:
        torch.cuda.set_device(local_rank)
        parallel = partial(exchanging, ready=self._bucket_ready, done=self._bucket_done)
        self._learner = Learner(
            config, num_classes, torch.device("cuda", local_rank), parallel, rank
        )
        self._rank = rank
        self._staging = (
            None if config.copy == "pageable" else StagingBuffers(batch_shape, pinned=True)
        )
        self._copy_stream = (
            torch.cuda.Stream() if config.copy == "overlapped" else torch.cuda.current_stream()
        )
        self._clock = EventClock()
        self._steps: dict[int, _Timed] = {}
        self._step = -1
        self._ready: dict[int, torch.cuda.Event] = {}

    def launch(self, batch: Batch, step: int) -> None:
        """Start the copy of `batch` and the training step on it; returns once `batch` may be
        overwritten.
        """
        timed = self._steps[step] = _Timed()
        self._step = step
        images, labels = self._copy(batch, step, timed)
        begin = _recorded()
        loss = self._learner.train_step(images, labels)
        computed = _recorded()
        timed.loss = torch.empty((), pin_memory=True)
        timed.loss.copy_(loss, non_blocking=True)
        timed.done = _recorded()
        number = batch.number
        timed.pieces.append(
            (
                begin,
                computed,
                lambda b, e: emit("compute", b, e, batch=number, step=step, stream=COMPUTE_STREAM),
            )
        )

    def synchronize(self, step: int) -> float | None:
        """Wait until `step` is done, and record what the device did in it; its loss."""
        timed = self._steps[step]
        assert timed.done is not None
        assert timed.loss is not None
        timed.done.synchronize()
        for begin, end, record in timed.pieces:
            end.synchronize()
            begin_ns = self._clock.time_ns(begin)
            record(begin_ns, max(begin_ns, self._clock.time_ns(end)))
        timed.pieces.clear()
        self._clock.refresh()
        self._steps.pop(step - 2, None)
        return float(timed.loss)

    def evaluate(self, batch: Batch, step: int) -> Score:
        """What the model makes of `batch`."""
        return self._learner.evaluate(batch.images.cuda(), batch.labels.cuda())

    def state(self) -> dict[str, Any]:
        """The model's, the optimizer's, and that of the random numbers."""
        return self._learner.state(self._rank)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._learner.restore(state, self._rank)

    def close(self) -> None:
        """Wait for what is under way."""
        torch.cuda.synchronize()

    def _copy(self, batch: Batch, step: int, timed: _Timed) -> tuple[torch.Tensor, torch.Tensor]:
        # What was decoded on this GPU is there already; only its labels are copied.
        is_staged = self._staging is not None and not batch.images.is_cuda
        staged = (
            self._staging.stage(batch.images, step, self._wait_for_copy)
            if self._staging and is_staged
            else batch.images
        )
        begin = _event()
        timed.copied = _event()
        with torch.cuda.stream(self._copy_stream):
            begin.record()
            images = staged.cuda(non_blocking=True)
            labels = (
                batch.labels.pin_memory() if self._staging is not None else batch.labels
            ).cuda(non_blocking=True)
            timed.copied.record()
        torch.cuda.current_stream().wait_event(timed.copied)
        for tensor in (images, labels):
            tensor.record_stream(torch.cuda.current_stream())
        size, number = (
            batch.labels.nbytes + (0 if batch.images.is_cuda else staged.nbytes),
            batch.number,
        )
        timed.pieces.append(
            (
                begin,
                timed.copied,
                lambda b, e: emit(
                    "h2d", b, e, bytes=size, batch=number, step=step, stream=COPY_STREAM
                ),
            )
        )
        return images, labels

    def _wait_for_copy(self, step: int) -> None:
        timed = self._steps.get(step)
        if timed is not None and timed.copied is not None:
            timed.copied.synchronize()

    def _bucket_ready(self, index: int, num_bytes: int) -> None:
        self._ready[index] = _recorded()

    def _bucket_done(self, index: int, num_bytes: int) -> None:
        step, begin, end = self._step, self._ready[index], _recorded()
        if step < 0:  # before the first step, see `Learner`
            return
        name = f"gradients {index}"
        record: Callable[[int, int], None] = lambda b, e: emit(  # noqa: E731
            "comm", b, e, name, bytes=num_bytes, step=step, stream=COMM_STREAM
        )
        self._steps[step].pieces.append((begin, end, record))


def _event() -> "torch.cuda.Event":
    return torch.cuda.Event(enable_timing=True)


def _recorded() -> "torch.cuda.Event":
    event = _event()
    event.record()
    return event
