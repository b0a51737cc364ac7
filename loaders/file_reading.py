"""Reads of whole files, and of parts of files that stay open. They are ordinary system calls, which
the capture library records.
"""

import errno
import os
import stat
from typing import Final

LARGEST_FILE: Final = 1 << 30
"""Bytes that `read_file` reads at most: an image of a gigabyte is a file that came into a dataset
by mistake."""

ANNOUNCED_BYTES: Final = 1 << 17
"""Of one announcement: the window of readahead of most devices, with which the kernel begins."""


def read_file(path: str) -> bytearray:
    """All bytes of the file `path`.

    Raises OSError as open and read do, and where it is no regular file or larger than
    `LARGEST_FILE`.
    """
    file = FileRanges(path)
    try:
        if file.size > LARGEST_FILE:
            raise OSError(
                errno.EFBIG,
                f"{file.size:,} bytes are too many for one image; the limit is {LARGEST_FILE:,}",
                path,
            )
        return file.read(0, file.size)
    finally:
        file.close()


class FileRanges:
    """An open file, for the process that opened it. Raises OSError as open and read do, and where
    it is no regular file.
    """

    def __init__(self, path: str, *, at_random: bool = False) -> None:
        """`at_random`: the kernel shall read nothing beyond what is asked for."""
        self._descriptor = -1
        self._descriptor = _open(path)
        status = os.fstat(self._descriptor)
        self.size: int = status.st_size
        """Bytes, when it was opened."""
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise _not_regular(path)
        # Hierarchical storage (GPFS, DMAPI) answers a read that would recall a file from tape with
        # EAGAIN where it may not wait.
        os.set_blocking(self._descriptor, True)
        if at_random:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Close the file, if it is not closed yet."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def read(self, offset: int, size: int) -> bytearray:
        """`size` bytes from `offset`, fewer where the file ends."""
        data = bytearray(size)
        count = self.read_into(memoryview(data), offset)
        return data if count == size else data[:count]

    def announce(self, offset: int, size: int) -> None:
        """Have the kernel begin to read a part; does not wait (man 2 posix_fadvise)."""
        # Of one call the kernel reads no more than the device's window of readahead
        # (force_page_cache_ra in mm/readahead.c).
        for begin in range(offset, offset + size, ANNOUNCED_BYTES):
            count = min(ANNOUNCED_BYTES, offset + size - begin)
            os.posix_fadvise(self._descriptor, begin, count, os.POSIX_FADV_WILLNEED)

    def read_into(self, data: memoryview, offset: int) -> int:
        """Fill `data` from `offset`; returns how many bytes that were, fewer where the file
        ends.
        """
        done = 0
        while done < len(data) and (
            count := os.preadv(self._descriptor, [data[done:]], offset + done)
        ):
            done += count
        return done


def _open(path: str) -> int:
    # Without O_NONBLOCK, open would wait for a writer of a FIFO (man 7 fifo).
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there (man 2 open)
            raise _not_regular(path) from None
        raise


def _not_regular(path: str) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", path)
