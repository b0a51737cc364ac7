"""Observes torch's optimizers and backward passes."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.core_waits import AFTER_STEP
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch import compute
from ioprof.instrument.hooks.pytorch.compiler import is_compiling
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.autograd` or `torch.optim.optimizer`."""
    if module.__name__ == "torch.autograd":
        state.wrap(module, "backward", _observe_backward)
        state.wrap(module, "grad", _observe_grad)
        return
    # torch 2.0 and newer
    require(module, "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")
    state.wrap(module.Optimizer, "__init__", _observe_init)

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if is_compiling() or not state.is_on or state.identity.role == "worker":
            return None
        thread, start_ns = state.per_thread.current, monotonic_ns()
        in_progress, loop = thread.optimizers, thread.loop
        if loop.loss.is_on:
            loop.loss.end(None)
        if loop.clipping.is_on:
            loop.end_clipping(start_ns)
        if in_progress:
            in_progress[:] = [entry for entry in in_progress if entry[0] != id(optimizer)]
        in_progress.append((id(optimizer), start_ns))
        if len(in_progress) == 1:
            loop.closures.clear()
            if kwargs or len(args) > 1:  # the first is the optimizer
                return _with_closure(args, kwargs, state, loop)
        return None

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_compiling() or not state.is_on:
            return
        _end_step(optimizer, state)

    # torch's own way to observe all optimizers, and the only one that leaves their classes as they
    # are.
    handles = (
        module.register_optimizer_step_pre_hook(before_step),
        module.register_optimizer_step_post_hook(after_step),
    )
    for handle in handles:
        state.patches.when_undone(handle.remove)


def _with_closure(
    args: Any, kwargs: Any, state: HookState, loop: compute.Loop
) -> tuple[Any, Any] | None:
    """The arguments of an optimizer's step with its closure observed, which computes the loss;
    None: it has none.
    """
    if "closure" in kwargs:
        if kwargs["closure"] is None:
            return None
        return args, {**kwargs, "closure": _observed_closure(kwargs["closure"], state, loop)}
    if len(args) < 2 or not callable(args[1]):
        return None
    return (args[0], _observed_closure(args[1], state, loop), *args[2:]), kwargs


def _observed_closure(
    closure: Callable[..., Any], state: HookState, loop: compute.Loop
) -> Callable[..., Any]:
    def observed(*args: Any, **kwargs: Any) -> Any:
        start_ns = monotonic_ns()
        try:
            return closure(*args, **kwargs)
        finally:
            loop.end_closure(start_ns, monotonic_ns(), state.steps.number)

    return observed


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


def _observe_grad(original: Function, state: HookState) -> Function:
    """Gradients that the loop asks for, as for a penalty on them: a part of what it computes before
    the backward pass.
    """

    def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        loop = state.per_thread.current.loop
        is_part = loop.nested or loop.forward_begin_ns
        if (
            is_compiling()
            or not state.is_on
            or state.identity.role == "worker"
            or is_part
            or not compute.is_on_cpu(outputs)
        ):
            return original(outputs, *args, **kwargs)
        loop.begin_forward(monotonic_ns(), state.steps.expected_number)
        loop.nested += 1
        try:
            return original(outputs, *args, **kwargs)
        finally:
            loop.nested -= 1
            loop.backward_gaps = []
            loop.end_forward(monotonic_ns())

    return grad


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not is_compiling() and state.identity.role != "worker":
            state.steps.add_optimizer()

    return init


def _end_step(optimizer: Any, state: HookState) -> None:
    """An optimizer has made a step; nothing where it was stepped by another one, whose step it is
    part of.
    """
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
        compute.emit_without_gaps(start_ns, end_ns, loop.closures, "optimizer", steps.number)
        if loop.forward_begin_ns:
            loop.add_gap(start_ns, end_ns)
    if loop.evaluation.num_passes:
        loop.evaluation.end(loop.evaluation.end_ns, steps.number, steps.trains)
    loop.end_computation()
    steps.step_optimizer(optimizer, start_ns, end_ns)
    if type(optimizer) is not thread.recorded_optimizer:
        thread.recorded_optimizer = type(optimizer)
        state.record_fact(optimizer=type(optimizer).__name__, device="cpu" if on_cpu else "cuda")
