"""CRC-32C (Castagnoli), the checksum of TFRecord: in C, or by a table in Python where ioprof was installed without a compiler."""

from collections.abc import Callable
from typing import Final

native_crc32c: Callable[[bytes | memoryview], int] | None
try:
    from ioprof import _checksum
except ImportError:  # ioprof was installed without a C compiler
    native_crc32c = None
else:
    native_crc32c = _checksum.crc32c

_POLYNOMIAL: Final = 0x82F63B78  # reflected (RFC 3720, appendix B.4)
_MASK: Final = 0xA282EAD8


def _table() -> list[int]:
    table = []
    for octet in range(256):
        for _ in range(8):
            octet = octet >> 1 ^ (_POLYNOMIAL if octet & 1 else 0)
        table.append(octet)
    return table


_TABLE: Final = _table()


def crc32c_by_table(data: bytes | memoryview) -> int:
    """The checksum of `data`, in Python."""
    crc = 0xFFFFFFFF
    for octet in bytes(data):
        crc = _TABLE[(crc ^ octet) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def crc32c(data: bytes | memoryview) -> int:
    """The checksum of `data`."""
    return crc32c_by_table(data) if native_crc32c is None else native_crc32c(data)


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum as TFRecord stores it: rotated by 15 bits, plus a constant (TensorFlow, `lib/hash/crc32c.h`)."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
