"""When a training loop on the CPU computes: `compute` spans named "forward", "inference", "loss",
"backward", "gradients" and "optimizer".

The forward pass is what the outermost calls of modules took (`modules`), with the loss if that is a
module or short, and with gradients that the loop asks for (`torch.autograd.grad`); one without
gradients is "inference", see `evaluations`. What lies
between two calls, or between the last one and the backward pass, counts as forward if it is short,
see `SMALL_SHARE`. If it is longer and mostly spent in torch's functions, see `losses`, it is a loss
that is no module; other work there is the loop's own, and no span is made. The backward pass and
the optimizer's step are what torch's functions of that name took, but for a closure of the step, in
which the loop computes anew; what lies between the two (clipping, statistics of gradients) counts
as the optimizer's if it is short, and by the same rule is "gradients" if it is longer. Waits for
batches and collectives count as none of these. On a GPU the host's time says nothing of the
device's, and no span is made.
"""

from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.core_waits import AFTER_FORWARD, AFTER_STEP, AFTER_WAIT, CoreWaits
from ioprof.instrument.hooks.pytorch.evaluations import Evaluation
from ioprof.instrument.hooks.pytorch.losses import TensorWatch
from ioprof.instrument.span import emit

SMALL_SHARE: Final = 0.05
"""Work after a call of a module that takes at most this share of its time belongs to it."""
SMALL_NS: Final = 50_000
"""So does work that takes at most this long."""

_MAX_GAPS: Final = 1024
_PASSES: Final = ("forward", "inference")
"""Names of forward passes with and without gradients."""


class Loop:
    """What the training loop of a thread is computing, and what it has done since its last
    computation. This is the version of interpreters that cannot load the extension, which has its
    own (`native/spans/loop.h`).
    """

    __slots__ = (
        "backward_begin_ns",
        "backward_end_ns",
        "backward_gaps",
        "clipping",
        "closures",
        "cores",
        "evaluation",
        "forward_begin_ns",
        "gaps",
        "in_collective",
        "is_inference",
        "loss",
        "nested",
        "optimizers",
        "pending",
        "step",
        "stepped_type",
    )

    def __init__(self, loss: TensorWatch, clipping: TensorWatch, evaluation: Evaluation) -> None:
        self.forward_begin_ns = 0
        """Start of the forward pass in progress, or of its part since the last gap; 0: there is
        none."""
        self.step = -1
        """Step of the forward pass in progress."""
        self.is_inference = False
        """Whether it is one without gradients."""
        self.pending: tuple[int, int, int, bool] | None = None
        """Start, end and step of a forward pass that has ended, and is not emitted before it is
        known what follows it; and whether it was one without gradients."""
        self.backward_begin_ns = 0
        """When the last backward pass began."""
        self.backward_end_ns = 0
        """When a backward pass ended after which there was no other computation and no batch; 0:
        there was none."""
        self.gaps: list[tuple[int, int]] = []
        """Times since then that were no computation."""
        self.nested = 0
        """Backward passes in progress: one may run within another."""
        self.backward_gaps: list[tuple[int, int]] = []
        """Times within the outermost of them that were no computation: collectives of sharded
        parameters."""
        self.loss = loss
        """What is done between the forward and the backward pass."""
        self.clipping = clipping
        """What is done between the backward pass and the optimizer's step."""
        self.closures: list[tuple[int, int]] = []
        """Times of closures in the optimizer's step in progress."""
        self.evaluation = evaluation
        """Its passes in evaluation mode since it trained last."""
        self.cores = CoreWaits()
        """When it could have run outside of computations and waits, but had no core."""
        self.optimizers: list[tuple[int, int]] = []
        """Optimizers whose steps are in progress, outermost first: id and start."""
        self.in_collective = False
        """It is in an observed collective, or in one that is not to be recorded."""
        self.stepped_type: type | None = None
        """Type of the optimizer that stepped last."""

    def begin_forward(self, now_ns: int, step: int, is_inference: bool) -> None:
        """An outermost module is about to be called."""
        pending = self.pending
        self.cores.end(now_ns)
        if self.loss.is_on:
            self.loss.end(None)
        if self.clipping.is_on:
            self.clipping.end(None)
        if (
            pending is not None
            and (step, is_inference) == pending[2:]
            and _is_small(pending, now_ns)
        ):
            now_ns, self.pending = pending[0], None
        elif pending is not None:
            self.emit_pending()
        self.forward_begin_ns, self.step, self.is_inference = now_ns, step, is_inference
        self.backward_end_ns = 0

    def end_forward(self, now_ns: int) -> None:
        """That call has ended."""
        self.cores.begin(AFTER_FORWARD, now_ns)
        if self.pending is not None:
            self.emit_pending()
        self.pending = self.forward_begin_ns, now_ns, self.step, self.is_inference
        self.forward_begin_ns = 0
        if self.loss.wanted:
            self.loss.begin()

    def begin_backward(self, now_ns: int) -> None:
        """A backward pass begins, perhaps within a forward pass; a loss function before it belongs
        to the forward pass.
        """
        self.cores.end(now_ns)
        self.backward_begin_ns = now_ns
        if self.clipping.is_on:
            self.clipping.end(None)
        if self.loss.is_on:
            self.loss.end(now_ns)
        if self.pending is None:
            return
        start_ns, end_ns, step, is_inference = self.pending
        if _is_small(self.pending, now_ns):
            self.pending = start_ns, now_ns, step, is_inference
            self.emit_pending()
            return
        self.loss.count()
        self.emit_pending()
        if self.loss.is_computation:
            emit("compute", end_ns, now_ns, "loss", step=step)

    def emit_pending(self) -> None:
        """Emit the forward pass that has ended, if there is one."""
        if self.loss.is_on:
            self.loss.end(None)
        if self.pending is not None:
            (start_ns, end_ns, step, is_inference), self.pending = self.pending, None
            emit("compute", start_ns, end_ns, _PASSES[is_inference], step=step)

    def end_computation(self) -> None:
        """An optimizer has stepped: what comes next is no part of a computation before."""
        if self.loss.is_on:
            self.loss.end(None)
        if self.clipping.is_on:
            self.clipping.end(None)
        if self.pending is not None:
            self.emit_pending()
        self.backward_end_ns = 0

    def begin_wait(self) -> None:
        """A wait for a batch begins."""
        self.cores.begin_wait()

    def have_batch(self) -> None:
        """A batch that was waited for is there."""
        self.cores.begin(AFTER_WAIT, monotonic_ns())

    def end_wait(self, start_ns: int, end_ns: int) -> None:
        """It waited for a batch, and has it or knows that there is none: `add_gap` and
        `end_computation` in one call.
        """
        if self.nested or self.forward_begin_ns or self.pending is not None:
            self.add_gap(start_ns, end_ns)
            if self.pending is not None:
                self.emit_pending()
        if self.clipping.is_on:
            self.clipping.end(None)
        self.backward_end_ns = 0

    def end_backward(self, now_ns: int) -> None:
        """A backward pass has ended."""
        self.backward_end_ns = now_ns
        if self.gaps:
            self.gaps = []
        if self.clipping.wanted and not self.loss.is_on:
            self.clipping.begin()

    def begin_step(self, optimizer: int, now_ns: int) -> None:
        """An optimizer, of that id, is about to make a step."""
        if self.loss.is_on:
            self.loss.end(None)
        if self.clipping.is_on:
            self.end_clipping(now_ns)
        in_progress = self.optimizers
        in_progress[:] = [entry for entry in in_progress if entry[0] != optimizer]
        in_progress.append((optimizer, now_ns))
        if len(in_progress) == 1:
            self.closures.clear()

    def end_step(self, start_ns: int, end_ns: int, step: int, on_cpu: bool) -> None:
        """The outermost optimizer has made its step."""
        if on_cpu:
            self.cores.begin(AFTER_STEP, end_ns)
            self.emit_since_backward(start_ns, step)
            emit_without_gaps(start_ns, end_ns, self.closures, "optimizer", step)
            if self.forward_begin_ns:
                self.add_gap(start_ns, end_ns)
        self.end_computation()

    def end_clipping(self, now_ns: int) -> None:
        """The optimizer's step begins while the time before it is observed in detail."""
        self.clipping.end(None if self.gaps or not self.backward_end_ns else now_ns)

    def end_closure(self, start_ns: int, end_ns: int, step: int) -> None:
        """A closure of the optimizer's step has ended."""
        if self.clipping.is_on:
            self.end_clipping(end_ns)
        self.emit_since_backward(end_ns, step)
        self.end_computation()
        if len(self.closures) < _MAX_GAPS:
            self.closures.append((start_ns, end_ns))

    def add_gap(self, start_ns: int, end_ns: int) -> None:
        """A collective or a wait took this thread's time, or a computation with a span of its
        own.
        """
        if self.nested:
            if len(self.backward_gaps) < _MAX_GAPS:
                self.backward_gaps.append((start_ns, end_ns))
        elif self.forward_begin_ns:
            if self.forward_begin_ns < start_ns:
                name = _PASSES[self.is_inference]
                emit("compute", self.forward_begin_ns, start_ns, name, step=self.step)
            self.forward_begin_ns = end_ns
        elif self.pending is not None:
            self.emit_pending()
        elif self.backward_end_ns and len(self.gaps) < _MAX_GAPS:
            self.gaps.append((start_ns, end_ns))

    def emit_since_backward(self, end_ns: int, step: int) -> None:
        """Emit what it did since the backward pass until the optimizer's step, which begins at
        `end_ns`, if it computes: as part of that step if it is short.
        """
        if not self.backward_end_ns:
            return
        took_ns = end_ns - self.backward_end_ns - sum(end - start for start, end in self.gaps)
        is_small = took_ns <= max(
            SMALL_NS, int(SMALL_SHARE * (self.backward_end_ns - self.backward_begin_ns))
        )
        # else the one before is still to be observed: the loss was, meanwhile
        if not is_small and not self.clipping.wanted:
            self.clipping.count()
        if is_small or self.clipping.is_computation:
            name = "optimizer" if is_small else "gradients"
            emit_without_gaps(self.backward_end_ns, end_ns, self.gaps, name, step)


def emit_without_gaps(
    begin_ns: int, end_ns: int, gaps: list[tuple[int, int]], name: str, step: int
) -> None:
    """Emit a computation, but for the times in it that were none; these are in order."""
    for gap_start_ns, gap_end_ns in gaps:
        if gap_end_ns <= begin_ns or gap_start_ns >= end_ns:
            continue
        if begin_ns < gap_start_ns:
            emit("compute", begin_ns, gap_start_ns, name, step=step)
        begin_ns = max(begin_ns, gap_end_ns)
    if begin_ns < end_ns:
        emit("compute", begin_ns, end_ns, name, step=step)


def is_on_cpu(value: Any) -> bool:
    """Whether a tensor, or the first of a sequence, is on the CPU; False for what is no tensor."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return device_type(value) == "cpu"


def device_type(tensor: Any) -> str | None:
    """Type of a tensor's device, such as "cuda"; None: it is no tensor."""
    # `device` makes two objects at each call. A tensor whose device is not that of its memory,
    # as torch's fake tensors, is not `is_cpu`, but may say that its device is.
    if getattr(tensor, "is_cpu", False) is True:
        return "cpu"
    kind = getattr(getattr(tensor, "device", None), "type", None)
    return None if kind is None else str(kind)


def _is_small(pending: tuple[int, int, int, bool], now_ns: int) -> bool:
    """Whether the time since the end of a forward pass is small."""
    start_ns, end_ns, *_ = pending
    return now_ns - end_ns <= max(SMALL_NS, int(SMALL_SHARE * (end_ns - start_ns)))
