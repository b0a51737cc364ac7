"""What the footer of a Parquet file claims, read before anything is allocated for it.

A reader of Parquet makes room for as many rows as the footer names, and aborts its process where
memory does not suffice. The footer is a struct of Thrift's compact protocol (parquet.thrift,
FileMetaData): its numbers of rows and bytes are read here.
"""

from pathlib import Path
from typing import Any, Final

from ioprof.files import open_regular_file

_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
"""The length of the footer, and the magic bytes."""
_MOST_FOOTER_BYTES: Final = 64 << 20
_MOST_LEVELS: Final = 16
ROWS_PER_BYTE: Final = 100
"""No table of a run has more rows per byte of its file: times differ from row to row, and
compressed they take a byte or so."""


def num_rows(path: Path) -> int:
    """The rows that a Parquet file claims. ValueError, with the reason, where that cannot be;
    OSError as of `open_regular_file`.
    """
    with open_regular_file(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END_BYTES))
        end = file.read(_END_BYTES)
        length = int.from_bytes(end[:4], "little")
        if end[4:] != _MAGIC or length > min(size - _END_BYTES - len(_MAGIC), _MOST_FOOTER_BYTES):
            raise ValueError("it is no Parquet file, or was cut short")
        file.seek(size - _END_BYTES - length)
        footer = _Compact(file.read(length)).struct()
    rows, groups = footer.get(3), footer.get(4, [])
    if (
        not isinstance(rows, int)
        or not isinstance(groups, list)
        or not all(isinstance(group, dict) for group in groups)
    ):
        raise ValueError("its footer is not as the format has it")
    if rows < 0 or rows > ROWS_PER_BYTE * size:
        raise ValueError(f"it claims {rows:,} rows in {size:,} bytes")
    in_groups = [group.get(3) for group in groups]
    if (
        not all(isinstance(count, int) and 0 <= count <= rows for count in in_groups)
        or sum(in_groups) != rows
    ):
        raise ValueError(f"it claims {rows:,} rows, and other numbers of rows in its parts")
    _check_columns(groups, rows, size)
    return rows


def _check_columns(groups: list[dict[int, Any]], rows: int, size: int) -> None:
    for group in groups:
        for column in group.get(1, []):
            facts = column.get(3, {}) if isinstance(column, dict) else {}
            values, packed = facts.get(5), facts.get(7)
            if (
                not isinstance(values, int)
                or not isinstance(packed, int)
                or values != group[3]
                or not 0 <= packed <= size
            ):
                raise ValueError(
                    f"a column claims {values} values in {packed} bytes, of {rows:,} rows in"
                    f" {size:,} bytes"
                )


class _Compact:
    """Thrift's compact protocol: a struct is a dict by field number."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def struct(self, level: int = 0) -> dict[int, Any]:
        """The struct that begins here."""
        if level > _MOST_LEVELS:
            raise ValueError("its footer is nested too deep")
        found: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._integer()
            found[number] = self._value(kind & 15, level)
        return found

    def _value(self, kind: int, level: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._unsigned()
                if count > len(self._data):
                    raise ValueError("its footer is damaged")
                is_flag = head & 15 in (1, 2)  # in a list each flag is a byte
                return [
                    self._byte() if is_flag else self._value(head & 15, level) for _ in range(count)
                ]
            case 12:
                return self.struct(level + 1)
        raise ValueError("its footer is damaged")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._place : self._place + count]
        if len(found) < count:
            raise ValueError("its footer is damaged")
        self._place += count
        return found

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            octet = self._byte()
            value |= (octet & 127) << shift
            if octet < 128:
                return value
        raise ValueError("its footer is damaged")

    def _integer(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
