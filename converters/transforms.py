"""One image at a time: is it whole, and what becomes of it."""

import io
import warnings
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ioprof.converters.options import DEFAULT_SIZE
from ioprof.dataset import ImageFormat

try:
    import simplejpeg
except ImportError:  # no wheel for this machine: Pillow does the work, with the same result
    simplejpeg = None
native_resize: Callable[..., bytes] | None
try:
    from ioprof._resize import resize

    native_resize = resize
except ImportError:  # no C compiler where ioprof was installed: the same
    native_resize = None

Pixels = NDArray[np.uint8]
"""Height × width × RGB."""

FILTER: Final = Image.Resampling.BICUBIC
"""Antialiased: Pillow widens the kernel when it shrinks. Measured once, when it was chosen, by Pillow on one core: of 100 images of
ImageNet, bilinear took 0.82 ms, bicubic 1.36 ms, and Lanczos, which ImageMagick uses, 1.89 ms. Bicubic differed from Lanczos by
44.7 dB, far less than what JPEG at quality 90 adds (36.4 dB); bilinear by 37.3 dB, which is as much."""

_READ_FORMATS: Final = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")  # and nothing that starts another program, as EPS does
_JPEG: Final = b"\xff\xd8\xff"
_ENDS: Final = {_JPEG: b"\xff\xd9", b"\x89PNG\r\n\x1a\n": b"IEND\xae\x42\x60\x82"}
_PLAIN_COLOURS: Final = ("YCbCr", "Gray", "RGB")
_REDUCED: Final = 4  # a JPEG whose shorter side is that many times the target's is not decoded in full
_MOST_PIXELS: Final = 80_000_000  # beyond that Pillow asks whether it is a bomb
_LONGEST: Final = 64  # times the shorter side; a strip of pixels is no photograph, and would become one of gigabytes
_NATIVE_MAX_SIDE: Final = 65535
_PNG_LEVEL: Final = 1  # a photograph's PNG gets a few percent smaller at 6, in several times the time
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
    encode, side = _encoder(image), image.size or DEFAULT_SIZE
    return lambda data: encode(rgb256(data, side, image.resize))


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


def rgb256(data: bytes, side: int = DEFAULT_SIZE, resize: str | None = None) -> Image.Image:
    """Upright by its EXIF orientation, RGB, cut to the centred square, `side` × `side`; alpha is dropped, as training pipelines do.

    With `resize` "short" nothing is cut off, and it is the shorter side that becomes `side`. What cannot be detected is what
    `checked_original` says.
    """
    _check_holes(data)
    pixels = _decoded(data, side)
    height, width, _ = pixels.shape
    return resized(pixels, *_frame(width, height, side, resize))


def _other_form(image: Image.Image) -> BadImageError:
    return BadImageError(f"{image.format}: {OTHER_FORM}")


def _check_holes(data: bytes) -> None:
    if not data.startswith(_JPEG):
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


def _decoded(data: bytes, side: int) -> Pixels:
    pixels = _decoded_quickly(data, side)
    return _guarded(data, lambda image: _decoded_by_pillow(image, side)) if pixels is None else pixels


def _decoded_quickly(data: bytes, side: int) -> Pixels | None:
    # By the same library as Pillow's, with the same result, without Pillow's detour over four bytes per pixel. What is out of the
    # ordinary, or makes the library warn, is left to Pillow: EXIF may hold an orientation, CMYK has several meanings.
    if simplejpeg is None or not data.startswith(_JPEG) or data.find(b"Exif\0\0", 0, _scan_start(data)) >= 0:
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours not in _PLAIN_COLOURS or min(height, width) >= _REDUCED * side or height * width > _MOST_PIXELS:
            return None
        pixels: Pixels = simplejpeg.decode_jpeg(data)
    except ValueError:
        return None
    return pixels


def _decoded_by_pillow(image: Image.Image, side: int) -> Pixels:
    if image.mode == "F" or (image.mode == "I" and image.format not in _DEEP_FORMATS):
        raise BadImageError("32-bit pixels of unknown range")
    # A JPEG of many megapixels is decoded at a half, a quarter or an eighth, never below twice the target.
    image.draft(None, (_REDUCED // 2 * side, _REDUCED // 2 * side))
    return np.asarray(_rgb(_upright(image)))


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


def resized(pixels: Pixels, box: tuple[int, int, int, int], size: tuple[int, int]) -> Image.Image:
    """The part `box` of an RGB image (height × width × 3), resized to `size`, bicubic; the same bytes on every machine."""
    height, width, _ = pixels.shape
    if native_resize is not None and max(*size, width, height) <= _NATIVE_MAX_SIDE:
        return Image.frombytes("RGB", size, native_resize(np.ascontiguousarray(pixels), (width, height), box, size))
    # In two steps, so that it is always the rows that come first; which is first in one step depends on Pillow's version.
    left, top, right, bottom = box
    image = Image.fromarray(pixels).resize((size[0], height), FILTER, box=(left, 0, right, height))
    return image.resize(size, FILTER, box=(0, top, size[0], bottom))


def _frame(width: int, height: int, side: int, resize: str | None) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    shorter = min(width, height)
    if resize == "short":
        longest = (round(width * side / shorter), round(height * side / shorter))
        if max(longest) > _LONGEST * side:
            raise BadImageError(f"{width} x {height} pixels: a shorter side of {side} would make it {longest[0]} x {longest[1]}")
        return (0, 0, width, height), longest
    left, top = (width - shorter) // 2, (height - shorter) // 2
    return (left, top, left + shorter, top + shorter), (side, side)


def _encode_raw(image: Image.Image) -> bytes:
    return image.tobytes()


def _saver(kind: str, **options: int) -> Callable[[Image.Image], bytes]:
    def encode(image: Image.Image) -> bytes:
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        return stream.getvalue()

    return encode


def _encoder(image: ImageFormat) -> Callable[[Image.Image], bytes]:
    encoders = {
        "jpeg": _saver("JPEG", quality=image.quality or 0),
        "png": _saver("PNG", compress_level=_PNG_LEVEL),
        "raw": _encode_raw,
    }
    return encoders[image.encoding]
