"""Models of the built-in job."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import nn

MODELS: Final = {"cpu": "small_cnn", "cuda": "resnet50", "emulated": "resnet50"}
"""What each kind of device trains, by the name of its module and function here; an emulated one takes that model's known times."""


def model_name(device: str) -> str:
    """The model that `--device` means."""
    return MODELS[device.partition(":")[0]]


def make_model(device: str, num_classes: int) -> "nn.Module":
    """That model with new weights; imports torch."""
    name = model_name(device)
    model: nn.Module = getattr(import_module(f"ioprof.train.models.{name}"), name)(num_classes)
    return model
