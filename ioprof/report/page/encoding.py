"""Columns of numbers as text in a page: variable-length integers, deflated, in base64. `data.js`
reads them back.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

TICK_NS: Final = 100
"""The unit of all times in a page."""
_LEVEL: Final = 7
"""Of compression. 9 takes ten times as long for the steps of a large run, and saves 3 % of the
page."""


def ticks(nanoseconds: Any) -> Integers:
    """Times in units of the page."""
    return np.asarray(nanoseconds, dtype=np.int64) // TICK_NS


def varints(values: Integers) -> bytes:
    """Numbers from 0 as LEB128: seven bits in a byte, the lowest first, the eighth set in all but
    the last byte.
    """
    if not len(values):
        return b""
    rest = values.astype(np.uint64)
    lengths = np.ones(len(rest), dtype=np.int64)
    for more in range(1, 10):
        lengths += rest >= np.uint64(1 << 7 * more)
    places = np.cumsum(lengths) - lengths
    written = np.zeros(int(lengths.sum()), dtype=np.uint8)
    for byte in range(int(lengths.max())):
        has = lengths > byte
        low = (rest[has] >> np.uint64(7 * byte)) & np.uint64(0x7F)
        written[places[has] + byte] = low.astype(np.uint8) | np.where(
            lengths[has] > byte + 1, 0x80, 0
        ).astype(np.uint8)
    return written.tobytes()


def zigzag(values: Integers) -> Integers:
    """Signed numbers as numbers from 0 that are small where the signed ones are near 0."""
    return np.where(values >= 0, 2 * values, -2 * values - 1)


def differences(values: Integers) -> bytes:
    """Each number as its difference from the one before."""
    return varints(zigzag(np.diff(values, prepend=0)))


def optional_differences(values: Integers) -> bytes:
    """The same where some are missing (below 0): 0 for a missing one, else 1 and the difference
    from the last known.
    """
    known = values >= 0
    coded = np.zeros(len(values), dtype=np.int64)
    coded[known] = zigzag(np.diff(values[known], prepend=0)) + 1
    return varints(coded)


def block(columns: Sequence[bytes]) -> str:
    """Columns as the text of a data block: their number and lengths (uint32), then the columns,
    deflated, in base64.
    """
    head = struct.pack(f"<{len(columns) + 1}I", len(columns), *map(len, columns))
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(head + b"".join(columns)) + packer.flush()).decode(
        "ascii"
    )
