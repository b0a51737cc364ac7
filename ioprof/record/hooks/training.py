"""Observes torch's optimizers and backward passes."""

import threading
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.record import recorder
from ioprof.record.hooks import compute, gradients
from ioprof.record.hooks.compiler import of_torch
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session
from ioprof.record.hooks.steps import steps
from ioprof.record.span import emit


class _Thread(threading.local):
    told: type | None = None
    """Of the optimizer of which the report was told last."""

    def __init__(self) -> None:
        self.stepping: list[tuple[int, int]] = []
        """The ids of the optimizers whose steps are under way, outermost first, and since when."""


_here = _Thread()


def observe(module: ModuleType) -> None:
    """Observe `torch.autograd` or `torch.optim.optimizer`."""
    if module.__name__ == "torch.autograd":
        patches.wrap(module, "backward", _backward)
        return
    patches.wrap(module.Optimizer, "__init__", _made)
    # torch's own way to look at all optimizers, and the only one that leaves their classes as they are.
    handles = module.register_optimizer_step_pre_hook(_before_step), module.register_optimizer_step_post_hook(_after_step)
    for handle in handles:
        patches.when_undone(handle.remove)


def _anew() -> None:
    global _here
    _here = _Thread()
    recorder.before_stop(_finish)


def _finish() -> None:
    gradients.finish()
    if session.is_on:
        steps.finish(monotonic_ns())


session.renew(_anew)
recorder.before_stop(_finish)  # of the recording in which torch was loaded; a later one has it from `_anew`


def _backward(original: Function) -> Function:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if of_torch.compiler.is_compiling() or not session.is_on or session.who.role == "worker":
            return original(tensors, *args, **kwargs)
        loop = compute.here.loop
        loop.nested += 1
        on_cpu = loop.nested == 1 and compute.is_on_cpu(tensors)
        start_ns = monotonic_ns()
        if on_cpu:
            if session.asleep:
                session.wake()
            gradients.backward_begins()
            loop.emit_since_mark(start_ns, "forward")
        try:
            return original(tensors, *args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            loop.nested -= 1
            if on_cpu:
                gradients.backward_ended(start_ns, end_ns)
            if not loop.nested and loop.mark_ns:
                loop.mark(end_ns, after_backward=True)

    return backward


def _made(original: Function) -> Function:
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not of_torch.compiler.is_compiling() and session.who.role != "worker":
            steps.made_optimizer()

    return make


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if of_torch.compiler.is_compiling() or not session.is_on or session.who.role == "worker":
        return
    under_way = _here.stepping
    if under_way:
        under_way[:] = [entry for entry in under_way if entry[0] != id(optimizer)]
    under_way.append((id(optimizer), monotonic_ns()))


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if of_torch.compiler.is_compiling() or not session.is_on:
        return
    under_way = _here.stepping
    if not under_way or under_way[0][0] != id(optimizer):  # it was stepped by another one, whose step this is
        return
    start_ns, end_ns = under_way[0][1], monotonic_ns()
    under_way.clear()
    if session.asleep or session.who.role == "other":
        session.wake()
        session.train()
    loop = compute.here.loop
    on_cpu = compute.is_on_cpu((getattr(optimizer, "param_groups", None) or [{}])[0].get("params"))
    if on_cpu:
        if loop.after_backward:
            loop.emit_since_mark(start_ns, "optimizer")
        emit("compute", start_ns, end_ns, "optimizer", step=steps.number)
    if loop.mark_ns:
        loop.mark(end_ns)
    steps.stepped(optimizer, start_ns, end_ns)
    if type(optimizer) is not _here.told:
        _here.told = type(optimizer)
        session.tell(optimizer=type(optimizer).__name__, device="cpu" if on_cpu else "cuda")
