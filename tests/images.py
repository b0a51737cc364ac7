"""Generates unusual images, and files that are not images."""

import io
from typing import Final

import numpy as np
from PIL import Image

COLOUR: Final = (200, 120, 40)
"""Size of every image in `ODD`."""

BOMB_SIDE: Final = 10_000
"""An image with this side has more pixels than Pillow accepts without a warning."""


def solid(mode: str = "RGB", size: tuple[int, int] = (90, 60)) -> Image.Image:
    """A single colour in a mode that can represent it."""
    return Image.new("RGB", size, COLOUR).convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of an image file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def jpeg(width: int = 64, height: int = 48, seed: int = 0) -> bytes:
    """A small JPEG that differs for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).resize((width, height)), "JPEG", quality=90)


def _with_alpha() -> Image.Image:
    image = solid("RGBA")
    image.putalpha(128)
    return image


def _transparent_palette() -> bytes:
    return encoded(solid().quantize(4), "PNG", transparency=bytes([128, 255, 255, 255]))


def _sixteen_bits() -> bytes:
    return encoded(Image.fromarray(np.full((60, 90), 140 * 257, np.uint16)), "PNG")


GREY: Final = (140, 140, 140)

ODD: Final[dict[str, tuple[bytes, tuple[int, int, int]]]] = {
    "rgb": (encoded(solid(), "JPEG", quality=95), COLOUR),
    "cmyk": (encoded(solid("CMYK"), "JPEG", quality=95), COLOUR),
    "grey": (encoded(Image.new("L", (90, 60), 140), "JPEG", quality=95), GREY),
    "png named jpeg": (encoded(solid(), "PNG"), COLOUR),
    "palette": (encoded(solid().quantize(4), "PNG"), COLOUR),
    "transparent palette": (_transparent_palette(), COLOUR),
    "alpha": (encoded(_with_alpha(), "PNG"), COLOUR),
    "grey with alpha": (encoded(Image.new("LA", (90, 60), (140, 20)), "PNG"), GREY),
    "16 bits": (_sixteen_bits(), GREY),
    "1 bit": (encoded(Image.new("1", (90, 60), 1), "PNG"), (255, 255, 255)),
    "tiff": (encoded(solid(), "TIFF"), COLOUR),
    "webp": (encoded(solid(), "WEBP", quality=100), COLOUR),
    "one pixel": (encoded(solid(size=(1, 1)), "PNG"), COLOUR),
    "one row": (encoded(solid(size=(300, 1)), "PNG"), COLOUR),
    "progressive": (encoded(solid(), "JPEG", progressive=True, quality=95), COLOUR),
    "broken exif": (
        encoded(solid(), "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff\x01"),
        COLOUR,
    ),
    "megapixels": (encoded(solid(size=(2400, 1600)), "JPEG", quality=95), COLOUR),
}
"""Name → file, and its colour."""

_WHOLE: Final = jpeg(200, 150)

BAD: Final[dict[str, tuple[bytes, str]]] = {
    "empty": (b"", "empty file"),
    "zero bytes": (bytes(4096), "nothing but zero bytes"),
    "html": (b"\n<!DOCTYPE html><html>404</html>", "a web page"),
    "text": (b"not an image", "not a known image format"),
    "truncated": (_WHOLE[: len(_WHOLE) // 2], "cannot be decoded"),
    "header only": (_WHOLE[:200], "cannot be decoded"),
    "truncated png": (encoded(Image.effect_noise((64, 64), 80), "PNG")[:-600], "cannot be decoded"),
    "bomb": (encoded(Image.new("1", (BOMB_SIDE, BOMB_SIDE)), "PNG"), "decompression bomb"),
    "larger bomb": (
        encoded(Image.new("1", (2 * BOMB_SIDE, BOMB_SIDE)), "PNG"),
        "decompression bomb",
    ),
}
"""Name → file, and the error message."""


def quadrants() -> Image.Image:
    """Four colours, so that any rotation or flip is detected."""
    image = Image.new("RGB", (64, 64))
    for place, colour in {
        (0, 0): "red",
        (32, 0): "lime",
        (0, 32): "blue",
        (32, 32): "white",
    }.items():
        image.paste(colour, (*place, place[0] + 32, place[1] + 32))
    return image
