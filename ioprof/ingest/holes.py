"""Holes of a file, whose blocks were given back to the file system; they read as zeros (man
fallocate, FALLOC_FL_PUNCH_HOLE).
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from typing import Final

_KEEP_SIZE_AND_PUNCH_HOLE: Final = 1 | 2  # <linux/falloc.h>


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Give back the blocks that lie wholly in this part of a file; all of it reads as zeros then.
    The file keeps its size.

    Raises OSError: EOPNOTSUPP where the file system cannot.
    """
    library = ctypes.CDLL(None, use_errno=True)
    places = (ctypes.c_longlong(offset), ctypes.c_longlong(length))
    if library.fallocate(descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, *places):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def data_parts(descriptor: int, start: int, unit: int) -> Iterator[tuple[int, int]]:
    """The parts of a file from `start` on that are no holes, begin and end; rounded outward to
    units, which count from `start`.

    Where the file system knows no holes that is one part (man lseek, SEEK_DATA).
    """
    end = os.fstat(descriptor).st_size
    while start < end:
        try:
            data = os.lseek(descriptor, start, os.SEEK_DATA)
            hole = os.lseek(descriptor, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is only a hole up to the end
                return
            data, hole = start, end
        first = start + (data - start) // unit * unit
        last = min(end, start - (start - hole) // unit * unit)
        yield first, last
        start = max(last, first + unit)
