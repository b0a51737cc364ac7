"""A multilayer perceptron of ten layers with 512 hidden units, which studies of model parallelism
split by layers.
"""

from typing import Final

from torch import nn

from ioprof.train.models.small_cnn import Normalise

_SIDE: Final = 32
_HIDDEN: Final = 512
_LAYERS: Final = 10


def mlp(num_classes: int) -> nn.Module:
    """Takes uint8 (samples, 3, 32, 32), gives (samples, num_classes)."""
    widths = [3 * _SIDE * _SIDE, *[_HIDDEN] * (_LAYERS - 1)]
    layers: list[nn.Module] = []
    for inputs in widths[:-1]:
        layers += [nn.Linear(inputs, _HIDDEN), nn.ReLU(inplace=True)]
    return nn.Sequential(Normalise(), nn.Flatten(), *layers, nn.Linear(_HIDDEN, num_classes))
