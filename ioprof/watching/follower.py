"""The new records of one capture file since the last look, while the process that writes it goes
on.

`native/FORMAT.md` describes the file. A slot below a chunk's count does not change until the chunk
is flushed, so what is read here is complete, and the file is only read, by pread: the job's
processes do not wait for it. An active chunk is flushed to the end of the file when it is full, and
begins again: a look reads what is new in the flushed copies, then in the active chunk itself.
"""

import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ioprof.format.layout import CHUNK_HEADER_DTYPE, FILE_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.wire_format import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    SLOTS,
)
from ioprof.ingest.chunks import Buffers, find_spans

_Array = npt.NDArray[Any]
_MOST_CHUNKS: Final = 96
"""Chunks of one file that are read in one look, 6 MiB; of what is beyond that only the number of
slots is counted."""


class _State(NamedTuple):
    """What the header of a chunk says; of a chunk that was looked at, how many of its slots were
    read.
    """

    origin: int
    flushes: int
    slots: int


_NO_STATE: Final = _State(0, -1, 0)


@dataclass
class Look:
    """What one look at a file found."""

    records: _Array
    """Spans, of `RECORD_DTYPE`."""
    strings: dict[int, bytes] = field(default_factory=dict)
    skipped: int = 0
    """Slots that were not read, since the file grew too fast."""


class Follower:
    """Follows one capture file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Any = None
        """The file's header at the last look; None: it is not a capture file (yet)."""
        self._chunks: dict[int, _State] = {}
        """Active ones, as they were at the last look."""
        self._known = 0
        """Chunks of the file that were looked at: active ones and flushed copies."""
        self._waiting: list[int] = []
        """Those that were not complete."""
        self._descriptor = -1

    def look(self) -> Look:
        """The records since the last look. A file that has gone, or is damaged, has none."""
        try:
            if self._descriptor < 0:
                descriptor = os.open(
                    self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                )
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.close(descriptor)
                    return _nothing()
                self._descriptor = descriptor
            return self._look()
        except OSError:
            return _nothing()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _look(self) -> Look:
        data = os.pread(self._descriptor, FILE_HEADER_DTYPE.itemsize, 0)
        if len(data) < FILE_HEADER_DTYPE.itemsize:
            return _nothing()
        header = np.frombuffer(data, FILE_HEADER_DTYPE)[0]
        if bytes(header["magic"]) != MAGIC or int(header["version"]) != FORMAT_VERSION:
            return _nothing()
        self.header = header
        end = max(0, (os.fstat(self._descriptor).st_size - HEADER_BYTES) // CHUNK_BYTES)
        # Active chunks before copies: a copy whose active chunk had not begun again by then may not
        # be complete.
        active = {place: self._state(place) for place in self._chunks}
        waiting, self._waiting = [*self._waiting, *range(self._known, end)], []
        self._known = max(self._known, end)
        found, room, parts = _nothing(), _MOST_CHUNKS, []
        for place in waiting:
            state = self._state(place)
            # the Python writer's chunks have no origin
            if state.origin == place + 1 or (not state.origin and state.slots):
                active[place] = state
                self._chunks.setdefault(place, state._replace(slots=0))
            elif (
                not 0 < state.origin <= place
                or active.get(state.origin - 1, _NO_STATE).flushes <= state.flushes
            ):
                self._waiting.append(place)  # claimed, or not complete
            elif room:
                parts.append(self._slots(place, self._first_new(state), state.slots, found))
                room -= 1
            else:
                found.skipped += max(0, state.slots - self._first_new(state))
        parts += [self._read_active(place, state, found) for place, state in active.items()]
        found.records = np.concatenate([found.records, *parts])
        return found

    def _first_new(self, copy: "_State") -> int:
        """The first slot of a flushed copy that was not read when its chunk was active."""
        known = self._chunks[copy.origin - 1]
        return known.slots if copy.flushes == known.flushes else 0

    def _read_active(self, place: int, state: "_State", found: Look) -> _Array:
        known, own = self._chunks[place], _nothing()
        first = known.slots if state.flushes == known.flushes else 0
        records = self._slots(place, first, state.slots, own)
        # it was flushed meanwhile: the next look finds the copy
        if self._state(place).flushes != state.flushes:
            if state.flushes != known.flushes:
                self._chunks[place] = state._replace(slots=0)
            return own.records
        found.strings.update(own.strings)
        self._chunks[place] = state._replace(slots=max(first, state.slots))
        return records

    def _state(self, place: int) -> "_State":
        data = os.pread(self._descriptor, CHUNK_HEADER_BYTES, HEADER_BYTES + place * CHUNK_BYTES)
        if len(data) < CHUNK_HEADER_BYTES:
            return _NO_STATE
        header = np.frombuffer(data, CHUNK_HEADER_DTYPE)[0]
        state = int(header["state"])
        return _State(int(header["origin"]), state >> 32, min(state & 0xFFFFFFFF, SLOTS))

    def _slots(self, place: int, first: int, count: int, found: Look) -> _Array:
        """The spans in the slots from `first` to `count` of a chunk; strings are added to
        `found`.
        """
        count = min(count, SLOTS)
        if first >= count:
            return np.empty(0, RECORD_DTYPE)
        buffers, size = Buffers(1, with_strings=True), RECORD_DTYPE.itemsize
        head = np.zeros(1, CHUNK_HEADER_DTYPE)
        head["state"] = count - first
        buffers.data[:CHUNK_HEADER_BYTES] = head.view(np.uint8)
        start = HEADER_BYTES + place * CHUNK_BYTES + CHUNK_HEADER_BYTES + first * size
        data = os.pread(self._descriptor, (count - first) * size, start)
        buffers.data[CHUNK_HEADER_BYTES : CHUNK_HEADER_BYTES + len(data)] = np.frombuffer(
            data, np.uint8
        )
        records, _, strings = find_spans(buffers, 1, CHUNK_BYTES, np.zeros(1, bool), Counter())
        found.strings.update(dict(strings))
        spans: _Array = records[records["start_ns"] > 0]
        return spans


def _nothing() -> Look:
    return Look(np.empty(0, RECORD_DTYPE))
