"""What a reader finds in the chunks of a capture file: slot by slot, from native/FORMAT.md and not
from the code under test."""

from typing import Any

from ioprof.format.layout import CHUNK_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.wire_format import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    SLOTS,
    STRING_BYTES,
    STRING_KIND,
)

WAIT_KINDS = (64, 65)
"""A block and a wake."""
EMPTY = {
    "start_ns": 0,
    "end_ns": 0,
    "source": 0,
    "offset": -1,
    "step": -1,
    "name": -1,
    "stream": -1,
}
"""The fields that strings and owners do not use."""


def find_spans(
    chunks: Any,
    num_bytes: int,
    is_stale: Any,
    wanted: Any,
    num_kinds: int,
    num_sources: int,
    num_objects: int,
    latest_ns: int,
    records: Any,
    tids: Any,
    strings: Any,
    /,
) -> tuple[int, list[tuple[int, bytes]], tuple[int, ...]]:
    """As `ioprof._chunks.find_spans`."""
    found: list[tuple[Any, int]] = []
    texts: list[tuple[int, bytes]] = []
    few_slots = no_span = unknown_kind = impossible_times = unknown_source = 0
    for number, data in enumerate(chunks.reshape(-1, CHUNK_BYTES)):
        header = data[:CHUNK_HEADER_BYTES].view(CHUNK_HEADER_DTYPE)[0]
        slots = data[CHUNK_HEADER_BYTES : CHUNK_HEADER_BYTES + SLOTS * RECORD_DTYPE.itemsize].view(
            RECORD_DTYPE
        )
        bytes_there = num_bytes - number * CHUNK_BYTES - CHUNK_HEADER_BYTES
        room = max(0, min(SLOTS, bytes_there // RECORD_DTYPE.itemsize))
        count = (
            0 if number < len(is_stale) and is_stale[number] else int(header["state"]) & 0xFFFFFFFF
        )
        few_slots += count > room
        count, tid, slot = min(count, room), int(header["tid"]), 0
        while slot < count:
            record = slots[slot]
            slot += 1
            if record["kind"] == STRING_KIND:
                length, needed = (
                    int(record["bytes"]),
                    -(-int(record["bytes"]) // RECORD_DTYPE.itemsize),
                )
                is_empty = all(record[name] == value for name, value in EMPTY.items())
                fits = 0 <= length <= STRING_BYTES and slot + needed <= count
                if is_empty and record["file"] >= 0 and record["batch"] == -1 and fits:
                    texts.append(
                        (int(record["file"]), slots[slot : slot + needed].tobytes()[:length])
                    )
                    slot += needed
                elif is_empty and record["file"] == -1 and length == -1 and record["batch"] > 0:
                    tid = int(record["batch"])
                else:
                    no_span += 1
            elif record["kind"] > num_kinds and record["kind"] not in WAIT_KINDS:
                unknown_kind += 1
            elif not 0 <= record["start_ns"] <= record["end_ns"] < latest_ns:
                impossible_times += 1
            else:
                limit = num_objects if record["kind"] in WAIT_KINDS else num_sources
                unknown_source += int(record["source"]) > limit
                if wanted[record["kind"]]:
                    found.append((record, tid))
    for place, (record, tid) in enumerate(found):
        records[place], tids[place] = record, tid
    return (
        len(found),
        texts if len(strings) else [],
        (few_slots, no_span, unknown_kind, impossible_times, unknown_source),
    )
