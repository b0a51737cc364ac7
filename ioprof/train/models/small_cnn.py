"""A convolutional network small enough to train on a CPU while one watches."""

import torch
from torch import nn


def small_cnn(num_classes: int) -> nn.Module:
    """Three strided convolutions and a linear layer; takes uint8 (samples, 3, height, width), gives
    (samples, num_classes).
    """
    return nn.Sequential(
        Normalise(),
        nn.Conv2d(3, 16, kernel_size=7, stride=4, padding=3),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


class Normalise(nn.Module):
    """Bytes 0 to 255 to floats around 0."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(images / 127.5) - 1, in 32 bits."""
        return images.float().div_(127.5).sub_(1)
