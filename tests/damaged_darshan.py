"""Damaged data of Darshan's module DXT_POSIX, and what the scanner in C and NumPy find in it, which must be the same."""

import random
import struct
from typing import Any, Final

from ioprof.interchange.darshan_reads import COLUMNS, Layout, Reads, reads_in

_WORDS: Final = (0, 1, 5, -1, -2, 1 << 31, (1 << 31) - 1, (1 << 63) - 1, -(1 << 63), 1 << 62, 1 << 40, 4096)
_SECONDS: Final = (
    0.0,
    -0.0,
    0.5,
    1.0000000005,
    1.0000000015,
    123456.789,
    999999999.9999999,
    1e9,
    1e300,
    -1.0,
    float("nan"),
    float("inf"),
)
_START_NS: Final = 1_700_000_000 * 10**9


def records(chance: random.Random, layout: Layout) -> bytes:
    """Up to 12 records with some calls each, most of them in order."""
    order, data = layout.byte_order, b""
    for _ in range(chance.randrange(12)):
        counts = [chance.choice((0, 1, 2, 3, 40)) for _ in range(2)]
        host = chance.choice((b"", b"node1", b"node\xff", b"n" * 64, b"a\0b"))
        data += struct.pack(f"{order}Qqq64s2q", chance.getrandbits(64), chance.choice((0, 3, -1, *_WORDS)), 0, host, *counts)
        for _ in range(sum(counts)):
            start = chance.random() * 1e5
            usual = (chance.randrange(1 << 40), chance.randrange(1 << 30), start, start + chance.random())
            odd = (chance.choice(_WORDS), chance.choice(_WORDS), chance.choice(_SECONDS), chance.choice(_SECONDS))
            data += struct.pack(f"{order}2q2d", *(usual if chance.random() < 0.8 else odd)) + b"\7" * 8 * layout.has_threads
    return data


def damaged(chance: random.Random, layout: Layout) -> bytes:
    """Records with up to 6 changes: other bytes or words, slices that are gone or doubled, an early end."""
    data = bytearray(records(chance, layout))
    for _ in range(chance.choice((0, 0, 1, 6))):
        place, what = chance.randrange(len(data) + 1), chance.randrange(5)
        if what == 0 and len(data) >= 8:
            place = place // 8 * 8
            data[place : place + 8] = struct.pack(f"{layout.byte_order}q", chance.choice(_WORDS))
        elif what == 1:
            data[place : place + chance.randrange(9)] = chance.randbytes(chance.randrange(9))
        elif what == 2:
            del data[place : place + chance.randrange(200)]
        elif what == 3:
            data[place:place] = data[place : place + chance.randrange(400)]
        elif chance.random() < 0.5:
            del data[place:]
    return bytes(data)


def shown(reads: Reads) -> tuple[Any, ...]:
    """All that was found, to be compared."""
    columns = {name: reads.columns[name].tolist() for name in COLUMNS}
    return columns, reads.files, reads.num_writes, reads.num_impossible, bool(reads.is_damaged)


def check_case(chance: random.Random) -> Reads:
    """Compare what is found in damaged data, which the scanner gets in blocks of any size."""
    layout = Layout(chance.choice("<>"), chance.random() < 0.5)
    data = damaged(chance, layout)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 5, 300))))
    blocks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    found, expected = reads_in(blocks, layout, _START_NS), reads_in([data], layout, _START_NS, scans=False)
    assert shown(expected) == shown(found)
    assert sum(file.num_reads for file in found.files) == len(found.columns["bytes"])
    return found
