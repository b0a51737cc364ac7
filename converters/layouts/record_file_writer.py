"""Writes one file per record, in the process that created the record."""

import contextlib
import os
from pathlib import Path
from typing import Final

from ioprof.converters.layouts.interface import write_all

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class RecordFileWriter:
    """Writes files of a dataset whose class folders exist. Can be pickled.

    A file that is not in the index is overwritten by the job that resumes. It is not truncated
    first, so a worker of the killed job that is still writing does no harm: it writes the same
    bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write a file, by its path relative to the dataset's folder; raises OSError if it cannot
        be written completely.
        """
        file, is_new = f"{self._folder}/{path}", True
        try:
            descriptor = os.open(file, _FLAGS | os.O_EXCL, 0o666)
        except FileExistsError:
            descriptor, is_new = os.open(file, _FLAGS, 0o666), False
        try:
            write_all(descriptor, data)
            if not is_new:
                os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove the file that a killed job may have left for an image that is bad now."""
        with contextlib.suppress(FileNotFoundError):
            Path(self._folder, path).unlink()
