"""Observes schedules of torch's pipelines: that the ranks are stages of one, and into how many
microbatches a batch is divided.

What the stages compute and wait for has the spans of modules, backward passes and messages.
"""

from types import ModuleType

from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require, require_names


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.distributed.pipelining.schedules`."""
    require(module, "PipelineScheduleSingle", "PipelineScheduleMulti", "_PipelineSchedule")
    require_names(module._PipelineSchedule.__init__, "_n_microbatches")  # noqa: SLF001
    for schedule in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        require_names(schedule.__init__, "_num_stages")
        state.call_after(
            schedule,
            "__init__",
            lambda made: state.record_fact(
                parallel="pipeline",
                microbatches=made._n_microbatches,  # noqa: SLF001
                stages=made._num_stages,  # noqa: SLF001
            ),
        )
