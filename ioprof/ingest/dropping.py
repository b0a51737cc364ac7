"""Drops what is old from a capture file while its process writes it: chunks that were flushed
become holes, their sums stay.

The writer does not notice: it writes flushed copies at the end of the file, and never looks at them
again (`native/FORMAT.md`). Strings of a dropped chunk stay, since later spans refer to them, until
the writer has forgotten them.
"""

import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ioprof.files import punch_hole
from ioprof.format.layout import CHUNK_HEADER_DTYPE, FILE_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.wire_format import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
)
from ioprof.ingest.chunks import SPAN_KINDS, WAIT_KINDS, Buffers, find_spans
from ioprof.ingest.job_sums import JobSums

_Array = npt.NDArray[Any]

KNOWN_STRINGS: Final = 1 << 17
"""Strings that a writer knows at most; of those before, only those of files that are still open are
used again."""
_MOST_PINNED: Final = 1 << 16
_BLOCK: Final = 4096


@dataclass
class _Copies:
    """The flushed copies of one active chunk."""

    places: dict[int, list[int]] = field(default_factory=dict)
    """By the number of the flush, several where a disk was full: the last of them counts."""
    done: int = -1
    """The last flush whose spans are in the sums."""
    current: int = 0
    """How often the active chunk was flushed: copies of that number are not complete, or are not
    needed."""


@dataclass
class _Planned:
    place: int
    strings: bytes
    """The slots that stay."""


class FileDropper:
    """Drops old chunks of one capture file. `plan` sums them, `carry_out` drops them; a kill in
    between loses and doubles nothing if what `plan` returned was written down, with `done`, and is
    given to `carry_out` again.
    """

    def __init__(self, path: Path, done: Mapping[int, int] | None = None) -> None:
        self.path = path
        self._copies: dict[int, _Copies] = {
            origin: _Copies(done=flush) for origin, flush in (done or {}).items()
        }
        self._looked = 0
        """Chunks that were looked at."""
        self._waiting: list[int] = []
        """Those of them that were claimed, but not written."""
        self._homes: set[int] = set()
        self._last_ns: dict[int, int] = {}
        self._retained: dict[int, list[int]] = {}
        """Dropped chunks that have strings: their numbers."""
        self._newest = -1
        self._pinned: set[int] = set()
        self._planned: list[_Planned] = []

    @property
    def done(self) -> dict[int, int]:
        """By active chunk, the last flush whose spans are in the sums."""
        return {origin: copies.done for origin, copies in self._copies.items() if copies.done >= 0}

    def plan(self, before_ns: int, sums: JobSums) -> bool:
        """Add the spans of chunks all of whose spans ended before that time to `sums`; whether
        there are any.
        """
        with _Opened(self.path) as descriptor:
            if descriptor is None or not _is_capture_file(descriptor):
                return False
            self._look(descriptor)
            for origin, copies in self._copies.items():
                self._plan_copies(descriptor, origin, copies, before_ns, sums)
            return bool(self._planned)

    def carry_out(self) -> int:
        """Drop what was planned; returns how many bytes."""
        freed = 0
        with _Opened(self.path, write=True) as descriptor:
            if descriptor is not None:
                for each in self._planned:
                    freed += _replace(descriptor, each.place, each.strings)
                self._forget_strings(descriptor)
        self._planned = []
        return freed

    def repeat(self) -> None:
        """Drop again what was in the sums when a launcher was killed: it may not have been
        dropped.
        """
        nothing, known = JobSums(), self.done
        self._copies = {}
        with _Opened(self.path) as descriptor:
            if descriptor is None or not _is_capture_file(descriptor):
                return
            self._look(descriptor)
            for origin, copies in self._copies.items():
                self._plan_copies(
                    descriptor, origin, copies, 1 << 62, nothing, known.get(origin, -1)
                )
                copies.done = known.get(origin, -1)
        self.carry_out()

    def sum_all(self, sums: JobSums) -> int | None:
        """Add all that is still in the file of a process that has ended, before it is removed;
        returns the last end.
        """
        last_ns: int | None = None
        with _Opened(self.path) as descriptor:
            if descriptor is None or not _is_capture_file(descriptor):
                return None
            self._look(descriptor)
            for place in sorted(self._homes):
                block = _chunk(descriptor, place)
                sums.add(block.spans)
                if len(block.spans):
                    last_ns = max(last_ns or 0, int(block.spans["end_ns"].max()))
        return last_ns

    def last_ns(self) -> int | None:
        """The last end of all that the file still has; None: it has no spans."""
        last = JobSums()
        with _Opened(self.path) as descriptor:
            if descriptor is None:
                return None
            self._look(descriptor)
            pending = [
                place
                for copies in self._copies.values()
                for each in copies.places.values()
                for place in each
            ]
            for place in [*sorted(self._homes), *pending]:
                last.add(_chunk(descriptor, place).spans)
        return last.last_ns

    @property
    def num_pending(self) -> int:
        """Flushed chunks that are not dropped yet."""
        return sum(
            flush < copies.current for copies in self._copies.values() for flush in copies.places
        )

    def _look(self, descriptor: int) -> None:
        """Find the flushed copies that are new."""
        end = max(0, (os.fstat(descriptor).st_size - HEADER_BYTES) // CHUNK_BYTES)
        waiting, self._waiting = [*self._waiting, *range(self._looked, end)], []
        self._looked = max(self._looked, end)
        for place in waiting:
            header = _header(descriptor, place)
            origin = int(header["origin"])
            if origin == place + 1:
                self._homes.add(place)
            elif 0 < origin <= place:
                copies = self._copies.setdefault(origin, _Copies())
                if (flush := _flush(header)) > copies.done:
                    copies.places.setdefault(flush, []).append(place)
            elif origin == 0:
                self._waiting.append(place)
        self._waiting = self._waiting[-1024:]

    def _plan_copies(
        self,
        descriptor: int,
        origin: int,
        copies: _Copies,
        before_ns: int,
        sums: JobSums,
        until: int | None = None,
    ) -> None:
        copies.current = current = _flush(_header(descriptor, origin - 1))
        for flush in sorted(copies.places):
            if flush >= current or (until is not None and flush > until):
                return
            *stale, place = copies.places[flush]
            if self._last_ns.get(place, 0) >= before_ns:
                return
            chunk = _chunk(descriptor, place)
            if len(chunk.spans) and (last_ns := int(chunk.spans["end_ns"].max())) >= before_ns:
                self._last_ns[place] = last_ns
                return
            sums.add(chunk.spans)
            self._note_strings(place, chunk)
            self._planned += [
                _Planned(place, chunk.string_slots),
                *(_Planned(each, b"") for each in stale),
            ]
            self._last_ns.pop(place, None)
            copies.done = flush
            del copies.places[flush]

    def _note_strings(self, place: int, chunk: "_Chunk") -> None:
        numbers = [number for number, _ in chunk.strings]
        self._newest = max([self._newest, *numbers])
        if numbers:
            self._retained[place] = numbers
        if self._newest > KNOWN_STRINGS:  # a file that stays open has its number as long
            used: _Array = np.unique(np.concatenate([chunk.spans["file"], chunk.spans["name"]]))
            old = used[(used >= 0) & (used < self._newest - KNOWN_STRINGS)].tolist()
            self._pinned.update(old[: _MOST_PINNED - len(self._pinned)])

    def _forget_strings(self, descriptor: int) -> None:
        """Drop strings that are used no more."""
        oldest = self._newest - 2 * KNOWN_STRINGS
        for place, numbers in list(self._retained.items()):
            if max(numbers) >= oldest or not self._pinned.isdisjoint(numbers):
                continue
            _replace(descriptor, place, b"")
            del self._retained[place]


@dataclass
class _Chunk:
    spans: _Array
    """With blocks and wakes."""
    strings: list[tuple[int, bytes]]
    string_slots: bytes


def _chunk(descriptor: int, place: int) -> _Chunk:
    data = os.pread(descriptor, CHUNK_BYTES, HEADER_BYTES + place * CHUNK_BYTES)
    if not data:
        return _Chunk(np.zeros(0, RECORD_DTYPE), [], b"")
    buffers, size = Buffers(1, with_strings=True), RECORD_DTYPE.itemsize
    buffers.data[: len(data)] = np.frombuffer(data, np.uint8)
    wanted = SPAN_KINDS | WAIT_KINDS
    spans, _, strings = find_spans(buffers, 1, len(data), np.zeros(1, bool), Counter(), wanted)
    starts = buffers.strings[: len(strings)].tolist()
    slots = (
        data[start : start + size - -len(text) // size * size]
        for start, (_, text) in zip(starts, strings, strict=True)
    )
    return _Chunk(spans, strings, b"".join(slots))


def _header(descriptor: int, place: int) -> Any:
    data = os.pread(descriptor, CHUNK_HEADER_BYTES, HEADER_BYTES + place * CHUNK_BYTES)
    return np.frombuffer(data.ljust(CHUNK_HEADER_BYTES, b"\0"), CHUNK_HEADER_DTYPE)[0]


def _flush(header: Any) -> int:
    return int(header["state"]) >> 32


def _replace(descriptor: int, place: int, slots: bytes) -> int:
    """Leave of a flushed copy only these slots; returns how many bytes are given back."""
    start, kept = HEADER_BYTES + place * CHUNK_BYTES, 0
    if slots:
        header = np.frombuffer(
            os.pread(descriptor, CHUNK_HEADER_BYTES, start), CHUNK_HEADER_DTYPE
        ).copy()
        header["state"] = (_flush(header[0]) << 32) | (len(slots) // RECORD_DTYPE.itemsize)
        os.pwrite(descriptor, header.tobytes() + slots, start)
        kept = -(-(CHUNK_HEADER_BYTES + len(slots)) // _BLOCK) * _BLOCK
    if kept < CHUNK_BYTES:
        punch_hole(descriptor, start + kept, CHUNK_BYTES - kept)
    return CHUNK_BYTES - kept


class _Opened:
    """The descriptor of a regular file; None where it is none, or has gone."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self._path, self._flags = (
            path,
            (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
        )
        self._descriptor: int | None = None

    def __enter__(self) -> int | None:
        try:
            self._descriptor = os.open(self._path, self._flags)
        except OSError:
            return None
        return self._descriptor if stat.S_ISREG(os.fstat(self._descriptor).st_mode) else None

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def file_header(path: Path) -> np.void | None:
    """The header of a capture file, of `FILE_HEADER_DTYPE`; None: it is none that this version
    writes.
    """
    with _Opened(path) as descriptor:
        if descriptor is None or not _is_capture_file(descriptor):
            return None
        header: np.void = np.frombuffer(
            os.pread(descriptor, FILE_HEADER_DTYPE.itemsize, 0), FILE_HEADER_DTYPE
        )[0]
        return header


def _is_capture_file(descriptor: int) -> bool:
    data = os.pread(descriptor, FILE_HEADER_DTYPE.itemsize, 0)
    if len(data) < FILE_HEADER_DTYPE.itemsize:
        return False
    header = np.frombuffer(data, FILE_HEADER_DTYPE)[0]
    return bytes(header["magic"]) == MAGIC and int(header["version"]) == FORMAT_VERSION
