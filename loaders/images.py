"""A stored record to a training sample: decode, random resized crop, flip. Pillow, one image at a time, each stage a span."""

import io
import math
import random
import warnings
from typing import Final

import numpy as np
from PIL import Image

from ioprof.loaders.base import Record
from ioprof.record.span import span

_AREA: Final = (0.08, 1.0)  # of the image, as in the Inception paper (arXiv 1409.4842) and all ImageNet recipes since
_LOG_RATIO: Final = (math.log(3 / 4), math.log(4 / 3))


def sample_random(seed: int, epoch: int, index: int) -> random.Random:
    """The source of randomness of one sample in one epoch: the same in every layout, rank and worker."""
    return random.Random((seed * 1_000_003 + epoch) << 40 | index)


def load_sample(record: Record, choice: random.Random, crop: int, batch: int) -> np.ndarray:
    """The record as a randomly cropped and flipped image, uint8 (crop, crop, 3) RGB; whatever Pillow raises on a bad image."""
    with span("decode", batch=batch):
        image = _decode(record)
    with span("transform", batch=batch):
        image = image.resize((crop, crop), Image.Resampling.BILINEAR, box=crop_box(image.width, image.height, choice))
        if choice.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


def crop_box(width: int, height: int, choice: random.Random) -> tuple[int, int, int, int]:
    """A random box of 8 to 100 % of the area and 3:4 to 4:3 shape, (left, top, right, bottom); the centre if ten tries fail."""
    for _ in range(10):
        area = width * height * choice.uniform(*_AREA)
        ratio = math.exp(choice.uniform(*_LOG_RATIO))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left, top = choice.randint(0, width - crop_width), choice.randint(0, height - crop_height)
            return left, top, left + crop_width, top + crop_height
    side_width = min(width, max(1, round(height * 4 / 3)))
    side_height = min(height, max(1, round(width * 4 / 3)))
    left, top = (width - side_width) // 2, (height - side_height) // 2
    return left, top, left + side_width, top + side_height


def _decode(record: Record) -> Image.Image:
    if record.shape is not None:
        height, width, _ = record.shape
        return Image.frombuffer("RGB", (width, height), record.data, "raw", "RGB", 0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ImageNet's EXIF blocks are full of nonsense that does not touch the pixels
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(record.data)).convert("RGB")
