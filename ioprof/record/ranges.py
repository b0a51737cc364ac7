"""Reads of parts of a file that stays open: what `read_file` is for whole files, by the same ladder of sources."""

import os
import stat

from ioprof.record.preload import sees_reads
from ioprof.record.reads import _irregular, _open, _source_by_usage, _usage, read_into
from ioprof.record.span import intern, span


class FileRanges:
    """An open file, for the process that opened it. Raises OSError as `read_file` does."""

    def __init__(self, path: str, *, batch: int = -1) -> None:
        self._descriptor = -1
        self._path, self._is_recorded = path, not sees_reads()
        self._descriptor = self._opened(batch)
        status = os.fstat(self._descriptor)
        self.size: int = status.st_size
        """Bytes, when it was opened."""
        self._device = status.st_dev
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise _irregular(path)
        os.set_blocking(self._descriptor, True)

    def close(self) -> None:
        """Close the file, if it is not closed yet."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def read(self, offset: int, size: int, *, batch: int = -1) -> bytearray:
        """`size` bytes from `offset`, fewer where the file ends."""
        data = bytearray(size)
        count = self.read_into(memoryview(data), offset, batch=batch)
        return data if count == size else data[:count]

    def read_into(self, data: memoryview, offset: int, *, batch: int = -1) -> int:
        """Fill `data` from `offset`; returns how many bytes that were, fewer where the file ends."""
        if self._is_recorded:
            return read_into(data, self._descriptor, offset, self._device, intern(self._path), batch)
        done = 0
        while done < len(data) and (count := os.preadv(self._descriptor, [data[done:]], offset + done)):
            done += count
        return done

    def _opened(self, batch: int) -> int:
        if not self._is_recorded:
            return _open(self._path)
        with span("open", file=intern(self._path), batch=batch) as opening:
            before = _usage()
            descriptor = _open(self._path)
            opening.source = _source_by_usage(before, _usage())
        return descriptor
