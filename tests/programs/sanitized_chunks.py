"""Calls ioprof._chunks, built with sanitizers, with chunks of a capture file that may hold
anything.

python sanitized_chunks.py CHUNKS_SO CASES
"""

import random
import sys
from typing import Any

import numpy as np
from extension import check_cases

from ioprof.format.layout import RECORD_DTYPE
from ioprof.format.schema import KINDS, OBJECTS, SOURCES
from ioprof.format.wire_format import CHUNK_BYTES, CHUNK_HEADER_BYTES, SLOTS
from ioprof.ingest.untrusted_values import LATEST_NS

EXTREMES = (-(2**31), 2**31 - 1, 0, 1, -1)
LIMITS = len(KINDS), len(SOURCES), len(OBJECTS), LATEST_NS


def slot(chance: random.Random) -> bytes:
    """A span, a string record, an owner record, or bytes."""
    if chance.random() < 0.1:
        return chance.randbytes(RECORD_DTYPE.itemsize)
    found = np.zeros(1, RECORD_DTYPE)
    for name in ("bytes", "offset", "batch", "step", "file", "name", "stream"):
        found[name] = -1
    if chance.random() < 0.5:
        found["kind"], found["end_ns"] = chance.randrange(1, 25), chance.randrange(100)
        return found.tobytes()
    for name in ("file", "bytes", "batch"):
        found[name] = chance.choice((*EXTREMES, chance.randrange(-2, 70_000)))
    return found.tobytes()


def check_case(native: Any, chance: random.Random) -> None:
    """The library refuses the buffers, or returns spans and strings that lie in the chunks."""
    num_chunks = chance.randrange(4)
    data = np.zeros(num_chunks * CHUNK_BYTES, np.uint8)
    for start in range(0, len(data), CHUNK_BYTES):
        count = chance.choice((0, 1, 20, SLOTS, SLOTS + 1, 2**32 - 1, 2**64 - 1))
        slots = b"".join(slot(chance) for _ in range(chance.randrange(20)))
        head = np.zeros(CHUNK_HEADER_BYTES, np.uint8)
        head[8:16] = np.frombuffer(count.to_bytes(8, "little"), np.uint8)
        data[start : start + CHUNK_HEADER_BYTES] = head
        at = start + CHUNK_HEADER_BYTES + RECORD_DTYPE.itemsize * chance.choice((0, SLOTS - 20))
        data[at : at + len(slots)] = np.frombuffer(slots, np.uint8)
    room = num_chunks * SLOTS - (chance.random() < 0.1)
    records, tids = np.zeros(max(0, room), RECORD_DTYPE), np.zeros(max(0, room), np.int64)
    places = np.zeros(max(0, room) * chance.randrange(2), np.int64)
    num_bytes = len(data) - chance.choice((0, 0, chance.randrange(CHUNK_BYTES), CHUNK_BYTES))
    wanted = np.array([chance.random() < 0.9 for _ in range(256 - (chance.random() < 0.1))])
    stale = np.array([chance.random() < 0.2 for _ in range(chance.randrange(5))], bool)
    try:
        spans, strings, damage = native.find_spans(
            data, num_bytes, stale, wanted, *LIMITS, records, tids, places
        )
    except ValueError:
        assert not records.tobytes().strip(b"\0")
    else:
        assert spans <= len(records)
        assert wanted[records["kind"][:spans]].all()
        assert (records["end_ns"][:spans] >= records["start_ns"][:spans]).all()
        assert all(number >= 0 and text in data.tobytes() for number, text in strings)
        assert not strings or len(places)
        assert min(damage) >= 0


check_cases(check_case, "_chunks", *sys.argv[1:])
