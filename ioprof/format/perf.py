"""Records of perf events as arrays, for the page fault recorder and the reader of its files.

A perf file holds the perf records of one host of a job (man perf_event_open, section MMAP layout):

    HEADER_BYTES   a header, `HEADER_DTYPE`; the rest of its bytes is zero
    any number     records as the kernel wrote them, one after the other, nearly all in the order of their times

A record begins with `type` u32, `misc` u16, `size` u16. The size includes these eight bytes and is
a multiple of eight. All events have sample_type TID | TIME | ADDR (the file header holds the
attributes of the events of major faults), those of minor faults also IP, and sample_id_all, so that
each record except a sample ends with `pid` u32, `tid` u32, `time` u64:

    SAMPLE   (9)    pid u32, tid u32, time u64, addr u64           end of a major fault
                    ip u64, pid u32, tid u32, time u64, addr u64   end of a minor fault; recognised by its length
    SWITCH  (14)                                                   context switch; misc: in or out, preempted or not
    MMAP2   (10)    pid u32, tid u32, addr u64, len u64, pgoff u64, device and inode 24 bytes, prot u32, flags u32, path, 0 ...
    MMAP     (1)    pid u32, tid u32, addr u64, len u64, pgoff u64, path, 0 ...
    FORK     (7)    pid u32, ppid u32, tid u32, ptid u32, time u64
    EXIT     (4)    as FORK
    COMM     (3)    pid u32, tid u32, name, 0 ...                  misc: whether by execve
    LOST     (2)    id u64, lost u64                               number of records lost because the ring was full
    SWITCH_STATE (64)                                              by the recorder: SWITCH events enabled (misc 1) or disabled (0)
    MINOR_STATE (65)                                               by the recorder: the same for minor faults

SWITCH events are enabled until the first SWITCH_STATE. While they are disabled the duration of a
fault is unknown. It is also unknown whether a thread that was switched out before a SWITCH_STATE
ran again before its next record.

Minor faults are recorded from the first MINOR_STATE on.

Times are CLOCK_MONOTONIC of the kernel in nanoseconds; `pgoff` is in bytes. A file may end
anywhere.
"""  # noqa: E501

import re
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAGIC: Final = b"IOPROFP1"
VERSION: Final = 1
HEADER_BYTES: Final = 512
SUFFIX: Final = ".perf"
READAHEAD: Final = "readahead"
"""A file of the spool whose time says when a process last had pages of a mapping fetched by a call
(`native/capture/hooks_mmap.c`)."""

MMAP: Final = 1
LOST: Final = 2
COMM: Final = 3
EXIT: Final = 4
FORK: Final = 7
SAMPLE: Final = 9
MMAP2: Final = 10
SWITCH: Final = 14
SWITCH_STATE: Final = 64
"""Written by the recorder; the kernel reserves types from 64 on for programs. misc: whether SWITCH
events are enabled from now on."""
MINOR_STATE: Final = 65
"""The same for minor faults."""
MINOR: Final = 15
"""Not a type of the kernel: `read_records` assigns it to samples with `ip`, which are minor
faults."""

COMM_EXEC: Final = 1 << 13  # misc of COMM
SWITCH_OUT: Final = 1 << 13  # misc of SWITCH
SWITCH_PREEMPTED: Final = 1 << 14  # misc of SWITCH, with SWITCH_OUT

HEADER_DTYPE: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("pid", "<u4"),  # of the recorder; the job is its child
        ("closed", "<u4"),  # 1: the recorder closed the file; 0: it was killed or still runs
        ("kernel", "<u4"),  # 1: faults within system calls are recorded too; 0: not permitted
        ("page_bytes", "<u4"),
        ("cpus", "<u4"),  # number of CPUs with events
        ("ring_bytes", "<u4"),  # of each CPU
        ("faults", "<i8"),  # major faults counted by the kernel; -1: unknown
        ("lost", "<i8"),  # lost records counted by the kernel; -1: unknown
        ("anchor_before_ns", "<i8"),  # CLOCK_MONOTONIC before the wall clock reading
        ("anchor_wall_ns", "<i8"),  # CLOCK_REALTIME
        ("anchor_after_ns", "<i8"),  # CLOCK_MONOTONIC after it
        ("host", "S64"),
        ("attributes", "V104"),  # struct perf_event_attr up to PERF_ATTR_SIZE_VER4
        # add to the times of records to get CLOCK_MONOTONIC of the job; not 0 in time namespaces #
        (
            "shift_ns",
            "<i8",
        ),
    ]
)
"""The start of a perf file, little-endian."""

_Array = npt.NDArray[Any]

_HEADER_WORDS: Final = 1
_TRAILER_WORDS: Final = 2
_LEAST_WORDS: Final = {
    MMAP: 8,
    LOST: 5,
    COMM: 5,
    EXIT: 6,
    FORK: 6,
    SAMPLE: 4,
    MMAP2: 12,
    SWITCH: 3,
    MINOR: 5,
    SWITCH_STATE: 3,
    MINOR_STATE: 3,
}
"""Minimum size of a record of each type in eight-byte words."""
_FAULT_HEADER: Final = re.compile(
    struct.pack("<I", SAMPLE)
    + b"..["
    + bytes(8 * _LEAST_WORDS[kind] for kind in (SAMPLE, MINOR))
    + b"]\0",
    re.DOTALL,
)
"""The header of a record of a major or minor fault: type, misc and size."""


@dataclass(frozen=True)
class Records:
    """Positions of records in `words`, and their common fields. Each array has one entry per
    record.
    """

    words: _Array
    """The bytes as u64."""
    places: _Array
    """Index of the first word of a record."""
    sizes: _Array
    """Size of a record in words."""
    types: _Array
    miscs: _Array
    pids: _Array
    """Process id at the time of the record; 2^32 - 1 while the process is exiting."""
    tids: _Array
    times: _Array
    """CLOCK_MONOTONIC, ns."""

    def __len__(self) -> int:
        return len(self.places)

    def take(self, choice: _Array) -> "Records":
        """The records at these indices, in that order, or those where the mask is true."""
        fields = (self.places, self.sizes, self.types, self.miscs, self.pids, self.tids, self.times)
        return Records(self.words, *(field[choice] for field in fields))

    def word(self, number: int | _Array) -> _Array:
        """One word of each record; 0 is the header. All records must be long enough."""
        word: _Array = self.words[self.places + number]
        return word

    def addresses(self) -> _Array:
        """The addresses of faults."""
        return self.word(3 + (self.types == MINOR))

    def body(self, index: int) -> bytes:
        """The bytes of one record after its header, including the trailer."""
        first = int(self.places[index])
        return bytes(self.words[first + _HEADER_WORDS : first + int(self.sizes[index])])

    def join(self) -> bytes:
        """The bytes of all records, one after the other."""
        rows = zip(self.places.tolist(), (self.places + self.sizes).tolist(), strict=True)
        return b"".join([self.words[first:end].tobytes() for first, end in rows])


def read_records(data: bytes | bytearray) -> tuple[Records, int]:
    """The records in `data`, and the number of bytes at its end that are not valid records.

    Records of unknown type, and records that are too short for their type, are skipped.
    """
    words = np.frombuffer(data, "<u8", count=len(data) // 8)
    places, end = _find_records(words >> np.uint64(51))
    headers = words[places]
    types = (headers & np.uint64(0xFFFFFFFF)).astype(np.int64)
    sizes = (headers >> np.uint64(51)).astype(np.int64)
    whole = sizes >= _least_words(types)
    places, types, sizes, headers = places[whole], types[whole], sizes[whole], headers[whole]
    types = np.where((types == SAMPLE) & (sizes == _LEAST_WORDS[MINOR]), MINOR, types)
    stamps = places + np.select([types == SAMPLE, types == MINOR], [1, 2], sizes - _TRAILER_WORDS)
    threads = words[stamps]
    return (
        Records(
            words,
            places,
            sizes,
            types,
            (headers >> np.uint64(32)).astype(np.int64) & 0xFFFF,
            (threads & np.uint64(0xFFFFFFFF)).astype(np.int64),
            (threads >> np.uint64(32)).astype(np.int64),
            words[stamps + 1].astype(np.int64),
        ),
        len(data) - 8 * end,
    )


def state_record(kind: int, enabled: bool, pid: int, time_ns: int) -> bytes:
    """The bytes of a SWITCH_STATE or MINOR_STATE record."""
    return struct.pack("<IHHIIQ", kind, enabled, 24, pid, pid, time_ns)


def are_enabled(records: Records, kind: int) -> _Array:
    """For each record whether the events of SWITCH_STATE or MINOR_STATE were enabled. Records must
    be in the order of time.
    """
    changes = np.flatnonzero(records.types == kind)
    last_change = np.searchsorted(changes, np.arange(len(records)), side="right") - 1
    at_start = kind == SWITCH_STATE
    # -1, no change yet: the appended one
    enabled: _Array = np.append(records.miscs[changes] == 1, at_start)[last_change]
    return enabled


def may_have_faults(data: bytes) -> bool:
    """Whether `data`, records from a ring, may contain a fault. May return True without one, never
    False with one.
    """
    return _FAULT_HEADER.search(data) is not None


def _find_records(sizes: _Array) -> tuple[_Array, int]:
    """The start of each record, found by following the `sizes` (words) in the headers, and the end
    of the last one.
    """
    places: list[int] = []
    numbers, place, end = sizes.tolist(), 0, len(sizes)
    append = places.append
    while place < end:
        size = numbers[place]
        if size == 0 or place + size > end:
            break
        append(place)
        place += size
    return np.array(places, np.int64), place


def _least_words(types: _Array) -> _Array:
    """The minimum size of each type in words; for unknown types the largest integer."""
    table = np.full(MINOR_STATE + 2, np.iinfo(np.int64).max)
    known = [kind for kind in _LEAST_WORDS if kind != MINOR]
    table[known] = [_LEAST_WORDS[kind] for kind in known]
    least: _Array = table[np.clip(types, 0, MINOR_STATE + 1)]
    return least


# --------------------------------------------------------------------------------- context switches

FAULT_CPU_NS: Final = 200_000
"""Maximum CPU time from the end of the sleep of a major fault to the end of the fault: mapping of
pages, and interrupts.

If a thread ran for longer, it slept for another reason.
"""
MINOR_CPU_NS: Final = 50_000
"""The same for minor faults. Most of these never slept, so one that follows soon after an unrelated
sleep must not count as a sleep. Faults that waited for readahead took 5 to 15 µs in measurements,
and more if other threads used the caches of the core."""


@dataclass(frozen=True)
class Waits:
    """Faults and context switches of all threads, in the order of thread and time, and which switch
    belongs to which fault.

    A fault sleeps until its page has been read. The last time that the thread was switched out
    before the end of the fault therefore belongs to the fault, unless the thread has since run for
    longer than a fault can.
    """

    order: _Array
    """Index of each entry in the records."""
    is_fault: _Array
    since: _Array
    """Entry of the last voluntary switch-out of the thread since its previous fault; -1: none."""
    fault: _Array
    """Entry of the next fault of the thread, the entry itself included; -1: none yet."""
    is_superseded: _Array
    """Whether the thread was switched out again before that fault, or later without a fault: the
    entry is not needed."""
    ran_ns: _Array
    """CPU time of the thread since `since`."""
    slept: _Array
    """For a fault: whether it slept, beginning at `since`."""


def waits(records: Records) -> Waits:
    """Relate the context switches and faults of each thread."""
    chosen = np.flatnonzero(np.isin(records.types, [SAMPLE, MINOR, SWITCH]))
    order = chosen[np.lexsort((records.times[chosen], records.tids[chosen]))]
    tids, times, types, miscs = (
        field[order] for field in (records.tids, records.times, records.types, records.miscs)
    )
    is_fault = types != SWITCH
    gave_up = ~is_fault & ((miscs & (SWITCH_OUT | SWITCH_PREEMPTED)) == SWITCH_OUT)
    since = _since(tids, is_fault, gave_up)
    # What a thread did across a change of the switch state is unknown.
    changes = np.concatenate([[-1], np.sort(records.times[records.types == SWITCH_STATE])])
    last_change = changes[np.searchsorted(changes, times, side="right") - 1]
    since = np.where((since >= 0) & (times[np.maximum(since, 0)] < last_change), -1, since)
    # Running sum of CPU time: from each entry after which the thread runs to the next entry of the
    # thread.
    on_core = is_fault | ((miscs & SWITCH_OUT) == 0)
    steps = np.where(on_core[:-1] & (tids[1:] == tids[:-1]), times[1:] - times[:-1], 0)
    ran = np.concatenate([[0], np.cumsum(steps)]) if len(tids) else times
    ran_since = np.where(since >= 0, ran - ran[np.maximum(since, 0)], 0)
    fault, gives_up = _next_true(is_fault, tids), _next_true(gave_up, tids, later=True)
    is_superseded = (gives_up >= 0) & ((fault < 0) | (gives_up < fault))
    slept = (
        is_fault
        & (since >= 0)
        & (ran_since <= np.where(types == MINOR, MINOR_CPU_NS, FAULT_CPU_NS))
    )
    return Waits(order, is_fault, since, fault, is_superseded, ran_since, slept)


def select_records(records: Records) -> tuple[_Array, _Array]:
    """The records to keep, and the ones that are undecided yet, both as indices in the order of
    time.

    A job may have 100,000 context switches per second; only those just before a fault are needed.
    Minor faults that did not sleep took no time and are not needed either.
    """
    found = waits(records)
    needed = ~found.is_fault & (found.since >= 0) & ~found.is_superseded
    undecided = needed & (found.fault < 0) & (found.ran_ns <= FAULT_CPU_NS)
    keep = (records.types != SWITCH) & (records.types != MINOR)
    keep[found.order[needed & (found.fault >= 0) & found.slept[found.fault]]] = True
    keep[found.order[found.slept]] = True
    later = np.zeros(len(records), bool)
    later[found.order[undecided]] = True
    later[later] = ~_have_exited(records, later)
    return _by_time(records, keep), _by_time(records, later)


def _have_exited(records: Records, chosen: _Array) -> _Array:
    """For each chosen record whether its thread ended afterwards; the kernel gives the number of a
    thread again.
    """
    exits = records.take(records.types == EXIT)
    last_ns: dict[int, int] = {}
    for tid, time_ns in zip(
        (exits.word(2) & np.uint64(0xFFFFFFFF)).tolist(), exits.times.tolist(), strict=True
    ):
        last_ns[tid] = max(time_ns, last_ns.get(tid, time_ns))
    rows = zip(records.tids[chosen].tolist(), records.times[chosen].tolist(), strict=True)
    return np.array([last_ns.get(tid, -1) >= time_ns for tid, time_ns in rows], bool)


def _since(tids: _Array, is_fault: _Array, gave_up: _Array) -> _Array:
    """Index of the last voluntary switch-out of the same thread, if no fault of it lies between;
    -1: none.
    """
    if not len(tids):
        return np.empty(0, np.int64)
    first = np.ones(len(tids), bool)
    first[1:] = tids[1:] != tids[:-1]
    fault_before = np.concatenate([[-1], _last_true(is_fault)[:-1]])
    earliest = np.maximum(_last_true(first), fault_before)
    since = _last_true(gave_up)
    return np.where(since >= earliest, since, -1)


def _last_true(mask: _Array) -> _Array:
    """Index of the last true entry up to each one; -1: none."""
    last: _Array = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return last


def _next_true(mask: _Array, tids: _Array, *, later: bool = False) -> _Array:
    """Index of the first true entry of the same thread from each entry on, with `later` after it;
    -1: none.
    """
    none = len(mask)
    following = np.minimum.accumulate(np.where(mask, np.arange(none), none)[::-1])[::-1]
    if later:
        following = np.concatenate([following[1:], [none]]) if none else following
    same = np.concatenate([tids, [-1]])[following] == tids
    return np.where(same, following, -1)


def _by_time(records: Records, chosen: _Array) -> _Array:
    places = np.flatnonzero(chosen)
    return places[np.argsort(records.times[places], kind="stable")]


_ADDRESS_WORD: Final = 2
_LENGTH_WORD: Final = 3
_PATH_WORD: Final = 9
_IN_MEMORY: Final = (b"/dev/shm/", b"/memfd:", b"/dev/zero", b"/SYSV", b"/anon_hugepage")


class FileRanges:
    """The address ranges of files, of all processes together: that of a process would need its
    whole history of forks.

    Ranges are never removed. An address may therefore belong to a file of another process or of an
    earlier time: what is decided by it may cost time, but must not be shown.
    """

    def __init__(self, own_folder: bytes = b"") -> None:
        """`own_folder`: the recording writes its files there; empty: there are none."""
        self._data = self._libraries = np.empty((0, 2), np.uint64)
        self._own: dict[int, list[tuple[int, int]]] = {}  # by process, as last mapped
        self._own_folder = own_folder.rstrip(b"/") + b"/" if own_folder else None

    def add(self, records: Records) -> None:
        """Add the mappings among the records."""
        mappings = records.take(records.types == MMAP2)
        mappings = mappings.take(np.argsort(mappings.times, kind="stable"))
        found: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        columns = (mappings.places.tolist(), mappings.sizes.tolist(), mappings.pids.tolist())
        for place, size, pid in zip(*columns, strict=True):
            path = mappings.words[place + _PATH_WORD : place + size].tobytes().partition(b"\0")[0]
            if path.startswith(b"/") and not path.startswith((b"//", *_IN_MEMORY)):
                first, length = (
                    int(mappings.words[place + _ADDRESS_WORD]),
                    int(mappings.words[place + _LENGTH_WORD]),
                )
                last, before = first + length, self._own.get(pid, [])
                own = [each for each in before if last <= each[0] or each[1] <= first]
                if self._own_folder is not None and path.startswith(self._own_folder):
                    own.append((first, last))
                else:
                    found[b".so" in path].append((first, last))
                if own or before:
                    self._own[pid] = own
        self._data = _merge(self._data, found[False])
        self._libraries = _merge(self._libraries, found[True])

    def is_data(self, addresses: _Array) -> _Array:
        """Whether each address is in a file that is no shared library."""
        return _contain(self._data, addresses)

    def is_library(self, addresses: _Array) -> _Array:
        """Whether each address is in a shared library."""
        return _contain(self._libraries, addresses)

    def is_own(self, pids: _Array, addresses: _Array) -> _Array:
        """Whether each process mapped a file of the recording at the address last."""
        rows = zip(pids.tolist(), addresses.tolist(), strict=True)
        return np.array(
            [
                any(first <= address < last for first, last in self._own.get(pid, ()))
                for pid, address in rows
            ],
            np.bool_,
        )


def _merge(ranges: _Array, more: list[tuple[int, int]]) -> _Array:
    """Disjoint ranges in ascending order."""
    if not more:
        return ranges
    both = np.concatenate([ranges, np.array(more, np.uint64)])
    both = both[np.argsort(both[:, 0], kind="stable")]
    ends = np.maximum.accumulate(both[:, 1])
    begins = np.flatnonzero(np.append(True, both[1:, 0] > ends[:-1]))
    return np.stack([both[begins, 0], ends[np.append(begins[1:], len(both)) - 1]], axis=1)


def _contain(ranges: _Array, addresses: _Array) -> _Array:
    if not len(ranges):
        return np.zeros(len(addresses), np.bool_)
    place = np.searchsorted(ranges[:, 0], addresses, side="right") - 1
    found: _Array = (place >= 0) & (addresses < ranges[np.maximum(place, 0), 1])
    return found
