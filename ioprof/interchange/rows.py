"""Protocol buffers in columns: the same message of many rows is encoded by a few operations of
NumPy on all of them.

A value of `Rows` holds bytes for each row; fields of a message are `Rows` that are joined. Bytes
are put next to each other once, in the end. The format:
https://protobuf.dev/programming-guides/encoding/
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ioprof.foreign.protobuf import varint

_Array = npt.NDArray[Any]

VARINT: Final = 0
"""Wire type of whole numbers."""
FIXED64: Final = 1
"""Wire type of 8 bytes: doubles, and ids that are large anyway."""
BYTES: Final = 2
"""Wire type of text and messages: their length, then their bytes."""


@dataclass(frozen=True)
class Rows:
    """Bytes of some rows: a row of cells for each, of which those that are used follow each other
    in the result.
    """

    cells: _Array
    """`uint8`, one row for each row."""
    used: _Array
    """Of the same shape: which cells hold a byte."""

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def lengths(self) -> _Array:
        """Bytes of each row."""
        found: _Array = self.used.sum(axis=1)
        return found

    def only(self, mask: _Array) -> "Rows":
        """The same, with nothing in the rows that are not in the mask."""
        return Rows(self.cells, self.used & mask[:, None])

    def take(self, order: _Array) -> "Rows":
        """These rows in this order; a row may occur several times."""
        return Rows(self.cells[order], self.used[order])

    def flat(self) -> _Array:
        """The bytes of all rows, one after the other."""
        found: _Array = self.cells[self.used]
        return found


def join(*parts: Rows) -> Rows:
    """Rows whose bytes are those of each part, in this order."""
    return Rows(np.hstack([part.cells for part in parts]), np.hstack([part.used for part in parts]))


def stack(first: Rows, second: Rows) -> Rows:
    """All rows of the first part, then those of the second."""
    width = max(first.cells.shape[1], second.cells.shape[1])
    padded = [
        np.pad(cells, ((0, 0), (0, width - cells.shape[1])))
        for cells in (first.cells, second.cells, first.used, second.used)
    ]
    return Rows(np.vstack(padded[:2]), np.vstack(padded[2:]))


def constant(data: bytes, rows: int) -> Rows:
    """The same bytes in each row."""
    return Rows(np.tile(np.frombuffer(data, np.uint8), (rows, 1)), np.ones((rows, len(data)), bool))


def varints(values: _Array) -> Rows:
    """Whole numbers from 0 on, seven bits to a byte, the lowest first; a set highest bit says that
    another byte follows.
    """
    numbers = np.asarray(values).astype(np.uint64)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    groups = (
        (numbers[:, None] >> (7 * np.arange(width, dtype=np.uint64))) & np.uint64(0x7F)
    ).astype(np.uint8)
    lengths = width - (groups[:, ::-1] != 0).argmax(axis=1)
    lengths[numbers == 0] = 1
    place = np.arange(width)
    return Rows(
        groups | ((place < lengths[:, None] - 1).astype(np.uint8) << 7), place < lengths[:, None]
    )


def tag(number: int, wire_type: int) -> bytes:
    """What a field begins with."""
    return varint(number << 3 | wire_type)


def number_field(number: int, values: _Array) -> Rows:
    """A field with a whole number from 0 on in each row."""
    return join(constant(tag(number, VARINT), len(values)), varints(values))


def fixed_field(number: int, values: _Array) -> Rows:
    """A field with 8 bytes in each row: `fixed64` or `double` by the type of the values."""
    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)
    return join(constant(tag(number, FIXED64), len(values)), Rows(data, np.ones(data.shape, bool)))


def message_field(number: int, rows: Rows) -> Rows:
    """A field with a message in each row."""
    return join(constant(tag(number, BYTES), len(rows)), varints(rows.lengths), rows)


def number(field: int, value: int) -> bytes:
    """A field of one message with a whole number from 0 on."""
    return tag(field, VARINT) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """A field of one message with a text, or with a message that is encoded already."""
    coded = value.encode("utf-8", "backslashreplace") if isinstance(value, str) else value
    return tag(field, BYTES) + varint(len(coded)) + coded
