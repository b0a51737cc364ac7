"""What a worker does: read images and transform them."""

import hashlib
import os
from collections.abc import Callable
from functools import cached_property
from typing import Final, NamedTuple

from ioprof.converters.origin import Reader
from ioprof.converters.sources import SourceImage, reader_of
from ioprof.converters.transforms import BadImageError, transform_for
from ioprof.dataset import ImageFormat
from ioprof.errors import CommandError

MAX_IMAGE_BYTES: Final = 1 << 28
"""A larger file is no photograph, and is not read into memory."""


class Made(NamedTuple):
    """The bytes of a record, hashed where they were made."""

    data: bytes
    sha256: bytes

    @classmethod
    def of(cls, data: bytes) -> "Made":
        """Of these bytes."""
        return cls(data, hashlib.sha256(data).digest())


class ImageWork:
    """Call it with images to get, for each, its record, or in words why there is none. Can be pickled; close it.

    Raises `CommandError` when the storage fails.
    """

    def __init__(self, image: ImageFormat) -> None:
        self._image = image
        self._archives: dict[str, int] = {}
        self._readers: dict[str, Reader] = {}

    @cached_property
    def _transform(self) -> Callable[[bytes], bytes]:
        return transform_for(self._image)

    def __getstate__(self) -> dict[str, object]:
        return {"_image": self._image, "_archives": {}, "_readers": {}}

    def __call__(self, images: list[SourceImage]) -> list[Made | str]:
        return [self._record(image) for image in images]

    def close(self) -> None:
        """Close the archives that are open."""
        while self._archives:
            os.close(self._archives.popitem()[1])
        while self._readers:
            self._readers.popitem()[1].close()

    def _record(self, image: SourceImage) -> Made | str:
        try:
            data = self._transform(self._read(image))
        except BadImageError as error:
            return " ".join(str(error).split()).encode(errors="replace").decode()
        return Made.of(data)

    def _read(self, image: SourceImage) -> bytes:
        # The storage's failure says nothing about the image: leaving it out would make a dataset that nobody meant.
        try:
            return self._bytes(image)
        except OSError as error:
            why = error.strerror or str(error)
            raise CommandError(f"{image.where}: cannot be read ({why})", exit_code=1) from None

    def _bytes(self, image: SourceImage) -> bytes:
        if image.kind != "file":
            return self._reader(image.kind).read(image)
        if image.size is None:
            with open(image.file, "rb", buffering=0) as stream:
                _check_size(os.fstat(stream.fileno()).st_size)
                return stream.readall()
        _check_size(image.size)
        data = os.pread(self._archive(image.file), image.size, image.offset)
        if len(data) < image.size:
            raise BadImageError(f"cut short ({len(data)} of {image.size} bytes)")
        return data

    def _reader(self, kind: str) -> Reader:
        if kind not in self._readers:
            self._readers[kind] = reader_of(kind)
        return self._readers[kind]

    def _archive(self, file: str) -> int:
        # Kept open: on a parallel file system each open is a round trip to the metadata server.
        if file not in self._archives:
            self._archives[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        return self._archives[file]


def _check_size(size: int) -> None:
    if size > MAX_IMAGE_BYTES:
        raise BadImageError(f"{size} bytes, more than {MAX_IMAGE_BYTES}: no photograph")
