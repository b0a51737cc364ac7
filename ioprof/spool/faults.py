"""Perf files -> spans of the kind `fault`, and the processes that the kernel saw.

A major fault is one page of a mapped file that had to come from the device: the kernel says which thread, which address and when it
was over. The mappings that were made before say which file and offset; the thread's last switch away from its core says since when
it slept. What readahead brought beside the page is not known of a single fault, so that `bytes` is one page each, and their sum a
lower bound of what came through the mapping.

A minor fault found its page in the page cache, but perhaps still on its way there: who reads a mapped file in order waits for
readahead in minor faults. Those that slept are spans too, while the recorder watched them (`FaultRecorder` says when).

`start_ns` is when the thread gave up its core, or the end of the fault where it never did (then the device was as fast as a memory,
or the kernel polled it): a span of no length, counted in `unblocked`; or in `unwatched`, where switches were not watched at that
time. A fault that slept twice shows its last sleep. Between the two times lies all that the thread waited for, to be given a core
again included.

Processes have the numbers that the recorder knows them by: one that runs in a PID namespace of its own (a container that the job
starts) knows itself by others.

A file may be cut, or be none: nothing raises, `damage` counts.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor
from ioprof.perf import HEADER_BYTES, HEADER_DTYPE, LOST, MAGIC, MINOR, SAMPLE, VERSION, Records, is_watched, read_records, waits
from ioprof.schema import SPAN_COLUMNS
from ioprof.spool.mappings import ANONYMOUS, UNMAPPED, Process, Replay
from ioprof.spool.values import LATEST_NS, anchor_of, nullable, number_of, text
from ioprof.trace import empty_table, table_schema

PROCESS_COLUMNS: Final = {
    "host": pl.String(),
    "pid": pl.Int32(),
    "parent_pid": pl.Int32(),  # null: its start was not seen, as of the job's first process
    "name": pl.String(),  # as the kernel calls it, at most 15 bytes
    "executable": pl.String(),  # the first file that its last execve mapped; null: none was seen
    "first_ns": pl.Int64(),
    "last_ns": pl.Int64(),
    "ended": pl.Boolean(),  # its end was seen
    "left_at_exec": pl.Boolean(),  # the kernel watched it no longer: a program with the setuid bit, or one that is not readable
    "captured": pl.Boolean(),  # the capture library was loaded into it
    "faults": pl.Int64(),  # major faults, of mapped files and others
}
"""Columns of `Faults.processes`."""

_Array = npt.NDArray[Any]
_SERIES: Final = table_schema(SPAN_COLUMNS)


@dataclass(frozen=True)
class Faults:
    """What one perf file tells; times are CLOCK_MONOTONIC of its host."""

    host: str
    anchor: Anchor | None
    """The recorder's reading of the wall clock; None where it makes no sense."""
    spans: pl.DataFrame
    """`schema.SPAN_COLUMNS`, in the order of their ends. `file` is null for memory that is no file's: it was swapped out."""
    processes: pl.DataFrame
    """`PROCESS_COLUMNS`, in the order of their first times: also those that no capture library was loaded into."""
    facts: dict[str, Any]
    """`cpus`, `kernel` (faults inside of system calls were seen), `closed`, `counted` (major faults by the kernel's own count, or
    None), `lost` (records; a lower bound in a file that was not closed); of major faults `faults`, `anonymous` (no file's),
    `unmapped` (where nothing was seen to be mapped: mremap, lost records), `unblocked` (of no length), `unwatched` (of unknown
    length: switches were not watched), `own` (in capture files: no spans); `minor` (their spans)."""
    damage: Counter[str]
    """How often each thing was found that cannot be."""


def read_faults(path: Path, number: Callable[[bytes], int]) -> Faults:
    """What the perf file at `path` tells; `number` gives a file's path its id, the same for the same bytes.

    Faults in the capture files beside it are what recording cost, and none of the job's. Raises nothing: a file that cannot be read
    is an entry of `damage`.
    """
    damage: Counter[str] = Counter()
    try:
        data = path.read_bytes()
    except OSError as error:
        damage[f"cannot be read: {error.strerror}"] += 1
        data = b""
    else:
        damage.update(_header_damage(data))
    if damage:
        return Faults("", None, empty_table(SPAN_COLUMNS), _process_table("", []), {}, damage)
    header: Any = np.frombuffer(data, HEADER_DTYPE, count=1)[0]
    records, left = read_records(data[HEADER_BYTES:])
    records = replace(records, times=records.times + header["shift_ns"])
    damage["cut off within a record, or not written by the kernel"] += left > 0
    beside = os.fsencode(os.path.realpath(path.parent)) + b"/"
    return _understood(header, _believable(records, damage), number, beside, damage)


def _header_damage(data: bytes) -> Iterator[str]:
    if len(data) < HEADER_BYTES:
        yield "cut off within its header" if data else "empty: the recorder ended while it began"
        return
    header: Any = np.frombuffer(data, HEADER_DTYPE, count=1)[0]
    if tuple(header[name] for name in ("magic", "version", "header_bytes")) != (MAGIC, VERSION, HEADER_BYTES):
        yield "not a perf file that this version of ioprof reads"


def _believable(records: Records, damage: Counter[str]) -> Records:
    """In the order of time, without those whose times cannot be."""
    possible = (records.times >= 0) & (records.times < LATEST_NS)
    damage["a record with an impossible time"] += int(np.count_nonzero(~possible))
    records = records.take(possible)
    return records.take(np.argsort(records.times, kind="stable"))


def _understood(header: Any, records: Records, number: Callable[[bytes], int], beside: bytes, damage: Counter[str]) -> Faults:
    host = text(bytes(header["host"]))
    starts, watched = _starts(records), is_watched(records)
    chosen = (records.types == SAMPLE) | ((records.types == MINOR) & (starts < records.times))
    chosen &= records.pids != header["pid"]  # events that are switched on are so for the recorder, too
    samples, starts, watched = records.take(chosen), starts[chosen], watched[chosen]
    replay = Replay(samples)
    replay.run(records, damage)
    is_major = samples.types == SAMPLE
    own = np.array([place for place, name in enumerate(replay.paths) if name.startswith(beside)], np.int64)
    is_own = np.isin(replay.files, own)
    shown = ~is_own & (is_major | (replay.files >= 0))  # a minor fault of memory that is no file's waited for memory, or for a lock
    files = _numbered(replay, number)
    spans = _spans(host, samples, starts, files, replay.offsets, _page_bytes(header, damage))
    facts = {
        "cpus": int(header["cpus"]),
        "kernel": bool(header["kernel"]),
        "closed": bool(header["closed"]),
        "counted": int(header["faults"]) if header["faults"] >= 0 else None,
        "lost": max(int(header["lost"]), _lost(records)),
        "faults": int(np.count_nonzero(is_major)),
        "anonymous": int(np.count_nonzero(is_major & (replay.files == ANONYMOUS))),
        "unmapped": int(np.count_nonzero(is_major & (replay.files == UNMAPPED))),
        "unblocked": int(np.count_nonzero(is_major & (starts == samples.times) & watched)),
        "unwatched": int(np.count_nonzero(is_major & (starts == samples.times) & ~watched)),
        "own": int(np.count_nonzero(is_own & is_major)),
        "minor": int(np.count_nonzero(shown & ~is_major)),
    }
    table = _process_table(host, replay.processes)
    return Faults(host, anchor_of(header), spans.filter(pl.Series(shown)), table, facts, damage)


def _numbered(replay: Replay, number: Callable[[bytes], int]) -> _Array:
    """Each fault's file by the caller's number: only of files that have a fault; -1: none."""
    used = np.unique(replay.files[replay.files >= 0])
    table = np.full(len(replay.paths) + 1, -1, np.int64)  # the last one is for what is no file
    for place in used.tolist():
        table[place] = number(replay.paths[place])
    numbered: _Array = table[np.maximum(replay.files, -1)]
    return numbered


def _spans(host: str, samples: Records, starts: _Array, files: _Array, offsets: _Array, page: int) -> pl.DataFrame:
    rows = len(samples)
    columns = {
        "start_ns": pl.Series(starts),
        "end_ns": pl.Series(samples.times),
        "kind": _repeated("fault", "kind", rows),
        "host": _repeated(host, "host", rows),
        "pid": nullable(number_of(samples.pids)),
        "tid": nullable(number_of(samples.tids)),
        "bytes": pl.Series(np.full(rows, page)),
        "file": nullable(files),
        "offset": nullable(np.where(files >= 0, offsets // page * page, -1)),
        "source": _repeated("storage", "source", rows),
    }
    nothing = pl.Series([None], dtype=pl.Null()).new_from_index(0, rows)
    return pl.DataFrame([columns.get(name, nothing).alias(name).cast(dtype) for name, dtype in _SERIES.items()])


def _repeated(value: str, column: str, rows: int) -> pl.Series:
    return pl.Series([value], dtype=_SERIES[column]).new_from_index(0, rows)


def _is_pid(number: int | None) -> bool:
    return number is not None and 0 < number < 1 << 31


def _process_table(host: str, processes: list[Process]) -> pl.DataFrame:
    known = [process for process in processes if _is_pid(process.pid)]
    rows = {
        "host": [host] * len(known),
        "pid": [process.pid for process in known],
        "parent_pid": [process.parent_pid if _is_pid(process.parent_pid) else None for process in known],
        "name": [text(process.name) for process in known],
        "executable": [None if process.executable is None else text(process.executable) for process in known],
        "first_ns": [process.first_ns for process in known],
        "last_ns": [process.last_ns for process in known],
        "ended": [process.threads == 0 and not process.left_at_exec for process in known],
        "left_at_exec": [process.left_at_exec for process in known],
        "captured": [process.captured for process in known],
        "faults": [process.faults for process in known],
    }
    return pl.DataFrame(rows, schema=PROCESS_COLUMNS).sort("first_ns", maintain_order=True)


def _starts(records: Records) -> _Array:
    """Since when each fault's thread had been asleep; its own time where it had not, and of records that are no faults."""
    found = waits(records)
    fault = np.flatnonzero(found.slept)
    starts = records.times.copy()
    starts[found.order[fault]] = records.times[found.order[found.since[fault]]]
    return starts


def _page_bytes(header: Any, damage: Counter[str]) -> int:
    page = int(header["page_bytes"])
    if page < 512 or page & (page - 1):
        damage["a page size that cannot be"] += 1
        return 4096
    return page


def _lost(records: Records) -> int:
    """Records lost by what the rings say: a loss is told when there is room again, so that a last one may be missing."""
    return sum(records.take(records.types == LOST).word(2).tolist())
