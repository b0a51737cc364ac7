"""What a worker does: read images and transform them."""

import hashlib
import os
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pickle import PickleBuffer
from typing import Any, Final, NamedTuple

from ioprof.converters.record_files import RecordFiles
from ioprof.converters.source_image import Reader, SourceImage
from ioprof.converters.transforms import BadImageError, transform_for
from ioprof.dataset import ImageFormat
from ioprof.errors import CommandError

READERS: Final = {
    "parquet": "parquet_shards:ParquetReader",
    "synthetic": "synthetic_source:SyntheticReader",
}
"""Kind of image whose bytes do not lie in a file as they are → what reads it."""

MAX_IMAGE_BYTES: Final = 1 << 28
"""A larger file is no photograph, and is not read into memory."""


class Made(NamedTuple):
    """The bytes of a record, hashed where they were made."""

    data: bytes | memoryview
    """Empty where they are in their file already."""
    sha256: bytes
    length: int

    @classmethod
    def of(cls, data: bytes) -> "Made":
        """Of these bytes."""
        return cls(data, hashlib.sha256(data).digest(), len(data))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """So that the bytes can travel apart from the rest, without being copied into it (PEP 574)."""
        return Made, (PickleBuffer(self.data) if protocol >= 5 else bytes(self.data), self.sha256, self.length)


class Asked(NamedTuple):
    """One image to be made."""

    image: SourceImage
    path: str
    """Of the record's file in a dataset of files."""


class ImageWork:
    """Call it with images to get, for each, its record, or in words why there is none. Can be pickled; close it.

    With `files` the record is written into its file there and then. Raises `CommandError` when the source's storage fails, and
    OSError when the destination's does.
    """

    def __init__(self, image: ImageFormat, files: RecordFiles | None = None) -> None:
        self._image = image
        self._files = files
        self._archives: dict[str, int] = {}
        self._readers: dict[str, Reader] = {}

    @cached_property
    def _transform(self) -> Callable[[bytes], bytes]:
        return transform_for(self._image)

    def __getstate__(self) -> dict[str, object]:
        return {"_image": self._image, "_files": self._files, "_archives": {}, "_readers": {}}

    def __call__(self, images: list[Asked]) -> list[Made | str]:
        return [self._record(image, path) for image, path in images]

    def close(self) -> None:
        """Close the archives that are open."""
        while self._archives:
            os.close(self._archives.popitem()[1])
        while self._readers:
            self._readers.popitem()[1].close()

    def _record(self, image: SourceImage, path: str) -> Made | str:
        try:
            made = Made.of(self._transform(self._read(image)))
        except BadImageError as error:
            if self._files is not None:
                self._files.remove(path)
            return " ".join(str(error).split()).encode(errors="replace").decode()
        if self._files is not None:
            self._files.write(path, made.data)
            return made._replace(data=b"")
        return made

    def _read(self, image: SourceImage) -> bytes:
        # The storage's failure says nothing about the image: leaving it out would make a dataset that nobody meant.
        try:
            return self._bytes(image)
        except OSError as error:
            why = error.strerror or str(error)
            raise CommandError(f"{image}: cannot be read ({why})", exit_code=1) from None

    def _bytes(self, image: SourceImage) -> bytes:
        if image.kind != "file":
            return self._reader(image.kind).read(image)
        if image.size is None:
            return _content(image.file)
        _check_size(image.size)
        data = os.pread(self._archive(image.file), image.size, image.offset)
        if len(data) < image.size:
            raise BadImageError(f"cut short ({len(data)} of {image.size} bytes)")
        return data

    def _reader(self, kind: str) -> Reader:
        if kind not in self._readers:
            module, _, name = READERS[kind].partition(":")
            self._readers[kind] = getattr(import_module(f"ioprof.converters.{module}"), name)()
        return self._readers[kind]

    def _archive(self, file: str) -> int:
        # Kept open: on a parallel file system each open is a round trip to the metadata server.
        if file not in self._archives:
            self._archives[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        return self._archives[file]


def _content(file: str) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        _check_size(size)
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
    finally:
        os.close(descriptor)
    return data


def _check_size(size: int) -> None:
    if size > MAX_IMAGE_BYTES:
        raise BadImageError(f"{size} bytes, more than {MAX_IMAGE_BYTES}: no photograph")
