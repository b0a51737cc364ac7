"""A stored record to a training sample: decode, random resized crop, flip; one image at a time.

Of a JPEG only the crop is decoded (`ioprof.jpeg`), at half, a quarter or an eighth of its size
where that is still enough for the target. Pillow decodes what is unusual. The crop is resized by
torch's antialiased bilinear filter for bytes, as torchvision's v2 transforms do it on tensors:
within 2 of 255 of Pillow's. `ioprof._bilinear` gives the same bytes as torch, and writes them,
flipped or not, to their place in the batch.
"""

import io
import random
import warnings
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from ioprof import jpeg
from ioprof._bilinear import resize_planes
from ioprof.instrument.manual import current_batch, transforming
from ioprof.instrument.span import span
from ioprof.jpeg import CorruptJpegError, Decoder, UndecidedJpegError
from ioprof.loaders.base import ACCEPT, PILLOW, REGION, LoaderOptions, Record
from ioprof.loaders.crops import Box, crop_box

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Decoding:
    """How records are decoded. For the process that made it."""

    decoder: Decoder | None
    """None: Pillow decodes all."""
    regions: bool
    """Whether only the crop is decoded."""
    accepts_corrupt: bool
    """Whether JPEGs that libjpeg warns of are used, as Pillow decodes them."""

    @classmethod
    def of(cls, options: LoaderOptions) -> "Decoding":
        """As the options say; loads the library."""
        decoder = None if options.decode == PILLOW else jpeg.installed()
        regions = options.decode == REGION and decoder is not None and decoder.decodes_regions
        return cls(decoder, regions, options.on_corrupt == ACCEPT)


def load_sample(
    record: Record,
    choice: random.Random | None,
    crop: int,
    decoding: Decoding,
    to_end: bool = True,
    out: Pixels | None = None,
) -> Pixels:
    """The record as a randomly cropped and flipped image, uint8 (3, crop, crop) RGB; in `out`,
    which is contiguous, if it is given.

    Without `to_end` damage below the crop may go unseen. Without a choice: the centre of the image,
    as for an evaluation. Raises `CorruptJpegError`, and what Pillow raises; then `out` has no
    meaning.
    """
    if out is None:
        out = np.empty((3, crop, crop), np.uint8)
    if record.shape is not None:
        whole = np.frombuffer(record.data, np.uint8).reshape(record.shape)
        random_crop(whole, crop_box(whole.shape[1], whole.shape[0], choice), choice, out)
        return out
    part = None if decoding.decoder is None else _part(record, choice, crop, decoding, to_end)
    if part is None:
        image = _decoded(record)
        part = image, crop_box(image.width, image.height, choice)
    random_crop(*part, choice, out)
    return out


@transforming
def random_crop(
    image: "Image.Image | Pixels", box: Box, choice: random.Random | None, out: Pixels
) -> None:
    """The crop of an image, or of its pixels (height, width, 3), flipped with probability 1/2, to
    `out`, (3, crop, crop).
    """
    is_flipped, crop = choice is not None and choice.random() < 0.5, out.shape[1]
    if not isinstance(image, np.ndarray):
        image, box = np.asarray(image.crop(box)), (0, 0, box[2] - box[0], box[3] - box[1])
    resize_planes(image, (image.shape[1], image.shape[0]), box, out, (crop, crop), is_flipped)


def _part(
    record: Record, choice: random.Random | None, crop: int, decoding: Decoding, to_end: bool
) -> "tuple[Image.Image | Pixels, Box] | None":
    """Pixels of a JPEG and the crop within them; None, without a draw from `choice`, for what
    Pillow must decode.
    """
    data, decoder = record.data, decoding.decoder
    assert decoder is not None
    with span("decode", batch=current_batch()):
        size = decoder.size(data)
    if size is None:
        if not decoding.accepts_corrupt and bytes(data[: len(jpeg.START)]) == jpeg.START:
            with nullcontext() if decoder.is_observed else span("decode", batch=current_batch()):
                decoder.check(data)
        return None
    box = crop_box(*size, choice)
    try:
        with (
            nullcontext() if decoder.is_observed else span("decode", "JPEG", batch=current_batch())
        ):
            if not decoding.regions:
                return decoder.region(data, (0, 0, *size)), box
            pixels = decoder.region(data, box, jpeg.reduction(box, (crop, crop)), to_end)
    except (CorruptJpegError, UndecidedJpegError) as error:
        if isinstance(error, CorruptJpegError) and not decoding.accepts_corrupt:
            raise
        return _decoded(record), box  # the crop of this record is drawn only once
    return pixels, (0, 0, pixels.shape[1], pixels.shape[0])


def _decoded(record: Record) -> Image.Image:
    with warnings.catch_warnings():
        # ImageNet's EXIF blocks are full of nonsense that does not touch the pixels
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # the hooks see `load`, and not that `open` parses the header
        with span("decode", batch=current_batch()):
            image = Image.open(io.BytesIO(record.data))
        image.load()
        # which would copy what is RGB already
        return image if image.mode == "RGB" else image.convert("RGB")
