"""TFRecord files of `tf.train.Example`, without TensorFlow.

    record     length (uint64)   masked CRC-32C of the length (uint32)   data   masked CRC-32C of the data (uint32)
    Example    features = 1 { feature = 1, a map entry { key = 1, value = 2 } }
    Feature    bytes_list = 1 { value = 1 }   float_list = 2   int64_list = 3 { value = 1, packed or not }

All numbers are little-endian (TensorFlow, `lib/io/record_writer.h` and
`core/example/feature.proto`).
"""  # noqa: E501

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ioprof.errors import DatasetError
from ioprof.foreign.crc32c import masked_crc32c
from ioprof.foreign.protobuf import LENGTH, VARINT, fields, read_varint

IMAGES: Final = ("image/encoded", "image", "jpg", "jpeg", "png")
LABELS: Final = ("image/class/label", "label", "labels", "class", "cls")
SYNSETS: Final = ("image/class/synset", "synset", "wnid")
NAMES: Final = ("image/filename", "filename", "fname", "key", "__key__")
MAX_RECORD_BYTES: Final = 1 << 28
HEAD_BYTES: Final = 12
_CHECKSUM: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<QI")
_FEATURES, _FEATURE, _KEY, _VALUE = 1, 1, 1, 2
_BYTES_LIST, _INT64_LIST = 1, 3
_MAX_TEXT_BYTES: Final = 4096


class Example(NamedTuple):
    """What a record says of its image. The places are those of the buffer that holds the record."""

    start: int
    """Of the image's first byte."""
    end: int
    label: int | None
    """The first integer of the label; None: there is none."""
    synset: str
    """Name of the class; empty: there is none."""
    name: str
    """File name or key; empty: there is none."""


def frames(file: memoryview, where: str) -> Iterator[tuple[int, int]]:
    """First and last place of each record in a file, its framing included; the checksums of the
    lengths are compared.

    Raises `DatasetError` that names `where`.
    """
    place = 0
    while place < len(file):
        size = _data_bytes(file[place : place + HEAD_BYTES], f"{where}: the record at byte {place}")
        end = place + HEAD_BYTES + size + _CHECKSUM.size
        if end > len(file):
            raise DatasetError(
                f"{where}: cut short within the record at byte {place}; get the file again"
            )
        yield place, end
        place = end


def is_tfrecord(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a TFRecord file."""
    try:
        return bool(_data_bytes(memoryview(head)[:HEAD_BYTES], ""))
    except DatasetError:
        return False


def parse_example(data: memoryview, start: int, end: int) -> Example:
    """The `Example` at bytes `start` to `end` of a buffer; raises `DatasetError` if it is none, or
    has no image.
    """
    features = {
        name: values
        for outer in fields(data, start, end)
        if outer.number == _FEATURES and outer.wire == LENGTH
        for entry in fields(data, outer.start, outer.end)
        if entry.number == _FEATURE and entry.wire == LENGTH
        for name, values in [_feature(data, entry.start, entry.end)]
    }
    image = next((found for name in IMAGES if isinstance(found := features.get(name), tuple)), None)
    if image is None:
        names = ", ".join(sorted(features))[:100]
        raise DatasetError(
            f"an Example without an image ({names or 'no features'}); image/encoded is expected"
        )
    label = next((found for name in LABELS if isinstance(found := features.get(name), int)), None)
    return Example(*image, label, _text(data, features, SYNSETS), _text(data, features, NAMES))


def image_of(record: bytes | memoryview) -> memoryview:
    """The image in a record, which begins with its length; both checksums are compared. Raises
    `DatasetError`.
    """
    view = memoryview(record).cast("B")
    size = _data_bytes(view[:HEAD_BYTES], "the record")
    end = HEAD_BYTES + size
    if len(view) != end + _CHECKSUM.size:
        raise DatasetError(f"the record is cut short ({len(view)} bytes for {size} of data)")
    (expected,) = _CHECKSUM.unpack_from(view, end)
    if masked_crc32c(view[HEAD_BYTES:end]) != expected:
        raise DatasetError(
            "the record's checksum (CRC-32C) is not that of its data: the file is damaged"
        )
    found = parse_example(view, HEAD_BYTES, end)
    return view[found.start : found.end]


def _data_bytes(head: memoryview, what: str) -> int:
    if len(head) < HEAD_BYTES:
        raise DatasetError(f"{what} is cut short; get the file again")
    size, checksum = _HEAD.unpack(head)
    if masked_crc32c(head[:8]) != checksum:
        raise DatasetError(
            f"{what} is damaged (checksum of its length), or the file is compressed; unpack it or"
            " get it again"
        )
    if not 0 < size <= MAX_RECORD_BYTES:
        raise DatasetError(f"{what} has {size} bytes, not 1 to {MAX_RECORD_BYTES}")
    return int(size)


def _feature(data: memoryview, start: int, end: int) -> tuple[str, tuple[int, int] | int | None]:
    """Name and first value: the places of bytes, or an integer; None where there is neither."""
    name, value = "", None
    for field in fields(data, start, end):
        if field.number == _KEY and field.wire == LENGTH:
            name = bytes(data[field.start : min(field.end, field.start + _MAX_TEXT_BYTES)]).decode(
                errors="replace"
            )
        elif field.number == _VALUE and field.wire == LENGTH:
            value = _first_value(data, field.start, field.end)
    return name, value


def _first_value(data: memoryview, start: int, end: int) -> tuple[int, int] | int | None:
    for values in fields(data, start, end):
        if values.wire != LENGTH:
            continue
        for value in fields(data, values.start, values.end):
            if value.number != 1:
                continue
            if values.number == _BYTES_LIST and value.wire == LENGTH:
                return value.start, value.end
            if values.number == _INT64_LIST and value.wire == VARINT:
                return value.value
            if values.number == _INT64_LIST and value.wire == LENGTH and value.end > value.start:
                return read_varint(data, value.start, value.end)[0]
    return None


def _text(
    data: memoryview, features: dict[str, tuple[int, int] | int | None], names: tuple[str, ...]
) -> str:
    for name in names:
        found = features.get(name)
        if isinstance(found, tuple) and found[1] - found[0] <= _MAX_TEXT_BYTES:
            return bytes(data[found[0] : found[1]]).decode(errors="replace")
    return ""
