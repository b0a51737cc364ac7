"""A stored record to a training sample: decode with Pillow, random resized crop, flip; one image at a time, each stage a span.

The crop is resized by torch's antialiased bilinear filter for bytes, as torchvision's v2 transforms do it on tensors: within 2 of
255 of Pillow's, in 0.18 ms where Pillow takes 0.60 (0.15 and 0.37 from 256 pixels; 128 photographs, one core), with the channels
apart, as a batch has them. Without AVX2 torch takes its slow way; there Pillow does it.
"""

import io
import random
import warnings
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn.functional import interpolate

from ioprof.loaders.base import Record
from ioprof.loaders.crops import crop_box
from ioprof.record.span import span

TORCH_IS_FAST: Final = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")

Pixels = npt.NDArray[np.uint8]


def load_sample(record: Record, choice: random.Random, crop: int, batch: int) -> Pixels:
    """The record as a randomly cropped and flipped image, uint8 (3, crop, crop) RGB; whatever Pillow raises on a bad image."""
    with span("decode", batch=batch):
        image = _decoded(record)
    with span("transform", batch=batch):
        pixels = resized_by_torch(image, crop, choice) if TORCH_IS_FAST else resized_by_pillow(image, crop, choice)
        return pixels[:, :, ::-1] if choice.random() < 0.5 else pixels


def resized_by_torch(image: "Image.Image | Pixels", crop: int, choice: random.Random) -> Pixels:
    """A random crop of an image, or of its pixels (height, width, 3), as (3, crop, crop)."""
    if isinstance(image, np.ndarray):
        left, top, right, bottom = crop_box(image.shape[1], image.shape[0], choice)
        part = np.array(image[top:bottom, left:right])  # a copy: torch warns of memory that cannot be written
    else:
        part = np.array(image.crop(crop_box(image.width, image.height, choice)))
    planes = torch.from_numpy(part).permute(2, 0, 1)[None]
    return interpolate(planes, (crop, crop), mode="bilinear", antialias=True, align_corners=False)[0].numpy()


def resized_by_pillow(image: "Image.Image | Pixels", crop: int, choice: random.Random) -> Pixels:
    """The same by Pillow."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    part = image.crop(crop_box(image.width, image.height, choice)).resize((crop, crop), Image.Resampling.BILINEAR)
    return np.asarray(part).transpose(2, 0, 1)


def _decoded(record: Record) -> "Image.Image | Pixels":
    if record.shape is not None:
        return np.frombuffer(record.data, np.uint8).reshape(record.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ImageNet's EXIF blocks are full of nonsense that does not touch the pixels
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(record.data))
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")  # which would copy what is RGB already
