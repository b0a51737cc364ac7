"""Damaged data of Darshan's module DXT_POSIX, and what the scanner in C and NumPy find in it, which
must be the same."""

import random
import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ioprof.interchange.darshan_reads import COLUMNS, Layout, Reads, TracedFile, reads_in

_WORDS: Final = (
    0,
    1,
    5,
    -1,
    -2,
    1 << 31,
    (1 << 31) - 1,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 62,
    1 << 40,
    4096,
)
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
_RECORD_BYTES: Final = 104
"""Of a file: id, rank, shared, host name, writes, reads."""


def reads_by_numpy(data: bytes, layout: Layout, start_ns: int) -> Reads:
    """What the scanner must find."""
    order = layout.byte_order
    fields = [("offset", "i8"), ("length", "i8"), ("start", "f8"), ("end", "f8"), ("thread", "u8")][
        : 4 + layout.has_threads
    ]
    dtype = np.dtype([(name, order + kind) for name, kind in fields])
    found: list[dict[str, Any]] = [{name: np.empty(0, np.int64) for name in COLUMNS}]
    files = []
    num_writes = num_impossible = place = 0
    is_damaged = False
    while place + _RECORD_BYTES <= len(data):
        number, rank = struct.unpack_from(f"{order}Qq", data, place)
        host = data[place + 24 : place + 88].split(b"\0")[0]
        writes, reads = struct.unpack_from(f"{order}2q", data, place + 88)
        place += _RECORD_BYTES
        is_damaged = (
            writes < 0 or reads < 0 or (writes + reads) * dtype.itemsize > len(data) - place
        )
        if is_damaged:
            break
        columns = _possible(np.frombuffer(data, dtype, writes + reads, place)[writes:], start_ns)
        place += (writes + reads) * dtype.itemsize
        num_writes += writes
        if reads:
            files.append(
                TracedFile(
                    number, rank if 0 <= rank < 1 << 31 else None, host, len(columns["bytes"])
                )
            )
            found.append(columns)
            num_impossible += reads - len(columns["bytes"])
    joined = {name: np.concatenate([each[name] for each in found]) for name in COLUMNS}
    return Reads(joined, files, num_writes, num_impossible, is_damaged)


def _possible(calls: npt.NDArray[Any], start_ns: int) -> dict[str, Any]:
    begin, end, length, offset = (calls[name] for name in ("start", "end", "length", "offset"))
    # A comparison with NaN is false.
    possible = (begin >= 0) & (end >= begin) & (end < 1e9) & (length >= 0) & (offset >= -1)
    values = (
        np.rint(begin[possible] * 1e9),
        np.rint(end[possible] * 1e9),
        length[possible],
        offset[possible],
    )
    columns = dict(zip(COLUMNS, (each.astype(np.int64) for each in values), strict=True))
    for name in ("start_ns", "end_ns"):
        columns[name] += start_ns
    return columns


def records(chance: random.Random, layout: Layout) -> bytes:
    """Up to 12 records with some calls each, most of them in order."""
    order, data = layout.byte_order, b""
    for _ in range(chance.randrange(12)):
        counts = [chance.choice((0, 1, 2, 3, 40)) for _ in range(2)]
        host = chance.choice((b"", b"node1", b"node\xff", b"n" * 64, b"a\0b"))
        data += struct.pack(
            f"{order}Qqq64s2q",
            chance.getrandbits(64),
            chance.choice((0, 3, -1, *_WORDS)),
            0,
            host,
            *counts,
        )
        for _ in range(sum(counts)):
            start = chance.random() * 1e5
            usual = (
                chance.randrange(1 << 40),
                chance.randrange(1 << 30),
                start,
                start + chance.random(),
            )
            odd = (
                chance.choice(_WORDS),
                chance.choice(_WORDS),
                chance.choice(_SECONDS),
                chance.choice(_SECONDS),
            )
            data += (
                struct.pack(f"{order}2q2d", *(usual if chance.random() < 0.8 else odd))
                + b"\7" * 8 * layout.has_threads
            )
    return data


def damaged(chance: random.Random, layout: Layout) -> bytes:
    """Records with up to 6 changes: other bytes or words, slices that are gone or doubled, an early
    end."""
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
    found, expected = reads_in(blocks, layout, _START_NS), reads_by_numpy(data, layout, _START_NS)
    assert shown(expected) == shown(found)
    assert sum(file.num_reads for file in found.files) == len(found.columns["bytes"])
    return found
