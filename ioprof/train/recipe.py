"""How the weights change: optimizer, learning rate over time, label smoothing.

Everything is torch's own except LARS, which is that of pytorch-optimizer: You et al. (arXiv
1708.03888), on weights alone; biases and the parameters of normalisation have plain momentum
without decay, as in MLPerf's submissions.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ioprof.errors import CommandError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

OPTIMIZERS: Final = ("sgd", "lars")
SCHEDULES: Final = ("constant", "step", "polynomial")
_FIRST_WARMUP_SHARE: Final = 1e-3
"""Of the learning rate, in the first step of a warm-up: torch's LinearLR does not begin at 0."""


@dataclass(frozen=True)
class Recipe:
    """The settings of the training itself."""

    optimizer: str = "sgd"
    """One of `OPTIMIZERS`."""
    lr: float | None = None
    """Learning rate after the warm-up. None: 0.01 on a CPU, else 0.1."""
    momentum: float = 0.9
    weight_decay: float = 0.0
    lars_eta: float = 1e-3
    """Trust coefficient of LARS."""
    schedule: str = "constant"
    """One of `SCHEDULES`: over `epochs` it stays, falls by `decay` every `decay_epochs`, or is lr ×
    (1 - t/T)^`power`."""
    epochs: int | None = None
    """For which the schedule is made, whatever part of it is run. None: the steps of the job."""
    decay: float = 0.1
    decay_epochs: int = 30
    power: float = 2.0
    warmup_epochs: float = 0.0
    """In which the rate grows linearly; the schedule begins after them."""
    label_smoothing: float = 0.0

    def check(self) -> None:
        """CommandError for names that are not known, or a package that is missing."""
        for option, value, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
        ):
            if value not in known:
                raise CommandError(
                    f"{option} = {value!r} in the preset: unknown; choose one of {', '.join(known)}"
                )

    @property
    def depends_on_epochs(self) -> bool:
        """Whether the learning rate depends on how many steps an epoch has."""
        return self.schedule != "constant" or self.warmup_epochs > 0


def make_optimizer(recipe: Recipe, model: "nn.Module", device: str) -> "Optimizer":
    """The optimizer of a model's parameters; CommandError if its package is not installed."""
    import torch

    rate = recipe.lr if recipe.lr is not None else 0.01 if device == "cpu" else 0.1
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
    try:
        from pytorch_optimizer import LARS
    except ImportError as error:
        raise CommandError(
            f"the preset needs LARS, which is not installed ({error}); type: pip install"
            " 'ioprof[lars]'"
        ) from None
    return LARS(
        model.parameters(),
        lr=rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        trust_coefficient=recipe.lars_eta,
    )


def make_schedule(
    recipe: Recipe, optimizer: "Optimizer", steps_per_epoch: int, total_steps: int
) -> "LRScheduler | None":
    """What changes the learning rate after each step; None where it stays."""
    from torch.optim.lr_scheduler import LinearLR, MultiStepLR, PolynomialLR, SequentialLR

    if not recipe.depends_on_epochs:
        return None
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    steps = max(1, (recipe.epochs * steps_per_epoch if recipe.epochs else total_steps) - warmup)
    schedule: LRScheduler
    if recipe.schedule == "polynomial":
        schedule = PolynomialLR(optimizer, total_iters=steps, power=recipe.power)
    else:
        every = recipe.decay_epochs * steps_per_epoch
        falls = range(every - warmup, steps, every) if recipe.schedule == "step" else []
        schedule = MultiStepLR(optimizer, [step for step in falls if step > 0], gamma=recipe.decay)
    if not warmup:
        return schedule
    return SequentialLR(
        optimizer,
        [LinearLR(optimizer, _FIRST_WARMUP_SHARE, total_iters=warmup), schedule],
        milestones=[warmup],
    )
