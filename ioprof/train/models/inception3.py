"""Inception-v3 with its auxiliary head (Szegedy et al., arXiv 1512.00567), for images of 299 × 299
pixels.
"""

import torch
from torch import nn

from ioprof.train.models.small_cnn import Normalise

Size = int | tuple[int, int]
Layer = tuple[int, Size, Size, Size]
"""Width, kernel, stride and padding of a convolution."""


def _point(width: int) -> Layer:
    return width, 1, 1, 0


def _square(width: int, side: int) -> Layer:
    return width, side, 1, side // 2


def _row(width: int, length: int) -> Layer:
    return width, (1, length), 1, (0, length // 2)


def _column(width: int, length: int) -> Layer:
    return width, (length, 1), 1, (length // 2, 0)


def _half(width: int) -> Layer:
    return width, 3, 2, 0


def _branch(channels: int, *layers: Layer) -> nn.Sequential:
    """Convolutions, each with batch normalisation and ReLU."""
    made: list[nn.Module] = []
    for width, kernel, stride, padding in layers:
        made += [
            nn.Conv2d(channels, width, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(width, eps=0.001),
            nn.ReLU(inplace=True),
        ]
        channels = width
    return nn.Sequential(*made)


class Concatenation(nn.Module):
    """Branches side by side on the same features, and their results one after the other in the
    channels.
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(samples, channels, height, width) to the same with the channels of all branches."""
        return torch.cat([branch(features) for branch in self.branches], dim=1)


def _mean_pool(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.AvgPool2d(kernel_size=3, stride=1, padding=1), *_branch(channels, _point(width))
    )


def _five(channels: int, pooled: int) -> nn.Module:
    """A block at 35 × 35."""
    return Concatenation(
        _branch(channels, _point(64)),
        _branch(channels, _point(48), _square(64, 5)),
        _branch(channels, _point(64), _square(96, 3), _square(96, 3)),
        _mean_pool(channels, pooled),
    )


def _to_seventeen(channels: int) -> nn.Module:
    return Concatenation(
        _branch(channels, _half(384)),
        _branch(channels, _point(64), _square(96, 3), _half(96)),
        nn.MaxPool2d(kernel_size=3, stride=2),
    )


def _six(width: int) -> nn.Module:
    """A block at 17 × 17."""
    return Concatenation(
        _branch(768, _point(192)),
        _branch(768, _point(width), _row(width, 7), _column(192, 7)),
        _branch(
            768, _point(width), _column(width, 7), _row(width, 7), _column(width, 7), _row(192, 7)
        ),
        _mean_pool(768, 192),
    )


def _to_eight() -> nn.Module:
    return Concatenation(
        _branch(768, _point(192), _half(320)),
        _branch(768, _point(192), _row(192, 7), _column(192, 7), _half(192)),
        nn.MaxPool2d(kernel_size=3, stride=2),
    )


def _split() -> nn.Module:
    return Concatenation(_branch(384, _row(384, 3)), _branch(384, _column(384, 3)))


def _seven(channels: int) -> nn.Module:
    """A block at 8 × 8."""
    return Concatenation(
        _branch(channels, _point(320)),
        nn.Sequential(_branch(channels, _point(384)), _split()),
        nn.Sequential(_branch(channels, _point(448), _square(384, 3)), _split()),
        _mean_pool(channels, 192),
    )


class Inception3(nn.Module):
    """In training two results, of the network and of its auxiliary head; else the first alone."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Normalise(),
            _branch(3, _half(32), (32, 3, 1, 0), _square(64, 3)),
            nn.MaxPool2d(kernel_size=3, stride=2),
            _branch(64, _point(80), (192, 3, 1, 0)),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.middle = nn.Sequential(
            _five(192, 32),
            _five(256, 64),
            _five(288, 64),
            _to_seventeen(288),
            _six(128),
            _six(160),
            _six(160),
            _six(192),
        )
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(kernel_size=5, stride=3),
            _branch(768, _point(128), (768, 5, 1, 0)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(768, num_classes),
        )
        self.top = nn.Sequential(
            _to_eight(),
            _seven(1280),
            _seven(2048),
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(),
            nn.Flatten(),
            nn.Linear(2048, num_classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """uint8 (samples, 3, 299, 299) to (samples, num_classes), once or twice."""
        middle = self.middle(self.stem(images))
        found: torch.Tensor = self.top(middle)
        return (found, self.auxiliary(middle)) if self.training else found


def inception3(num_classes: int) -> nn.Module:
    """Takes uint8 (samples, 3, 299, 299); see `Inception3` for what it gives."""
    return Inception3(num_classes)
