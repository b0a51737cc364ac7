"""Reads the chunks of one capture file: which of them are valid, and the spans, strings and totals
in them.

Spans are found by C (native/chunks.c).

A thread fills its *home* chunk. A full home is copied to the end of the file and reused. If the
process is killed during that, the file may hold a complete or partial copy of data that the home
still holds; a copy with the sequence number of its home is therefore ignored. `native/FORMAT.md`
specifies the bytes. Invalid data is counted in `damage`, the rest is used.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from ioprof import _chunks
from ioprof.files import data_parts
from ioprof.format.layout import CHUNK_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.schema import KINDS, OBJECTS, RECORDS_OF_WAITS, SOURCES
from ioprof.format.wire_format import CHUNK_BYTES, CHUNK_HEADER_BYTES, HEADER_BYTES
from ioprof.ingest.untrusted_values import LATEST_NS

_RECORD_BYTES: Final = RECORD_DTYPE.itemsize
_SLOTS: Final = (CHUNK_BYTES - CHUNK_HEADER_BYTES) // _RECORD_BYTES
_MOST_CHUNKS: Final = 1 << 18
_BLOCK_CHUNKS: Final = 64
"""Read at a time: 4 MiB, which is at most 74,816 spans."""
TALLIES: Final = ("calls", "bytes", "short_calls", "short_ns", "fetched_bytes")
_DAMAGE: Final = (
    "a chunk has fewer slots than its header says",
    "a slot is neither a span nor a string",
    "a span of an unknown kind",
    "a span with impossible times",
    "a span with an unknown source",
)
"""In the order in which the C library returns how often each was found."""
SPAN_KINDS: Final = np.arange(256) <= len(KINDS)
"""By the number of a kind, whether its records are wanted: spans are."""
WAIT_KINDS: Final = np.isin(np.arange(256), list(RECORDS_OF_WAITS.values()))
"""Blocks and wakes are."""

_Array = npt.NDArray[Any]


def read_headers(file: BinaryIO) -> "ChunkHeaders":
    """Read the headers of the chunks of an open capture file. Raises OSError if reading fails."""
    headers = _read_headers(file)
    is_home = _is_home(headers)
    # Totals only grow, so the ones in a copy are part of those in its home.
    tallies = {name: sum(headers[is_home][name].tolist()) for name in TALLIES}
    return ChunkHeaders(
        int(np.count_nonzero(is_home)), _find_stale(headers), tallies, len(headers) * _SLOTS
    )


class Buffers:
    """Memory for the blocks of a file, and for the places of their strings if these are asked for.

    Fresh memory for each block took as long as decoding it.

    The spans of a block take the place of those before: what of them is needed for longer is to be
    copied.
    """

    def __init__(self, num_chunks: int = _BLOCK_CHUNKS, *, with_strings: bool = False) -> None:
        self.data, self.records = (
            np.zeros(num_chunks * CHUNK_BYTES, np.uint8),
            np.zeros((num_chunks, _SLOTS), RECORD_DTYPE),
        )
        self.tids, self.strings = (
            np.zeros(num_chunks * _SLOTS, np.int64),
            np.zeros(num_chunks * _SLOTS * with_strings, np.int64),
        )


def block_places(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Begin and end of each block of an open capture file: whole chunks that are not in holes.
    Raises OSError if reading fails.

    What was dropped left holes (`dropping`).
    """
    return _data_blocks(file, _BLOCK_CHUNKS * CHUNK_BYTES)


def read_blocks(file: BinaryIO, headers: "ChunkHeaders", damage: Counter[str]) -> Iterator["Spans"]:
    """All records of an open capture file, some chunks at a time, with the strings in these. Raises
    OSError if reading fails.
    """
    buffers = Buffers(max(1, min(_BLOCK_CHUNKS, len(headers.is_stale))), with_strings=True)
    for place in _data_blocks(file, len(buffers.data)):
        wanted = SPAN_KINDS | WAIT_KINDS
        if (spans := read_block(file, place, buffers, headers, damage, wanted)) is not None:
            yield spans


def read_block(
    file: BinaryIO,
    place: tuple[int, int],
    buffers: Buffers,
    headers: "ChunkHeaders",
    damage: Counter[str],
    wanted: _Array = SPAN_KINDS,
) -> "Spans | None":
    """The records of the `wanted` kinds of one of the `block_places`, with its strings if the
    buffers are made for them.

    None: not even the header of a chunk is there.
    """
    start, end = place
    num_bytes = _read_into(
        file, start, buffers.data[: -(-(end - start) // CHUNK_BYTES) * CHUNK_BYTES]
    )
    # the header of the last chunk is incomplete: ignore it
    if num_bytes % CHUNK_BYTES < CHUNK_HEADER_BYTES:
        num_bytes -= num_bytes % CHUNK_BYTES
    if not num_bytes:
        return None
    first, num_chunks = (start - HEADER_BYTES) // CHUNK_BYTES, -(-num_bytes // CHUNK_BYTES)
    stale = headers.is_stale[first : first + num_chunks]
    return Spans(place, *find_spans(buffers, num_chunks, num_bytes, stale, damage, wanted))


def find_spans(
    buffers: Buffers,
    num_chunks: int,
    num_bytes: int,
    is_stale: _Array,
    damage: Counter[str],
    wanted: _Array = SPAN_KINDS,
) -> tuple[_Array, _Array, list[tuple[int, bytes]]]:
    """The spans of the `wanted` kinds in the first chunks of `buffers.data`, of which `num_bytes`
    were read, their threads, and the strings, of which `buffers.strings` then has the places in
    bytes.
    """
    data, records = buffers.data[: num_chunks * CHUNK_BYTES], buffers.records.reshape(-1)
    limits = (len(KINDS), len(SOURCES), len(OBJECTS), LATEST_NS)
    found = (records, buffers.tids, buffers.strings)
    spans, strings, counts = _chunks.find_spans(data, num_bytes, is_stale, wanted, *limits, *found)
    damage.update(dict(zip(_DAMAGE, counts, strict=True)))
    return records[:spans], buffers.tids[:spans], strings


def _read_headers(file: BinaryIO) -> _Array:
    """The headers of all chunks whose first 64 bytes are in the file; those in holes of it are
    zeros.
    """
    size = os.fstat(file.fileno()).st_size - HEADER_BYTES
    num_chunks = min(_MOST_CHUNKS, max(0, (size + CHUNK_BYTES - CHUNK_HEADER_BYTES) // CHUNK_BYTES))
    found = np.zeros(num_chunks, CHUNK_HEADER_DTYPE)
    for start, end in _data_blocks(file, _MOST_CHUNKS * CHUNK_BYTES):
        first, last = (start - HEADER_BYTES) // CHUNK_BYTES, -(-(end - HEADER_BYTES) // CHUNK_BYTES)
        for index in range(first, min(last, num_chunks)):
            header = os.pread(file.fileno(), CHUNK_HEADER_BYTES, HEADER_BYTES + index * CHUNK_BYTES)
            if len(header) < CHUNK_HEADER_BYTES:
                return found[:index]
            found[index] = np.frombuffer(header, CHUNK_HEADER_DTYPE)[0]
    return found


def _data_blocks(file: BinaryIO, most_bytes: int) -> Iterator[tuple[int, int]]:
    for start, end in data_parts(file.fileno(), HEADER_BYTES, CHUNK_BYTES):
        yield from (
            (first, min(end, first + most_bytes)) for first in range(start, end, most_bytes)
        )


def _read_into(file: BinaryIO, start: int, memory: _Array) -> int:
    """Fill the memory from `start` as far as the file goes, with zeros in the rest of its last
    chunk; returns how many bytes were read. By `preadv`, since looking for holes moves the position
    of the descriptor.
    """
    num_bytes = 0
    while num_bytes < len(memory) and (
        count := os.preadv(file.fileno(), [memory[num_bytes:]], start + num_bytes)  # type: ignore[list-item]
    ):
        num_bytes += count
    memory[num_bytes : -(-num_bytes // CHUNK_BYTES) * CHUNK_BYTES] = 0
    return num_bytes


def _is_home(headers: _Array) -> _Array:
    home: _Array = headers["origin"] == np.arange(1, len(headers) + 1)
    return home


def _find_stale(headers: _Array) -> _Array:
    """Mask of the copies to ignore: their home still holds the data, or a later copy of the same
    data exists.
    """
    places = np.arange(len(headers))
    # a home comes before its copies
    origins = np.where(headers["origin"] <= places, headers["origin"], 0).astype(np.int64)
    copies = np.flatnonzero((origins > 0) & ~_is_home(headers))
    sequences = headers["state"] >> np.uint64(32)
    stale = np.zeros(len(headers), bool)
    stale[copies] = sequences[copies] == sequences[origins[copies] - 1]
    last = {(int(origins[place]), int(sequences[place])): place for place in copies.tolist()}
    stale[
        [
            place
            for place in copies.tolist()
            if last[int(origins[place]), int(sequences[place])] != place
        ]
    ] = True
    return stale


@dataclass(frozen=True)
class ChunkHeaders:
    """What the headers of all chunks of a file say."""

    num_homes: int = 0
    """Number of home chunks. This many copies may have been in progress when the process was
    killed."""
    is_stale: _Array = field(default_factory=lambda: np.zeros(0, bool))
    """For each chunk whether it is to be ignored."""
    tallies: dict[str, int] = field(default_factory=dict)
    """`TALLIES` of the whole file: calls that have no span of their own."""
    num_slots: int = 0
    """Of all chunks. No string has a greater id."""


@dataclass(frozen=True)
class Spans:
    """The valid spans in some consecutive chunks of a file."""

    place: tuple[int, int]
    """Begin and end of these chunks in the file."""
    records: _Array
    """Of `RECORD_DTYPE`."""
    tids: _Array
    """The threads that wrote them."""
    strings: list[tuple[int, bytes]]
