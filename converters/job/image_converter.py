"""The work of a worker process: read images, transform them, and optionally write the record's
file.
"""

import hashlib
import os
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pickle import PickleBuffer
from typing import Any, Final, NamedTuple

from ioprof.converters.images.transforms import BadImageError, transform_for
from ioprof.converters.layouts.record_file_writer import RecordFileWriter
from ioprof.converters.sources.source_image import Reader, SourceImage
from ioprof.errors import CommandError
from ioprof.format.dataset import ImageFormat

READERS: Final = {
    "lmdb": "packed_reader:PackedReader",
    "parquet": "parquet_shards:ParquetReader",
    "recordio": "packed_reader:PackedReader",
    "synthetic": "synthetic_source:SyntheticReader",
    "tfrecord": "packed_reader:PackedReader",
}
"""Kind of image that is not stored unchanged in a file → module in `sources` and class that reads
it. Imported when needed."""

MAX_IMAGE_BYTES: Final = 1 << 28
"""A larger file is not an image, and is not read into memory."""


class RecordData(NamedTuple):
    """The bytes of a record, hashed by the process that created them."""

    data: bytes | memoryview
    """Empty where the worker has already written the record's file."""
    sha256: bytes
    length: int

    @classmethod
    def of(cls, data: bytes) -> "RecordData":
        """The record with these bytes."""
        return cls(data, hashlib.sha256(data).digest(), len(data))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickles the bytes out of band, so that they are not copied into the stream (PEP 574)."""
        return RecordData, (
            PickleBuffer(self.data) if protocol >= 5 else bytes(self.data),
            self.sha256,
            self.length,
        )


class ImageTask(NamedTuple):
    """One image to convert."""

    image: SourceImage
    path: str
    """Path of the record's file in a `files` dataset, relative to its folder."""


class ImageConverter:
    """Called with tasks, it returns for each the record, or the reason why the image cannot be
    used. Can be pickled; close it.

    With `files` each record is also written to its file. Raises `CommandError` when the source's
    storage fails, and OSError when the destination's does.
    """

    def __init__(
        self,
        image: ImageFormat,
        files: RecordFileWriter | None = None,
        accepts_corrupt: bool = False,
    ) -> None:
        self._image = image
        self._accepts_corrupt = accepts_corrupt
        self._files = files
        self._archives: dict[str, int] = {}
        self._readers: dict[str, Reader] = {}

    @cached_property
    # cached here, not in __init__: it cannot be pickled
    def _transform(
        self,
    ) -> Callable[[bytes], bytes]:
        return transform_for(self._image, accepts_corrupt=self._accepts_corrupt)

    def __getstate__(self) -> dict[str, object]:
        kept = {
            "_image": self._image,
            "_files": self._files,
            "_accepts_corrupt": self._accepts_corrupt,
        }
        return {**kept, "_archives": {}, "_readers": {}}

    def __call__(self, tasks: list[ImageTask]) -> list[RecordData | str]:
        return [self._convert(image, path) for image, path in tasks]

    def close(self) -> None:
        """Close all open archives."""
        while self._archives:
            os.close(self._archives.popitem()[1])
        while self._readers:
            self._readers.popitem()[1].close()

    def _convert(self, image: SourceImage, path: str) -> RecordData | str:
        try:
            record = RecordData.of(self._transform(self._read(image)))
        except BadImageError as error:
            if self._files is not None:
                self._files.remove(path)
            return " ".join(str(error).split()).encode(errors="replace").decode()
        if self._files is not None:
            self._files.write(path, record.data)
            return record._replace(data=b"")
        return record

    def _read(self, image: SourceImage) -> bytes:
        # A storage error is not a bad image: quarantining it would silently drop good images from
        # the dataset.
        try:
            if image.kind != "file":
                return self._reader(image.kind).read(image)
            return (
                self._read_member(image, image.size)
                if image.size is not None
                else _read_file(image.file)
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise CommandError(f"{image}: cannot be read ({why})", exit_code=1) from None

    def _read_member(self, image: SourceImage, size: int) -> bytes:
        _check_size(size)
        # Archives stay open: on a parallel file system each open is a round trip to the metadata
        # server.
        if image.file not in self._archives:
            self._archives[image.file] = os.open(image.file, os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(self._archives[image.file], size, image.offset)
        if len(data) < size:
            raise BadImageError(f"cut short ({len(data)} of {size} bytes)")
        return data

    def _reader(self, kind: str) -> Reader:
        if kind not in self._readers:
            module, _, name = READERS[kind].partition(":")
            self._readers[kind] = getattr(
                import_module(f"ioprof.converters.sources.{module}"), name
            )()
        return self._readers[kind]


def _read_file(file: str) -> bytes:
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
        raise BadImageError(f"{size} bytes, more than {MAX_IMAGE_BYTES}: not an image")
