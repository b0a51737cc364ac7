"""One image at a time: validate the file, decode it, transform it, encode it."""

import contextlib
import io
import math
import warnings
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ioprof import _resize, jpeg
from ioprof.converters.options import DEFAULT_SIZE
from ioprof.format.dataset import ImageFormat
from ioprof.jpeg import Box, CorruptJpegError, Decoder, UndecidedJpegError

Pixels = NDArray[np.uint8]
"""Height × width × RGB."""

# no format whose decoder starts another program, as EPS does
_READ_FORMATS: Final = (
    "JPEG",
    "PNG",
    "BMP",
    "PPM",
    "TIFF",
    "WEBP",
)
_JPEG: Final = b"\xff\xd8\xff"
_END_MARKERS: Final = {_JPEG: b"\xff\xd9", b"\x89PNG\r\n\x1a\n": b"IEND\xae\x42\x60\x82"}
# a JPEG whose shorter side is at least that many times the target's is decoded at reduced size
_REDUCTION_RATIO: Final = 4
_MAX_ASPECT_RATIO: Final = (
    64  # a longer strip of pixels is no photograph, and would become gigabytes after resizing
)
_FILTER_SUPPORT: Final = 2.0
"""Half width of the bicubic filter (resize.c), in pixels of the smaller image. Measured once, when
it was chosen, by Pillow on one core: of 100 images of ImageNet, bilinear took 0.82 ms, bicubic 1.36
ms, and Lanczos, which ImageMagick uses, 1.89 ms. Bicubic differed from Lanczos by 44.7 dB (PSNR),
far less than the error of JPEG at quality 90 (36.4 dB); bilinear by 37.3 dB, which is as much."""
# level 6 makes the PNG of a photograph a few percent smaller, and takes several times as long
_PNG_LEVEL: Final = 1
_TAIL_BYTES: Final = 64
_HOLE: Final = bytes(4096)  # a page of a file that was never written
_DEEP_FORMATS: Final = ("PNG", "PPM")  # in which mode I means 16 bits
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
"""The end of the message for a valid image in a format that `original` does not keep."""

CORRUPT: Final = "cannot be decoded as it was encoded"
"""The beginning of the message for an image that libjpeg warns of: Pillow decodes it, with pixels
that no encoder wrote."""

Result = TypeVar("Result")


class BadImageError(Exception):
    """An image cannot be used; the message gives the reason in a few words."""


def transform_for(image: ImageFormat, accepts_corrupt: bool = False) -> Callable[[bytes], bytes]:
    """The function that turns an image file into the bytes of its record, or raises
    `BadImageError`.

    `accepts_corrupt`: JPEGs that libjpeg warns of are used, as Pillow decodes them.
    """
    if image.transform == "original":
        decoder = None if accepts_corrupt else jpeg.installed()
        return lambda data: check_original(data, decoder)
    encoders: dict[str, Callable[[Image.Image], bytes]] = {
        "jpeg": _pillow_encoder("JPEG", quality=image.quality or 0),
        "png": _pillow_encoder("PNG", compress_level=_PNG_LEVEL),
        "raw": Image.Image.tobytes,
    }
    encode, side = encoders[image.encoding], image.size or DEFAULT_SIZE
    return lambda data: encode(rgb256(data, side, image.resize, accepts_corrupt))


def check_original(data: bytes, decoder: Decoder | None = None) -> bytes:
    """`data` itself, if it is a complete JPEG or PNG: known first bytes, a header that decodes, no
    hole, and its end marker.

    Where the last 64 bytes hold no end marker (some cameras append data) the image is decoded
    instead. With `decoder` the entropy code of a JPEG is decoded to its end; not detected is then
    what leaves a valid code, such as a changed byte of which the decoder finds back, since a JPEG
    has no checksum. Refused though complete: a JPEG with its own Huffman tables (optimised or
    progressive) and a million consecutive pixels of one colour, which can be encoded as 4 KiB of
    zeros.
    """
    end = next((end for start, end in _END_MARKERS.items() if data.startswith(start)), None)
    if end is None:
        raise _with_pillow(data, lambda image: BadImageError(f"{image.format}: {OTHER_FORM}"))
    _check_holes(data)
    _with_pillow(data, lambda image: None if end in data[-_TAIL_BYTES:] else image.load())
    check_jpeg(data, decoder)
    return data


def check_jpeg(data: bytes, decoder: Decoder | None) -> None:
    """Raise `BadImageError` for a JPEG that libjpeg warns of; nothing else is checked, nor anything
    without a decoder.
    """
    if decoder is None or not data.startswith(_JPEG):
        return
    try:
        decoder.check(data)
    except CorruptJpegError as error:
        raise BadImageError(f"{CORRUPT} ({error})") from None


def rgb256(
    data: bytes, side: int = DEFAULT_SIZE, resize: str | None = None, accepts_corrupt: bool = False
) -> Image.Image:
    """Rotated by its EXIF orientation, RGB, cropped to the centred square, `side` × `side`; alpha
    is dropped, as training pipelines do.

    With `resize` "short" nothing is cropped, and the shorter side becomes `side`. With "strict" the
    filter does not look at pixels outside of the square, as in ImageMagick's `-crop` before
    `-resize`. Damage that is not detected: see `check_original`.
    """
    _check_holes(data)
    decoder = jpeg.installed()
    decoded = (
        None
        if decoder is None
        else _decode_jpeg(data, side, decoder, accepts_corrupt, decodes_part=resize != "short")
    )
    if decoded is None:
        if not accepts_corrupt:
            check_jpeg(data, decoder)
        decoded = _Decoded.of(_with_pillow(data, lambda image: _decode_by_pillow(image, side)))
    box, size = _crop_and_size(decoded.width, decoded.height, side, resize)
    if resize == "strict":
        decoded, box = decoded.square(box), (0, 0, box[2] - box[0], box[3] - box[1])
    return _resized(decoded, box, size)


def _check_holes(data: bytes) -> None:
    if not data.startswith(_JPEG):
        return
    start = _scan_start(data)
    end = data.rfind(b"\xff\xd9", start)  # cameras may append anything after it
    if data.find(_HOLE, start, end if end >= 0 else len(data)) >= 0:
        raise BadImageError("4 KiB of zeros within a JPEG: a sparse or failed copy")


def _scan_start(data: bytes) -> int:
    # Skips the marker segments before the first scan (ITU T.81, B.1.1.4): metadata such as maker
    # notes may hold zeros.
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:
        place += 1 if data[place + 1] == 0xFF else 2 + int.from_bytes(data[place + 2 : place + 4])
    return place


def _with_pillow(data: bytes, use: Callable[[Image.Image], Result]) -> Result:
    if not data:
        raise BadImageError("empty file")
    try:
        with warnings.catch_warnings():
            # broken EXIF, unknown TIFF tags: the pixels are still good
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_READ_FORMATS) as image:
                return use(image)
    except (MemoryError, BadImageError):
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise BadImageError(f"decompression bomb ({error})") from None
    except UnidentifiedImageError:
        raise BadImageError(_describe_unidentified(data)) from None
    except Exception as error:  # a decoder can raise nearly anything for hostile bytes
        raise BadImageError(f"cannot be decoded ({error or type(error).__name__})") from None


def _describe_unidentified(data: bytes) -> str:
    start = data[:512].lstrip().lower()
    if not data.strip(b"\0"):
        return "nothing but zero bytes"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, not an image"
    return "not a known image format"


# ------------------------------------------------------------------------------------------- rgb256


class _Decoded(NamedTuple):
    """An image, or the part of it that the filter needs."""

    pixels: Pixels
    left: int
    top: int
    width: int
    """Of the whole image, as is `height`."""
    height: int

    @classmethod
    def of(cls, pixels: Pixels) -> "_Decoded":
        """A whole image."""
        return cls(pixels, 0, 0, pixels.shape[1], pixels.shape[0])

    def square(self, box: Box) -> "_Decoded":
        """The region `box` as an image of its own."""
        left, top, right, bottom = box
        return _Decoded.of(
            self.pixels[top - self.top : bottom - self.top, left - self.left : right - self.left]
        )


def _decode_jpeg(
    data: bytes, side: int, decoder: Decoder, accepts_corrupt: bool, decodes_part: bool
) -> _Decoded | None:
    # By the same library as Pillow's, with the same result, without Pillow's intermediate four
    # bytes per pixel. Returns None for an unusual image, or one that the library fails at: EXIF may
    # hold an orientation, CMYK has several meanings.
    if not data.startswith(_JPEG) or data.find(b"Exif\0\0", 0, _scan_start(data)) >= 0:
        return None
    size = decoder.size(data)
    if size is None or min(size) >= _REDUCTION_RATIO * side:
        return None
    box = _needed(*size, side) if decodes_part and decoder.decodes_regions else (0, 0, *size)
    try:
        return _Decoded(decoder.region(data, box), box[0], box[1], *size)
    except UndecidedJpegError:
        return None
    except CorruptJpegError as error:
        if accepts_corrupt:
            return None
        raise BadImageError(f"{CORRUPT} ({error})") from None


def _needed(width: int, height: int, side: int) -> Box:
    """The centred square, and around it what the filter looks at."""
    (left, top, right, bottom), _ = _crop_and_size(width, height, side, None)
    margin = math.ceil(_FILTER_SUPPORT * max(1.0, (right - left) / side)) + 1
    return (
        max(0, left - margin),
        max(0, top - margin),
        min(width, right + margin),
        min(height, bottom + margin),
    )


def _decode_by_pillow(image: Image.Image, side: int) -> Pixels:
    if image.mode == "F" or (image.mode == "I" and image.format not in _DEEP_FORMATS):
        raise BadImageError("32-bit pixels of unknown range")
    # A JPEG of many megapixels is decoded at a half, a quarter or an eighth, never below twice the
    # target.
    image.draft(None, (_REDUCTION_RATIO // 2 * side, _REDUCTION_RATIO // 2 * side))
    orientation = None
    with contextlib.suppress(Exception):  # broken EXIF has no orientation
        orientation = image.getexif().get(_ORIENTATION_TAG)
    return np.asarray(
        _rgb(image.transpose(_ORIENTATIONS[orientation]) if orientation in _ORIENTATIONS else image)
    )


def _rgb(image: Image.Image) -> Image.Image:
    # 16 bits per pixel: Pillow would clip values above 255 instead of scaling
    if image.mode.startswith("I"):
        deep = np.clip(np.asarray(image.convert("I")), 0, 0xFFFF)
        return Image.fromarray((deep >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P":
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def _resized(image: _Decoded, box: Box, size: tuple[int, int]) -> Image.Image:
    """The region `box` of the image, resized to `size`; the same bytes on every machine."""
    pixels, left, top, width, height = image
    part = (left, top, pixels.shape[1], pixels.shape[0])
    return Image.frombytes(
        "RGB", size, _resize.resize(np.ascontiguousarray(pixels), (width, height), box, size, part)
    )


def _crop_and_size(
    width: int, height: int, side: int, resize: str | None
) -> tuple[Box, tuple[int, int]]:
    shorter = min(width, height)
    if resize == "short":
        size = (round(width * side / shorter), round(height * side / shorter))
        if max(size) > _MAX_ASPECT_RATIO * side:
            raise BadImageError(
                f"{width} x {height} pixels: a shorter side of {side} would make it {size[0]} x"
                f" {size[1]}"
            )
        return (0, 0, width, height), size
    left, top = (width - shorter) // 2, (height - shorter) // 2
    return (left, top, left + shorter, top + shorter), (side, side)


def _pillow_encoder(kind: str, **options: int) -> Callable[[Image.Image], bytes]:
    def encode(image: Image.Image) -> bytes:
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        return stream.getvalue()

    return encode
