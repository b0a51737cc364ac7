"""Records of the kernel's perf events as arrays: what the recorder of page faults keeps of them, and what its reader finds.

A perf file holds what the kernel said about one host's part of a job (man perf_event_open, section MMAP layout):

    HEADER_BYTES   a header, `HEADER_DTYPE`; the rest of its bytes is zero
    any number     records as the kernel wrote them, one after the other, in the order of their times but for a few

A record begins with `type` u32, `misc` u16, `size` u16, where size counts these eight bytes too and is a multiple of eight. What
the events have in common (the header has the attributes of those of major faults): TID | TIME | ADDR of a sample, before that the
IP of a minor fault, and sample_id_all, so that each record but a sample ends with the same `pid` u32, `tid` u32, `time` u64:

    SAMPLE   (9)    pid u32, tid u32, time u64, addr u64           a major fault is over
                    ip u64, pid u32, tid u32, time u64, addr u64   a minor fault is over: known by its length
    SWITCH  (14)                                                   a thread left or took a core; misc: which, and if by force
    MMAP2   (10)    pid u32, tid u32, addr u64, len u64, pgoff u64, device and inode 24 bytes, prot u32, flags u32, path, 0 ...
    MMAP     (1)    pid u32, tid u32, addr u64, len u64, pgoff u64, path, 0 ...
    FORK     (7)    pid u32, ppid u32, tid u32, ptid u32, time u64
    EXIT     (4)    as FORK
    COMM     (3)    pid u32, tid u32, name, 0 ...                  misc says whether by execve
    LOST     (2)    id u64, lost u64                               so many records found no room in the ring
    WATCHED (64)                                                   the recorder's: switches are watched again (misc 1), or no more

Before the first WATCHED they are. What a fault took while they were not is not known, nor whether a thread that had left its core
before a WATCHED was back before its next record.

Times are the kernel's own CLOCK_MONOTONIC in nanoseconds; `pgoff` is in bytes. A file may end anywhere.
"""

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

MMAP: Final = 1
LOST: Final = 2
COMM: Final = 3
EXIT: Final = 4
FORK: Final = 7
SAMPLE: Final = 9
MMAP2: Final = 10
SWITCH: Final = 14
WATCHED: Final = 64
"""The recorder's own, as the kernel leaves the types from here on to programs. Its misc: switches are watched from now on."""
MINOR: Final = 15
"""No type of the kernel's: what `read_records` makes of a sample with `ip`, which is a minor fault."""

COMM_EXEC: Final = 1 << 13  # misc of COMM
SWITCH_OUT: Final = 1 << 13  # misc of SWITCH
SWITCH_PREEMPTED: Final = 1 << 14  # misc of SWITCH, with SWITCH_OUT

HEADER_DTYPE: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("pid", "<u4"),  # the recorder's; the job is its child
        ("closed", "<u4"),  # 1: the recorder ended the file itself; 0: it was killed, or still runs
        ("kernel", "<u4"),  # 1: faults inside of system calls are seen too; 0: not permitted
        ("page_bytes", "<u4"),
        ("cpus", "<u4"),  # how many of them were watched
        ("ring_bytes", "<u4"),  # of each CPU
        ("faults", "<i8"),  # major faults that the kernel counted for these events; -1: not known
        ("lost", "<i8"),  # records that found no room, as the kernel counted them; -1: not known
        ("anchor_before_ns", "<i8"),  # CLOCK_MONOTONIC just before the wall clock was read
        ("anchor_wall_ns", "<i8"),  # CLOCK_REALTIME
        ("anchor_after_ns", "<i8"),  # CLOCK_MONOTONIC just after
        ("host", "S64"),
        ("attributes", "V104"),  # struct perf_event_attr, as far as PERF_ATTR_SIZE_VER4
        (
            "shift_ns",
            "<i8",
        ),  # what to add to the records' times to get those of the job's CLOCK_MONOTONIC; not 0 in time namespaces
    ]
)
"""The start of a perf file, little-endian."""

_Array = npt.NDArray[Any]

_HEADER_WORDS: Final = 1
_TRAILER_WORDS: Final = 2
_LEAST_WORDS: Final = {MMAP: 8, LOST: 5, COMM: 5, EXIT: 6, FORK: 6, SAMPLE: 4, MMAP2: 12, SWITCH: 3, MINOR: 5, WATCHED: 3}
"""Eight-byte words of the shortest record of each type."""
_FAULT_BEGINS: Final = re.compile(
    struct.pack("<I", SAMPLE) + b"..[" + bytes(8 * _LEAST_WORDS[kind] for kind in (SAMPLE, MINOR)) + b"]\0", re.DOTALL
)
"""The header of a major or minor fault: it says the type, and how long it is."""


@dataclass(frozen=True)
class Records:
    """Where records lie in `words`, and what all of them have. One entry per record in each array."""

    words: _Array
    """The bytes as u64."""
    places: _Array
    """Number of the word that a record begins with."""
    sizes: _Array
    """Words that a record has."""
    types: _Array
    miscs: _Array
    pids: _Array
    """Of the process that the record is about, as it saw itself when it was written; 2^32 - 1 while it is dying."""
    tids: _Array
    times: _Array
    """CLOCK_MONOTONIC, ns."""

    def __len__(self) -> int:
        return len(self.places)

    def take(self, choice: _Array) -> "Records":
        """Those at these indices, or where the mask is true, in that order."""
        fields = (self.places, self.sizes, self.types, self.miscs, self.pids, self.tids, self.times)
        return Records(self.words, *(field[choice] for field in fields))

    def word(self, number: int | _Array) -> _Array:
        """The word of that number of each record, which all must have; 0 is the header."""
        word: _Array = self.words[self.places + number]
        return word

    def addresses(self) -> _Array:
        """Of faults: what address was touched."""
        return self.word(3 + (self.types == MINOR))

    def body(self, index: int) -> bytes:
        """The bytes of one record behind its header, its trailer included."""
        first = int(self.places[index])
        return bytes(self.words[first + _HEADER_WORDS : first + int(self.sizes[index])])

    def join(self) -> bytes:
        """All of them, one after the other: what can be read again."""
        rows = zip(self.places.tolist(), (self.places + self.sizes).tolist(), strict=True)
        return b"".join([self.words[first:end].tobytes() for first, end in rows])


def read_records(data: bytes | bytearray) -> tuple[Records, int]:
    """The records in `data`, and how many bytes at its end are none: cut off, or never written by a kernel.

    Records of unknown types, and such as are too short for their type, are passed over: they say how long they are.
    """
    words = np.frombuffer(data, "<u8", count=len(data) // 8)
    places, end = _walk(words >> np.uint64(51))
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


def mark(watched: bool, pid: int, time_ns: int) -> bytes:
    """A record WATCHED."""
    return struct.pack("<IHHIIQ", WATCHED, watched, 24, pid, pid, time_ns)


def is_watched(records: Records) -> _Array:
    """Of records in the order of time: whether switches were watched when each was made."""
    marks = np.flatnonzero(records.types == WATCHED)
    watched: _Array = np.append(records.miscs[marks] == 1, True)[np.searchsorted(marks, np.arange(len(records)), side="right") - 1]
    return watched


def may_have_faults(data: bytes) -> bool:
    """Whether there may be a fault in `data`, records as they came from a ring. Says yes too often, never no."""
    return _FAULT_BEGINS.search(data) is not None


def _walk(sizes: _Array) -> tuple[_Array, int]:
    """Where each record begins, by following the `sizes` (words) that stand in the headers; and where that ends."""
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
    """The shortest length that each type can have; none at all for types that are not known."""
    table = np.full(WATCHED + 2, np.iinfo(np.int64).max)
    known = [kind for kind in _LEAST_WORDS if kind != MINOR]
    table[known] = [_LEAST_WORDS[kind] for kind in known]
    least: _Array = table[np.clip(types, 0, WATCHED + 1)]
    return least


# ------------------------------------------------------------------------------------------------ switches

FAULT_CPU_NS: Final = 200_000
"""Longest time on a core from the end of a major fault's sleep to its own end: mapping the page and its neighbours, and interrupts.

A thread that ran for longer had slept for something else.
"""
MINOR_CPU_NS: Final = 50_000
"""The same for minor faults. Most of them never slept, so that one which comes soon after some other sleep must not be taken for
one that did. In faults that waited for readahead 5 to 15 µs were seen, and more where others used the core's caches."""


@dataclass(frozen=True)
class Waits:
    """Faults and switches of all threads, in the order of thread and time: what a thread did before each fault.

    A fault sleeps until its page has been read, so the last time that the thread gave up its core before the fault ended belongs to
    the fault, unless the thread has run for longer since than a fault can.
    """

    order: _Array
    """Index of each entry in the records."""
    is_fault: _Array
    since: _Array
    """Entry at which the thread last gave up its core of its own accord, after its fault before; -1: it did not."""
    fault: _Array
    """Entry of the thread's next fault, the entry itself included; -1: none that we know of yet."""
    given_up: _Array
    """Whether the thread gave up its core again before that fault, or did so later and had none: this entry explains nothing."""
    ran_ns: _Array
    """How long the thread has been on a core since `since`."""
    slept: _Array
    """Of a fault: whether its sleep is known, and began at `since`."""


def waits(records: Records) -> Waits:
    """How switches and faults of each thread follow each other."""
    chosen = np.flatnonzero(np.isin(records.types, [SAMPLE, MINOR, SWITCH]))
    order = chosen[np.lexsort((records.times[chosen], records.tids[chosen]))]
    tids, times, types, miscs = (field[order] for field in (records.tids, records.times, records.types, records.miscs))
    is_fault = types != SWITCH
    gave_up = ~is_fault & ((miscs & (SWITCH_OUT | SWITCH_PREEMPTED)) == SWITCH_OUT)
    since = _since(tids, is_fault, gave_up)
    since = np.where((since >= 0) & (times[np.maximum(since, 0)] < _watched_since(records, times)), -1, since)
    ran = _ran_ns(tids, times, is_fault | ((miscs & SWITCH_OUT) == 0))
    ran_since = np.where(since >= 0, ran - ran[np.maximum(since, 0)], 0)
    fault, gives_up = _next_true(is_fault, tids), _next_true(gave_up, tids, later=True)
    given_up = (gives_up >= 0) & ((fault < 0) | (gives_up < fault))
    slept = is_fault & (since >= 0) & (ran_since <= np.where(types == MINOR, MINOR_CPU_NS, FAULT_CPU_NS))
    return Waits(order, is_fault, since, fault, given_up, ran_since, slept)


def thin(records: Records) -> tuple[_Array, _Array]:
    """Which records to keep, and of which it is not known yet, both as indices in the order of time.

    Of a job's switches, of which there may be 100,000 in a second, only those just before a fault explain anything; and minor
    faults that did not sleep took no time.
    """
    found = waits(records)
    explaining = ~found.is_fault & (found.since >= 0) & ~found.given_up
    open_still = explaining & (found.fault < 0) & (found.ran_ns <= FAULT_CPU_NS)
    keep = (records.types != SWITCH) & (records.types != MINOR)
    keep[found.order[explaining & (found.fault >= 0) & found.slept[found.fault]]] = True
    keep[found.order[found.slept]] = True
    later = np.zeros(len(records), bool)
    later[found.order[open_still]] = True
    later[later] = ~np.isin(records.tids[later], _exited(records))
    return _by_time(records, keep), _by_time(records, later)


def _watched_since(records: Records, times: _Array) -> _Array:
    """When switches last began or ceased to be watched before each time; -1: never. What a thread did across that is not known."""
    marks = np.concatenate([[-1], np.sort(records.times[records.types == WATCHED])])
    since: _Array = marks[np.searchsorted(marks, times, side="right") - 1]
    return since


def _since(tids: _Array, is_fault: _Array, gave_up: _Array) -> _Array:
    """Index at which the same thread last gave up its core, if no fault of it lies between; -1: none."""
    if not len(tids):
        return np.empty(0, np.int64)
    first = np.ones(len(tids), bool)
    first[1:] = tids[1:] != tids[:-1]
    fault_before = np.concatenate([[-1], _last_true(is_fault)[:-1]])
    earliest = np.maximum(_last_true(first), fault_before)
    since = _last_true(gave_up)
    return np.where(since >= earliest, since, -1)


def _ran_ns(tids: _Array, times: _Array, on_core: _Array) -> _Array:
    """Running sum of the time that threads spent on cores: from each entry that leaves its thread there to the thread's next."""
    steps = np.where(on_core[:-1] & (tids[1:] == tids[:-1]), times[1:] - times[:-1], 0)
    return np.concatenate([[0], np.cumsum(steps)]) if len(tids) else times


def _last_true(mask: _Array) -> _Array:
    """Index of the last true entry up to each one; -1: none."""
    last: _Array = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return last


def _next_true(mask: _Array, tids: _Array, *, later: bool = False) -> _Array:
    """Index of the same thread's first true entry from each one on, or behind it; -1: none."""
    none = len(mask)
    following = np.minimum.accumulate(np.where(mask, np.arange(none), none)[::-1])[::-1]
    if later:
        following = np.concatenate([following[1:], [none]]) if none else following
    same = np.concatenate([tids, [-1]])[following] == tids
    return np.where(same, following, -1)


def _exited(records: Records) -> _Array:
    """Threads that ended."""
    ended: _Array = records.take(records.types == EXIT).word(2) & np.uint64(0xFFFFFFFF)
    return ended.astype(np.int64)


def _by_time(records: Records, chosen: _Array) -> _Array:
    places = np.flatnonzero(chosen)
    return places[np.argsort(records.times[places], kind="stable")]
