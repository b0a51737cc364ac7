"""Random crops as in all ImageNet recipes since Inception (arXiv 1409.4842): which part of an
image, with what probability.
"""

import math
import random
from typing import Final

AREA: Final = (0.08, 1.0)
"""Of a crop, as a share of the image's."""
ASPECT: Final = (3 / 4, 4 / 3)
"""Width of a crop, in heights; its logarithm is uniform."""
CROP_TRIES: Final = 10
CENTRE: Final = 7 / 8
"""Side of the crop for an evaluation, as a share of the shorter side of the image."""
_LOG_ASPECT: Final = (math.log(ASPECT[0]), math.log(ASPECT[1]))

Box = tuple[int, int, int, int]
"""left, top, right, bottom."""


def sample_random(seed: int, epoch: int, index: int) -> random.Random:
    """The source of randomness of one sample in one epoch: the same in every layout, rank and
    worker.
    """
    return random.Random((seed * 1_000_003 + epoch) << 40 | index)


def centre_box(width: int, height: int) -> Box:
    """The square in the middle with 7/8 of the shorter side: what is left of an image of 256 pixels
    cut to 224.
    """
    side = max(1, round(min(width, height) * CENTRE))
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def crop_box(width: int, height: int, choice: random.Random | None) -> Box:
    """A random box of 8 to 100 % of the area and 3:4 to 4:3 shape; the centre if ten tries fail, or
    without a choice.
    """
    if choice is None:
        return centre_box(width, height)
    for _ in range(CROP_TRIES):
        area = width * height * choice.uniform(*AREA)
        ratio = math.exp(choice.uniform(*_LOG_ASPECT))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left, top = (
                choice.randint(0, width - crop_width),
                choice.randint(0, height - crop_height),
            )
            return left, top, left + crop_width, top + crop_height
    side_width = min(width, max(1, round(height * 4 / 3)))
    side_height = min(height, max(1, round(width * 4 / 3)))
    left, top = (width - side_width) // 2, (height - side_height) // 2
    return left, top, left + side_width, top + side_height
