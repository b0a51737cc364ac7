"""Sums over reads, in C (native/read_sums.c). All arguments but the last two are contiguous
arrays.
"""

from numpy import int64, uint8
from numpy.typing import NDArray

_Integers = NDArray[int64]
_Bytes = NDArray[uint8]

def add_reads(
    starts: _Integers, ends: _Integers, sizes: _Integers, files: _Integers, offsets: _Integers, ranks: _Integers,  # noqa: E501
    batches: _Integers,
    sources: _Bytes, flags: _Bytes, limits: _Integers, keys: _Integers, epochs: _Integers,
    groups: _Integers, of_files: _Integers, small: _Integers, of_epochs: _Integers, num_sources: int, num_epochs: int, /,  # noqa: E501
) -> None:  # fmt: skip
    """Add reads and opens to the sums by source, size and time, by file, of small calls, and by
    epoch. `limits` are the least times of their classes, `keys` those of batches, in order, and
    `epochs` the place of the epoch of each.
    """
