"""Reads the capture files of a run: every process's spans, on one clock, with one numbering of files.

A capture file may come from a process that was killed, from a full disk, or have been cut while it was copied; and it may be no
capture file at all. What can be understood is kept, what cannot is counted in `run["capture"]["damaged"]`; nothing raises.
`native/FORMAT.md` explains the bytes.
"""

import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor
from ioprof.errors import CaptureError
from ioprof.schema import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    CHUNK_HEADER_DTYPE,
    FILE_COLUMNS,
    FILE_HEADER_DTYPE,
    FORMAT_VERSION,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    RECORD_DTYPE,
    ROLES,
    SOURCES,
    SPAN_COLUMNS,
    STRING_KIND,
)
from ioprof.trace import Trace, empty_table, table_schema

STRING_BYTES: Final = 4352
"""No string of a capture file is longer; see `native/FORMAT.md`."""

_RECORD_BYTES: Final = RECORD_DTYPE.itemsize
_SLOTS: Final = (CHUNK_BYTES - CHUNK_HEADER_BYTES) // _RECORD_BYTES
_SLOTS_END: Final = CHUNK_HEADER_BYTES + _SLOTS * _RECORD_BYTES
_BLOCK_CHUNKS: Final = 256  # 16 MiB at a time: memory follows the spans, not the file
_LATEST_NS: Final = 1 << 62  # no clock goes that far (the year 2116), and the sum of two such times is still an int64
_SERIES: Final = table_schema(SPAN_COLUMNS)

_Array = npt.NDArray[Any]


def read_spool(folder: Path, run: dict[str, Any]) -> Trace:
    """The trace of all capture files in `folder`; `run`, what else is known of the run, is taken over into `Trace.run`.

    Adds `run["processes"]`, `run["clocks"]["zero_monotonic_ns"]` and `["anchors"]`, and `run["capture"]["damaged"]`. Raises
    `CaptureError` where there is no such folder.
    """
    if not folder.is_dir():
        raise CaptureError(f"{folder}: no such spool folder; it is made by: ioprof record -- COMMAND")
    numbering = _Numbering()
    captures = [_read_capture(path, numbering) for path in sorted(folder.glob("*.ring"))]
    whole = [capture for capture in captures if capture.header is not None]
    anchors = _host_anchors(whole)
    shifts = _host_shifts(whole, anchors)
    zero_ns = min((capture.first_ns + shifts[capture.host] for capture in whole if len(capture.spans)), default=None)
    spans = [_on_one_clock(capture.spans, shifts[capture.host] - (zero_ns or 0)) for capture in whole]
    facts = {
        **run,
        "clocks": {**run.get("clocks", {}), "zero_monotonic_ns": zero_ns, "anchors": _anchor_facts(anchors)},
        "processes": [_process_facts(capture, frame) for capture, frame in zip(whole, spans, strict=True)],
        "capture": {**run.get("capture", {}), "damaged": [entry for capture in captures for entry in capture.damage_facts()]},
    }
    return Trace(facts, pl.concat([empty_table(SPAN_COLUMNS), *spans]), numbering.files_table())


@dataclass
class _Numbering:
    """The run's numbers of files, and its names: the same bytes in two processes are one file."""

    files: dict[bytes, int] = field(default_factory=dict)
    names: dict[bytes, int] = field(default_factory=dict)

    def files_table(self) -> pl.DataFrame:
        """The files that spans use, in the order of their numbers."""
        known = {"file": list(self.files.values()), "path": [_text(path) for path in self.files]}
        missing = {name: None for name in FILE_COLUMNS if name not in known}
        return pl.DataFrame({**known, **missing}, schema=table_schema(FILE_COLUMNS)) if self.files else empty_table(FILE_COLUMNS)


@dataclass
class _Capture:
    """One capture file, understood as far as it can be; times are still those of its host's CLOCK_MONOTONIC."""

    path: Path
    header: Any = None
    """A record of `FILE_HEADER_DTYPE`; None: this is no capture file that this version reads."""
    spans: pl.DataFrame = field(default_factory=lambda: empty_table(SPAN_COLUMNS))
    damage: Counter[str] = field(default_factory=Counter)
    """How often each thing was found that cannot be."""

    @property
    def host(self) -> str:
        """The host's name as the process knew it."""
        return _text(bytes(self.header["host"]))

    @property
    def first_ns(self) -> int:
        """Start of the earliest span, of which there must be one."""
        return int(self.spans["start_ns"].min())  # type: ignore[arg-type]

    @property
    def anchor(self) -> Anchor | None:
        """The process's reading of the wall clock; None where it makes no sense."""
        anchor = Anchor(*(int(self.header[f"anchor_{name}_ns"]) for name in ("before", "wall", "after")))
        return anchor if 0 <= anchor.before_ns <= anchor.after_ns <= anchor.wall_ns < _LATEST_NS else None

    def damage_facts(self) -> list[dict[str, str]]:
        """What goes into `run["capture"]["damaged"]`."""
        return [
            {"file": self.path.name, "what": what if count == 1 else f"{what} ({count} times)"}
            for what, count in self.damage.items()
            if count
        ]


def _read_capture(path: Path, numbering: _Numbering) -> _Capture:
    capture = _Capture(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            capture.damage["not a regular file"] += 1
            return capture
        with open(path, "rb") as file:
            capture.header = _header(file.read(HEADER_BYTES), capture.damage)
            if capture.header is None:
                return capture
            parts = _Parts()
            for block in iter(lambda: file.read(_BLOCK_CHUNKS * CHUNK_BYTES), b""):
                parts.take(block, capture.damage)
    except OSError as error:
        capture.damage[f"cannot be read: {error.strerror}"] += 1
        return capture
    _check_header(capture, parts)
    capture.spans = _frame(capture, parts, numbering)
    return capture


def _header(data: bytes, damage: Counter[str]) -> Any:
    """The file's header, or None with the reason in `damage`."""
    if not data:
        damage["empty: the process ended while it began to record"] += 1
    elif len(data) < HEADER_BYTES:
        damage["cut off within its header"] += 1
    else:
        header = np.frombuffer(data, FILE_HEADER_DTYPE, count=1)[0]
        expected = (MAGIC, FORMAT_VERSION, _RECORD_BYTES, CHUNK_BYTES, HEADER_BYTES)
        if tuple(header[name] for name in ("magic", "version", "record_bytes", "chunk_bytes", "header_bytes")) == expected:
            return header
        damage["not a capture file that this version of ioprof reads"] += 1
    return None


def _check_header(capture: _Capture, parts: "_Parts") -> None:
    """Claims beyond the file's end are a full disk's if spans were lost; otherwise somebody cut the file."""
    header = capture.header
    if int(header["chunks"]) > parts.num_chunks and not header["lost"]:
        capture.damage["cut short: it has fewer chunks than were written"] += 1
    if int(header["role"]) >= len(ROLES):
        capture.damage["unknown role"] += 1
    if capture.anchor is None:
        capture.damage["its reading of the wall clock makes no sense"] += 1


# ------------------------------------------------------------------------------------------------ chunks


@dataclass
class _Parts:
    """What the chunks of one file hold, collected block by block."""

    num_chunks: int = 0
    columns: dict[str, list[_Array]] = field(default_factory=lambda: {name: [] for name in (*(RECORD_DTYPE.names or ()), "tid")})
    strings: dict[int, bytes] = field(default_factory=dict)

    def take(self, data: bytes, damage: Counter[str]) -> None:
        """Add the chunks in `data`, of which the last may be cut."""
        self.num_chunks += -(-len(data) // CHUNK_BYTES)
        block = _Block(data, damage)
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


class _Block:
    """Some whole chunks. A place is the number of a slot, counted over all of them."""

    def __init__(self, data: bytes, damage: Counter[str]) -> None:
        missing = -len(data) % CHUNK_BYTES
        self._data = data + bytes(missing)
        chunks = np.frombuffer(self._data, np.uint8).reshape(-1, CHUNK_BYTES)
        headers = chunks[:, :CHUNK_HEADER_BYTES].reshape(-1).view(CHUNK_HEADER_DTYPE)
        self.records = chunks[:, CHUNK_HEADER_BYTES:_SLOTS_END].reshape(-1).view(RECORD_DTYPE)
        self._chunk_tids = headers["tid"].astype(np.int64)
        self._counts = _believable_counts(headers["count"], missing, damage)
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
    ordered = (records["start_ns"] >= 0) & (records["end_ns"] >= records["start_ns"]) & (records["end_ns"] < _LATEST_NS)
    damage["a span of an unknown kind"] += int(np.count_nonzero(~known))
    damage["a span with impossible times"] += int(np.count_nonzero(known & ~ordered))
    damage["a span with an unknown source"] += int(np.count_nonzero(known & ordered & (records["source"] > len(SOURCES))))
    return np.logical_and(known, ordered)


# ------------------------------------------------------------------------------------------------ tables


def _frame(capture: _Capture, parts: _Parts, numbering: _Numbering) -> pl.DataFrame:
    """The spans of one process, with the run's numbers of files and its names; times are still the host's."""
    header, threads, strings = capture.header, parts.column("tid"), parts.known_strings()
    rows = len(threads)
    columns = {
        "start_ns": pl.Series(parts.column("start_ns")),
        "end_ns": pl.Series(parts.column("end_ns")),
        "kind": _picked(pl.Series(KINDS, dtype=_SERIES["kind"]), parts.column("kind").astype(np.int64) - 1),
        "host": pl.Series([capture.host], dtype=_SERIES["host"]).new_from_index(0, rows),
        "rank": _repeated(int(header["rank"]), rows),
        "pid": _repeated(int(header["pid"]), rows),
        "tid": _nullable(np.where((threads > 0) & (threads < 1 << 31), threads, -1)),
        "file": _nullable(_renumbered(parts.column("file"), strings, numbering.files, capture.damage)),
        "source": _picked(pl.Series(SOURCES, dtype=_SERIES["source"]), parts.column("source").astype(np.int64) - 1),
        "name": _named(parts.column("name"), strings, numbering, capture.damage),
    }
    for name in ("stream", "step", "batch", "bytes", "offset"):
        columns[name] = _nullable(parts.column(name))
    return pl.DataFrame([columns[name].alias(name).cast(dtype) for name, dtype in _SERIES.items()])


def _nullable(values: _Array) -> pl.Series:
    """Null where negative."""
    series = pl.Series(values)
    return series.set(series < 0, None)


def _picked(choices: pl.Series, places: _Array) -> pl.Series:
    """`choices[places]`, null where there is no such place."""
    return choices.gather(_nullable(np.where(places < len(choices), places, -1)))


def _repeated(value: int, rows: int) -> pl.Series:
    return pl.Series([value if 0 <= value < 1 << 31 else None], dtype=pl.Int32()).new_from_index(0, rows)


def _named(numbers: _Array, strings: dict[int, bytes], numbering: _Numbering, damage: Counter[str]) -> pl.Series:
    places = _renumbered(numbers, strings, numbering.names, damage)
    return _picked(pl.Series([_text(name) for name in numbering.names], dtype=_SERIES["name"]), places)


def _renumbered(numbers: _Array, strings: dict[int, bytes], known: dict[bytes, int], damage: Counter[str]) -> _Array:
    """A process's string numbers as the run's, which `known` gains where they are new; -1 for none."""
    none = 1 + max(strings, default=-1)
    places = np.minimum(numbers.view(np.uint32), none)  # -1 is the largest of all there
    used = np.zeros(none + 1, bool)
    used[places] = True
    table = np.full(none + 1, -1, np.int64)
    for number in np.flatnonzero(used[:none]).tolist():
        if number in strings:
            table[number] = known.setdefault(strings[number], len(known))
    renumbered: _Array = table[places]
    damage["a span names a string that is not there"] += int(np.count_nonzero((numbers >= 0) & (renumbered < 0)))
    return renumbered


def _text(data: bytes) -> str:
    """Paths need not be UTF-8, tables must; bytes that are not become backslash escapes."""
    return data.decode("utf-8", "backslashreplace")


# ------------------------------------------------------------------------------------------------ clocks


def _host_anchors(captures: Iterable[_Capture]) -> dict[str, Anchor]:
    """Each host's best reading of the wall clock, hosts in the order of their first file."""
    anchors: dict[str, Anchor] = {}
    for capture in captures:
        anchor, best = capture.anchor, anchors.get(capture.host)
        if anchor is not None and (best is None or anchor.uncertainty_ns < best.uncertainty_ns):
            anchors[capture.host] = anchor
    return anchors


def _host_shifts(captures: Iterable[_Capture], anchors: dict[str, Anchor]) -> dict[str, int]:
    """What to add to a host's times to get those of the first host's clock; 0 where no reading ties the two."""
    offsets = {host: anchor.offset_ns for host, anchor in anchors.items()}
    first = next(iter(offsets.values()), 0)
    return {capture.host: offsets.get(capture.host, first) - first for capture in captures}


def _on_one_clock(spans: pl.DataFrame, shift_ns: int) -> pl.DataFrame:
    return spans.with_columns(pl.col("start_ns", "end_ns") + shift_ns)


def _anchor_facts(anchors: dict[str, Anchor]) -> list[dict[str, Any]]:
    return [
        {
            "host": host,
            "before_ns": anchor.before_ns,
            "wall_ns": anchor.wall_ns,
            "after_ns": anchor.after_ns,
            "offset_ns": anchor.offset_ns,
            "uncertainty_ns": anchor.uncertainty_ns,
        }
        for host, anchor in anchors.items()
    ]


def _process_facts(capture: _Capture, spans: pl.DataFrame) -> dict[str, Any]:
    header = capture.header
    number = {name: int(header[name]) for name in ("rank", "worker")}
    return {
        "host": capture.host,
        "pid": int(header["pid"]),
        "parent_pid": int(header["parent_pid"]),
        "role": ROLES[min(int(header["role"]), len(ROLES) - 1)],
        **{name: value if value >= 0 else None for name, value in number.items()},
        "closed": bool(header["closed"]),
        "lost": int(header["lost"]),
        "spans": len(spans),
        "first_ns": spans["start_ns"].min(),
        "last_ns": spans["end_ns"].max(),
    }
