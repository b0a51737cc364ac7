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
from ioprof.instrument.hooks import observers
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch import compiler
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
    state.patches.wrap(module.Work, "wait", observers.awaiting)


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


def _observe_operation(name: str, original: Function, _state: HookState) -> Function:
    observed = observers.exchanging(original, name.strip("_"))

    # torch's compiler reads this, and knows a collective by the original
    def collective(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if compiler.is_traced() else observed(*args, **kwargs)

    return collective
