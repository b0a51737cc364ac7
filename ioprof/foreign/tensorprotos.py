"""Values of an LMDB record: Caffe2's `TensorProtos`, encoded and decoded without generated protobuf
code.

    TensorProtos   protos = 1, once for the image and once for the label; further protos are allowed and ignored
    TensorProto    dims = 1 (int64, one by one)   data_type = 2   int32_data = 4 (packed)   byte_data = 5   string_data = 6

An encoded image is a STRING with dims [1]; a raw one is BYTES with dims [height, width, channels],
rows first, RGB. The label is an INT32 with dims [1]; label 0 is written like any other, because
readers interpret an absent number as "no label". DALI's `fn.readers.caffe2` reads exactly this;
wire format: https://protobuf.dev/programming-guides/encoding/.

Caffe's `Datum` is read too, but never written: channels = 1, height = 2, width = 3, data = 4, label
= 5, encoded = 7. Pixels that are not encoded are stored in planes, blue first (Caffe's
`CVMatToDatum`), and are returned as RGB, rows first.
"""  # noqa: E501

from collections.abc import Iterator
from typing import Final

from ioprof.errors import DatasetError
from ioprof.foreign.protobuf import LENGTH, VARINT, fields, read_varint, varint

INT32: Final = 2
BYTE: Final = 3
STRING: Final = 4
MAX_LABEL: Final = 2**31 - 1

Shape = tuple[int, int, int]
"""Height, width and channels of a raw image."""

_PROTOS_KEY: Final = 1 << 3 | LENGTH
_DATUM_NUMBERS: Final = {1: "channels", 2: "height", 3: "width", 5: "label", 7: "encoded"}
_ENCODED: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def encode_image(data: bytes | memoryview, label: int, shape: Shape | None = None) -> bytes:
    """The value of one record. With `shape` the bytes are raw pixels, without it an encoded image.

    Raises `DatasetError` when the label is not in 0 to 2^31 - 1, or when `shape` does not match the
    number of bytes.
    """
    if not 0 <= label <= MAX_LABEL:
        raise DatasetError(f"label {label} does not fit into an LMDB record (0 to {MAX_LABEL})")
    if shape is not None and (min(shape) < 1 or len(data) != shape[0] * shape[1] * shape[2]):
        raise DatasetError(
            f"{len(data)} bytes are not a raw image of {' x '.join(map(str, shape))}"
        )
    head = _image_head(len(data), shape)
    numbers = varint(label)
    tensor = b"\x08\x01\x10\x02\x22" + varint(len(numbers)) + numbers
    outer = b"\x0a" + varint(len(head) + len(data))
    return b"".join((outer, head, data, b"\x0a", varint(len(tensor)), tensor))


def decode(value: bytes | memoryview) -> tuple[memoryview, Shape | None, int]:
    """The image, its shape if it is raw, and the label of a record's value; the image is a view
    into `value`, not a copy.

    Raises `DatasetError`, and no other exception, for invalid bytes.
    """
    view = memoryview(value).cast("B")
    if view and view[0] != _PROTOS_KEY:  # a Datum has no field 1 with a length
        return _datum(view)
    protos = [
        field for number, field in _fields(view) if number == 1 and isinstance(field, memoryview)
    ]
    if len(protos) < 2:
        raise DatasetError(f"LMDB record holds {len(protos)} tensors; an image and a label are two")
    data, shape = _image(protos[0])
    return data, shape, _label(protos[1])


# ------------------------------------------------------------------------------------------ writing


def _image_head(length: int, shape: Shape | None) -> bytes:
    if shape is None:
        return b"\x08\x01\x10\x04\x32" + varint(length)
    return b"".join(b"\x08" + varint(side) for side in shape) + b"\x10\x03\x2a" + varint(length)


# ------------------------------------------------------------------------------------------ reading


def _image(proto: memoryview) -> tuple[memoryview, Shape | None]:
    kind = 0
    dims: list[int] = []
    data: dict[int, memoryview] = {}
    for number, field in _fields(proto):
        if number == 1:
            dims += _integers(field)
        elif number == 2 and isinstance(field, int):
            kind = field
        elif number in (5, 6) and isinstance(field, memoryview):
            data.setdefault(number, field)
    if kind == STRING and 6 in data:
        return data[6], None
    if kind == BYTE and 5 in data:
        return data[5], _shape(dims, len(data[5]))
    raise DatasetError(f"LMDB record has no image (tensor of data type {kind})")


def _shape(dims: list[int], length: int) -> Shape:
    if len(dims) != 3 or min(dims) < 1 or dims[0] * dims[1] * dims[2] != length:
        raise DatasetError(
            f"LMDB record's raw image has {length} bytes and dimensions {str(dims)[:60]}"
        )
    return dims[0], dims[1], dims[2]


def _label(proto: memoryview) -> int:
    kind = 0
    labels: list[int] = []
    for number, field in _fields(proto):
        if number == 2 and isinstance(field, int):
            kind = field
        elif number == 4:
            labels += _integers(field)
    if kind != INT32 or len(labels) != 1 or not 0 <= labels[0] <= MAX_LABEL:
        raise DatasetError(
            f"LMDB record has no label (data type {kind}, values {str(labels)[:60]})"
        )
    return labels[0]


def _datum(message: memoryview) -> tuple[memoryview, Shape | None, int]:
    data = memoryview(b"")
    numbers: dict[str, int] = {}
    for number, field in _fields(message):
        if number == 4 and isinstance(field, memoryview):
            data = field
        elif number in _DATUM_NUMBERS and isinstance(field, int):
            numbers[_DATUM_NUMBERS[number]] = field
    label = numbers.get("label", -1)
    if not len(data) or not 0 <= label <= MAX_LABEL:
        raise DatasetError(
            "LMDB record is neither a Caffe2 TensorProtos nor a Caffe Datum with an image and a"
            " label"
        )
    channels, height, width = (numbers.get(name, 0) for name in ("channels", "height", "width"))
    if (
        not numbers.get("encoded")
        and channels in (1, 3)
        and height * width
        and channels * height * width == len(data)
    ):
        return _interleaved(data, channels, height * width), (height, width, 3), label
    # convert_imageset sets it, older tools did not
    if numbers.get("encoded") or bytes(data[:8]).startswith(_ENCODED):
        return data, None, label
    raise DatasetError(
        f"LMDB record's raw image has {len(data)} bytes for {channels} x {height} x {width}"[:200]
    )


def _interleaved(data: memoryview, channels: int, pixels: int) -> memoryview:
    rgb = bytearray(3 * pixels)
    for channel in range(3):
        plane = (2 - channel) * pixels if channels == 3 else 0
        rgb[channel::3] = data[plane : plane + pixels]
    return memoryview(rgb)


def _integers(field: int | memoryview) -> list[int]:
    if isinstance(field, int):
        return [field]
    numbers, place = [], 0
    while place < len(field):
        number, place = read_varint(field, place, len(field))
        numbers.append(number)
    return numbers


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and content of each field, of those with a length or an integer."""
    for field in fields(message, 0, len(message)):
        if field.wire == VARINT:
            yield field.number, field.value
        elif field.wire == LENGTH:
            yield field.number, message[field.start : field.end]
