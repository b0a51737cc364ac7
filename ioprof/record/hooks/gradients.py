"""When DistributedDataParallel exchanges gradients on the CPU: `comm` spans named "gradients".

That happens in C++, within the backward pass, and passes through no Python. But DDP keeps a log of itself: for each iteration
that it samples, when the backward computation ended, and when the exchange began and ended, by the wall clock. It is asked to
sample every iteration (a few clock readings), which changes nothing else, and its log is read when the next backward pass
begins, since only the next forward pass completes the entry. So the last backward pass of a job shows no exchange.

On a GPU the exchange is seen by the spans of its kernels.
"""

import sys
import weakref
from types import ModuleType
from typing import Any, NamedTuple

from ioprof.clock import anchor
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session
from ioprof.record.hooks.steps import steps
from ioprof.record.span import emit


class _Backward(NamedTuple):
    """A backward pass whose exchange of gradients is not known yet."""

    start_ns: int
    end_ns: int
    step: int


class _Exchange(NamedTuple):
    """What DDP says of an iteration, on CLOCK_MONOTONIC."""

    computed_ns: int
    """The last gradient was computed."""
    start_ns: int
    end_ns: int


_READINGS = 4  # of both clocks, of which the narrowest counts: a thread that lost its core between the two tells nothing

_models: "weakref.WeakSet[Any]" = weakref.WeakSet()
_seen: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_pending: list[_Backward] = []


def observe(module: ModuleType) -> None:
    """Observe `torch.nn.parallel.distributed`."""
    patches.wrap(module.DistributedDataParallel, "__init__", _made)


def backward_begins() -> None:
    """A backward pass begins; the log of the one before it is complete."""
    if _pending:
        _emit(_pending.pop(), [exchange for model in list(_models) if (exchange := _exchange(model))])


def backward_ended(start_ns: int, end_ns: int) -> None:
    """A backward pass on the CPU took this long, the exchange of gradients included."""
    if _models:
        _pending.append(_Backward(start_ns, end_ns, steps.number))
    else:
        emit("compute", start_ns, end_ns, "backward", step=steps.number)


def finish() -> None:
    """Nothing more will be learned of the last backward pass."""
    while _pending:
        _emit(_pending.pop(0), [])


def _anew() -> None:
    _models.clear()
    _pending.clear()


session.renew(_anew)


def _made(original: Function) -> Function:
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            if session.is_on and _logs_silently(self):
                self._set_ddp_runtime_logging_sample_rate(1)
                _models.add(self)
        except (AttributeError, RuntimeError):  # a torch whose DDP keeps its log otherwise
            pass

    return make


def _logs_silently(model: Any) -> bool:
    """Whether this model is one of the CPU, and its log goes to no stream: torch prints it where TORCH_DISTRIBUTED_DEBUG is set."""
    distributed: Any = sys.modules["torch.distributed"]
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return on_cpu and distributed.get_debug_level() == distributed.DebugLevel.OFF


def _exchange(model: Any) -> _Exchange | None:
    """The newest entry of a model's log, unless it was seen before."""
    try:
        log: dict[str, int] = model.logger._get_ddp_logging_data().ints_map  # noqa: SLF001
        begun = log["backward_comm_time_start"]
        if begun <= 0 or _seen.get(model) == begun:
            return None
        _seen[model] = begun
        to_monotonic = -anchor(_READINGS).offset_ns
        times = log["backward_compute_time_end"], begun, log["backward_comm_time_end"]
        return _Exchange(*(time_ns + to_monotonic for time_ns in times))
    except (AttributeError, KeyError, RuntimeError):
        return None


def _emit(backward: _Backward, exchanges: list[_Exchange]) -> None:
    """The exchange, and the computation without the time that it only waited for the exchange."""
    start_ns, end_ns, step = backward
    at_ns = start_ns
    for found in sorted(exchanges):
        first, last = max(found.start_ns, start_ns), min(found.end_ns, end_ns)
        if first >= last:
            continue
        emit("comm", first, last, "gradients", step=step)
        computed_ns = min(max(found.computed_ns, at_ns), last)
        if at_ns < computed_ns:
            emit("compute", at_ns, computed_ns, "backward", step=step)
        at_ns = max(at_ns, last)
    if at_ns < end_ns:
        emit("compute", at_ns, end_ns, "backward", step=step)
