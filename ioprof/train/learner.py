"""A real model on a real device: its training step, its evaluation, and all of its state that a
checkpoint must have.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from ioprof.train.accelerators.interface import Score
from ioprof.train.config import JobConfig
from ioprof.train.models import make_model
from ioprof.train.recipe import make_optimizer, make_schedule

_AUXILIARY_WEIGHT: Final = 0.4
"""Of the loss of an auxiliary head, as in TensorFlow's and torchvision's training of
Inception-v3."""


class Learner:
    """One rank's model, optimizer and learning rate."""

    def __init__(
        self,
        config: JobConfig,
        num_classes: int,
        device: torch.device,
        parallel: Callable[[nn.Module], nn.Module],
        rank: int,
    ) -> None:
        """`parallel` makes the model that exchanges its gradients with other ranks; it is used
        where there are any.
        """
        torch.manual_seed(config.seed)
        self._device, self._config = device, config
        self._format = torch.channels_last if config.channels_last else torch.contiguous_format
        model = make_model(config.model_facts.name, num_classes)
        self._own = model.to(device).to(memory_format=self._format)  # type: ignore[call-overload]
        self.model = parallel(self._own) if config.ranks > 1 else self._own
        self.optimizer = make_optimizer(config.recipe, self.model, device.type)
        self._schedule = make_schedule(
            config.recipe, self.optimizer, config.steps_per_epoch, config.steps
        )
        self._loss = nn.CrossEntropyLoss(label_smoothing=config.recipe.label_smoothing)
        torch.manual_seed(config.seed * 1_000_003 + 1 + rank)  # ranks drop different units
        if config.checkpoints is not None and config.ranks > 2 and not config.is_sharded:
            self._settle_buckets()

    def train_step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Forward, backward with the exchange under it, optimizer. The loss, on the device."""
        with self._autocast():
            loss = self._objective(
                self.model(self._in_format(images)), self._targets(images, labels)
            )
        loss.backward()
        self.optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def evaluate(self, images: torch.Tensor, labels: torch.Tensor) -> Score:
        """What the model makes of the samples, with no change to it."""
        self._own.eval()
        try:
            with torch.inference_mode(), self._autocast():
                outputs, targets = self._own(self._in_format(images)), self._targets(images, labels)
                loss = nn.functional.cross_entropy(outputs, targets, reduction="sum")
        finally:
            self._own.train()
        correct = (outputs.argmax(1) == targets).sum()
        return Score(len(images), targets.numel(), float(loss), int(correct))

    def state(self, rank: int) -> dict[str, Any]:
        """What a checkpoint has of this rank. Buffers are those of rank 0, which the next forward
        pass would send in any case.
        """
        # jobs with checkpoints load it
        from torch.distributed.checkpoint.state_dict import (
            get_state_dict,
        )

        if self._config.ranks > 1:
            for buffer in self._own.buffers():
                dist.broadcast(buffer, 0)
        model, optimizer = get_state_dict(self.model, self.optimizer)
        random: dict[str, Any] = {f"cpu of rank {rank}": torch.get_rng_state()}
        if self._device.type == "cuda":
            random[f"cuda of rank {rank}"] = torch.cuda.get_rng_state()
        schedule = {} if self._schedule is None else {"schedule": self._schedule.state_dict()}
        return {"model": model, "optimizer": optimizer, "random": random, **schedule}

    def restore(self, state: dict[str, Any], rank: int) -> None:
        """Set all that `state` returned."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"][f"cpu of rank {rank}"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state["random"][f"cuda of rank {rank}"])

    def _autocast(self) -> Any:
        return (
            torch.autocast(self._device.type, dtype=torch.bfloat16)
            if self._config.bf16
            else nullcontext()
        )

    def _in_format(self, images: torch.Tensor) -> torch.Tensor:
        return images.contiguous(memory_format=self._format) if images.ndim == 4 else images

    def _targets(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        targets = getattr(self._own, "targets", None)
        return labels if targets is None else targets(images)

    def _objective(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        if isinstance(outputs, tuple):
            main, auxiliary = (self._loss(each, targets) for each in outputs)
            outputs_loss: torch.Tensor = main + _AUXILIARY_WEIGHT * auxiliary
            return outputs_loss
        loss: torch.Tensor = self._loss(outputs, targets)
        return loss

    def _settle_buckets(self) -> None:
        """Have DistributedDataParallel order its buckets as the backward pass fills them, which it
        does after the first step.

        In which order three or more ranks add depends on the place in a bucket. A job that goes on
        from a checkpoint has a first step of its own, and would add in another order than the job
        that was not interrupted. Nothing of the model is changed.
        """
        before = {name: value.clone() for name, value in self._own.state_dict().items()}
        samples = torch.zeros(
            (2, *self._config.model_facts.sample_shape), dtype=torch.uint8, device=self._device
        )
        labels = torch.zeros(2, dtype=torch.int64, device=self._device)
        for _ in range(2):  # the buckets are made anew when the second forward pass begins
            loss = self._objective(
                self.model(self._in_format(samples)), self._targets(samples, labels)
            )
            loss.backward()
            self.optimizer.zero_grad()
        self._own.load_state_dict(before)
