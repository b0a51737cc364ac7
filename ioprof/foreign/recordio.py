"""MXNet's RecordIO files (`.rec`) of images, without MXNet.

    frame     magic (uint32)   kind and length (uint32: 3 and 29 bits)   data   zeros up to a multiple of 4 bytes
    record    one frame of kind 0; or, where its data holds the magic number at a multiple of 4 bytes, frames of the kinds 1, 2 ...,
              and 3: the data in between, with the number taken out
    data      flag (uint32)   label (float32)   id, id2 (uint64)   then `flag` labels (float32), if it is not 0   then the image

(dmlc-core, `recordio.h`; MXNet, `python/mxnet/recordio.py`.)
"""  # noqa: E501

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ioprof.errors import DatasetError

MAGIC: Final = struct.pack("<I", 0xCED7230A)
_FRAME: Final = struct.Struct("<4sI")
_HEADER: Final = struct.Struct("<IfQQ")
_LABEL: Final = struct.Struct("<f")
_LENGTH_BITS: Final = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_MAX_LABELS: Final = 1 << 16
MAX_RECORD_BYTES: Final = 1 << 28


class Listed(NamedTuple):
    """One record of a file."""

    start: int
    end: int
    label: float
    """The first label."""
    number: int
    """`id`: usually that of the `.idx` file."""


def records(file: memoryview, where: str) -> Iterator[Listed]:
    """The records of a file; raises `DatasetError` that names `where`."""
    place = 0
    while place < len(file):
        begin, head = place, b""
        kind = _FIRST
        while kind in (_FIRST, _MIDDLE):
            first = place == begin
            kind, start, end = _frame(file, place, where)
            if first != (kind in (_WHOLE, _FIRST)):
                raise DatasetError(
                    f"{where}: damaged at byte {place} (a frame of kind {kind} out of order); get"
                    " the file again"
                )
            # the magic number may lie within the header too
            if len(head) < _HEADER.size + _LABEL.size:
                part = bytes(file[start : min(end, start + _HEADER.size + _LABEL.size)])
                head = part if first else head + MAGIC + part
            place = end + -end % 4
        if place - begin > MAX_RECORD_BYTES:
            raise DatasetError(
                f"{where}: the record at byte {begin} has more than {MAX_RECORD_BYTES} bytes; it is"
                " no image"
            )
        label, number, _ = _parse_head(head, f"{where}: the record at byte {begin}")
        yield Listed(begin, min(place, len(file)), label, number)


def image_of(record: bytes | memoryview) -> bytes | memoryview:
    """The image in a record, whose frames these bytes are; raises `DatasetError`."""
    view = memoryview(record).cast("B")
    kind, start, end = _frame(view, 0, "the record")
    if kind == _WHOLE:
        return view[start + _parse_head(view[start:end], "the record")[2] : end]
    joined = bytearray(view[start:end])
    if kind != _FIRST:
        raise DatasetError("the record is damaged (it begins in the middle)")
    while kind != _LAST:
        kind, start, end = _frame(view, end + -end % 4, "the record")
        if kind not in (_MIDDLE, _LAST):
            raise DatasetError("the record is damaged (a frame out of order)")
        joined += MAGIC
        joined += view[start:end]
    return memoryview(joined)[_parse_head(joined, "the record")[2] :]


def _frame(file: memoryview, place: int, where: str) -> tuple[int, int, int]:
    """Kind of the frame at `place`, and first and last place of its data."""
    if place + _FRAME.size > len(file):
        raise DatasetError(f"{where}: cut short at byte {place}; get the file again")
    magic, packed = _FRAME.unpack_from(file, place)
    start = place + _FRAME.size
    end = start + (packed & (1 << _LENGTH_BITS) - 1)
    if magic != MAGIC or packed >> _LENGTH_BITS > _LAST:
        raise DatasetError(
            f"{where}: damaged at byte {place} (no frame of RecordIO); get the file again"
        )
    if end > len(file):
        raise DatasetError(
            f"{where}: cut short within the frame at byte {place}; get the file again"
        )
    return packed >> _LENGTH_BITS, start, end


def _parse_head(data: bytes | bytearray | memoryview, what: str) -> tuple[float, int, int]:
    """Label, id, and the place of the image."""
    if len(data) < _HEADER.size:
        raise DatasetError(f"{what} has no header of an image")
    flag, label, number, _ = _HEADER.unpack_from(data)
    if not flag:
        return label, number, _HEADER.size
    if flag > _MAX_LABELS or len(data) < _HEADER.size + _LABEL.size:
        raise DatasetError(f"{what} announces {flag} labels")
    return _LABEL.unpack_from(data, _HEADER.size)[0], number, _HEADER.size + _LABEL.size * flag
