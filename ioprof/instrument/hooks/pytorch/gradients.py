"""Observes DistributedDataParallel on the CPU: `comm` spans named "gradients", see
`gradient_exchange`.

On a GPU the exchange is seen by the spans of its kernels.
"""

import sys
from types import ModuleType
from typing import Any

from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.nn.parallel.distributed`."""
    state.wrap(module, "DistributedDataParallel.__init__", _observe_init)


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            if state.is_on:
                state.record_fact(
                    gradient_bytes=sum(
                        each.nbytes for each in self.parameters() if each.requires_grad
                    )
                )
            if state.is_on and _logs_silently(self):
                self._set_ddp_runtime_logging_sample_rate(1)
                state.gradients.add(self)
        except (AttributeError, RuntimeError) as error:  # a torch whose DDP keeps its log otherwise
            state.record_fact(
                unobserved="DistributedDataParallel's exchange of gradients",
                why=f"{type(error).__name__}: {error}",
            )

    return init


def _logs_silently(model: Any) -> bool:
    """Whether this model is on the CPU, and its log is not printed: torch prints it where
    TORCH_DISTRIBUTED_DEBUG is set.
    """
    distributed: Any = sys.modules["torch.distributed"]
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return on_cpu and distributed.get_debug_level() == distributed.DebugLevel.OFF
