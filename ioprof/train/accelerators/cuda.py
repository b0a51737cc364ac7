"""A CUDA device: ResNet-50, page-locked double-buffered copies on their own stream, every span timed by CUDA events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from ioprof.clock import monotonic_ns
from ioprof.loaders.base import Batch
from ioprof.record.span import emit
from ioprof.train.accelerators import COMM_STREAM, COMPUTE_STREAM, COPY_STREAM
from ioprof.train.accelerators.ddp import exchanging
from ioprof.train.accelerators.staging import StagingBuffers
from ioprof.train.models import make_model

_ANCHOR_EVERY_NS: Final = 10_000_000_000  # elapsed_time is a 32-bit float of milliseconds: after 10 s its step is 1 µs


@dataclass
class _Timed:
    """Events around pieces of device work of one step, and what to record of each."""

    pieces: list[tuple[torch.cuda.Event, torch.cuda.Event, Callable[[int, int], None]]] = field(default_factory=list)
    copied: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None


class EventClock:
    """Turns CUDA events into monotonic time: an event between two readings of the clock is the anchor for those after it."""

    def __init__(self) -> None:
        self._event, self._anchor_ns = self._anchor()

    def time_ns(self, event: "torch.cuda.Event") -> int:
        """Monotonic time of an event that has happened."""
        elapsed_ms: float = self._event.elapsed_time(event)
        return self._anchor_ns + round(elapsed_ms * 1e6)

    def refresh(self) -> None:
        """Take a new anchor if the old one is too long ago for a 32-bit float; waits for the device."""
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

    def __init__(self, num_classes: int, ranks: int, local_rank: int, batch_shape: tuple[int, ...]) -> None:
        torch.cuda.set_device(local_rank)
        torch.manual_seed(0)
        model: nn.Module = make_model("cuda", num_classes).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._model = exchanging(model, self._bucket_ready, self._bucket_done) if ranks > 1 else model
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1, momentum=0.9)
        self._loss = nn.CrossEntropyLoss()
        self._staging = StagingBuffers(batch_shape, pinned=True)
        self._copy_stream = torch.cuda.Stream()
        self._clock = EventClock()
        self._steps: dict[int, _Timed] = {}
        self._step = 0
        self._ready: dict[int, torch.cuda.Event] = {}

    def launch(self, batch: Batch, step: int) -> None:
        """Start the copy of `batch` and the training step on it; returns once `batch` may be overwritten."""
        timed = self._steps[step] = _Timed()
        self._step = step
        images, labels = self._copy(batch, step, timed)
        begin = _recorded()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self._loss(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        timed.done = _recorded()
        number = batch.number
        timed.pieces.append((begin, timed.done, lambda b, e: emit("compute", b, e, batch=number, step=step, stream=COMPUTE_STREAM)))

    def synchronize(self, step: int) -> None:
        """Wait until `step` is done, and record what the device did in it."""
        timed = self._steps[step]
        assert timed.done is not None
        timed.done.synchronize()
        for begin, end, record in timed.pieces:
            end.synchronize()
            begin_ns = self._clock.time_ns(begin)
            record(begin_ns, max(begin_ns, self._clock.time_ns(end)))
        self._clock.refresh()
        self._steps.pop(step - 2, None)

    def close(self) -> None:
        """Wait for what is under way."""
        torch.cuda.synchronize()

    def _copy(self, batch: Batch, step: int, timed: _Timed) -> tuple[torch.Tensor, torch.Tensor]:
        # What was decoded on this GPU is there already; only its labels are copied.
        staged = batch.images if batch.images.is_cuda else self._staging.stage(batch.images, step, self._wait_for_copy)
        begin = _event()
        timed.copied = _event()
        with torch.cuda.stream(self._copy_stream):
            begin.record()
            images = staged.cuda(non_blocking=True)
            labels = batch.labels.pin_memory().cuda(non_blocking=True)
            timed.copied.record()
        torch.cuda.current_stream().wait_event(timed.copied)
        for tensor in (images, labels):
            tensor.record_stream(torch.cuda.current_stream())
        size, number = batch.labels.nbytes + (0 if batch.images.is_cuda else staged.nbytes), batch.number
        timed.pieces.append(
            (begin, timed.copied, lambda b, e: emit("h2d", b, e, bytes=size, batch=number, step=step, stream=COPY_STREAM))
        )
        return images.contiguous(memory_format=torch.channels_last), labels

    def _wait_for_copy(self, step: int) -> None:
        copied = self._steps[step].copied
        assert copied is not None
        copied.synchronize()

    def _bucket_ready(self, index: int, num_bytes: int) -> None:
        self._ready[index] = _recorded()

    def _bucket_done(self, index: int, num_bytes: int) -> None:
        step, begin, end = self._step, self._ready[index], _recorded()
        name = f"gradients {index}"
        record: Callable[[int, int], None] = lambda b, e: emit("comm", b, e, name, bytes=num_bytes, step=step, stream=COMM_STREAM)  # noqa: E731
        self._steps[step].pieces.append((begin, end, record))


def _event() -> "torch.cuda.Event":
    return torch.cuda.Event(enable_timing=True)


def _recorded() -> "torch.cuda.Event":
    event = _event()
    event.record()
    return event
