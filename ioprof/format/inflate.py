"""Compressed data, block by block: by ISA-L where the package `isal` is installed, and else by
zlib, which takes longer.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

_library: Any = zlib
try:
    from isal import isal_zlib
except ImportError:
    pass  # it has wheels for two processors only
else:
    _library = isal_zlib

crc32: Final[Callable[[memoryview | bytes, int], int]] = _library.crc32
"""Of bytes, and the checksum of those before them. ISA-L's takes 0.1 s for a gigabyte."""
GZIP: Final = 31
ZLIB: Final = 15
"""Formats, by their numbers in zlib."""
BLOCK_BYTES: Final = 1 << 18
"""Of what is returned at once: it stays in the second-level cache for who reads it next."""
_READ_BYTES: Final = 1 << 14  # little, since what was inflated of it is lost where it is corrupt


def inflate(file: IO[bytes], wbits: int, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The contents of one or more compressed streams, one after the other, in blocks of up to
    `block_bytes`.

    Zero bytes after a stream of gzip are skipped, as by gzip itself. `EOFError` where the last
    stream is not complete, `zlib.error` where data is corrupt or does not have its checksum; both
    after at least what zlib gives of the data before that place. The file must be seekable: a
    stream with an error is inflated by zlib once more.
    """
    data = file.read(_READ_BYTES)
    while data:
        first, after_first, num_given = data, file.tell(), 0
        stream: Any = _library.decompressobj(wbits)
        try:
            for block in _blocks(stream, file, first, block_bytes):
                num_given += len(block)
                yield block
        except (EOFError, _library.error):
            if _library is zlib:
                raise
            # ISA-L decodes up to three symbols at once, and gives none where the last is not
            # complete: up to two bytes less.
            file.seek(after_first)
            stream = zlib.decompressobj(wbits)
            for block in _blocks(stream, file, first, block_bytes):
                if len(block) > num_given:
                    yield block[num_given:]
                num_given = max(0, num_given - len(block))
        data = stream.unused_data or file.read(_READ_BYTES)
        while wbits == GZIP and data and not (data := data.lstrip(b"\0")):
            data = file.read(_READ_BYTES)


def _blocks(stream: Any, file: IO[bytes], data: bytes, block_bytes: int) -> Iterator[bytes]:
    """The contents of one stream, which begins with `data` and goes on in the file."""
    while not stream.eof:
        block = stream.decompress(data, block_bytes)
        if block:
            yield block
        data = stream.unconsumed_tail
        if not data and len(block) < block_bytes and not stream.eof:
            data = file.read(_READ_BYTES)
            if not data:
                raise EOFError("the end of a compressed stream is missing")
