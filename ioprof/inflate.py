"""Compressed data, block by block: by ISA-L where the package `isal` is installed, and else by zlib, which takes longer."""

import zlib
from collections.abc import Iterator
from typing import IO, Any, Final

_library: Any = zlib
try:
    from isal import isal_zlib
except ImportError:
    pass  # it has wheels for two processors only
else:
    _library = isal_zlib

GZIP: Final = 31
ZLIB: Final = 15
"""Formats, by their numbers in zlib."""
BLOCK_BYTES: Final = 1 << 18
"""Of what is returned at once: it stays in the second-level cache for who reads it next."""
_READ_BYTES: Final = 1 << 14  # little, since what was inflated of it is lost where it is corrupt


def inflate(file: IO[bytes], wbits: int, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The contents of one or more compressed streams, one after the other, in blocks of up to `block_bytes`.

    Zero bytes after a stream of gzip are skipped, as by gzip itself. `EOFError` where the last stream is not complete, `zlib.error`
    where data is corrupt or does not have its checksum; both after the blocks before that place.
    """
    data = file.read(_READ_BYTES)
    while data:
        stream: Any = _library.decompressobj(wbits)
        while not stream.eof:
            try:
                block = stream.decompress(data, block_bytes)
            except _library.error as error:
                raise zlib.error(str(error)) from None
            if block:
                yield block
            data = stream.unconsumed_tail
            if not data and len(block) < block_bytes and not stream.eof:
                data = file.read(_READ_BYTES)
                if not data:
                    raise EOFError("the end of a compressed stream is missing")
        data = stream.unused_data or file.read(_READ_BYTES)
        while wbits == GZIP and data and not (data := data.lstrip(b"\0")):
            data = file.read(_READ_BYTES)
