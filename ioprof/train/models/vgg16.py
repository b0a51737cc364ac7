"""VGG16 (configuration D of Simonyan and Zisserman, arXiv 1409.1556), without batch
normalisation.
"""

from typing import Final

from torch import nn

from ioprof.train.models.small_cnn import Normalise

_BLOCKS: Final = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Width and number of convolutions before each pooling."""


def vgg16(num_classes: int) -> nn.Module:
    """Takes uint8 (samples, 3, 224, 224), gives (samples, num_classes)."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in _BLOCKS:
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
    return nn.Sequential(
        Normalise(),
        *layers,
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, num_classes),
    )
