"""The capture files of a job's processes: whose each is, and its spans as a table.

Times are those of the host, until all are brought onto one clock. `native/FORMAT.md` explains the bytes.
"""

import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor
from ioprof.layout import FILE_HEADER_DTYPE, RECORD_DTYPE
from ioprof.schema import (
    CHUNK_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    NOTED,
    RANK_SOURCES,
    ROLES,
    SOURCES,
    SPAN_COLUMNS,
    WRITERS,
)
from ioprof.spool.chunks import TALLIES, Parts, read_chunks
from ioprof.spool.numbering import Numbering
from ioprof.spool.values import anchor_of, damage_facts, nullable, number_of, text
from ioprof.trace import empty_table, table_schema

_SERIES: Final = table_schema(SPAN_COLUMNS)

_Array = npt.NDArray[Any]


@dataclass
class Capture:
    """One capture file, understood as far as it can be; times are still those of its host's CLOCK_MONOTONIC."""

    path: Path
    header: Any = None
    """A record of `FILE_HEADER_DTYPE`; None: this is no capture file that this version reads."""
    spans: pl.DataFrame = field(default_factory=lambda: empty_table(SPAN_COLUMNS))
    damage: Counter[str] = field(default_factory=Counter)
    """How often each thing was found that cannot be."""

    tallies: dict[str, int] = field(default_factory=dict)
    """What was counted without being a span; see `chunks.TALLIES`."""

    @property
    def host(self) -> str:
        """The host's name as the process knew it."""
        return text(bytes(self.header["host"]))

    @property
    def sees_reads(self) -> bool:
        """Whether the preloaded library wrote it."""
        return int(self.header["writer"]) == WRITERS.index("capture library")

    @property
    def rank(self) -> int | None:
        """What the process took for its rank."""
        rank = int(self.header["rank"])
        return rank if 0 <= rank < 1 << 31 else None

    @property
    def rank_source(self) -> int:
        """Place in `RANK_SOURCES`, low is good; a rank that was given by ioprof's own job is as good as torch's."""
        return max(1, min(int(self.header["rank_source"]), len(RANK_SOURCES)))

    @property
    def anchor(self) -> Anchor | None:
        """The process's reading of the wall clock; None where it makes no sense."""
        return anchor_of(self.header)

    def damage_facts(self) -> list[dict[str, str]]:
        """What goes into `run["capture"]["damaged"]`."""
        return damage_facts(self.path.name, self.damage)


@dataclass
class Process:
    """All capture files of one process id on one host, in the order in which they were begun."""

    captures: list[Capture]
    rank: int | None = None

    @property
    def host(self) -> str:
        """Where it ran."""
        return self.captures[0].host

    @property
    def pid(self) -> int:
        """Its number there."""
        return int(self.captures[0].header["pid"])

    def facts(self) -> dict[str, Any]:
        """What goes into `run["processes"]`."""
        spans = [capture for capture in self.captures if not capture.sees_reads] or self.captures
        own = spans[-1].header
        times = pl.concat(capture.spans.select("start_ns", "end_ns") for capture in self.captures)
        return {
            "host": self.host,
            "pid": self.pid,
            "parent_pid": int(own["parent_pid"]),
            "role": self._role(),
            "rank": self.rank,
            "worker": next((int(capture.header["worker"]) for capture in spans if capture.header["worker"] >= 0), None),
            "closed": bool(own["closed"]),
            "lost": sum(int(capture.header["lost"]) for capture in self.captures),
            "spans": len(times),
            "first_ns": times["start_ns"].min(),
            "last_ns": times["end_ns"].max(),
            "reads": self._reads(),
        }

    def _role(self) -> str:
        roles = [int(capture.header["role"]) for capture in self.captures]
        return ROLES[min(*roles, len(ROLES) - 1)]

    def _reads(self) -> dict[str, Any] | None:
        """What the capture library counted, and the kernel's books beside it; None where the library was not there."""
        captures = [capture for capture in self.captures if capture.sees_reads]
        if not captures:
            return None
        compared = [capture.header for capture in captures if capture.header["io_time_ns"] > 0]
        books = ("io_rchar", "io_syscr", "io_read_bytes", "seen_bytes", "seen_calls")
        noted = {word for capture in captures for bit, word in enumerate(NOTED) if int(capture.header["noted"]) >> bit & 1}
        return {
            "spans": sum(len(capture.spans) for capture in captures),
            **{name: sum(capture.tallies.get(name, 0) for capture in captures) for name in TALLIES},
            **{name: sum(int(header[name]) for header in compared) if compared else None for name in books},
            "noted": sorted(noted),
        }


def processes_of(captures: list[Capture]) -> list[Process]:
    """The processes whose files can be read, with the ranks that the best source in the job gives them."""
    whole = sorted((capture for capture in captures if capture.header is not None), key=_begun)
    best = min((capture.rank_source for capture in whole if capture.rank is not None), default=0)
    processes: dict[tuple[str, int], Process] = {}
    for capture in whole:
        process = processes.setdefault((capture.host, int(capture.header["pid"])), Process([]))
        process.captures.append(capture)
        if capture.rank is not None and capture.rank_source == best:
            process.rank = capture.rank
    return sorted(processes.values(), key=lambda process: process.captures[0].path)


def _begun(capture: Capture) -> tuple[int, Path]:
    return int(capture.header["anchor_before_ns"]), capture.path


def open_capture(path: Path) -> Capture:
    """A capture file with its header, if it has one that this version reads."""
    capture = Capture(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            capture.damage["not a regular file"] += 1
            return capture
        with open(path, "rb") as file:
            capture.header = _header(file.read(HEADER_BYTES), capture.damage)
    except OSError as error:
        capture.damage[f"cannot be read: {error.strerror}"] += 1
    return capture


def take_capture(capture: Capture, rank: int | None, numbering: Numbering) -> None:
    """Read the spans and tallies of an opened capture file, whose process is of that rank."""
    try:
        with open(capture.path, "rb") as file:
            parts = read_chunks(file, capture.damage)
    except OSError as error:
        capture.damage[f"cannot be read: {error.strerror}"] += 1
        return
    _check_header(capture, parts)
    capture.tallies = parts.tallies
    capture.spans = _frame(capture, rank, parts, numbering)


def _header(data: bytes, damage: Counter[str]) -> Any:
    """The file's header, or None with the reason in `damage`."""
    if not data:
        damage["empty: the process ended while it began to record"] += 1
    elif len(data) < HEADER_BYTES:
        damage["cut off within its header"] += 1
    else:
        header = np.frombuffer(data, FILE_HEADER_DTYPE, count=1)[0]
        expected = (MAGIC, FORMAT_VERSION, RECORD_DTYPE.itemsize, CHUNK_BYTES, HEADER_BYTES)
        if tuple(header[name] for name in ("magic", "version", "record_bytes", "chunk_bytes", "header_bytes")) == expected:
            return header
        damage["not a capture file that this version of ioprof reads"] += 1
    return None


def _check_header(capture: Capture, parts: Parts) -> None:
    """Claims beyond the file's end are a full disk's if spans were lost, and a thread's each that was killed while it copied."""
    header = capture.header
    missing, copying = int(header["chunks"]) - parts.num_chunks, 0 if header["closed"] else parts.homes
    if missing > copying and not header["lost"]:
        capture.damage["cut short: it has fewer chunks than were written"] += 1
    if int(header["role"]) >= len(ROLES):
        capture.damage["unknown role"] += 1
    if capture.anchor is None:
        capture.damage["its reading of the wall clock makes no sense"] += 1


def _frame(capture: Capture, rank: int | None, parts: Parts, numbering: Numbering) -> pl.DataFrame:
    """The spans of one process, with the run's numbers of files and its names; times are still the host's."""
    header, threads, strings = capture.header, parts.column("tid"), parts.known_strings()
    rows = len(threads)
    columns = {
        "start_ns": pl.Series(parts.column("start_ns")),
        "end_ns": pl.Series(parts.column("end_ns")),
        "kind": _picked(pl.Series(KINDS, dtype=_SERIES["kind"]), parts.column("kind").astype(np.int64) - 1),
        "host": pl.Series([capture.host], dtype=_SERIES["host"]).new_from_index(0, rows),
        "rank": _repeated(-1 if rank is None else rank, rows),
        "pid": _repeated(int(header["pid"]), rows),
        "tid": nullable(number_of(threads)),
        "file": nullable(_renumbered(parts.column("file"), strings, numbering.files, capture.damage)),
        "source": _picked(pl.Series(SOURCES, dtype=_SERIES["source"]), parts.column("source").astype(np.int64) - 1),
        "name": _named(parts.column("name"), strings, numbering, capture.damage),
    }
    for name in ("stream", "step", "batch", "bytes", "offset"):
        columns[name] = nullable(parts.column(name))
    return pl.DataFrame([columns[name].alias(name).cast(dtype) for name, dtype in _SERIES.items()])


def _picked(choices: pl.Series, places: _Array) -> pl.Series:
    """`choices[places]`, null where there is no such place."""
    return choices.gather(nullable(np.where(places < len(choices), places, -1)))


def _repeated(value: int, rows: int) -> pl.Series:
    return pl.Series([value if 0 <= value < 1 << 31 else None], dtype=pl.Int32()).new_from_index(0, rows)


def _named(numbers: _Array, strings: dict[int, bytes], numbering: Numbering, damage: Counter[str]) -> pl.Series:
    places = _renumbered(numbers, strings, numbering.names, damage)
    return _picked(pl.Series([text(name) for name in numbering.names], dtype=_SERIES["name"]), places)


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
