"""The hooks of `native/spans/step_hooks.h` in Python, for interpreters that cannot load the
extension: the same spans, at a higher cost.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks import python_observers
from ioprof.instrument.hooks.pytorch.compute import Loop, device_type, is_on_cpu
from ioprof.instrument.hooks.pytorch.evaluations import wants_gradients
from ioprof.instrument.span import emit

Function = Callable[..., Any]

_MOST_NAMES: Final = 1000
"""Collectives of one name that are told apart within a step."""


class _Followed:
    """One per process, as in the extension."""

    state: Any = None
    """Its `HookState`, a module that imports this one."""
    step = -1
    names: ClassVar[dict[str, int]] = {}
    """How often each collective came in that step."""


def follow(state: Any, _steps: Any, /) -> None:
    """Observers of steps ask it, and tell it."""
    _Followed.state, _Followed.step = state, -1


def calling(original: Function, /) -> Function:
    """An observer of the call of a module: an outermost one is a forward pass."""
    return python_observers.calling(original, _enter, _leave)


def propagating(original: Function, /) -> Function:
    """An observer of a function that makes a backward pass."""
    # torch is there, since this is one of its functions
    from ioprof.instrument.hooks.pytorch.compiler import is_compiling

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(tensors, *args, **kwargs)
        state = _Followed.state
        if not _is_observed(state):
            return original(tensors, *args, **kwargs)
        loop = state.per_thread.current.loop
        loop.nested += 1
        on_cpu = loop.nested == 1 and is_on_cpu(tensors)
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
                gaps = list(loop.backward_gaps)
                loop.backward_gaps.clear()
                state.gradients.end_backward(start_ns, end_ns, state.steps.number, gaps)
                if loop.forward_begin_ns:
                    loop.add_gap(start_ns, end_ns)
                else:
                    loop.end_backward(end_ns)

    return backward


def begin_step(optimizer: Any, /) -> bool:
    """An optimizer is about to make a step. True: it is observed, and not part of another's."""
    state = _Followed.state
    if not _is_observed(state):
        return False
    loop = _loop(state)
    loop.begin_step(id(optimizer), monotonic_ns())
    return len(loop.optimizers) == 1


def end_step(optimizer: Any, /) -> None:
    """It has made it; nothing where it was stepped by another one, whose step it is part of."""
    state = _Followed.state
    loop = _loop(state)
    in_progress = loop.optimizers
    if not state.is_on or not in_progress or in_progress[0][0] != id(optimizer):
        return
    start_ns, end_ns = in_progress[0][1], monotonic_ns()
    in_progress.clear()
    if state.is_deferred or state.identity.role == "other":
        state.start_rank()
    on_cpu = is_on_cpu((getattr(optimizer, "param_groups", None) or [{}])[0].get("params"))
    if loop.stepped_type is not type(optimizer):
        loop.stepped_type = type(optimizer)
        state.note_optimizer(optimizer, on_cpu)
    steps = state.steps
    if loop.evaluation.num_passes:
        loop.evaluation.end(loop.evaluation.end_ns, steps.number, steps.trains)
    loop.end_step(start_ns, end_ns, steps.number, on_cpu)
    steps.step_optimizer(optimizer, start_ns, end_ns)


def exchanging(original: Function, name: str, /) -> Function:
    """An observer of a collective; its spans have that name."""

    def collective(*args: Any, **kwargs: Any) -> Any:
        state = _Followed.state
        loop, tensors = _loop(state), _tensors(args, kwargs)
        if not state.is_on or loop.in_collective or (tensors and not is_on_cpu(tensors)):
            return original(*args, **kwargs)
        state.start_deferred()
        steps = state.steps
        step = steps.number if steps.begun else -1
        label = numbered(_label(name, args, kwargs), steps.number)
        size = sum(int(tensor.nbytes) for tensor in tensors) if tensors else -1
        loop.in_collective = True
        start_ns = monotonic_ns()
        try:
            work = original(*args, **kwargs)
        finally:
            loop.in_collective = False
        if hasattr(work, "wait"):
            expect(work, (start_ns, label, step, size))
        else:
            emit("comm", start_ns, end_ns := monotonic_ns(), label, bytes=size, step=step)
            loop.add_gap(start_ns, end_ns)
        return work

    return collective


def expect(work: Any, known: Any, /) -> None:
    """The wait for `work` will end a collective (start, name, step and bytes), or what `known` then
    records, called with the start of the wait.
    """
    _Followed.state.in_progress[work] = known


def awaiting(original: Function, /) -> Function:
    """An observer of the `wait` of what a collective in progress returned."""

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = _Followed.state
        known = state.in_progress.pop(self, None) if state.in_progress.data else None
        wait_start_ns = monotonic_ns()
        result = original(self, *args, **kwargs)
        if isinstance(known, tuple):
            start_ns, label, step, size = known
            emit("comm", start_ns, end_ns := monotonic_ns(), label, bytes=size, step=step)
            _loop(state).add_gap(wait_start_ns, end_ns)
        elif known is not None:
            known(wait_start_ns)
        return result

    return wait


def numbered(name: str, step: int, /) -> str:
    """The name, with a number if there was one of that name in this step before."""
    if _Followed.step != step:
        _Followed.step = step
        _Followed.names.clear()
    count = _Followed.names[name] = _Followed.names.get(name, 0) + 1
    return name if count == 1 or count > _MOST_NAMES else f"{name} {count}"


def hooks_ns() -> int:
    """What the extension counts is not counted here."""
    return 0


def _label(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The name, with that of a group that is not the whole job."""
    # torch is there, since this is a call of one of its functions
    from torch.distributed import distributed_c10d

    group: Any = kwargs.get("group")
    if group is None:
        kind = distributed_c10d.ProcessGroup
        group = next((value for value in args if isinstance(value, kind)), None)
    if group is None or group is distributed_c10d.GroupMember.WORLD:
        return name
    return f"{name} in group {getattr(group, 'group_name', '?')}"


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    import torch

    entries: list[Any] = []
    for value in (*args, *kwargs.values()):
        entries += value if isinstance(value, list | tuple) else (value,)
    return [entry for entry in entries if isinstance(entry, torch.Tensor)]


def _is_observed(state: Any) -> bool:
    return bool(state.is_on and state.identity.role != "worker")


def _loop(state: Any) -> Loop:
    loop: Any = state.per_thread.current.loop
    return loop  # type: ignore[no-any-return]


def _enter(called: Any, arguments: tuple[Any, ...]) -> bool:
    state = _Followed.state
    thread = state.per_thread.current
    loop = _loop(state)
    if not _is_observed(state) or thread.fetching or loop.nested:
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
    loop.begin_forward(monotonic_ns(), state.steps.expected_number, is_evaluated)
    return True


def _leave() -> None:
    loop = _Followed.state.per_thread.current.loop
    now_ns = monotonic_ns()
    if loop.evaluation.in_pass:
        loop.evaluation.in_pass, loop.evaluation.end_ns = False, now_ns
    if loop.forward_begin_ns:
        loop.end_forward(now_ns)


def _note_mode(state: Any, loop: Loop, called: Any, arguments: tuple[Any, ...]) -> bool:
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
    # torch is there: a module of it is called
    import torch

    parameter = _first_parameter(called)
    if parameter is not None:
        return device_type(parameter)
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.requires_grad:
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
