"""Observes torch's collectives as a script calls them: `comm` spans, named for the operation, from
the call to its end.

The end of an asynchronous one is the end of the wait for it. The second and later ones of a name
within a step get a number, and those of a group that is not the whole job its name, so that the
analysis finds the same collective on other ranks. Collectives on a GPU are only launched here, and
are seen as kernels. Those that C++ starts are not seen: for DDP's see `gradient_exchange`.
"""

import sys
from functools import partial
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch import compute
from ioprof.instrument.hooks.pytorch.compiler import is_compiling, of_torch
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require
from ioprof.instrument.span import emit

OPERATIONS: Final = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_single",
    "all_gather_into_tensor",
    "_all_gather_base",
    "all_gather_coalesced",
    "all_gather_object",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "gather",
    "scatter",
    "gather_object",
    "gather_single",
    "gather_into_tensor",
    "scatter_object_list",
    "barrier",
    "monitored_barrier",
)
"""Functions of `torch.distributed` in which the ranks of a group wait for one another."""
BUFFERS: Final = "_broadcast_coalesced"
"""By it DistributedDataParallel gives all ranks the buffers of the first one (statistics of
BatchNorm) in each forward pass."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.distributed.distributed_c10d`."""
    require(
        module,
        "init_process_group",
        "ProcessGroup",
        "GroupMember",
        "Work",
        "all_reduce",
        "broadcast",
        "barrier",
    )
    state.wrap_exported(module, "torch.distributed", "init_process_group", _observe_init)
    for name in OPERATIONS:  # of which each version has some
        state.wrap_exported(module, "torch.distributed", name, partial(_observe_operation, name))
    exported = sys.modules["torch.distributed"]
    if hasattr(exported, BUFFERS):
        state.wrap(exported, BUFFERS, partial(_observe_operation, BUFFERS))
    state.wrap(module.Work, "wait", _observe_wait)


def _observe_init(original: Function, state: HookState) -> Function:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        start_ns = monotonic_ns()
        original(*args, **kwargs)
        if state.is_on:
            module: Any = sys.modules["torch.distributed.distributed_c10d"]
            state.start_deferred()
            emit("phase", start_ns, monotonic_ns(), "process group")
            state.identity.join_group(module.get_rank())
            state.record_fact(ranks=module.get_world_size(), backend=str(module.get_backend()))
            state.compare_clocks(module)

    return init_process_group


def _observe_operation(name: str, original: Function, state: HookState) -> Function:
    def collective(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not state.is_on:
            return original(*args, **kwargs)
        thread = state.per_thread.current
        if thread.in_collective or _is_on_device(args, kwargs):
            return original(*args, **kwargs)
        state.start_deferred()
        steps = state.steps
        label, size = (
            state.collectives.unique_name(_label(name, args, kwargs), steps.number),
            _num_bytes(args, kwargs),
        )
        step = steps.number if steps.begun else -1
        thread.in_collective = True
        start_ns = monotonic_ns()
        try:
            work = original(*args, **kwargs)
        finally:
            thread.in_collective = False
        if hasattr(work, "wait"):
            state.collectives.in_progress[work] = (start_ns, label, step, size)
        else:
            _emit(state, start_ns, label, step, size)
        return work

    return collective


def _observe_wait(original: Function, state: HookState) -> Function:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = state.collectives.in_progress.pop(self, None)
        if known is None:
            message = state.collectives.messages.pop(self, None)
            if message is None:
                return original(self, *args, **kwargs)
            message_start_ns = monotonic_ns()
            result = original(self, *args, **kwargs)
            message(message_start_ns)
            return result
        wait_start_ns = monotonic_ns()
        result = original(self, *args, **kwargs)
        _emit(state, *known, wait_start_ns=wait_start_ns)
        return result

    return wait


def _emit(
    state: HookState,
    start_ns: int,
    label: str,
    step: int,
    size: int,
    wait_start_ns: int | None = None,
) -> None:
    end_ns = monotonic_ns()
    emit("comm", start_ns, end_ns, label, bytes=size, step=step)
    state.per_thread.current.loop.add_gap(
        start_ns if wait_start_ns is None else wait_start_ns, end_ns
    )


def _label(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    group = kwargs.get("group")
    if group is None:
        kind: Any = sys.modules["torch.distributed.distributed_c10d"].ProcessGroup
        group = next((value for value in args if isinstance(value, kind)), None)
    world = sys.modules["torch.distributed.distributed_c10d"].GroupMember.WORLD
    name = name.strip("_")
    return (
        name
        if group is None or group is world
        else f"{name} in group {getattr(group, 'group_name', '?')}"
    )


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    kind: Any = of_torch.Tensor
    found = []
    for value in (*args, *kwargs.values()):
        found += [
            entry
            for entry in (value if isinstance(value, list | tuple) else (value,))
            if isinstance(entry, kind)
        ]
    return found


def _is_on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(not compute.is_on_cpu(tensor) for tensor in _tensors(args, kwargs)[:1])


def _num_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of all tensors of the call; -1 where it has none."""
    tensors = _tensors(args, kwargs)
    return sum(int(tensor.nbytes) for tensor in tensors) if tensors else -1
