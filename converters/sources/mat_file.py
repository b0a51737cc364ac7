"""Struct arrays from a MATLAB Level 5 MAT-file, the format of the devkit's `meta.mat`.

Only strings, real numbers and structs of them; any other value of a field becomes None. Format:
MathWorks, "MAT-File Level 5 File Format"; an element is a type, a length and that many bytes, and
an array is an element that contains elements.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from ioprof.errors import DatasetError

Value = str | float | None

_HEADER_BYTES: Final = 128
_MAX_BYTES: Final = 1 << 26
_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _CHAR = 2, 4
_NUMBERS: Final = range(6, 16)  # classes: double, single, and integers of 8 to 64 bits
_CODES: Final = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS: Final = {1: "utf-8", 2: "utf-8", 16: "utf-8", 4: "utf-16", 17: "utf-16"}


def read_structs(data: bytes, where: str) -> list[dict[str, Value]]:
    """The elements of the first struct array in the file; raises `DatasetError`, which names
    `where`, if there is none.
    """
    try:
        order = {b"IM": "<", b"MI": ">"}[data[126:128]]
        for kind, content in _elements(data[_HEADER_BYTES:], order):
            if kind == _COMPRESSED:
                inflated = zlib.decompressobj().decompress(content, _MAX_BYTES)
                kind, content = next(_elements(inflated, order))
            if kind == _MATRIX and (structs := _structs(content, order)) is not None:
                return structs
    except (KeyError, ValueError, struct.error, zlib.error, StopIteration, RuntimeError) as error:
        raise DatasetError(
            f"{where}: meta.mat is damaged, or no MATLAB file of level 5 ({error}); get the devkit"
            " again"
        ) from None
    raise DatasetError(f"{where}: meta.mat holds no array of structs; get the devkit again")


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, place)
        if kind >> 16:  # a small element: length and type in four bytes, content in the next four
            kind, size = kind & 0xFFFF, kind >> 16
            start, end = place + 4, place + 8
            if size > 4:
                raise ValueError("a small element of more than four bytes")
        else:
            start = place + 8
            end = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(data):
            raise ValueError("cut short")
        yield kind, data[start : start + size]
        place = end


def _structs(content: bytes, order: str) -> list[dict[str, Value]] | None:
    parts = _elements(content, order)
    flags, dimensions, _ = next(parts)[1], next(parts)[1], next(parts)
    if _class_of(flags, order) != _STRUCT:
        return None
    (width,) = struct.unpack(f"{order}i", next(parts)[1])
    names = next(parts)[1]
    if width <= 0:
        raise ValueError("field names of no length")
    fields = [
        names[start : start + width].split(b"\0")[0].decode("ascii", "replace")
        for start in range(0, len(names), width)
    ]
    count = 1
    for side in struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions):
        count *= side
    if not 0 <= count <= len(content):
        raise ValueError(f"{count} structs")
    return [{field: _value(next(parts)[1], order) for field in fields} for _ in range(count)]


def _value(content: bytes, order: str) -> Value:
    if not content:
        return None
    parts = _elements(content, order)
    flags, _, _ = next(parts)[1], next(parts), next(parts)
    kind, data = next(parts, (0, b""))
    if _class_of(flags, order) == _CHAR:
        encoding = _TEXTS.get(kind, "utf-8")
        return data.decode(
            encoding + ({"<": "-le", ">": "-be"}[order] if encoding == "utf-16" else ""), "replace"
        )
    if _class_of(flags, order) in _NUMBERS and kind in _CODES and data:
        return float(struct.unpack_from(order + _CODES[kind], data)[0])
    return None


def _class_of(flags: bytes, order: str) -> int:
    return int(struct.unpack_from(f"{order}I", flags)[0]) & 0xFF
