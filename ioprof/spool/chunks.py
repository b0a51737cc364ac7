"""The chunks of one capture file: which of them count, and the spans, strings and tallies in them.

A thread fills its *home* chunk; a full home is copied to the file's end and begun anew. A process killed meanwhile may leave a
copy of what is still in the home, whole or half: a copy with the number that its home still has is passed over.
`native/FORMAT.md` explains the bytes. What cannot be is counted in `damage`, the rest is used.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from ioprof.layout import CHUNK_HEADER_DTYPE, RECORD_DTYPE
from ioprof.schema import CHUNK_BYTES, CHUNK_HEADER_BYTES, HEADER_BYTES, KINDS, SOURCES, STRING_BYTES, STRING_KIND
from ioprof.spool.values import LATEST_NS

_RECORD_BYTES: Final = RECORD_DTYPE.itemsize
_SLOTS: Final = (CHUNK_BYTES - CHUNK_HEADER_BYTES) // _RECORD_BYTES
_SLOTS_END: Final = CHUNK_HEADER_BYTES + _SLOTS * _RECORD_BYTES
_BLOCK_CHUNKS: Final = 256  # 16 MiB at a time: memory follows the spans, not the file
TALLIES: Final = ("calls", "bytes", "short_calls", "short_ns")

_Array = npt.NDArray[Any]


def read_chunks(file: BinaryIO, damage: Counter[str]) -> "Parts":
    """What the chunks of an open capture file hold; raises OSError as reading does."""
    headers = _headers(file)
    parts = Parts(homes=_homes(headers), stale=_stale(headers), tallies=_tallies(headers))
    file.seek(HEADER_BYTES)
    for block in iter(lambda: file.read(_BLOCK_CHUNKS * CHUNK_BYTES), b""):
        if len(block) % CHUNK_BYTES < CHUNK_HEADER_BYTES:  # the last chunk has no whole header: it is not there
            block = block[: len(block) // CHUNK_BYTES * CHUNK_BYTES]
        if block:
            parts.take(block, damage)
    return parts


def _headers(file: BinaryIO) -> _Array:
    """The headers of all chunks that are there with their first 64 bytes."""
    parts = []
    for place in range(1 << 18):
        file.seek(HEADER_BYTES + place * CHUNK_BYTES)
        header = file.read(CHUNK_HEADER_BYTES)
        if len(header) < CHUNK_HEADER_BYTES:
            break
        parts.append(header)
    return np.frombuffer(b"".join(parts), CHUNK_HEADER_DTYPE)


def _homes(headers: _Array) -> int:
    return int(np.count_nonzero(_is_home(headers)))


def _is_home(headers: _Array) -> _Array:
    home: _Array = headers["origin"] == np.arange(1, len(headers) + 1)
    return home


def _stale(headers: _Array) -> _Array:
    """Which chunks are copies that do not count: of what their home still holds, or superseded by a later copy of the same."""
    places = np.arange(len(headers))
    origins = np.where(headers["origin"] <= places, headers["origin"], 0).astype(np.int64)  # a home comes before its copies
    copies = np.flatnonzero((origins > 0) & ~_is_home(headers))
    sequences = headers["state"] >> np.uint64(32)
    stale = np.zeros(len(headers), bool)
    stale[copies] = sequences[copies] == sequences[origins[copies] - 1]
    last = {(int(origins[place]), int(sequences[place])): place for place in copies.tolist()}
    stale[[place for place in copies.tolist() if last[int(origins[place]), int(sequences[place])] != place]] = True
    return stale


def _tallies(headers: _Array) -> dict[str, int]:
    """The sums over all homes; tallies only grow, so that a copy's are part of its home's."""
    homes = headers[_is_home(headers)]
    return {name: sum(homes[name].tolist()) for name in TALLIES}


@dataclass
class Parts:
    """What the chunks of one file hold, collected block by block."""

    homes: int = 0
    """Chunks that a thread filled again and again; as many copies may have been under way when the process was killed."""
    stale: _Array = field(default_factory=lambda: np.zeros(0, bool))
    """By place, whether the chunk does not count."""
    tallies: dict[str, int] = field(default_factory=dict)
    """What was counted without being a span: `TALLIES`, of the whole file."""
    num_chunks: int = 0
    columns: dict[str, list[_Array]] = field(default_factory=lambda: {name: [] for name in (*(RECORD_DTYPE.names or ()), "tid")})
    strings: dict[int, bytes] = field(default_factory=dict)

    def take(self, data: bytes, damage: Counter[str]) -> None:
        """Add the chunks in `data`, of which the last may be cut."""
        first, self.num_chunks = self.num_chunks, self.num_chunks - (-len(data) // CHUNK_BYTES)
        block = Block(data, self.stale[first : self.num_chunks], damage)
        places = block.span_places(damage)
        records = block.records[places]
        good = _believable(records, damage)
        self.columns["tid"].append(block.tids_at(places)[good])
        for name in RECORD_DTYPE.names or ():
            self.columns[name].append(records[name][good])
        for number, text in block.strings:
            if number in self.strings:
                damage["two strings with one number"] += 1
            self.strings.setdefault(number, text)

    def column(self, name: str) -> _Array:
        """One field of all spans, `tid` among them. It can be had once: a long recording should not be in memory twice."""
        dtype = np.dtype(np.int64) if name == "tid" else RECORD_DTYPE[name]
        return np.concatenate([np.empty(0, dtype), *self.columns.pop(name)])

    def known_strings(self) -> dict[int, bytes]:
        """Strings by number, without those that a liar gave numbers which no process could have reached."""
        return {number: text for number, text in self.strings.items() if number < self.num_chunks * _SLOTS}


class Block:
    """Some whole chunks. A place is the number of a slot, counted over all of them."""

    def __init__(self, data: bytes, stale: _Array, damage: Counter[str]) -> None:
        missing = -len(data) % CHUNK_BYTES
        self._data = data + bytes(missing)
        chunks = np.frombuffer(self._data, np.uint8).reshape(-1, CHUNK_BYTES)
        headers = chunks[:, :CHUNK_HEADER_BYTES].reshape(-1).view(CHUNK_HEADER_DTYPE)
        self.records = chunks[:, CHUNK_HEADER_BYTES:_SLOTS_END].reshape(-1).view(RECORD_DTYPE)
        self._chunk_tids = headers["tid"].astype(np.int64)
        counts = headers["state"] & np.uint64(0xFFFFFFFF)
        counts[: len(stale)][stale] = 0
        self._counts = _believable_counts(counts, missing, damage)
        self._others = np.zeros(len(self.records), bool)  # places that hold a string or a change of owner
        self._owners: list[tuple[int, int]] = []
        self.strings: list[tuple[int, bytes]] = []
        self._take_others()

    def span_places(self, damage: Counter[str]) -> _Array:
        """The places of all spans, in order."""
        rest = self._published() & ~self._others
        is_span = self.records["kind"] != STRING_KIND
        damage["a slot is neither a span nor a string"] += int(np.count_nonzero(rest & ~is_span))
        return np.flatnonzero(rest & is_span)

    def tids_at(self, places: _Array) -> _Array:
        """The threads that wrote these places, which are in order: the chunk's first owner, or one that took it over."""
        tids: _Array = self._chunk_tids[places // _SLOTS]
        for place, tid in self._owners:
            first, last = np.searchsorted(places, [place, (place // _SLOTS + 1) * _SLOTS])
            tids[first:last] = tid
        return tids

    def _published(self) -> _Array:
        published: _Array = (np.arange(_SLOTS) < self._counts[:, None]).reshape(-1)
        return published

    def _take_others(self) -> None:
        """Walk the string and owner records in order: the bytes of a string may look like a record, and are passed over."""
        records, end = self.records, 0
        places = np.flatnonzero(self._published() & (records["kind"] == STRING_KIND))
        places = places[_has_empty_fields(records[places])]
        rows = zip(places.tolist(), *(records[name][places].tolist() for name in ("file", "bytes", "batch")), strict=True)
        for place, number, length, batch in rows:
            if place < end:
                continue
            if number >= 0 and batch == -1 and self._has_string(place, length):
                end = self._take_string(place, number, length)
            elif number == -1 and length == -1 and batch > 0:
                self._owners.append((place, batch))
                self._others[place] = True

    def _has_string(self, place: int, length: int) -> bool:
        chunk, slot = divmod(place, _SLOTS)
        return 0 <= length <= STRING_BYTES and slot + 1 + _slots(length) <= self._counts[chunk]

    def _take_string(self, place: int, number: int, length: int) -> int:
        """The place after the string's last."""
        chunk, slot = divmod(place, _SLOTS)
        start = chunk * CHUNK_BYTES + CHUNK_HEADER_BYTES + (slot + 1) * _RECORD_BYTES
        self.strings.append((number, self._data[start : start + length]))
        end = place + 1 + _slots(length)
        self._others[place:end] = True
        return end


def _slots(length: int) -> int:
    return -(-length // _RECORD_BYTES)


def _believable_counts(counts: _Array, missing: int, damage: Counter[str]) -> _Array:
    """Slots to read in each chunk; the last one lacks its last `missing` bytes."""
    room = np.full(len(counts), _SLOTS, np.uint64)
    room[-1] = max(0, min(_SLOTS, (CHUNK_BYTES - missing - CHUNK_HEADER_BYTES) // _RECORD_BYTES))
    damage["a chunk has fewer slots than it says"] += int(np.count_nonzero(counts > room))
    return np.minimum(counts, room).astype(np.int64)


def _has_empty_fields(records: _Array) -> _Array:
    """Where the fields that strings and owners do not use are as they must be. A slot of zeros, say, is no string."""
    empty: _Array = (records["start_ns"] == 0) & (records["end_ns"] == 0) & (records["source"] == 0)
    for name in ("offset", "step", "name", "stream"):
        empty &= records[name] == -1
    return empty


def _believable(records: _Array, damage: Counter[str]) -> _Array:
    """Which spans can be: a kind there is, and a start before the end."""
    known = records["kind"] <= len(KINDS)
    ordered = (records["start_ns"] >= 0) & (records["end_ns"] >= records["start_ns"]) & (records["end_ns"] < LATEST_NS)
    damage["a span of an unknown kind"] += int(np.count_nonzero(~known))
    damage["a span with impossible times"] += int(np.count_nonzero(known & ~ordered))
    damage["a span with an unknown source"] += int(np.count_nonzero(known & ordered & (records["source"] > len(SOURCES))))
    return np.logical_and(known, ordered)
