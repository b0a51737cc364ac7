"""Compressed data gives the same blocks by zlib and, where it is installed, by ISA-L."""

import gzip
import io
import random
import zlib
from types import ModuleType
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import examples

from ioprof.format import inflate
from ioprof.format.inflate import GZIP, ZLIB


def contents(data: bytes, wbits: int, library: ModuleType, block_bytes: int) -> tuple[bytes, str]:
    """What comes out before an error, and which."""
    was, inflate._library = inflate._library, library
    found = b""
    try:
        for block in inflate.inflate(io.BytesIO(data), wbits, block_bytes):
            assert 0 < len(block) <= block_bytes
            found += block
    except (EOFError, zlib.error) as error:
        return found, type(error).__name__
    finally:
        inflate._library = was
    return found, ""


LIBRARIES: Final = sorted(
    {zlib.__name__: zlib, inflate._library.__name__: inflate._library}.items()
)


def streams(chance: random.Random, wbits: int) -> tuple[bytes, bytes]:
    """Up to four compressed streams, and what they hold."""
    parts = [
        bytes(chance.choices(b'abc{}\n":1', k=chance.randrange(3000))) * chance.randrange(1, 40)
        if chance.random() < 0.7
        else chance.randbytes(chance.randrange(5000))
        for _ in range(chance.randint(1, 4))
    ]
    packed = b""
    for part in parts:
        level = chance.choice((0, 1, 6, 9))
        padding = b"\0" * chance.randrange(9) if wbits == GZIP else b""
        packed += (
            gzip.compress(part, level) if wbits == GZIP else zlib.compress(part, level)
        ) + padding
    return packed, b"".join(parts)


@pytest.mark.parametrize("name", dict(LIBRARIES))
@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    wbits=st.sampled_from((GZIP, ZLIB)),
    block_bytes=st.sampled_from((7, 1000, 1 << 18)),
)
@example(seed=4385, wbits=GZIP, block_bytes=7)  # ISA-L keeps the last byte before the cut
def test_streams_are_inflated_one_after_the_other(
    name: str, seed: int, wbits: int, block_bytes: int
) -> None:
    """All that is before a cut comes out; a cut is an error unless it is between streams.
    Before corrupt data comes at least what zlib gives.
    """
    chance, library = random.Random(seed), dict(LIBRARIES)[name]
    packed, whole = streams(chance, wbits)
    assert (whole, "") == contents(packed, wbits, library, block_bytes)
    cut = chance.randrange(len(packed))
    found, error = contents(packed[:cut], wbits, library, block_bytes)
    assert error in ("", "EOFError")
    assert whole.startswith(found)
    assert (found, error) == contents(packed[:cut], wbits, zlib, block_bytes)
    changed = bytearray(packed)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    found, _ = contents(bytes(changed), wbits, library, block_bytes)
    assert found.startswith(contents(bytes(changed), wbits, zlib, block_bytes)[0])


@pytest.mark.parametrize("name", dict(LIBRARIES))
def test_nothing_before_a_cut_is_lost(name: str) -> None:
    """At any byte of a long stream, whose symbols ISA-L decodes up to three at once; the stream
    before it is given once."""
    chance = random.Random(1)
    part = ",".join(
        f'{{"ts":{chance.randrange(10**9)},"name":"k{chance.randrange(9)}"}}' for _ in range(1500)
    ).encode()
    first, packed = gzip.compress(b"first"), gzip.compress(part)
    for cut in range(len(packed) - 500, len(packed), 3):
        expected = zlib.decompressobj(GZIP).decompress(packed[:cut])
        assert part.startswith(expected)
        assert contents(first + packed[:cut], GZIP, dict(LIBRARIES)[name], 1 << 18) == (
            b"first" + expected,
            "EOFError",
        )


@pytest.mark.parametrize("name", dict(LIBRARIES))
def test_corrupt_data_and_a_wrong_checksum_are_errors(name: str) -> None:
    library = dict(LIBRARIES)[name]
    data = bytearray(gzip.compress(b"x" * 10 + random.Random(1).randbytes(99_000)))
    data[-7] ^= 1
    assert contents(bytes(data), GZIP, library, 1000)[1] == "error"
    assert contents(b"\x1f\x8b" + b"x" * 100, GZIP, library, 1000) == (b"", "error")
    assert contents(
        gzip.compress(b"abc") + b"garbage that is long enough to be a header", GZIP, library, 1000
    ) == (b"abc", "error")
