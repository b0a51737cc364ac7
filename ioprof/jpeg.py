"""JPEGs decoded in part and checked, by libjpeg-turbo: that of Pillow's wheel or of the system,
else by simplejpeg.

    decoder = installed()                                   None: there is neither, and Pillow
                                                            decodes
    size = decoder.size(data)                               None: Pillow decodes this one
    pixels = decoder.region(data, (10, 20, 110, 220), 1)    exactly the pixels of the whole image

Pillow asks libjpeg to go on where data is damaged, and shows no warning. Here a warning about the
pixels is a `CorruptJpegError`.
"""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ioprof import _jpeg

START: Final = b"\xff\xd8\xff"
"""The first bytes of a JPEG."""
SYSTEM_LIBRARY: Final = "libjpeg.so.62"
_DENOMINATORS: Final = (8, 4, 2)
"""Sizes at which libjpeg-turbo decodes with less work: its other reductions have no fast
transform."""
_PLAIN_COLOURS: Final = ("YCbCr", "Gray", "RGB")
_MAX_PIXELS: Final = 80_000_000  # above it Pillow checks for a decompression bomb

Pixels = npt.NDArray[np.uint8]
"""Height × width × RGB."""
Box = tuple[int, int, int, int]
"""left, top, right, bottom."""


class CorruptJpegError(Exception):
    """The data of a JPEG is not what its encoder wrote; the message is the library's first warning,
    with its code if it has one.
    """


class UndecidedJpegError(Exception):
    """The library stopped with an error: whether the image can be used is for Pillow to say."""


class Decoder(Protocol):
    """A library that decodes JPEGs. Raises `CorruptJpegError` and `UndecidedJpegError`."""

    name: str
    """The library, and where it is from."""
    decodes_regions: bool
    """Whether a region costs less than the image."""
    is_observed: bool
    """Whether hooks see what it decodes: then it is no span of the caller's."""

    def size(self, data: Any) -> tuple[int, int] | None:
        """Width and height of a JPEG in grey, YCbCr or RGB of 8 bits and up to 80 million pixels;
        None for anything else.
        """

    def region(self, data: Any, box: Box, denominator: int = 1, to_end: bool = True) -> Pixels:
        """A region of the image, at a size of 1 / `denominator` (1, 2, 4 or 8) that is rounded up
        to whole pixels.

        Without `to_end` what follows the region may stay unread, and what is wrong with it unknown.
        """

    def check(self, data: Any) -> None:
        """Raise `CorruptJpegError` if the library warns about the pixels, of any JPEG; decodes its
        entropy code alone.
        """


class LibjpegTurbo:
    """The shared library, by ioprof's extension."""

    decodes_regions = True
    is_observed = False

    def __init__(self, path: str) -> None:
        """Raises OSError if it cannot be used."""
        _jpeg.load(path)
        self.name = f"libjpeg-turbo ({Path(path).name}{' of Pillow' if '/' in path else ''})"
        self.size = _jpeg.size

    def region(self, data: Any, box: Box, denominator: int = 1, to_end: bool = True) -> Pixels:
        """See `Decoder`."""
        found = _jpeg.decode(data, box, denominator, to_end)
        if isinstance(found, tuple):
            raise _problem(*found)
        left, top = box[0] // denominator, box[1] // denominator
        right, bottom = -(-box[2] // denominator), -(-box[3] // denominator)
        pixels: Pixels = np.frombuffer(found, np.uint8).reshape(bottom - top, right - left, 3)
        return pixels

    def check(self, data: Any) -> None:
        """See `Decoder`."""
        warnings, code, text = _jpeg.check(data)
        if warnings:
            raise _problem(warnings, code, text)


class SimpleJpeg:
    """The package simplejpeg, which decodes whole images."""

    decodes_regions = False
    is_observed = True

    def __init__(self, package: Any) -> None:
        self.name = "simplejpeg"
        self._package = package

    def size(self, data: Any) -> tuple[int, int] | None:
        """See `Decoder`."""
        try:
            height, width, colours, _ = self._package.decode_jpeg_header(data)
        except ValueError:
            return None
        return (
            (width, height) if colours in _PLAIN_COLOURS and width * height <= _MAX_PIXELS else None
        )

    def region(self, data: Any, box: Box, denominator: int = 1, to_end: bool = True) -> Pixels:
        """See `Decoder`; the denominator must be 1."""
        assert denominator == 1
        pixels = self._decoded(data)
        left, top, right, bottom = box
        return (
            pixels
            if (bottom, right) == pixels.shape[:2] and (left, top) == (0, 0)
            else pixels[top:bottom, left:right].copy()
        )

    def check(self, data: Any) -> None:
        """See `Decoder`; images of other colours are not checked."""
        if self.size(data) is not None:
            self._decoded(data)

    def _decoded(self, data: Any) -> Pixels:
        try:
            pixels: Pixels = self._package.decode_jpeg(data)  # strict: a warning is an error, too
        except ValueError as error:
            raise CorruptJpegError(str(error)) from None
        return pixels


def _problem(warnings: int, code: int, text: str) -> CorruptJpegError | UndecidedJpegError:
    return (
        CorruptJpegError(f"{text.strip()}; libjpeg's warning {code}")
        if warnings
        else UndecidedJpegError(text.strip())
    )


@cache
def installed() -> Decoder | None:
    """The decoder of this installation, the best there is; loads its library. None: there is
    none.
    """
    for path in _libraries():
        try:
            return LibjpegTurbo(path)
        except OSError:  # another version, or without the functions for regions
            continue
    return simple_jpeg()


def simple_jpeg() -> SimpleJpeg | None:
    """The package simplejpeg; None if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return SimpleJpeg(simplejpeg)


def reduction(box: Box, size: tuple[int, int]) -> int:
    """The largest denominator at which the region is decoded with no fewer pixels than `size`,
    width and height.
    """
    width, height = box[2] - box[0], box[3] - box[1]
    return next(
        (each for each in _DENOMINATORS if width >= each * size[0] and height >= each * size[1]), 1
    )


def _libraries() -> Iterator[str]:
    """Pillow's first: what it decodes is then the same to the bit, and it is newer than most
    systems'.
    """
    pillow = find_spec("PIL")
    for folder in pillow.submodule_search_locations or () if pillow else ():
        # Where auditwheel puts the libraries of a wheel: beside the package, or in it.
        for place in (Path(folder).with_name("pillow.libs"), Path(folder, ".libs")):
            yield from sorted(str(path) for path in place.glob("libjpeg-*.so.62*"))
    yield SYSTEM_LIBRARY
