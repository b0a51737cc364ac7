"""ResNet-50 (He et al., arXiv 1512.03385), with the stride in the 3 × 3 convolution as all
published rates have it (v1.5).
"""

from typing import Final

import torch
from torch import nn

from ioprof.train.models.small_cnn import Normalise

_STAGES: Final = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, number of blocks and stride of each stage."""
_EXPANSION: Final = 4


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3, 1 × 1 with batch normalisation, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.residual = nn.Sequential(
            *_convolution(inputs, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(samples, inputs, height, width) to (samples, width * 4, height / stride, width /
        stride).
        """
        return torch.relu(self.residual(features) + self.shortcut(features))


def resnet50(num_classes: int) -> nn.Module:
    """Takes uint8 (samples, 3, 224, 224), gives (samples, num_classes)."""
    blocks: list[nn.Module] = []
    channels = 64
    for width, count, stride in _STAGES:
        for place in range(count):
            blocks.append(Bottleneck(channels, width, stride if place == 0 else 1))
            channels = width * _EXPANSION
    return nn.Sequential(
        Normalise(),
        *_convolution(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, num_classes),
    )


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)
