"""Observes schedules of torch's pipelines: that the ranks are stages of one, and into how many
microbatches a batch is divided.

What the stages compute and wait for has the spans of modules, backward passes and messages.
"""

from types import ModuleType
from typing import Any

from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require, require_names


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.distributed.pipelining.schedules`."""
    require(module, "PipelineScheduleSingle", "PipelineScheduleMulti", "_PipelineSchedule")
    require_names(module._PipelineSchedule.__init__, "_n_microbatches")  # noqa: SLF001
    for schedule in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        require_names(schedule.__init__, "_num_stages")
        state.wrap(schedule, "__init__", _observe_init)


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if state.is_on:
            state.record_fact(
                parallel="pipeline", microbatches=self._n_microbatches, stages=self._num_stages
            )

    return init
