"""Reads perf files: spans of the kind `fault`, and the processes that the kernel recorded.

A major fault reads one page of a mapped file from the device. Its record contains the thread, the
address and the time of its end. The file and offset follow from earlier mmap records, the beginning
of the sleep from the last time that the thread was switched out. How much readahead read in
addition is unknown for a single fault, so `bytes` is one page each here;
`ingest/page_faults/mapped_bytes.py` adds what the kernel counted for the process.

A minor fault finds its page in the page cache, but the page may still be in transfer: a sequential
reader of a mapped file waits for readahead in minor faults. Minor faults that slept are spans too,
while their events were enabled (see `FaultRecorder`).

`start_ns` is the time at which the thread was switched out. If it was not (a device as fast as
memory, or polled by the kernel), it is the end of the fault: a span of length 0, counted in
`unblocked`, or in `unwatched` if SWITCH events were disabled at that time. A fault that slept twice
shows its last sleep. The span includes the time that the thread waited to be scheduled again.

Process ids are those of the PID namespace of the recorder. A process in another PID namespace (a
container that the job starts) has other ids there.

A file may be truncated or not be a perf file: nothing raises, `damage` counts.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor
from ioprof.format.perf import (
    HEADER_BYTES,
    HEADER_DTYPE,
    LOST,
    MAGIC,
    MINOR,
    MINOR_STATE,
    SAMPLE,
    SWITCH_STATE,
    VERSION,
    Records,
    are_enabled,
    read_records,
    select_records,
    waits,
)
from ioprof.format.run_record import FaultRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import empty_table, table_schema
from ioprof.ingest.appended_files import read_appended
from ioprof.ingest.page_faults.fault_state import FaultCounts, FaultState, make_state, read_state
from ioprof.ingest.page_faults.mappings import ANONYMOUS, UNMAPPED, Process, Replay
from ioprof.ingest.untrusted_values import LATEST_NS, anchor_of, nullable, text, valid_ids

PROCESS_COLUMNS: Final = {
    "host": pl.String(),
    "pid": pl.Int32(),
    # null: its start was not recorded, as for the first process of the job
    "parent_pid": (pl.Int32()),
    "name": pl.String(),  # as in the kernel, at most 15 bytes
    # the first file that its last execve mapped; null: none was recorded
    "executable": (pl.String()),
    "first_ns": pl.Int64(),
    "last_ns": pl.Int64(),
    "ended": pl.Boolean(),  # its end was recorded
    # the kernel stopped its events at an execve: setuid, or a program that is not readable
    "left_at_exec": (pl.Boolean()),
    "captured": pl.Boolean(),  # the capture library was loaded into it
    "faults": pl.Int64(),  # major faults, of mapped files and others
}
"""Columns of `Faults.processes`."""

IN_FLIGHT_NS: Final = 10_000_000_000
"""How long readahead may take to arrive, from the fault before on."""
FAR_BYTES: Final = 16 << 20
"""How far a page may be from that fault: twice the largest readahead, and what was in memory
already."""
_MOST_STREAMS: Final = 64  # threads that read one file at a time

_Array = npt.NDArray[Any]
_SERIES: Final = table_schema(SPAN_COLUMNS)


@dataclass(frozen=True)
class Faults:
    """Contents of one perf file; times are CLOCK_MONOTONIC of its host."""

    host: str
    anchor: Anchor | None
    """The wall clock reading of the recorder; None if it is invalid."""
    spans: pl.DataFrame
    """`schema.SPAN_COLUMNS`, in the order of their ends. `file` is null for anonymous memory, which
    was swapped out."""
    undecided: pl.DataFrame
    """Minor faults in files after a sleep, of which the records do not say whether they waited for
    readahead: see `waits_for_calls`."""
    processes: pl.DataFrame
    """`PROCESS_COLUMNS`, in the order of their first times, including those without the capture
    library."""
    facts: FaultRecord
    damage: Counter[str]
    """Number of occurrences of each kind of invalid data."""


def read_faults(path: Path, file_id: Callable[[bytes], int]) -> Faults:
    """Read the perf file at `path`; `file_id` returns the id of a path, the same for the same
    bytes.

    Faults in capture files of the same folder are overhead of the recording and not counted as
    faults of the job. Raises nothing: a file that cannot be read is an entry in `damage`.
    """
    damage: Counter[str] = Counter()
    try:
        data = read_appended(path, HEADER_BYTES)
    except OSError as error:
        damage[f"cannot be read: {error.strerror}"] += 1
        return _nothing(damage)
    damage.update(_header_damage(data.header))
    if damage:
        return _nothing(damage)
    header: Any = np.frombuffer(data.header, HEADER_DTYPE, count=1)[0]
    damage["what is known of the part before the window is damaged"] += data.is_damaged
    state = read_state(data.state, damage)
    records, left = _valid_records(header, state.records, data.rest, damage)
    damage["truncated within a record, or not written by the kernel"] += left > 0
    found = _Analysis(
        header, records, state, os.fsencode(os.path.realpath(path.parent)) + b"/", damage
    )
    files = _map_file_ids(found.replay, file_id)
    host = text(bytes(header["host"]))
    spans = _spans(
        host, found.samples, found.starts, files, found.replay.offsets, _page_bytes(header, damage)
    )
    table = _process_table(host, found.replay.processes)
    damage.update(state.damage)
    return Faults(
        host,
        anchor_of(header),
        spans.filter(pl.Series(found.is_span)),
        spans.filter(pl.Series(found.is_undecided)),
        table,
        found.facts(),
        damage,
    )


def _nothing(damage: Counter[str]) -> Faults:
    none = empty_table(SPAN_COLUMNS)
    return Faults("", None, none, none, _process_table("", []), FaultRecord(), damage)


def waits_for_calls(undecided: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Those of the faults that waited for pages which a call had the kernel fetch (madvise): of the
    same process and file, not long before. The call has the bytes: one byte stands for the wait.
    """
    asked = calls.select("pid", "file", since="start_ns").sort("since")
    return (
        undecided.sort("start_ns")
        .join_asof(
            asked,
            left_on="start_ns",
            right_on="since",
            by=["pid", "file"],
            tolerance=IN_FLIGHT_NS,
            check_sortedness=False,
        )
        .filter(pl.col("since").is_not_null())
        .with_columns(bytes=pl.lit(1, undecided.schema["bytes"]))
        .select(undecided.columns)
    )


def fold_faults(
    header_bytes: bytes, state_bytes: bytes, part: bytes, spool: bytes
) -> tuple[bytes, int]:
    """The state of a perf file after the state before and this part of it
    (`appended_files.Fold`).
    """
    damage: Counter[str] = Counter()
    if next(_header_damage(header_bytes), None) is not None:
        return b"", 0
    header: Any = np.frombuffer(header_bytes, HEADER_DTYPE, count=1)[0]
    state = read_state(state_bytes, damage)
    records, left = _valid_records(header, state.records, part, damage)
    found = _Analysis(header, records, state, spool, damage)
    damage.update(state.damage)
    last_ns = int(records.times[-1]) if len(records) else 0
    processes = [(each, found.replay.is_current(each)) for each in found.replay.processes]
    kept = _kept_records(records)
    return (
        make_state(found.counts, found.replay.paths, processes, found.begun, damage, kept, last_ns),
        len(part) - left,
    )


def _kept_records(records: Records) -> bytes:
    """Those that say what later records mean: switches of faults that have not ended, and the last
    states of events.
    """
    _, undecided = select_records(records)
    last = [np.flatnonzero(records.types == kind)[-1:] for kind in (SWITCH_STATE, MINOR_STATE)]
    return records.take(np.unique(np.concatenate([undecided, *last]))).join()


def _valid_records(
    header: Any, before: bytes, data: bytes, damage: Counter[str]
) -> tuple[Records, int]:
    """The records in the order of time, and the number of bytes at the end that are none."""
    records, left = read_records(before + data)
    records = replace(records, times=records.times + header["shift_ns"])
    is_valid = (records.times >= 0) & (records.times < LATEST_NS)
    damage["a record with an impossible time"] += int(np.count_nonzero(~is_valid))
    records = records.take(is_valid)
    return records.take(np.argsort(records.times, kind="stable")), min(left, len(data))


def _header_damage(data: bytes) -> Iterator[str]:
    if len(data) < HEADER_BYTES:
        yield (
            "truncated within its header" if data else "empty: the recorder ended while it started"
        )
        return
    header: Any = np.frombuffer(data, HEADER_DTYPE, count=1)[0]
    if tuple(header[name] for name in ("magic", "version", "header_bytes")) != (
        MAGIC,
        VERSION,
        HEADER_BYTES,
    ):
        yield "not a perf file that this version of ioprof reads"


class _Analysis:
    """What records in the order of time mean, after the `state` of those before them. `spool`: see
    `read_faults`.
    """

    def __init__(
        self, header: Any, records: Records, state: FaultState, spool: bytes, damage: Counter[str]
    ) -> None:
        self._header, self._records = header, records
        starts, is_timed = _fault_starts(records), are_enabled(records, SWITCH_STATE)
        chosen = (records.types == SAMPLE) | ((records.types == MINOR) & (starts < records.times))
        # events enabled by ioctl also apply to the recorder
        chosen &= records.pids != header["pid"]
        is_watched = are_enabled(records, MINOR_STATE)[chosen]
        self.samples, self.starts, is_timed = records.take(chosen), starts[chosen], is_timed[chosen]
        processes, current = state.known_processes()
        self.replay = replay = Replay(
            self.samples, [path.encode("latin-1") for path in state.paths], processes, current
        )
        replay.run(records, damage)
        is_major = self.samples.types == SAMPLE
        own = np.array(
            [place for place, name in enumerate(replay.paths) if name.startswith(spool)], np.int64
        )
        is_own = np.isin(replay.files, own)
        self.begun = {
            file: deque(recent, maxlen=_MOST_STREAMS)
            for file, recent in state.known_begun().items()
        }
        waited = _waits_for_readahead(is_major, replay, self.starts, self.begun)
        self.is_span = ~is_own & (is_major | waited)
        self.is_undecided = ~is_own & ~self.is_span & (replay.files >= 0)
        at_once = is_major & (self.starts == self.samples.times)
        in_files = is_major & (replay.files >= 0)
        counted = {
            # A ring reports a loss with the next record that fits, so the last loss may be missing.
            "lost": sum(records.take(records.types == LOST).word(2).tolist()),
            "faults": _count(is_major),
            "anonymous": _count(is_major & (replay.files == ANONYMOUS)),
            "unmapped": _count(is_major & (replay.files == UNMAPPED)),
            "unblocked": _count(at_once & is_timed),
            "unwatched": _count(at_once & ~is_timed),
            "own": _count(is_own & is_major),
            "minor": _count(self.is_span & ~is_major),
            "in_files": _count(in_files),
            "watched": _count(in_files & is_watched),
        }
        self.counts = state.counts.plus(FaultCounts(**counted))

    def facts(self) -> FaultRecord:
        """What is known of the file, also of what was dropped from it."""
        header, counts = self._header, self.counts
        return FaultRecord(
            cpus=int(header["cpus"]),
            kernel=bool(header["kernel"]),
            closed=bool(header["closed"]),
            counted=int(header["faults"]) if header["faults"] >= 0 else None,
            lost=max(int(header["lost"]), counts.lost),
            faults=counts.faults,
            anonymous=counts.anonymous,
            unmapped=counts.unmapped,
            unblocked=counts.unblocked,
            unwatched=counts.unwatched,
            own=counts.own,
            minor=counts.minor,
            minor_watched_ratio=counts.watched / counts.in_files if counts.in_files else None,
        )


def _count(mask: _Array) -> int:
    return int(np.count_nonzero(mask))


def _waits_for_readahead(
    is_major: _Array, replay: Replay, starts: _Array, begun: dict[int, deque[tuple[int, int]]]
) -> _Array:
    """The minor faults whose page was being fetched when their thread was switched out.

    Minor faults in anonymous memory wait for memory or for a lock. One in a file may follow by
    coincidence a wait of another kind, such as that of a thread which wakes up and runs code that
    it had not run before. Readahead is begun by another fault of the file not long before, on a
    page not far away: a major one, or one that waits itself. `begun` has these by file: when they
    began that wait, and for which place.
    """
    found = np.zeros(len(starts), bool)
    in_file = np.flatnonzero(replay.files >= 0)
    for row in in_file[np.argsort(starts[in_file], kind="stable")].tolist():
        file, start, place = int(replay.files[row]), int(starts[row]), int(replay.offsets[row])
        recent = begun.setdefault(file, deque(maxlen=_MOST_STREAMS))
        near = (
            start - since < IN_FLIGHT_NS and abs(place - other) <= FAR_BYTES
            for since, other in recent
        )
        if is_major[row] or any(near):
            found[row] = not is_major[row]
            recent.append((start, place))
    return found


def _map_file_ids(replay: Replay, file_id: Callable[[bytes], int]) -> _Array:
    """The file id of each fault; only files with faults get an id. -1: no file."""
    used = np.unique(replay.files[replay.files >= 0])
    # the last entry is for faults without a file
    table = np.full(len(replay.paths) + 1, -1, np.int64)
    for place in used.tolist():
        table[place] = file_id(replay.paths[place])
    ids: _Array = table[np.maximum(replay.files, -1)]
    return ids


def _spans(
    host: str, samples: Records, starts: _Array, files: _Array, offsets: _Array, page: int
) -> pl.DataFrame:
    rows = len(samples)
    columns = {
        "start_ns": pl.Series(starts),
        "end_ns": pl.Series(samples.times),
        "kind": _constant("fault", "kind", rows),
        "host": _constant(host, "host", rows),
        "pid": nullable(valid_ids(samples.pids)),
        "tid": nullable(valid_ids(samples.tids)),
        "bytes": pl.Series(np.full(rows, page)),
        "file": nullable(files),
        "offset": nullable(np.where(files >= 0, offsets // page * page, -1)),
        "source": _constant("storage", "source", rows),
    }
    nulls = pl.Series([None], dtype=pl.Null()).new_from_index(0, rows)
    return pl.DataFrame(
        [columns.get(name, nulls).alias(name).cast(dtype) for name, dtype in _SERIES.items()]
    )


def _constant(value: str, column: str, rows: int) -> pl.Series:
    return pl.Series([value], dtype=_SERIES[column]).new_from_index(0, rows)


def _is_pid(number: int | None) -> bool:
    return number is not None and 0 < number < 1 << 31


def _process_table(host: str, processes: list[Process]) -> pl.DataFrame:
    known = [process for process in processes if _is_pid(process.pid)]
    rows = {
        "host": [host] * len(known),
        "pid": [process.pid for process in known],
        "parent_pid": [
            process.parent_pid if _is_pid(process.parent_pid) else None for process in known
        ],
        "name": [text(process.name) for process in known],
        "executable": [
            None if process.executable is None else text(process.executable) for process in known
        ],
        "first_ns": [process.first_ns for process in known],
        "last_ns": [process.last_ns for process in known],
        "ended": [process.threads == 0 and not process.left_at_exec for process in known],
        "left_at_exec": [process.left_at_exec for process in known],
        "captured": [process.captured for process in known],
        "faults": [process.faults for process in known],
    }
    return pl.DataFrame(rows, schema=PROCESS_COLUMNS).sort("first_ns", maintain_order=True)


def _fault_starts(records: Records) -> _Array:
    """Start of the sleep of each fault; the time of the record itself for faults without sleep and
    for other records.
    """
    found = waits(records)
    fault = np.flatnonzero(found.slept)
    starts = records.times.copy()
    starts[found.order[fault]] = records.times[found.order[found.since[fault]]]
    return starts


def _page_bytes(header: Any, damage: Counter[str]) -> int:
    page = int(header["page_bytes"])
    if page < 512 or page & (page - 1):
        damage["an invalid page size"] += 1
        return 4096
    return page
