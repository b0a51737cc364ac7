"""Reads images whose stored bytes frame them: records of TFRecord and RecordIO files, and values of
LMDB environments.
"""

import io
import os

from PIL import Image

from ioprof.converters.images.transforms import BadImageError
from ioprof.converters.sources.source_image import SourceImage
from ioprof.errors import DatasetError
from ioprof.foreign.values import VALUES

_MAX_RECORD_BYTES = 1 << 29
_PNG_LEVEL = 1


class PackedReader:
    """Raw pixels become a PNG, which keeps them as they are."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def read(self, image: SourceImage) -> bytes:
        """The bytes of the image's file; raises `BadImageError` for a damaged record, OSError when
        the storage fails.
        """
        size = image.size or 0
        if size > _MAX_RECORD_BYTES:
            raise BadImageError(f"{size} bytes, more than {_MAX_RECORD_BYTES}: not an image")
        if image.place not in self._files:
            self._files[image.place] = os.open(image.place, os.O_RDONLY | os.O_CLOEXEC)
        record = os.pread(self._files[image.place], size, image.offset)
        if len(record) < size:
            raise BadImageError(f"cut short ({len(record)} of {size} bytes)")
        try:
            data, shape = VALUES[image.kind](record)
        except DatasetError as error:
            raise BadImageError(str(error)) from None
        if shape is None:
            return bytes(data)
        stream = io.BytesIO()
        Image.frombytes("RGB", (shape[1], shape[0]), bytes(data)).save(
            stream, "PNG", compress_level=_PNG_LEVEL
        )
        return stream.getvalue()

    def close(self) -> None:
        """Close all files."""
        while self._files:
            os.close(self._files.popitem()[1])
