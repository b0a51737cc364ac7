"""The steps of one rank, with evaluations and checkpoints between them.

The loop is the usual one with copies ahead: wait for batch i, start its copy and its step, then
wait for the device to finish step i - 1. So the device always has the next step queued, and the
loader's wait runs under the step before. Before an evaluation and a checkpoint it waits for the
step itself.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

import torch
import torch.distributed as dist

from ioprof.clock import monotonic_ns
from ioprof.format.dataset import Dataset
from ioprof.instrument import manual
from ioprof.loaders import make_loader
from ioprof.loaders.base import Batch
from ioprof.loaders.order import batches_per_epoch
from ioprof.train import checkpoints
from ioprof.train.accelerators.interface import Accelerator
from ioprof.train.config import JobConfig
from ioprof.train.curve import Curve, Evaluation, curve_path

_BUSY_NS: Final = 100_000
"""A device that takes longer to end the step before had not yet done so."""


@dataclass
class Loop:
    """One rank's training."""

    config: JobConfig
    rank: int
    accelerator: Accelerator
    progress: IO[bytes] | None
    """A file that gets one byte per step: the share of the step in which the rank waited for its
    batch, from 0 to 255; 0 where the device was still busy when the batch came. Of the first rank
    of an ioprof alone."""
    left_out: dict[str, None] = field(default_factory=dict)
    """Images that the loaders left out as corrupt, each once, in order."""

    def restore(self) -> None:
        """Go on from the checkpoint of the first step, if that is not the job's beginning."""
        config = self.config
        if config.first_step and config.checkpoints is not None:
            state = checkpoints.load(
                config.checkpoints, config.first_step, self.accelerator.state(), config.ranks
            )
            self.accelerator.restore(state)

    def train(self, batches: Iterator[Batch]) -> None:
        """All steps."""
        config, accelerator = self.config, self.accelerator
        curve = Curve(curve_path(config.spool), config.first_step)
        manual.begin_steps(config.first_step)
        finished = config.first_step
        for step in range(config.first_step, config.steps):
            asked_ns = monotonic_ns()
            batch = next(batches)
            waited_ns = monotonic_ns() - asked_ns
            self.left_out |= dict.fromkeys(batch.left_out)
            accelerator.launch(batch._replace(number=manual.consumed_batch(batch.number)), step)
            evaluates, saves = (
                self._is_due(step, config.evaluate_every),
                self._is_due(step, config.checkpoint_every),
            )
            until = step + 1 if evaluates or saves or step == config.steps - 1 else step
            launched_ns = monotonic_ns()
            for each in range(finished, until):
                loss = accelerator.synchronize(each)
                if loss is not None:
                    curve.losses.append(loss)
            if monotonic_ns() - launched_ns > _BUSY_NS:
                waited_ns = 0  # the device had work all the time
            finished = max(finished, until)
            if evaluates:
                curve.evaluations.append(self._evaluate(step, curve))
            if saves and config.checkpoints is not None:
                checkpoints.save(
                    config.checkpoints, step + 1, accelerator.state(), self.rank, config.ranks
                )
                curve.checkpoints.append(step + 1)
            if self.rank == config.learning_rank and (
                evaluates or saves or step == config.steps - 1
            ):
                with suppress(OSError):  # a full disk loses the curve, not the job
                    curve.save()
            manual.end_step()
            if self.progress:
                with suppress(OSError):  # the same
                    share = waited_ns / max(monotonic_ns() - asked_ns, 1)
                    os.write(self.progress.fileno(), bytes([int(255 * min(share, 1.0))]))

    def _is_due(self, step: int, every: int) -> bool:
        """Whether something that happens every so many steps, and at the end, happens after this
        step.
        """
        return every > 0 and ((step + 1) % every == 0 or step == self.config.steps - 1)

    def _evaluate(self, step: int, curve: Curve) -> Evaluation:
        """What the model makes of all samples of the dataset for evaluations, each taken by one
        rank.
        """
        config = self.config
        assert config.evaluation_dataset is not None
        dataset = Dataset.load(config.evaluation_dataset)
        num_batches = batches_per_epoch(dataset.records, config.evaluation_options(self.rank, 0))
        totals = torch.zeros(4, dtype=torch.float64)
        with manual.validating():
            learns = True
            # Processes must not be forked while threads of a loader run.
            loader = config.loader if config.loader == "threads" else dataset.layout
            for batch in make_loader(
                loader, dataset, config.evaluation_options(self.rank, num_batches)
            ):
                self.left_out |= dict.fromkeys(batch.left_out)
                numbered = batch._replace(number=manual.consumed_batch(batch.number))
                samples, predictions, loss, correct = self.accelerator.evaluate(numbered, step)
                learns = loss is not None
                totals += torch.tensor(
                    [samples, predictions, loss or 0.0, correct or 0], dtype=torch.float64
                )
            if config.ranks > 1:
                shared = totals.cuda() if config.device == "cuda" else totals
                with manual.unrecorded_collectives():
                    dist.all_reduce(shared)
                totals = shared.cpu()
        samples, predictions, loss_sum, correct = totals.tolist()
        return Evaluation(
            step=step + 1,
            epoch=(step + 1) / config.steps_per_epoch if config.steps_per_epoch else None,
            seconds=curve.seconds,
            samples=int(samples),
            loss=loss_sum / predictions if learns and predictions else None,
            accuracy=correct / predictions if learns and predictions else None,
        )
