"""Reads the chunks of one capture file: which of them are valid, and the spans, strings and totals in them.

Spans are found by C (native/chunks.c) where ioprof was installed with a compiler; else by NumPy (`Block`), with the same result.

A thread fills its *home* chunk. A full home is copied to the end of the file and reused. If the process is killed during that, the
file may hold a complete or partial copy of data that the home still holds; a copy with the sequence number of its home is therefore
ignored. `native/FORMAT.md` specifies the bytes. Invalid data is counted in `damage`, the rest is used.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from ioprof.ingest.holes import data_parts
from ioprof.ingest.untrusted_values import LATEST_NS
from ioprof.layout import CHUNK_HEADER_DTYPE, RECORD_DTYPE
from ioprof.schema import KINDS, SOURCES
from ioprof.wire_format import CHUNK_BYTES, CHUNK_HEADER_BYTES, HEADER_BYTES, STRING_BYTES, STRING_KIND

native: ModuleType | None
try:
    from ioprof import _chunks as native
except ImportError:  # ioprof was installed without a C compiler
    native = None

_RECORD_BYTES: Final = RECORD_DTYPE.itemsize
_SLOTS: Final = (CHUNK_BYTES - CHUNK_HEADER_BYTES) // _RECORD_BYTES
_SLOTS_END: Final = CHUNK_HEADER_BYTES + _SLOTS * _RECORD_BYTES
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
_FEW_SLOTS, _NO_SPAN, _UNKNOWN_KIND, _IMPOSSIBLE_TIMES, _UNKNOWN_SOURCE = _DAMAGE
ALL_KINDS: Final = np.ones(256, bool)
"""By the number of a kind, whether its spans are wanted: all are."""

_Array = npt.NDArray[Any]


def read_headers(file: BinaryIO) -> "ChunkHeaders":
    """Read the headers of the chunks of an open capture file. Raises OSError if reading fails."""
    headers = _read_headers(file)
    is_home = _is_home(headers)
    # Totals only grow, so the ones in a copy are part of those in its home.
    tallies = {name: sum(headers[is_home][name].tolist()) for name in TALLIES}
    return ChunkHeaders(int(np.count_nonzero(is_home)), _find_stale(headers), tallies, len(headers) * _SLOTS)


class Buffers:
    """Memory for the blocks of a file, and for the places of their strings if these are asked for.

    Fresh memory for each block took as long as decoding it.

    The spans of a block take the place of those before: what of them is needed for longer is to be copied.
    """

    def __init__(self, num_chunks: int = _BLOCK_CHUNKS, *, with_strings: bool = False) -> None:
        self.data, self.records = np.zeros(num_chunks * CHUNK_BYTES, np.uint8), np.zeros((num_chunks, _SLOTS), RECORD_DTYPE)
        self.tids, self.strings = np.zeros(num_chunks * _SLOTS, np.int64), np.zeros(num_chunks * _SLOTS * with_strings, np.int64)


def block_places(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Begin and end of each block of an open capture file: whole chunks that are not in holes. Raises OSError if reading fails.

    What was dropped left holes (`dropping`).
    """
    return _data_blocks(file, _BLOCK_CHUNKS * CHUNK_BYTES)


def read_blocks(file: BinaryIO, headers: "ChunkHeaders", damage: Counter[str]) -> Iterator["Spans"]:
    """The spans of an open capture file, some chunks at a time, with the strings in these. Raises OSError if reading fails."""
    buffers = Buffers(max(1, min(_BLOCK_CHUNKS, len(headers.is_stale))), with_strings=True)
    for place in _data_blocks(file, len(buffers.data)):
        if (spans := read_block(file, place, buffers, headers, damage)) is not None:
            yield spans


def read_block(
    file: BinaryIO,
    place: tuple[int, int],
    buffers: Buffers,
    headers: "ChunkHeaders",
    damage: Counter[str],
    wanted: _Array = ALL_KINDS,
) -> "Spans | None":
    """The spans of the `wanted` kinds of one of the `block_places`, with its strings if the buffers are made for them.

    None: not even the header of a chunk is there.
    """
    start, end = place
    num_bytes = _read_into(file, start, buffers.data[: -(-(end - start) // CHUNK_BYTES) * CHUNK_BYTES])
    if num_bytes % CHUNK_BYTES < CHUNK_HEADER_BYTES:  # the header of the last chunk is incomplete: ignore it
        num_bytes -= num_bytes % CHUNK_BYTES
    if not num_bytes:
        return None
    first, num_chunks = (start - HEADER_BYTES) // CHUNK_BYTES, -(-num_bytes // CHUNK_BYTES)
    stale = headers.is_stale[first : first + num_chunks]
    find = _find_by_numpy if native is None else _find_by_c
    return Spans(place, *find(buffers, num_chunks, num_bytes, stale, wanted, damage))


def _find_by_c(
    buffers: Buffers, num_chunks: int, num_bytes: int, is_stale: _Array, wanted: _Array, damage: Counter[str]
) -> tuple[_Array, _Array, list[tuple[int, bytes]]]:
    assert native is not None
    data, records = buffers.data[: num_chunks * CHUNK_BYTES], buffers.records.reshape(-1)
    limits, found = (len(KINDS), len(SOURCES), LATEST_NS), (records, buffers.tids, buffers.strings)
    spans, strings, counts = native.find_spans(data, num_bytes, is_stale, wanted, *limits, *found)
    damage.update(dict(zip(_DAMAGE, counts, strict=True)))
    return records[:spans], buffers.tids[:spans], strings


def _find_by_numpy(
    buffers: Buffers, num_chunks: int, num_bytes: int, is_stale: _Array, wanted: _Array, damage: Counter[str]
) -> tuple[_Array, _Array, list[tuple[int, bytes]]]:
    block = Block(buffers.data[: num_chunks * CHUNK_BYTES], num_bytes, buffers.records[:num_chunks], is_stale, damage)
    slots = block.span_slots(damage)
    slots = slots[find_valid(block.records, slots, damage)]
    slots = slots[wanted[block.records["kind"][slots]]]
    return block.records[slots], block.tids_at(slots), block.strings if len(buffers.strings) else []


def _read_headers(file: BinaryIO) -> _Array:
    """The headers of all chunks whose first 64 bytes are in the file; those in holes of it are zeros."""
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
        yield from ((first, min(end, first + most_bytes)) for first in range(start, end, most_bytes))


def _read_into(file: BinaryIO, start: int, memory: _Array) -> int:
    """Fill the memory from `start` as far as the file goes, with zeros in the rest of its last chunk; returns how many bytes were
    read. By `preadv`, since looking for holes moves the position of the descriptor.
    """
    num_bytes = 0
    while num_bytes < len(memory) and (count := os.preadv(file.fileno(), [memory[num_bytes:]], start + num_bytes)):  # type: ignore[list-item]
        num_bytes += count
    memory[num_bytes : -(-num_bytes // CHUNK_BYTES) * CHUNK_BYTES] = 0
    return num_bytes


def _is_home(headers: _Array) -> _Array:
    home: _Array = headers["origin"] == np.arange(1, len(headers) + 1)
    return home


def _find_stale(headers: _Array) -> _Array:
    """Mask of the copies to ignore: their home still holds the data, or a later copy of the same data exists."""
    places = np.arange(len(headers))
    origins = np.where(headers["origin"] <= places, headers["origin"], 0).astype(np.int64)  # a home comes before its copies
    copies = np.flatnonzero((origins > 0) & ~_is_home(headers))
    sequences = headers["state"] >> np.uint64(32)
    stale = np.zeros(len(headers), bool)
    stale[copies] = sequences[copies] == sequences[origins[copies] - 1]
    last = {(int(origins[place]), int(sequences[place])): place for place in copies.tolist()}
    stale[[place for place in copies.tolist() if last[int(origins[place]), int(sequences[place])] != place]] = True
    return stale


@dataclass(frozen=True)
class ChunkHeaders:
    """What the headers of all chunks of a file say."""

    num_homes: int = 0
    """Number of home chunks. This many copies may have been in progress when the process was killed."""
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


class Block:
    """Consecutive whole chunks. A slot index counts the slots of all of them."""

    """`num_bytes` of the `data` were read from the file. `records` is where their slots go, a row for each chunk."""

    def __init__(self, data: _Array, num_bytes: int, records: _Array, is_stale: _Array, damage: Counter[str]) -> None:
        missing = len(data) - num_bytes
        chunks = data.reshape(-1, CHUNK_BYTES)
        headers = chunks[:, :CHUNK_HEADER_BYTES].reshape(-1).view(CHUNK_HEADER_DTYPE)
        records.view(np.uint8)[:] = chunks[:, CHUNK_HEADER_BYTES:_SLOTS_END]
        self._data, self.records = data, records.reshape(-1)
        self._chunk_tids = headers["tid"].astype(np.int64)
        counts = headers["state"] & np.uint64(0xFFFFFFFF)
        counts[: len(is_stale)][is_stale] = 0
        room = np.full(
            len(counts), _SLOTS, np.uint64
        )  # slots that the bytes of each chunk can hold; the last one may be incomplete
        room[-1] = max(0, min(_SLOTS, (CHUNK_BYTES - missing - CHUNK_HEADER_BYTES) // _RECORD_BYTES))
        damage[_FEW_SLOTS] += int(np.count_nonzero(counts > room))
        self._counts = np.minimum(counts, room).astype(np.int64)
        self._others = np.zeros(len(self.records), bool)  # slots that hold a string or an owner record
        self._owners: list[tuple[int, int]] = []
        self.strings: list[tuple[int, bytes]] = []
        self.string_slots: list[int] = []
        """Their slots, with those of their bytes."""
        self._find_strings_and_owners()

    def span_slots(self, damage: Counter[str]) -> _Array:
        """The slots of all spans, in order."""
        rest = self._published() & ~self._others
        is_span = self.records["kind"] != STRING_KIND
        damage[_NO_SPAN] += int(np.count_nonzero(rest & ~is_span))
        return np.flatnonzero(rest & is_span)

    def tids_at(self, slots: _Array) -> _Array:
        """The threads that wrote these slots, which are sorted: the first owner of the chunk or a later one."""
        tids: _Array = self._chunk_tids[slots // _SLOTS]
        for slot, tid in self._owners:
            first, last = np.searchsorted(slots, [slot, (slot // _SLOTS + 1) * _SLOTS])
            tids[first:last] = tid
        return tids

    def _published(self) -> _Array:
        published: _Array = (np.arange(_SLOTS) < self._counts[:, None]).reshape(-1)
        return published

    def _find_strings_and_owners(self) -> None:
        """Go through the string and owner records in order, skipping the bytes of strings, which may look like records."""
        records, end = self.records, 0
        places = np.flatnonzero(self._published() & (records["kind"] == STRING_KIND))
        found = records[places]
        # Fields that strings and owners do not use have fixed values. A slot of zeros, for example, is not a string.
        is_empty = (found["start_ns"] == 0) & (found["end_ns"] == 0) & (found["source"] == 0)
        for name in ("offset", "step", "name", "stream"):
            is_empty &= found[name] == -1
        places = places[is_empty]
        rows = zip(places.tolist(), *(records[name][places].tolist() for name in ("file", "bytes", "batch")), strict=True)
        for place, number, length, batch in rows:
            if place < end:
                continue
            chunk, slot = divmod(place, _SLOTS)
            fits = 0 <= length <= STRING_BYTES and slot + 1 + _num_slots(length) <= self._counts[chunk]
            if number >= 0 and batch == -1 and fits:
                start = chunk * CHUNK_BYTES + CHUNK_HEADER_BYTES + (slot + 1) * _RECORD_BYTES
                self.strings.append((number, self._data[start : start + length].tobytes()))
                end = place + 1 + _num_slots(length)
                self._others[place:end] = True
                self.string_slots += range(place, end)
            elif number == -1 and length == -1 and batch > 0:
                self._owners.append((place, batch))
                self._others[place] = True


def _num_slots(length: int) -> int:
    return -(-length // _RECORD_BYTES)


def find_valid(records: _Array, slots: _Array, damage: Counter[str]) -> _Array:
    """Which of these slots are valid spans: known kind, and start before end."""
    known = records["kind"][slots] <= len(KINDS)
    starts, ends, sources = (records[name][slots] for name in ("start_ns", "end_ns", "source"))
    ordered = (starts >= 0) & (ends >= starts) & (ends < LATEST_NS)
    damage[_UNKNOWN_KIND] += int(np.count_nonzero(~known))
    damage[_IMPOSSIBLE_TIMES] += int(np.count_nonzero(known & ~ordered))
    damage[_UNKNOWN_SOURCE] += int(np.count_nonzero(known & ordered & (sources > len(SOURCES))))
    return np.logical_and(known, ordered)
