"""Reads of parts of a file that stays open: what `read_file` is for whole files, by the same ladder of sources."""

import errno
import os
import stat

from ioprof.record.preload import sees_reads
from ioprof.record.reads import (
    _answers_nowait,
    _file_system,
    _irregular,
    _no_nowait,
    _open,
    _source_by_usage,
    _source_elsewhere,
    _usage,
)
from ioprof.record.span import PAGE_CACHE, STORAGE, UNKNOWN, intern, span


def file_system(path: str) -> str:
    """Type of the file system that holds `path` (`ext4`, `lustre`, ...); "" if that cannot be told. Raises OSError."""
    return _file_system(os.stat(path).st_dev)


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
        done = self._read_cached(data, offset, batch) if self._is_recorded else 0
        while done < len(data) and (count := self._read(data[done:], offset + done, batch)):
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

    def _read(self, data: memoryview, offset: int, batch: int) -> int:
        if not self._is_recorded:
            return os.preadv(self._descriptor, [data], offset)
        with span("read", file=intern(self._path), batch=batch, offset=offset) as reading:
            before = _usage()
            reading.bytes = count = os.preadv(self._descriptor, [data], offset)
            is_known = _answers_nowait(self._device)
            reading.source = STORAGE if is_known else _source_elsewhere(self._device, before, _usage())
        return count

    def _read_cached(self, data: memoryview, offset: int, batch: int) -> int:
        """Read what the page cache holds from `offset` on; 0 where it holds nothing, or the file system cannot say."""
        if not len(data) or not _answers_nowait(self._device):
            return 0
        with span("read", file=intern(self._path), batch=batch, offset=offset, source=PAGE_CACHE) as reading:
            try:
                reading.bytes = count = os.preadv(self._descriptor, [data], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                reading.bytes = count = 0
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                _no_nowait.add(self._device)
                reading.source = UNKNOWN  # nothing was learnt
                reading.bytes = count = 0
        return count
