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
_HOLE: Final = bytes(4096)  # a page of a file whose bytes never came
_DEEP_FORMATS: Final = ("PNG", "PPM")  # whose mode I is 16 bits
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

OTHER_FORM: Final = "original keeps only JPEG and PNG: use --image rgb256"
"""How the message of an image ends that is good, but not for this."""

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
    """`data` itself, if it is a whole JPEG or PNG: known first bytes, a header that decodes, no hole, and its end mark.

    Without the mark at the end (some cameras write more behind it) decoding the image decides. Not detected: bytes that changed
    within a JPEG, which has no checksum, and a hole that leaves less than 4 KiB of zeros. Refused though it is whole: a JPEG with
    Huffman tables of its own (optimised or progressive) and a million pixels on end of one colour, which can be 4 KiB of zeros.
    """
    end = next((end for start, end in _ENDS.items() if data.startswith(start)), None)
    if end is None:
        raise _guarded(data, _other_form)
    _check_holes(data)
    _guarded(data, lambda image: None if end in data[-_TAIL_BYTES:] else image.load())
    return data


def rgb256(data: bytes) -> Image.Image:
    """Upright by its EXIF orientation, RGB, cut to the centred square, 256 × 256. Alpha is dropped, as training pipelines do.

    What cannot be detected is what `checked_original` says.
    """
    _check_holes(data)
    return _guarded(data, _square)


def _other_form(image: Image.Image) -> BadImageError:
    return BadImageError(f"{image.format}: {OTHER_FORM}")


def _check_holes(data: bytes) -> None:
    if not data.startswith(b"\xff\xd8\xff"):
        return
    start = _scan_start(data)
    end = data.rfind(b"\xff\xd9", start)  # behind it there may be anything
    if data.find(_HOLE, start, end if end >= 0 else len(data)) >= 0:
        raise BadImageError("4 KiB of zeros within a JPEG: a sparse or failed copy")


def _scan_start(data: bytes) -> int:
    # Markers with a length each, up to the first scan (ITU T.81, B.1.1.4): a camera's notes may well hold zeros.
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:
        place += 1 if data[place + 1] == 0xFF else 2 + int.from_bytes(data[place + 2 : place + 4])
    return place


def _guarded(data: bytes, use: Callable[[Image.Image], Result]) -> Result:
    if not data:
        raise BadImageError("empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # broken EXIF, odd TIFF tags: no reason to leave an image out
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_READ_FORMATS) as image:
                return use(image)
    except (MemoryError, BadImageError):
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
    if image.mode == "F" or (image.mode == "I" and image.format not in _DEEP_FORMATS):
        raise BadImageError("32-bit pixels of unknown range")
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
