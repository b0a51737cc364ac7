"""Fields of a protobuf message in a buffer, by their places: the bytes of an image are found
without copying them.

Wire format: https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ioprof.errors import DatasetError

VARINT: Final = 0
LENGTH: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}


class Field(NamedTuple):
    """One field of a message."""

    number: int
    wire: int
    """`VARINT`, `LENGTH`, or another."""
    start: int
    """Of its bytes in the buffer."""
    end: int
    value: int
    """Of a `VARINT`; else 0."""


def fields(message: memoryview, start: int, end: int) -> Iterator[Field]:
    """The fields of the message at bytes `start` to `end`; raises `DatasetError` for an invalid
    one.
    """
    place = start
    while place < end:
        key, place = read_varint(message, place, end)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, after = read_varint(message, place, end)
            yield Field(number, wire, place, after, value)
            place = after
            continue
        if wire == LENGTH:
            length, place = read_varint(message, place, end)
        elif wire in _FIXED_BYTES:
            length = _FIXED_BYTES[wire]
        else:
            raise DatasetError(f"a protobuf message is damaged (wire type {wire})")
        if length > end - place:
            raise DatasetError(
                f"a protobuf message is cut short ({length} bytes announced, {end - place} left)"
            )
        yield Field(number, wire, place, place + length, 0)
        place += length


def read_varint(message: memoryview, place: int, end: int) -> tuple[int, int]:
    """The number at `place`, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= end:
            raise DatasetError("a protobuf message is cut short (within a number)")
        octet = message[place]
        place += 1
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number, place
    raise DatasetError("a protobuf message is damaged (a number of more than ten bytes)")


def varint(value: int) -> bytes:
    """One whole number from 0 on."""
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)
