"""CRC-32C (Castagnoli), the checksum of TFRecord."""

from typing import Final

from ioprof._checksum import crc32c

_MASK: Final = 0xA282EAD8


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum as TFRecord stores it: rotated by 15 bits, plus a constant (TensorFlow,
    `lib/hash/crc32c.h`).
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
