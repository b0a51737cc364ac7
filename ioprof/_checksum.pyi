"""CRC-32C in C (native/checksum.c)."""

def crc32c(data: bytes | memoryview, /) -> int:
    """The checksum of a buffer of bytes."""
