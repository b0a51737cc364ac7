"""One image at a time: is it whole, and what becomes of it."""

import io
import warnings
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from ioprof.dataset import ImageFormat

SIDE: Final = 256
"""Of an `rgb256` image, in pixels."""

FILTER: Final = Image.Resampling.BICUBIC
"""Antialiased: Pillow widens the kernel when it shrinks. Of 100 images of ImageNet, resized on one core: bilinear 0.82 ms, bicubic
1.36 ms, Lanczos, which ImageMagick uses, 1.89 ms. Bicubic differs from Lanczos by 44.7 dB, far less than what JPEG at quality 90
adds (36.4 dB); bilinear by 37.3 dB, which is as much."""

_READ_FORMATS: Final = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")  # and nothing that starts another program, as EPS does
_ENDS: Final = {b"\xff\xd8\xff": b"\xff\xd9", b"\x89PNG\r\n\x1a\n": b"IEND\xae\x42\x60\x82"}
_TAIL_BYTES: Final = 64
_ORIENTATION_TAG: Final = 0x0112
_ORIENTATIONS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


Result = TypeVar("Result")


class BadImageError(Exception):
    """An image cannot be used; the message says why, in a few words."""


def transform_for(image: ImageFormat) -> Callable[[bytes], bytes]:
    """What turns an image file into the bytes of its record, or raises `BadImageError`."""
    if image.transform == "original":
        return checked_original
    encode = _encode_raw if image.quality is None else _jpeg_encoder(image.quality)
    return lambda data: encode(rgb256(data))


def checked_original(data: bytes) -> bytes:
    """`data` itself, if it is a whole JPEG or PNG: known first bytes, a header that decodes, and its end mark.

    Without the mark at the end (some cameras write more behind it) decoding the image decides.
    """
    end = next((end for start, end in _ENDS.items() if data.startswith(start)), None)
    if end is None:
        raise BadImageError(_what_instead(data))
    _guarded(data, lambda image: None if end in data[-_TAIL_BYTES:] else image.load())
    return data


def rgb256(data: bytes) -> Image.Image:
    """Upright by its EXIF orientation, RGB, cut to the centred square, 256 × 256. Alpha is dropped, as training pipelines do."""
    return _guarded(data, _square)


def _guarded(data: bytes, use: Callable[[Image.Image], Result]) -> Result:
    if not data:
        raise BadImageError("empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # broken EXIF, odd TIFF tags: no reason to leave an image out
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_READ_FORMATS) as image:
                return use(image)
    except MemoryError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise BadImageError(f"decompression bomb ({error})") from None
    except UnidentifiedImageError:
        raise BadImageError(_what_instead(data)) from None
    except Exception as error:  # a decoder that meets hostile bytes can raise nearly anything
        raise BadImageError(f"cannot be decoded ({error or type(error).__name__})") from None


def _what_instead(data: bytes) -> str:
    start = data[:512].lstrip().lower()
    if not data.strip(b"\0"):
        return "empty file" if not data else "nothing but zero bytes"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, not an image"
    return "not a known image format"


# ------------------------------------------------------------------------------------------------ rgb256


def _square(image: Image.Image) -> Image.Image:
    image.draft(None, (2 * SIDE, 2 * SIDE))  # a JPEG of many megapixels is decoded at a fraction, never below twice the target
    upright = _upright(image)
    width, height = upright.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return _rgb(upright).resize((SIDE, SIDE), FILTER, box=(left, top, left + side, top + side))


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # broken EXIF says nothing
        return image
    return image.transpose(_ORIENTATIONS[orientation]) if orientation in _ORIENTATIONS else image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits per pixel: Pillow would cut off what is above 255 instead of scaling
        deep = np.clip(np.asarray(image.convert("I")), 0, 0xFFFF)
        return Image.fromarray((deep >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P":
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def _encode_raw(image: Image.Image) -> bytes:
    return image.tobytes()


def _jpeg_encoder(quality: int) -> Callable[[Image.Image], bytes]:
    def encode(image: Image.Image) -> bytes:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=quality)
        return stream.getvalue()

    return encode
