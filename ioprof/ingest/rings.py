"""Reads the capture files (`*.ring`) of the processes of a job: the process that wrote each file,
and its spans as tables.

A file is read twice, in blocks, so that memory does not depend on its size: first for what is known
of it as a whole, with the spans of the kinds that are held in memory; then for the rest. Times are
those of the host until `clock_alignment` converts them. `native/FORMAT.md` specifies the bytes.
"""

import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor
from ioprof.format.layout import FILE_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.run_record import Damage, ProcessRecord, ReadCounters
from ioprof.format.schema import (
    DENSE_KINDS,
    KINDS,
    NOTED,
    PYTHON_PROGRAM,
    RANK_SOURCES,
    ROLES,
    SOURCES,
    SPAN_COLUMNS,
    WRITERS,
)
from ioprof.format.trace import empty_table, table_schema
from ioprof.format.wire_format import CHUNK_BYTES, FORMAT_VERSION, HEADER_BYTES, MAGIC
from ioprof.ingest.chunks import (
    TALLIES,
    WAIT_KINDS,
    Buffers,
    ChunkHeaders,
    Spans,
    block_places,
    read_block,
    read_blocks,
    read_headers,
)
from ioprof.ingest.failures import Ends
from ioprof.ingest.job_sums import JobSums
from ioprof.ingest.numbering import Numbering, StringIds
from ioprof.ingest.untrusted_values import anchor_of, damage_facts, nullable, text, valid_ids
from ioprof.ingest.wakers import Waits

_SERIES: Final = table_schema(SPAN_COLUMNS)
_KINDS: Final = pl.Series(KINDS, dtype=_SERIES["kind"])
_SOURCES: Final = pl.Series(SOURCES, dtype=_SERIES["source"])
_IS_DENSE: Final = np.array(
    [
        False,
        *(kind in DENSE_KINDS and kind != "fault" for kind in KINDS),
        *[False] * (255 - len(KINDS)),
    ]
)
"""By the number of a kind, whether its spans are read in blocks. Faults are not, since what they
fetched depends on all of them."""
_IS_READ: Final = np.array([number == KINDS.index("read") + 1 for number in range(256)])

_Array = npt.NDArray[Any]


@dataclass
class Capture:
    """One capture file; times are CLOCK_MONOTONIC of its host."""

    path: Path
    header: Any = None
    """A record of `FILE_HEADER_DTYPE`; None: not a capture file that this version reads."""
    held: pl.DataFrame = field(default_factory=lambda: empty_table(SPAN_COLUMNS))
    """Its spans, except for those that `dense_spans` reads."""
    waits: Waits = field(default_factory=Waits)
    """Its blocks and wakes."""
    num_spans: int = 0
    """All of them."""
    tids: set[int] = field(default_factory=set)
    """The threads that wrote spans."""
    storage_places: list[tuple[int, int]] = field(default_factory=list)
    """The blocks of the file that have reads from storage."""
    first_ns: int | None = None
    last_ns: int | None = None
    """The first start and the last end; None: there are no spans."""
    headers: ChunkHeaders = field(default_factory=ChunkHeaders)
    files: StringIds = field(default_factory=StringIds)
    names: StringIds = field(default_factory=StringIds)
    damage: Counter[str] = field(default_factory=Counter)
    """Number of occurrences of each kind of invalid data."""
    since_ns: int | None = None
    """Spans that began before are left out; None: none are. See `job_window`."""
    sums: JobSums | None = None
    """Where all spans are summed up, also those that are left out; None: nowhere."""
    shift_ns: int = 0
    """What the times of `sums` are later than those of the file."""
    ends: Ends = field(default_factory=Ends)
    """How processes ended."""
    shift: dict[str, int] = field(default_factory=dict)
    """What is added to numbers of steps and batches, by column; see `attempts`."""

    @property
    def tallies(self) -> dict[str, int]:
        """Totals of calls that have no span of their own; see `chunks.TALLIES`."""
        return self.headers.tallies

    @property
    def host(self) -> str:
        """The host name that the process read."""
        return text(bytes(self.header["host"]))

    @property
    def sees_reads(self) -> bool:
        """Whether the preloaded library wrote it."""
        return int(self.header["writer"]) == WRITERS.index("capture library")

    @property
    def rank(self) -> int | None:
        """The rank that the process determined; None: unknown."""
        rank = int(self.header["rank"])
        return rank if 0 <= rank < 1 << 31 else None

    @property
    def rank_source(self) -> int:
        """Index in `RANK_SOURCES`; lower is more reliable. A rank set by ioprof's built-in job
        counts as reliable as torch's.
        """
        return max(1, min(int(self.header["rank_source"]), len(RANK_SOURCES)))

    @property
    def anchor(self) -> Anchor | None:
        """The wall clock reading of the process; None if it is invalid."""
        return anchor_of(self.header)

    def damage_facts(self) -> list[Damage]:
        """Entries for `CaptureRecord.damaged`."""
        return damage_facts(self.path.name, self.damage)


@dataclass
class Process:
    """All capture files of one process id on one host, in the order of their creation."""

    captures: list[Capture]
    rank: int | None = None

    @property
    def host(self) -> str:
        """Name of its host."""
        return self.captures[0].host

    @property
    def pid(self) -> int:
        """Its process id on that host."""
        return int(self.captures[0].header["pid"])

    @property
    def begin_ns(self) -> int:
        """When its first capture file was made."""
        return int(self.captures[0].header["anchor_before_ns"])

    @property
    def last_ns(self) -> int:
        """When it last recorded a span."""
        return max((each.last_ns or 0 for each in self.captures), default=0)

    @property
    def is_rank(self) -> bool:
        """Whether it trained, or took batches."""
        return self._role() == "rank"

    def facts(
        self, align_time: Callable[[str, int], int] = lambda _, time_ns: time_ns
    ) -> ProcessRecord:
        """Its entry in `RunRecord.processes`; `align_time` converts a time of a host to one of the
        run.
        """
        spans = [capture for capture in self.captures if not capture.sees_reads] or self.captures
        own = spans[-1].header
        starts = [capture.first_ns for capture in self.captures if capture.first_ns is not None]
        ends = [capture.last_ns for capture in self.captures if capture.last_ns is not None]
        return ProcessRecord(
            host=self.host,
            pid=self.pid,
            parent_pid=int(own["parent_pid"]),
            role=self._role(),
            rank=self.rank,
            worker=next(
                (
                    int(capture.header["worker"])
                    for capture in spans
                    if capture.header["worker"] >= 0
                ),
                None,
            ),
            closed=bool(own["closed"]),
            lost=_total(int(capture.header["lost"]) for capture in self.captures),
            spans=sum(capture.num_spans for capture in self.captures),
            first_ns=align_time(self.host, min(starts)) if starts else None,
            last_ns=align_time(self.host, max(ends)) if ends else None,
            reads=self._reads(),
            killed_in_batch=self._killed_in_batch(),
        )

    def _killed_in_batch(self) -> int | None:
        """Number of the batch that it was making when it was killed. A process that ends by itself
        closes at least one file.
        """
        making = max(int(capture.header["making"]) for capture in self.captures)
        is_killed = not any(capture.header["closed"] for capture in self.captures)
        return making - 1 if is_killed and 0 < making < 1 << 63 else None

    def _role(self) -> str:
        roles = [int(capture.header["role"]) for capture in self.captures]
        return ROLES[min(*roles, len(ROLES) - 1)]

    def _reads(self) -> ReadCounters | None:
        """The totals of the capture library and the proc io counters of the kernel; None if the
        library was not loaded.
        """
        captures = [capture for capture in self.captures if capture.sees_reads]
        if not captures:
            return None
        # they count since the process began
        if any(capture.since_ns is not None for capture in captures):
            return ReadCounters(spans=sum(capture.num_spans for capture in captures))
        compared = [capture.header for capture in captures if capture.header["io_time_ns"] > 0]
        io_counters = ("io_rchar", "io_syscr", "io_read_bytes", "seen_bytes", "seen_calls")
        noted = {
            word
            for capture in captures
            for bit, word in enumerate(NOTED)
            if int(capture.header["noted"]) >> bit & 1
        }
        if len(captures) < len(self.captures):  # the Python hooks were started, too
            noted.discard(PYTHON_PROGRAM)
        found: dict[str, Any] = {
            name: _total(capture.tallies.get(name, 0) for capture in captures) for name in TALLIES
        }
        found |= {
            name: _total(int(header[name]) for header in compared) if compared else None
            for name in io_counters
        }
        return ReadCounters(
            spans=sum(capture.num_spans for capture in captures),
            noted=tuple(sorted(noted)),
            **found,
        )


def _total(counts: Iterable[int]) -> int:
    """The sum, at most the largest uint64: headers of damaged files may hold any counts, and
    run.json holds no larger number.
    """
    return min(sum(counts), 2**64 - 1)


def processes_of(captures: list[Capture]) -> list[Process]:
    """The processes whose files can be read. Ranks come from the most reliable source that occurs
    in the job.
    """
    whole = sorted(
        (capture for capture in captures if capture.header is not None), key=_creation_order
    )
    best = min((capture.rank_source for capture in whole if capture.rank is not None), default=0)
    processes: dict[tuple[str, int], Process] = {}
    for capture in whole:
        process = processes.setdefault((capture.host, int(capture.header["pid"])), Process([]))
        process.captures.append(capture)
        if capture.rank is not None and capture.rank_source == best:
            process.rank = capture.rank
    return sorted(processes.values(), key=lambda process: process.captures[0].path)


def _creation_order(capture: Capture) -> tuple[int, Path]:
    return int(capture.header["anchor_before_ns"]), capture.path


def open_capture(path: Path) -> Capture:
    """Open a capture file and read its header."""
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


@dataclass
class Survey:
    """What a capture file holds besides its dense spans."""

    held: list[tuple[_Array, _Array]] = field(default_factory=list)
    """Records and threads of the other spans."""
    strings: dict[int, bytes] = field(default_factory=dict)
    """By the number that they have in the file."""


def survey(capture: Capture) -> Survey:
    """Read an opened capture file: all but its dense spans. Sets what the capture knows of its
    spans, except for `held`.
    """
    found = Survey()
    try:
        with open(capture.path, "rb") as file:
            capture.headers = read_headers(file)
            capture.files.limit = capture.names.limit = capture.headers.num_slots - 1
            for block in read_blocks(file, capture.headers, capture.damage):
                for number, data in block.strings:
                    if number in found.strings:
                        capture.damage["two strings with the same id"] += 1
                    found.strings.setdefault(number, data)
                is_wait = WAIT_KINDS[block.records["kind"]]
                if is_wait.any():
                    of_waits = _chosen(block, is_wait)
                    of_waits = _chosen(of_waits, capture.ends.add(of_waits.records))
                    of_waits = _in_window(capture, of_waits)
                    capture.waits.add(of_waits.records, of_waits.tids)
                    block = _chosen(block, ~is_wait)
                block = _in_window(capture, block, capture.sums)
                if len(block.records):
                    _add_times(capture, block)
                    is_first = np.append(True, block.tids[1:] != block.tids[:-1])
                    capture.tids.update(block.tids[is_first].tolist())
                    capture.files.count(block.records["file"])
                    capture.names.count(block.records["name"])
                    if _is_storage_read(block).any():
                        capture.storage_places.append(block.place)
                    held = np.flatnonzero(~_IS_DENSE[block.records["kind"]])
                    found.held.append((block.records[held], block.tids[held]))
    except OSError as error:
        capture.damage[f"cannot be read: {error.strerror}"] += 1
        capture.num_spans, capture.first_ns, capture.last_ns, capture.headers = (
            0,
            None,
            None,
            ChunkHeaders(),
        )
        return Survey()
    _check_header(capture, len(capture.headers.is_stale))
    return found


def hold(capture: Capture, found: Survey, rank: int | None, numbering: Numbering) -> None:
    """Set `Capture.held` of a file that was surveyed, of a process with that rank, and give its
    strings their ids in the run.
    """
    known = {
        number: data for number, data in found.strings.items() if number < capture.headers.num_slots
    }
    missing = capture.files.number(known, numbering.files) + capture.names.number(
        known, numbering.names
    )
    capture.damage["a span refers to a string that does not exist"] += missing
    tables = [_table(capture, rank, records, tids, numbering) for records, tids in found.held]
    capture.held = pl.concat([empty_table(SPAN_COLUMNS), *tables])


def _in_window(capture: Capture, block: Spans, sums: JobSums | None = None) -> Spans:
    """The spans that are not left out; all of them are added to `sums`."""
    if sums is not None:
        sums.add(block.records, capture.shift_ns)
    if capture.since_ns is None:
        return block
    return _chosen(block, block.records["start_ns"] >= capture.since_ns)


def _chosen(block: Spans, rows: _Array) -> Spans:
    return replace(block, records=block.records[rows], tids=block.tids[rows])


def _add_times(capture: Capture, block: Spans) -> None:
    first_ns, last_ns = int(block.records["start_ns"].min()), int(block.records["end_ns"].max())
    capture.num_spans += len(block.records)
    capture.first_ns = first_ns if capture.first_ns is None else min(first_ns, capture.first_ns)
    capture.last_ns = last_ns if capture.last_ns is None else max(last_ns, capture.last_ns)


def dense_places(capture: Capture) -> list[tuple[int, int]]:
    """The blocks of a capture file that was surveyed which may have spans that are not in
    `Capture.held`.
    """
    if len(capture.held) == capture.num_spans:
        return []
    with open(capture.path, "rb") as file:
        return list(block_places(file))


def dense_spans(
    capture: Capture,
    place: tuple[int, int],
    buffers: Buffers,
    rank: int | None,
    numbering: Numbering,
) -> pl.DataFrame | None:
    """The spans of one of the `dense_places` which are not in `Capture.held`; None: there are
    none.
    """
    with open(capture.path, "rb") as file:
        block = read_block(file, place, buffers, capture.headers, Counter(), _IS_DENSE)
    if block is None:
        return None
    block = _in_window(capture, block)
    return (
        _table(capture, rank, block.records, block.tids, numbering) if len(block.records) else None
    )


def storage_reads(capture: Capture) -> Iterator[_Array]:
    """The records of the reads from storage of a capture file that was surveyed, in blocks."""
    if not capture.storage_places:
        return
    buffers = Buffers()
    with open(capture.path, "rb") as file:
        for place in capture.storage_places:
            if (block := read_block(file, place, buffers, capture.headers, Counter())) is not None:
                block = _in_window(capture, block)
                yield block.records[_is_storage_read(block)]


def readahead_calls(capture: Capture, numbering: Numbering) -> pl.DataFrame:
    """The calls of madvise that fetched something, of a capture file that was surveyed."""
    found = [pl.DataFrame(schema=_SERIES)]
    for records in storage_reads(capture):
        spans = _table(capture, None, records, np.zeros(len(records), np.int64), numbering)
        found.append(spans.filter(pl.col("name").cast(pl.String) == "madvise"))
    return pl.concat(found)


def reads_without_batch(capture: Capture) -> Iterator[tuple[_Array, _Array, _Array]]:
    """Thread, start and end of the reads in a capture file that was surveyed which have no batch,
    and whose bytes no other process sent; in blocks.
    """
    buffers = Buffers()
    sent = [SOURCES.index(source) + 1 for source in ("socket", "pipe")]
    for place in dense_places(capture):
        with open(capture.path, "rb") as file:
            block = read_block(file, place, buffers, capture.headers, Counter(), _IS_READ)
        if block is not None:
            block = _in_window(capture, block)
            records = block.records
            chosen = (records["batch"] < 0) & ~np.isin(records["source"], sent)
            yield block.tids[chosen], records["start_ns"][chosen], records["end_ns"][chosen]


def _is_storage_read(block: Spans) -> _Array:
    """Which of the spans are reads from storage."""
    kinds, sources = block.records["kind"], block.records["source"]
    found: _Array = (kinds == KINDS.index("read") + 1) & (sources == SOURCES.index("storage") + 1)
    return found


def _header(data: bytes, damage: Counter[str]) -> Any:
    """The header of the file, or None with the reason in `damage`."""
    if not data:
        damage["empty: the process ended while it started to record"] += 1
    elif len(data) < HEADER_BYTES:
        damage["truncated within its header"] += 1
    else:
        header = np.frombuffer(data, FILE_HEADER_DTYPE, count=1)[0]
        expected = (MAGIC, FORMAT_VERSION, RECORD_DTYPE.itemsize, CHUNK_BYTES, HEADER_BYTES)
        if (
            tuple(
                header[name]
                for name in ("magic", "version", "record_bytes", "chunk_bytes", "header_bytes")
            )
            == expected
        ):
            return header
        damage["not a capture file that this version of ioprof reads"] += 1
    return None


def _check_header(capture: Capture, num_chunks: int) -> None:
    """Count invalid header fields. Missing chunks are expected after a full disk (`lost` > 0), and
    one per thread after a kill.
    """
    header = capture.header
    missing, copying = (
        int(header["chunks"]) - num_chunks,
        0 if header["closed"] else capture.headers.num_homes,
    )
    if missing > copying and not header["lost"]:
        capture.damage["truncated: it has fewer chunks than were written"] += 1
    if int(header["role"]) >= len(ROLES):
        capture.damage["unknown role"] += 1
    if capture.anchor is None:
        capture.damage["its wall clock reading is invalid"] += 1


def _table(
    capture: Capture, rank: int | None, records: _Array, tids: _Array, numbering: Numbering
) -> pl.DataFrame:
    """The spans of one process with file ids and names of the run; times are those of the host."""
    rows = len(tids)
    # copies, since polars may keep the memory of an array, and that of a block is used again
    columns = {
        "start_ns": pl.Series(records["start_ns"].copy()),
        "end_ns": pl.Series(records["end_ns"].copy()),
        "kind": _gather(_KINDS, records["kind"].astype(np.int64) - 1),
        "host": _constant(capture.host, _SERIES["host"], rows),
        "rank": _constant(
            rank if rank is not None and 0 <= rank < 1 << 31 else None, pl.Int32(), rows
        ),
        "pid": _constant(
            int(capture.header["pid"]) if capture.header["pid"] < 1 << 31 else None,
            pl.Int32(),
            rows,
        ),
        "tid": nullable(valid_ids(tids)),
        "file": _nullable(capture.files.map(records["file"])),
        "source": _gather(_SOURCES, records["source"].astype(np.int64) - 1),
        "name": _gather(numbering.name_series(), capture.names.map(records["name"])),
    }
    for name in ("stream", "step", "batch", "bytes", "offset"):
        values = records[name].copy()
        if shift := capture.shift.get(name):
            values[values >= 0] += shift
        columns[name] = _nullable(values)
    return pl.DataFrame([columns[name].alias(name).cast(dtype) for name, dtype in _SERIES.items()])


def _nullable(values: _Array) -> pl.Series:
    """The values with negative ones as null; often that is all of them."""
    return nullable(values) if (values >= 0).any() else _constant(None, pl.Null(), len(values))


def _gather(choices: pl.Series, indices: _Array) -> pl.Series:
    """`choices[indices]`, null where an index is out of range."""
    is_known = (indices >= 0) & (indices < len(choices))
    if not is_known.any():
        return _constant(None, choices.dtype, len(indices))
    found = pl.Series(indices.astype(np.uint32))
    return choices.gather(found if is_known.all() else found.set(pl.Series(~is_known), None))


def _constant(value: str | int | None, dtype: pl.DataType, rows: int) -> pl.Series:
    return pl.Series([value], dtype=dtype).new_from_index(0, rows)
