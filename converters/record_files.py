"""The files of records, one for each: what writes them, in the process that made the record."""

import contextlib
import os
from pathlib import Path
from typing import Final

from ioprof.converters.target import write_all

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class RecordFiles:
    """Writes files of a dataset whose class folders are there. Can be pickled.

    A file that nothing tells of counts for nothing, and is written over by the job that goes on. It is never emptied first, so that
    what a process of the killed job is still about to write does no harm: it has the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)

    def write(self, path: str, data: bytes | memoryview) -> None:
        """A file, by its path from the dataset's folder; raises OSError when it cannot be written whole."""
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
        """What a job that was killed may have left of an image that has become bad since."""
        with contextlib.suppress(FileNotFoundError):
            Path(self._folder, path).unlink()
