"""Models of the built-in job: one file each, and what is known of each without importing torch.

To add one: a file with a function of the module's name, and its line in `MODELS`. Then
tests/test_models.py compares the numbers here with the module itself.
"""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ioprof.errors import CommandError

if TYPE_CHECKING:
    from torch import nn

_BYTES_PER_PARAMETER: Final = 4


@dataclass(frozen=True)
class ModelFacts:
    """What the job, the loader and an emulated device need to know of a model."""

    name: str
    """Of its module here, and of the function in it."""
    parameters: int
    """With 1,000 classes."""
    forward_flops: int
    """Floating-point operations of the forward pass of one sample in training; a multiplication
    with an addition is two."""
    sample_shape: tuple[int, ...] = (3, 224, 224)
    """Of the bytes of one sample: (channels, height, width) of an image, or (2, length) of the
    tokens of a source and a target."""
    most_stages: int = 0
    """Layers with parameters, in one row: into so many stages it can be divided. 0: it is no row of
    layers."""

    @property
    def gradient_bytes(self) -> int:
        """What data-parallel ranks exchange in each step."""
        return self.parameters * _BYTES_PER_PARAMETER

    @property
    def sample_bytes(self) -> int:
        """What is copied to the device for one sample."""
        return math.prod(self.sample_shape)

    @property
    def takes_images(self) -> bool:
        """Whether its samples can come from a dataset; tokens are made by the null loader."""
        return len(self.sample_shape) == 3


MODELS: Final = {
    facts.name: facts
    for facts in (
        ModelFacts("alexnet", 61_100_840, 1_428_376_960, most_stages=8),
        ModelFacts("vgg16", 138_357_544, 30_940_528_640, most_stages=16),
        ModelFacts("resnet50", 25_557_032, 8_178_368_512, most_stages=19),
        ModelFacts("inception3", 27_161_264, 11_437_798_592, (3, 299, 299)),
        ModelFacts("mlp", 4_187_624, 8_364_032, (3, 32, 32), most_stages=10),
        ModelFacts("transformer", 44_271_616, 11_911_823_360, (2, 128)),
        ModelFacts("small_cnn", 90_504, 29_330_432, most_stages=4),
    )
}
"""By the name that `--model` takes."""
DEFAULT_MODELS: Final = {"cpu": "small_cnn", "cuda": "resnet50", "emulated": "resnet50"}
"""What each kind of device trains unless `--model` says otherwise."""


def default_model(device: str) -> str:
    """The model that `--device` trains unless another is named."""
    return DEFAULT_MODELS[device.partition(":")[0]]


def model_facts(name: str) -> ModelFacts:
    """The facts of a model; `CommandError` for a name that is not known."""
    if name not in MODELS:
        raise CommandError(f"--model {name}: unknown; choose one of {', '.join(MODELS)}")
    return MODELS[name]


def make_model(name: str, num_classes: int) -> "nn.Module":
    """That model with new weights; imports torch."""
    model: nn.Module = getattr(
        import_module(f"ioprof.train.models.{model_facts(name).name}"), name
    )(num_classes)
    return model
