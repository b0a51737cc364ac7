"""Observes torch's optimizers and backward passes."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks import observers
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch import compiler, compute
from ioprof.instrument.hooks.pytorch.compiler import is_compiling
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.autograd` or `torch.optim.optimizer`."""
    if module.__name__ == "torch.autograd":
        require(module, "backward")
        state.patches.wrap(module, "backward", observers.propagating)
        state.wrap(module, "grad", _observe_grad)
        return
    # torch 2.0 and newer
    require(module, "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")
    state.wrap(module.Optimizer, "__init__", _observe_init)

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        # the first argument is the optimizer
        if (
            compiler.is_traced()
            or not observers.begin_step(optimizer)
            or not (kwargs or len(args) > 1)
        ):
            return None
        return _with_closure(args, kwargs, state, state.per_thread.current.loop)

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not compiler.is_traced():
            observers.end_step(optimizer)

    # torch's own way to observe all optimizers, and the only one that leaves their classes as they
    # are.
    handles = (
        module.register_optimizer_step_pre_hook(before_step),
        module.register_optimizer_step_post_hook(after_step),
    )
    for handle in handles:
        state.patches.when_undone(handle.remove)


def _with_closure(
    args: Any, kwargs: Any, state: HookState, loop: observers.Loop
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
    closure: Callable[..., Any], state: HookState, loop: observers.Loop
) -> Callable[..., Any]:
    def observed(*args: Any, **kwargs: Any) -> Any:
        start_ns = monotonic_ns()
        try:
            return closure(*args, **kwargs)
        finally:
            loop.end_closure(start_ns, monotonic_ns(), state.steps.number)

    return observed


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
        loop.begin_forward(monotonic_ns(), state.steps.expected_number, False)
        loop.nested += 1
        try:
            return original(outputs, *args, **kwargs)
        finally:
            loop.nested -= 1
            loop.backward_gaps.clear()
            loop.end_forward(monotonic_ns())

    return grad


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not is_compiling() and state.identity.role != "worker":
            state.steps.add_optimizer()

    return init
