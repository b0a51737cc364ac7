"""Observes `torch.distributed.fsdp.fully_shard`: that the parameters are divided among the ranks.

Its collectives are those of `collectives`: they are called from Python, within forward and backward
passes.
"""

from types import ModuleType
from typing import Any

from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.distributed.fsdp._fully_shard._fsdp_state`."""
    require(module, "FSDPState")
    state.wrap(module.FSDPState, "__init__", _observe_init)


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if state.is_on:
            state.record_fact(parallel="fsdp")

    return init
