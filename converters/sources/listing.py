"""All images of a source, sorted by class and name, stored in temporary files instead of memory.

A million Python objects take some hundred megabytes, and every pass over them evicts the CPU
caches. Here an image is a record in an unnamed temporary file, and becomes an object on access.
"""

import hashlib
import os
import struct
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.converters.sources.source_image import SourceImage
from ioprof.errors import CommandError

_LINE: Final = struct.Struct("<IqqI")  # place, offset, size or -1, group; the name follows
_BOUNDS: Final = struct.Struct("<QQ")
_END_BYTES: Final = 8
_BUFFER_BYTES: Final = 1 << 16
_BLOCK_LINES: Final = 1024
_BLOCK_NUMBERS: Final = 4096


class Lines:
    """A list of byte strings in temporary files; raises `CommandError` when the disk is full."""

    def __init__(self) -> None:
        self._content, self._ends = _TemporaryBytes(), _TemporaryBytes()
        self._ends.append(bytes(_END_BYTES))
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def append(self, line: bytes) -> None:
        """Append one byte string."""
        self._count, self._bytes = self._count + 1, self._bytes + len(line)
        self._content.append(line)
        self._ends.append(self._bytes.to_bytes(_END_BYTES, "little"))

    def __getitem__(self, number: int) -> bytes:
        start, end = _BOUNDS.unpack(self._ends.read(_END_BYTES * number, _BOUNDS.size))
        return self._content.read(start, end - start)

    def block(self, first: int, count: int) -> list[bytes]:
        """`count` byte strings, from the number `first` on."""
        ends = memoryview(self._ends.read(_END_BYTES * first, _END_BYTES * (count + 1))).cast("Q")
        content = self._content.read(ends[0], ends[count] - ends[0])
        return [
            content[ends[number] - ends[0] : ends[number + 1] - ends[0]] for number in range(count)
        ]

    def hash_into(self, digest: "hashlib._Hash") -> None:
        """Update `digest` with all byte strings and their lengths."""
        for part in (self._ends, self._content):
            for start in range(0, part.size, _BUFFER_BYTES):
                digest.update(part.read(start, min(_BUFFER_BYTES, part.size - start)))


class _TemporaryBytes:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._written = 0
        try:
            with tempfile.TemporaryFile(prefix="ioprof-") as file:
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise _disk_full(error) from None
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def size(self) -> int:
        return self._written + len(self._buffer)

    def append(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def read(self, start: int, size: int) -> bytes:
        if self._buffer:
            self._flush()
        return os.pread(self._descriptor, size, start)

    def _flush(self) -> None:
        try:
            while self._buffer:
                written = os.write(self._descriptor, self._buffer)
                self._written += written
                del self._buffer[:written]
        except OSError as error:
            raise _disk_full(error) from None


def _disk_full(error: OSError) -> CommandError:
    what = "the list of images cannot be written to the folder for temporary files"
    return CommandError(
        f"{what} ({error.strerror or error}); name one with free space: TMPDIR=/path/to/folder",
        exit_code=1,
    )


class StoredNumbers:
    """Whole numbers below 2^32 in a temporary file, to be read in order; raises `CommandError` when
    the disk is full.
    """

    def __init__(self, numbers: NDArray[np.uint32]) -> None:
        self._content, self._count = _TemporaryBytes(), len(numbers)
        for start in range(0, len(numbers), _BLOCK_NUMBERS):
            self._content.append(numbers[start : start + _BLOCK_NUMBERS].tobytes())

    def __len__(self) -> int:
        return self._count

    def between(self, start: int, stop: int) -> Iterator[int]:
        """Those at the places from `start` to `stop`."""
        for first in range(start, stop, _BLOCK_NUMBERS):
            count = min(_BLOCK_NUMBERS, stop - first)
            yield from np.frombuffer(self._content.read(4 * first, 4 * count), np.uint32).tolist()


class Listing:
    """The images of a source, sorted by wnid and name."""

    def __init__(
        self,
        kind: str,
        lines: Lines,
        places: tuple[str, ...],
        classes: list[tuple[str, int, int]],
        num_bytes: int,
    ) -> None:
        self.kind, self.places = kind, places
        self.num_bytes = num_bytes
        """Total size of the images whose size is known."""
        self._lines = lines
        self._classes = sorted(classes)  # wnid, number of the first line, number of lines
        self._starts = [0, *accumulate(count for *_, count in self._classes)]

    @property
    def wnids(self) -> tuple[str, ...]:
        """Classes that have images, sorted."""
        return tuple(wnid for wnid, *_ in self._classes)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> SourceImage:
        label = bisect_right(self._starts, number) - 1
        wnid, first, _ = self._classes[label]
        return self._image(wnid, self._lines[first + number - self._starts[label]])

    def __iter__(self) -> Iterator[SourceImage]:
        for wnid, first, count in self._classes:
            for start in range(first, first + count, _BLOCK_LINES):
                for line in self._lines.block(start, min(_BLOCK_LINES, first + count - start)):
                    yield self._image(wnid, line)

    def fingerprint(self) -> str:
        """Digest of the images' names and of their offsets in their archives; the paths of the
        archives are not part of it.
        """
        digest = hashlib.sha256(repr((self.kind, self._classes)).encode())
        self._lines.hash_into(digest)
        return digest.hexdigest()

    def _image(self, wnid: str, line: bytes) -> SourceImage:
        place, offset, size, group = _LINE.unpack_from(line)
        name = line[_LINE.size :].decode()
        return SourceImage(
            wnid, name, self.places[place], offset, None if size < 0 else size, self.kind, group
        )


class ListingWriter:
    """Builds a `Listing` class by class; the classes may come in any order."""

    def __init__(self, kind: str = "file") -> None:
        self._kind = kind
        self._lines = Lines()
        self._places: dict[str, int] = {}
        self._classes: list[tuple[str, int, int]] = []
        self._bytes = 0

    def add_class(self, wnid: str, images: Iterable[SourceImage]) -> None:
        """Add all images of a class."""
        first = len(self._lines)
        for image in sorted(images, key=attrgetter("name")):
            place = self._places.setdefault(image.place, len(self._places))
            size = -1 if image.size is None else image.size
            self._lines.append(
                _LINE.pack(place, image.offset, size, image.group) + image.name.encode()
            )
            self._bytes += image.size or 0
        if len(self._lines) > first:
            self._classes.append((wnid, first, len(self._lines) - first))

    def add(self, images: Iterable[SourceImage]) -> None:
        """Add images of several classes in any order; they are held in memory until they are
        sorted.
        """
        for wnid, of_class in groupby(sorted(images, key=attrgetter("wnid")), attrgetter("wnid")):
            self.add_class(wnid, of_class)

    def finish(self) -> Listing:
        """The listing of all images that were added."""
        return Listing(self._kind, self._lines, tuple(self._places), self._classes, self._bytes)
