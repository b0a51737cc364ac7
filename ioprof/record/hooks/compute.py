"""When a training loop on the CPU computes: `compute` spans named "forward", "backward" and "optimizer".

The backward pass and the optimizer's step are what torch's functions of that name took. The forward pass has no function to look
at that a compiler would not look at too, so it is what lies between: from the moment that the loop had its batch, or ended the
computation before, to the start of the backward pass. Whatever else the loop does there (augmentation, logging) counts as forward;
waits for batches and collectives that lie in it do not. In the same way what lies between a backward pass and the optimizer's step
(clipping of gradients) counts as the optimizer's. On a GPU the host's time says nothing of the device's, and no span is made.
"""

import threading
from typing import Any

from ioprof.record.hooks.session import session
from ioprof.record.hooks.steps import steps
from ioprof.record.span import emit

_GAPS = 1024


class Loop:
    """What the training loop of a thread has done since its last computation.

    It is asked and told a dozen times in a step, and each time by code that the step's own work has driven out of the processor's
    caches: so its users take it once (`here.loop`) and look for themselves.
    """

    __slots__ = ("after_backward", "gaps", "mark_ns", "nested")

    def __init__(self) -> None:
        self.mark_ns = 0
        """When it last was given a batch or ended a computation; 0: it was given none yet, and what it does is not known."""
        self.after_backward = False
        """Whether that was the end of a backward pass."""
        self.gaps: list[tuple[int, int]] = []
        self.nested = 0
        """Backward passes under way: one may run within another."""

    def mark(self, now_ns: int, after_backward: bool = False) -> None:
        """It was given a batch, or a computation ended: a backward pass or another, also one that no span is made of."""
        self.mark_ns, self.after_backward = now_ns, after_backward
        if self.gaps:
            self.gaps = []

    def emit_since_mark(self, end_ns: int, name: str) -> None:
        """What it did since then belongs to the computation `name`, which goes on at `end_ns` in a function that is observed."""
        begin_ns = self.mark_ns
        if not begin_ns:
            return
        for gap_start_ns, gap_end_ns in self.gaps:
            if begin_ns < gap_start_ns:
                emit("compute", begin_ns, gap_start_ns, name, step=steps.number)
            begin_ns = max(begin_ns, gap_end_ns)
        if begin_ns < end_ns:
            emit("compute", begin_ns, end_ns, name, step=steps.number)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.loop = Loop()


here = _Thread()


def communicated(start_ns: int, end_ns: int) -> None:
    """A collective took this thread's time."""
    loop = here.loop
    if loop.mark_ns and len(loop.gaps) < _GAPS:
        loop.gaps.append((start_ns, end_ns))


def is_on_cpu(value: Any) -> bool:
    """Whether a tensor, or the first of a sequence, is one of the CPU; False for what is no tensor."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return getattr(getattr(value, "device", None), "type", None) == "cpu"


def _anew() -> None:
    global here
    here = _Thread()


session.renew(_anew)
