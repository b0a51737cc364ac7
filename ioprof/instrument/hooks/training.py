"""Observes torch's optimizers and backward passes."""

from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks import compute
from ioprof.instrument.hooks.compiler import is_compiling
from ioprof.instrument.hooks.core_waits import AFTER_STEP
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require
from ioprof.instrument.span import emit


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.autograd` or `torch.optim.optimizer`."""
    if module.__name__ == "torch.autograd":
        state.wrap(module, "backward", _observe_backward)
        return
    require(module, "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")  # torch 2.0 and newer
    state.wrap(module.Optimizer, "__init__", _observe_init)

    def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_compiling() or not state.is_on or state.identity.role == "worker":
            return
        thread = state.per_thread.current
        in_progress, loss = thread.optimizers, thread.loop.loss
        if loss.is_on:
            loss.end(None)
        if in_progress:
            in_progress[:] = [entry for entry in in_progress if entry[0] != id(optimizer)]
        in_progress.append((id(optimizer), monotonic_ns()))

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_compiling() or not state.is_on:
            return
        _end_step(optimizer, state)

    # torch's own way to observe all optimizers, and the only one that leaves their classes as they are.
    handles = module.register_optimizer_step_pre_hook(before_step), module.register_optimizer_step_post_hook(after_step)
    for handle in handles:
        state.patches.when_undone(handle.remove)


def _observe_backward(original: Function, state: HookState) -> Function:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not state.is_on or state.identity.role == "worker":
            return original(tensors, *args, **kwargs)
        loop = state.per_thread.current.loop
        loop.nested += 1
        on_cpu = loop.nested == 1 and compute.is_on_cpu(tensors)
        start_ns = monotonic_ns()
        if on_cpu:
            if state.is_deferred:
                state.start_deferred()
            state.gradients.begin_backward()
            loop.begin_backward(start_ns)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            loop.nested -= 1
            if on_cpu:
                gaps, loop.backward_gaps = loop.backward_gaps, []
                state.gradients.end_backward(start_ns, end_ns, state.steps.number, gaps)
                if loop.forward_begin_ns:
                    loop.add_gap(start_ns, end_ns)
                else:
                    loop.end_backward(end_ns)

    return backward


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not is_compiling() and state.identity.role != "worker":
            state.steps.add_optimizer()

    return init


def _end_step(optimizer: Any, state: HookState) -> None:
    """An optimizer has made a step; nothing where it was stepped by another one, whose step it is part of."""
    thread = state.per_thread.current
    in_progress = thread.optimizers
    if not in_progress or in_progress[0][0] != id(optimizer):
        return
    start_ns, end_ns = in_progress[0][1], monotonic_ns()
    in_progress.clear()
    if state.is_deferred or state.identity.role == "other":
        state.start_rank()
    steps, loop = state.steps, thread.loop
    thread.trains = True
    on_cpu = compute.is_on_cpu((getattr(optimizer, "param_groups", None) or [{}])[0].get("params"))
    if on_cpu:
        loop.cores.begin(AFTER_STEP)
        loop.emit_since_backward(start_ns, steps.number)
        emit("compute", start_ns, end_ns, "optimizer", step=steps.number)
        if loop.forward_begin_ns:
            loop.add_gap(start_ns, end_ns)
    loop.end_computation()
    steps.step_optimizer(optimizer, start_ns, end_ns)
    if type(optimizer) is not thread.recorded_optimizer:
        thread.recorded_optimizer = type(optimizer)
        state.record_fact(optimizer=type(optimizer).__name__, device="cpu" if on_cpu else "cuda")
