"""The real model on the CPU as a pipeline of stages, one per rank, over Gloo
(`torch.distributed.pipelining`, schedule 1F1B).

A batch is divided into microbatches that go through the stages one after the other: each stage does
the forward pass of one microbatch and the backward pass of another in turn. The first stage alone
has batches; it sends the labels to the last one, which computes the loss. The loss, and the
gradients, are the means of those of the microbatches, and so the same as without a pipeline. Layers
with batch normalisation normalise each microbatch by itself, as in GPipe (Huang et al., arXiv
1811.06965).
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from ioprof.errors import CommandError
from ioprof.instrument import manual
from ioprof.loaders.base import Batch, LoadingFacts
from ioprof.train.accelerators.interface import Score
from ioprof.train.config import JobConfig
from ioprof.train.models import make_model
from ioprof.train.recipe import make_optimizer, make_schedule
from ioprof.train.stages import stage_of


class PipelineAccelerator:
    """One stage. `launch` returns when the step is done; `synchronize` knows the loss on the last
    rank alone.
    """

    def __init__(self, config: JobConfig, num_classes: int, rank: int) -> None:
        torch.manual_seed(config.seed)
        # the weights of a stage are those of the whole model
        whole = make_model(config.model_facts.name, num_classes)
        assert isinstance(whole, nn.Sequential)
        self._rank, self._last, self._batch_size = rank, config.ranks - 1, config.batch_size
        layers = stage_of(whole, config.model_facts, config.ranks, rank)
        stage = PipelineStage(layers, rank, config.ranks, torch.device("cpu"))
        loss = nn.CrossEntropyLoss(label_smoothing=config.recipe.label_smoothing)
        self._schedule = Schedule1F1B(stage, config.microbatches, loss_fn=loss)
        self._optimizer = make_optimizer(config.recipe, layers, "cpu")
        self._rates = make_schedule(
            config.recipe, self._optimizer, config.steps_per_epoch, config.steps
        )
        self._losses: dict[int, float] = {}

    def launch(self, batch: Batch, step: int) -> None:
        """Do the whole training step of this stage: all microbatches forward and backward,
        optimizer.
        """
        losses: list[torch.Tensor] = []
        if self._rank == 0:
            sent = dist.isend(batch.labels, self._last)
            self._schedule.step(batch.images)
            assert sent is not None
            sent.wait()
        elif self._rank == self._last:
            labels = torch.empty(self._batch_size, dtype=torch.int64)
            dist.recv(labels, 0)
            self._schedule.step(target=labels, losses=losses, return_outputs=False)
        else:
            self._schedule.step()
        self._optimizer.step()
        if self._rates is not None:
            self._rates.step()
        self._optimizer.zero_grad()
        if losses:
            self._losses[step] = float(torch.stack(losses).detach().mean())

    def synchronize(self, step: int) -> float | None:
        """Nothing to wait for; the loss, on the last rank."""
        return self._losses.pop(step, None)

    def evaluate(self, batch: Batch, step: int) -> Score:
        """A job with stages makes no evaluations."""
        self._refuse()

    def state(self) -> dict[str, Any]:
        """A job with stages writes no checkpoints."""
        self._refuse()

    def restore(self, state: dict[str, Any]) -> None:
        """A job with stages goes on from no checkpoint."""
        self._refuse()

    def close(self) -> None:
        """Nothing to stop."""
        manual.flush()

    def _refuse(self) -> NoReturn:
        raise CommandError("a pipeline makes no evaluations and no checkpoints")


class NoBatches:
    """What the stages after the first have instead of a loader: a batch without samples for each
    step.
    """

    def __init__(self, first_batch: int, num_batches: int) -> None:
        self._numbers = range(first_batch, num_batches)

    def facts(self) -> LoadingFacts:
        """Nothing is read."""
        return LoadingFacts()

    def lost_worker(self) -> str | None:
        """None: there are no workers."""
        return None

    def __iter__(self) -> Iterator[Batch]:
        for number in self._numbers:
            yield Batch(
                number, torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
            )
