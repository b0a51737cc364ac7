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


class _Thread(threading.local):
    """What the training loop of this thread has done since its last computation."""

    mark_ns = 0
    """When it last was given a batch or ended a computation; 0: it was given none yet, and what it does is not known."""
    after_backward = False
    """Whether that was the end of a backward pass."""
    gaps: list[tuple[int, int]]
    nested = 0
    """Backward passes under way: one may run within another."""


_here = _Thread()


def given_batch(now_ns: int) -> None:
    """A batch, for which this thread waited, was given to it now."""
    _here.mark_ns, _here.gaps, _here.after_backward = now_ns, [], False


def communicated(start_ns: int, end_ns: int) -> None:
    """A collective took this thread's time."""
    if _here.mark_ns and len(_here.gaps) < _GAPS:
        _here.gaps.append((start_ns, end_ns))


def leads_to_backward(end_ns: int) -> None:
    """A forward pass ends here, if this thread began one."""
    _emit_since_mark(end_ns, "forward")


def leads_to_optimizer(end_ns: int) -> None:
    """An optimizer's step begins here: what came between a backward pass and it belongs to it."""
    if _here.after_backward:
        _emit_since_mark(end_ns, "optimizer")


def computed(now_ns: int, backward: bool = False) -> None:
    """A computation of this thread ended, a backward pass or another; also one that no span was made of."""
    if _here.mark_ns:
        _here.mark_ns, _here.gaps, _here.after_backward = now_ns, [], backward


def _emit_since_mark(end_ns: int, name: str) -> None:
    begin_ns = _here.mark_ns
    if not begin_ns:
        return
    for gap_start_ns, gap_end_ns in _here.gaps:
        if begin_ns < gap_start_ns:
            emit("compute", begin_ns, gap_start_ns, name, step=steps.number)
        begin_ns = max(begin_ns, gap_end_ns)
    if begin_ns < end_ns:
        emit("compute", begin_ns, end_ns, name, step=steps.number)


def enter_backward() -> bool:
    """Whether this backward pass is the outermost of this thread; `leave_backward` must follow."""
    _here.nested += 1
    return _here.nested == 1


def leave_backward() -> None:
    """The end of what `enter_backward` began."""
    _here.nested -= 1


def is_on_cpu(value: Any) -> bool:
    """Whether a tensor, or the first of a sequence, is one of the CPU; False for what is no tensor."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return getattr(getattr(value, "device", None), "type", None) == "cpu"


def _anew() -> None:
    global _here
    _here = _Thread()


session.renew(_anew)
