"""Finds the file that was mapped at the address of a fault, by replaying mmap, fork, execve and
exit from perf records.

The kernel records every new mapping, but no munmap and no mremap: a later mapping replaces the
ranges that it covers, and ranges moved by mremap are not found.
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ioprof.format.perf import COMM, COMM_EXEC, EXIT, FORK, MMAP, MMAP2, SAMPLE, Records

ANONYMOUS: Final = -1
"""Instead of a file: anonymous memory."""
UNMAPPED: Final = -2
"""Instead of a file: no mapping was recorded at the address."""
NAMELESS: Final = -3
"""Instead of a file: a file whose path the kernel could not determine."""

_Array = npt.NDArray[Any]
# first address, end address, offset of the first address in the file, file
_Range = tuple[int, int, int, int]

_MMAP: Final = struct.Struct("<IIQQQ")  # pid, tid, addr, len, pgoff
_FORK: Final = struct.Struct("<IIII")  # pid, ppid, tid, ptid
_COMM: Final = struct.Struct("<II")  # pid, tid
_PATH_PLACE: Final = {MMAP: 32, MMAP2: 64}
_TRAILER_BYTES: Final = 16
_FEW: Final = 16  # up to this number, looking up faults one by one is faster than creating an array
_LATEST_ADDRESS: Final = 1 << 63  # higher addresses belong to the kernel
_DELETED: Final = b" (deleted)"
_NO_FILES: Final = (b"//anon", b"/dev/zero", b"/SYSV")
_UNKNOWN: Final = (b"//toolong", b"//enomem")


class Mappings:
    """The address ranges of one process and the files mapped there. A fork shares the table until
    one process changes it.
    """

    def __init__(self, ranges: list[_Range] | None = None) -> None:
        self._ranges = [] if ranges is None else ranges  # sorted, without overlap
        self._is_shared = ranges is not None
        self._columns: _Array | None = None

    @property
    def ranges(self) -> list[_Range]:
        """The ranges, sorted; not to be changed."""
        return self._ranges

    def fork(self) -> "Mappings":
        """A copy for a child process (copy on write)."""
        self._is_shared = True
        return Mappings(self._ranges)

    def add(self, first: int, end: int, offset: int, file: int) -> None:
        """Map `file` from `offset` on at these addresses, replacing earlier mappings."""
        ranges = self._ranges.copy() if self._is_shared else self._ranges
        low = bisect_left(ranges, (first,))
        low -= low > 0 and ranges[low - 1][1] > first
        high = bisect_left(ranges, (end,))
        covered = ranges[low:high]
        left = [(start, first, at, what) for start, _, at, what in covered[:1] if start < first]
        right = [
            (end, stop, at + end - start, what)
            for start, stop, at, what in covered[-1:]
            if stop > end
        ]
        ranges[low:high] = [*left, (first, end, offset, file), *right]
        self._ranges, self._is_shared, self._columns = ranges, False, None

    def find(self, addresses: _Array) -> tuple[_Array, _Array]:
        """The file at each address (or `ANONYMOUS`, `UNMAPPED`, `NAMELESS`) and the offset in
        it.
        """
        if len(addresses) <= _FEW:
            rows = np.array(
                [self._find_one(address) for address in addresses.tolist()], np.int64
            ).reshape(-1, 2)
            return rows[:, 0], rows[:, 1]
        if self._columns is None:
            before: _Range = (-1, -1, 0, UNMAPPED)  # so that every address has a range before it
            self._columns = np.array([before, *self._ranges], np.int64)
        columns = self._columns
        found = columns[np.maximum(np.searchsorted(columns[:, 0], addresses, side="right") - 1, 0)]
        inside = addresses < found[:, 1]
        return np.where(inside, found[:, 3], UNMAPPED), np.where(
            inside, addresses - found[:, 0] + found[:, 2], -1
        )

    def _find_one(self, address: int) -> tuple[int, int]:
        place = bisect_right(self._ranges, (address, _LATEST_ADDRESS)) - 1
        if place < 0:
            return UNMAPPED, -1
        first, end, offset, file = self._ranges[place]
        return (file, address - first + offset) if address < end else (UNMAPPED, -1)


CAPTURE_LIBRARY: Final = re.compile(rb"/ioprof/_capture[^/]*\.so$")
"""The path of the preload library, wherever ioprof is installed."""


@dataclass
class Process:
    """What the perf records contain about one process."""

    pid: int
    first_ns: int
    parent_pid: int | None = None
    """None: its start was not recorded."""
    name: bytes = b""
    executable: bytes | None = None
    """The first file that its last execve mapped; None: not recorded."""
    last_ns: int = 0
    faults: int = 0
    threads: int = 1
    """Number of running threads; 0: its end was recorded."""
    was_executed: bool = False
    """Whether it called execve."""
    captured: bool = False
    """Whether the capture library is mapped into it, by itself or by the process that it was forked
    from."""
    mappings: Mappings = field(default_factory=Mappings)

    @property
    def left_at_exec(self) -> bool:
        """Whether its records ended at its last execve: a program that runs always maps
        something.
        """
        return self.was_executed and self.executable is None and self.threads == 0


class Replay:
    """Finds for each of `samples` (in the order of time) the mapping at its address.

    After `run`, `files` holds an index into `paths` or one of the constants above, `offsets` the
    offset in the file (-1: none), and `processes` all processes.
    """

    def __init__(
        self,
        samples: Records,
        paths: Sequence[bytes] = (),
        processes: Sequence[Process] = (),
        current: Collection[int] = (),
    ) -> None:
        """`paths` and `processes` are known from before, of which those at the places `current` may
        have more records.
        """
        self.files = np.full(len(samples), UNMAPPED, np.int64)
        self.offsets = np.full(len(samples), -1, np.int64)
        self.paths: list[bytes] = list(paths)
        self.processes: list[Process] = list(processes)
        self._numbers: dict[bytes, int] = {path: place for place, path in enumerate(self.paths)}
        self._current: dict[int, Process] = {
            self.processes[place].pid: self.processes[place] for place in sorted(current)
        }
        self._order = np.lexsort((samples.times, samples.pids))
        self._times = samples.times[self._order]
        self._is_major = samples.types == SAMPLE
        self._addresses = samples.addresses()[self._order].astype(np.int64)
        pids, counts = np.unique(samples.pids, return_counts=True)
        ends = np.cumsum(counts)
        rows = zip(pids.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)
        self._waiting = {
            pid: (first, end) for pid, first, end in rows
        }  # the samples of each process that have not been looked up yet

    def run(self, records: Records, damage: Counter[str]) -> None:
        """Process all records, which must be in the order of time."""
        handlers: dict[int, Callable[[int, int, bytes], bool]] = {
            MMAP: self._handle_mmap,
            MMAP2: self._handle_mmap,
            FORK: self._handle_fork,
            EXIT: self._handle_exit,
        }
        relevant = records.take(np.isin(records.types, [*handlers, COMM]))
        rows = zip(
            relevant.types.tolist(), relevant.miscs.tolist(), relevant.times.tolist(), strict=True
        )
        for index, (kind, misc, time_ns) in enumerate(rows):
            body = relevant.body(index)
            if kind == COMM:
                self._handle_comm(time_ns, body, was_executed=bool(misc & COMM_EXEC))
            elif not handlers[kind](kind, time_ns, body):
                damage["an invalid mapping"] += 1
        for pid, (first, end) in self._waiting.items():
            if first < end:
                self._look_up(self._process(pid, int(self._times[first])), None)

    def is_current(self, process: Process) -> bool:
        """Whether it has its process id now."""
        return self._current.get(process.pid) is process

    def _process(self, pid: int, time_ns: int) -> Process:
        """The process that has this id now; a new one if its start was not recorded."""
        if pid not in self._current:
            self._current[pid] = Process(pid, time_ns, last_ns=time_ns)
            self.processes.append(self._current[pid])
        process = self._current[pid]
        process.last_ns = max(process.last_ns, time_ns)
        return process

    def _look_up(self, process: Process, until_ns: int | None) -> None:
        """Find the files of the faults of a process until a time, at which its mappings change;
        None: of all remaining ones.
        """
        first, end = self._waiting.get(process.pid, (0, 0))
        if first == end:
            return
        last = (
            end
            if until_ns is None
            else int(first + np.searchsorted(self._times[first:end], until_ns))
        )
        if last > first:
            places = self._order[first:last]
            self.files[places], self.offsets[places] = process.mappings.find(
                self._addresses[first:last]
            )
            process.faults += int(np.count_nonzero(self._is_major[places]))
            process.last_ns = max(process.last_ns, int(self._times[last - 1]))
            self._waiting[process.pid] = (last, end)

    def _handle_mmap(self, kind: int, time_ns: int, body: bytes) -> bool:
        pid, _, first, length, offset = _MMAP.unpack_from(body)
        process = self._process(pid, time_ns)
        if not length or first + length > _LATEST_ADDRESS or offset + length > _LATEST_ADDRESS:
            return False
        self._look_up(process, time_ns)
        path = body[_PATH_PLACE[kind] : -_TRAILER_BYTES].split(b"\0", 1)[0]
        file = self._file_index(path)
        process.mappings.add(first, first + length, offset, file)
        if process.was_executed and process.executable is None and file >= 0:
            process.executable = self.paths[file]
        process.captured |= CAPTURE_LIBRARY.search(path) is not None
        return True

    def _file_index(self, path: bytes) -> int:
        """The index of a path in `paths`. A file that was deleted keeps the path that it had."""
        if path.startswith(_UNKNOWN):
            return NAMELESS
        if not path.startswith(b"/") or path.startswith(_NO_FILES):
            return ANONYMOUS
        path = path.removesuffix(_DELETED)
        if path not in self._numbers:
            self._numbers[path] = len(self.paths)
            self.paths.append(path)
        return self._numbers[path]

    def _handle_fork(self, _: int, time_ns: int, body: bytes) -> bool:
        pid, parent_pid, *_threads = _FORK.unpack_from(body)
        parent = self._process(parent_pid, time_ns)
        if pid == parent_pid:
            parent.threads += 1
            return True
        before = self._current.pop(pid, None)  # the kernel reuses process ids
        if before is not None:
            self._look_up(before, time_ns)
        child = self._process(pid, time_ns)
        child.parent_pid, child.name = parent_pid, parent.name
        child.mappings, child.captured = parent.mappings.fork(), parent.captured
        return True

    def _handle_exit(self, _: int, time_ns: int, body: bytes) -> bool:
        process = self._process(_FORK.unpack_from(body)[0], time_ns)
        process.threads = max(0, process.threads - 1)
        return True

    def _handle_comm(self, time_ns: int, body: bytes, *, was_executed: bool) -> None:
        pid, tid = _COMM.unpack_from(body)
        process = self._process(pid, time_ns)
        if was_executed:
            self._look_up(process, time_ns)
            process.mappings, process.executable = Mappings(), None
            process.captured, process.was_executed = False, True
        if pid == tid:  # other threads have names of their own
            process.name = body[_COMM.size : -_TRAILER_BYTES].split(b"\0", 1)[0]
