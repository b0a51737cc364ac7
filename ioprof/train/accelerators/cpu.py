"""The real model on the CPU: nothing is copied to a device, and the gradients are exchanged over
Gloo.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ioprof.instrument import manual
from ioprof.loaders.base import Batch
from ioprof.train.accelerators.interface import Score
from ioprof.train.config import JobConfig
from ioprof.train.learner import Learner


class CpuAccelerator:
    """Trains where it is launched: `launch` returns when the step is done. The hooks record what it
    computes and exchanges.
    """

    def __init__(self, config: JobConfig, num_classes: int, rank: int) -> None:
        parallel: Callable[[nn.Module], nn.Module] = DistributedDataParallel
        if config.is_sharded:
            # jobs with sharded parameters load it
            from ioprof.train.accelerators.sharded import (
                sharded,
            )

            parallel = sharded
        self._learner = Learner(config, num_classes, torch.device("cpu"), parallel, rank)
        self._rank = rank
        self._losses: dict[int, torch.Tensor] = {}

    def launch(self, batch: Batch, step: int) -> None:
        """Do the whole training step: forward, backward with the exchange under it, optimizer."""
        self._losses[step] = self._learner.train_step(batch.images, batch.labels)

    def synchronize(self, step: int) -> float | None:
        """Nothing to wait for: the step was done when `launch` returned."""
        return float(self._losses.pop(step))

    def evaluate(self, batch: Batch, step: int) -> Score:
        """What the model makes of `batch`."""
        return self._learner.evaluate(batch.images, batch.labels)

    def state(self) -> dict[str, Any]:
        """The model's, the optimizer's, and that of the random numbers."""
        return self._learner.state(self._rank)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._learner.restore(state, self._rank)

    def close(self) -> None:
        """Nothing to stop; but the hooks need the model to know when the last gradients were
        exchanged.
        """
        manual.flush()
