"""Observes calls of torch's modules: the outermost is a forward pass, see `compute`.

`torch.nn.Module.__call__` is replaced by an observer of the extension, which shows the compiler,
`inspect` and `pickle` the original. torch's own global hooks are not used: with them every module
of a model takes a path through `_call_impl` that costs microseconds, and `torch.compile` warns of
them.

Not every module computes a forward pass: transforms of images are modules too. One does if it has
parameters, or if its arguments require gradients, as those of a loss do.
"""

from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.observers import calling
from ioprof.instrument.hooks.pytorch.compiler import of_torch
from ioprof.instrument.hooks.pytorch.compute import Loop, device_type
from ioprof.instrument.hooks.pytorch.evaluations import wants_gradients
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.nn.modules.module`."""

    def enter(called: Any, arguments: tuple[Any, ...]) -> bool:
        thread = state.per_thread.current
        loop = thread.loop
        if not state.is_on or state.identity.role == "worker" or thread.fetching or loop.nested:
            return False
        device = _device_type(called, arguments)
        if device is None:
            return False
        is_evaluated = _note_mode(state, loop, called, arguments)
        if device != "cpu":
            return is_evaluated
        # in training mode, and no part of a training step
        if is_evaluated and called.training and loop.evaluation.is_known:
            return True
        if state.is_deferred:
            state.start_deferred()
        step = state.steps.expected_number
        loop.begin_forward(monotonic_ns(), step)
        return True

    def leave() -> None:
        loop = state.per_thread.current.loop
        now_ns = monotonic_ns()
        if loop.evaluation.in_pass:
            loop.evaluation.in_pass, loop.evaluation.end_ns = False, now_ns
        if loop.forward_begin_ns:
            loop.end_forward(now_ns)

    require(module, "Module")
    require(module.Module, "__call__", "_call_impl")
    original = vars(module.Module).get("__call__")
    state.patches.wrap(module.Module, "__call__", lambda original: calling(original, enter, leave))
    # its other name, by which it is pickled
    if vars(module.Module).get("_wrapped_call_impl") is original:
        state.patches.put(module.Module, "_wrapped_call_impl", vars(module.Module)["__call__"])


def _note_mode(state: HookState, loop: Loop, called: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether the model is called without gradients; what it does is noted. What a library says to
    be a validation is known already.
    """
    evaluation, steps, is_training = loop.evaluation, state.steps, getattr(called, "training", True)
    if state.validates:
        return False
    if wants_gradients():
        if evaluation.num_passes:
            evaluation.end(monotonic_ns(), steps.number, steps.trains)
        if is_training:
            evaluation.train(called, arguments)
        return False
    if is_training and not steps.trains:
        return False
    evaluation.begin_pass(called, arguments, monotonic_ns(), steps.number)
    return True


def _device_type(called: Any, arguments: tuple[Any, ...]) -> str | None:
    """Where a module computes its forward pass; None: it computes none."""
    parameter = _first_parameter(called)
    if parameter is not None:
        return device_type(parameter)
    kind: Any = of_torch.Tensor
    for argument in arguments:
        if isinstance(argument, kind) and argument.requires_grad:
            return device_type(argument)
    return None


def _first_parameter(module: Any) -> Any:
    """Of a module or what it contains; `parameters()` may be the user's, and is not called."""
    for parameter in module._parameters.values():  # noqa: SLF001
        if parameter is not None:
            return parameter
    for child in module._modules.values():  # noqa: SLF001
        if child is not None and (found := _first_parameter(child)) is not None:
            return found
    return None
