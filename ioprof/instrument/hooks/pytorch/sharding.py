"""Observes `torch.distributed.fsdp.fully_shard`: that the parameters are divided among the ranks.

Its collectives are those of `collectives`: they are called from Python, within forward and backward
passes.
"""

from types import ModuleType

from ioprof.instrument.hooks.state import HookState


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.distributed.fsdp._fully_shard._fsdp_state`."""
    state.call_after(module, "FSDPState.__init__", lambda _: state.record_fact(parallel="fsdp"))
