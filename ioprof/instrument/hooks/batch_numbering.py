"""Numbers for batches: one for each, over all loaders and epochs of a process, known to the
consumer and to the worker alike.

torch numbers the tasks of a loader from 0 in every epoch; the worker gets that number with each
task, and nothing else may be added to the messages between the two. So the consumer takes numbers
in blocks, and writes to a file of the spool which block belongs to which tasks, before it sends the
first of them: a worker that has a task finds its block there. The file is
`batches-<host>-<pid of the consumer>`. An entry identifies the loader by the inode of the pipe on
which its workers send batches, which is inherited by fork, spawn and forkserver alike, and the
epoch by a count, which the worker derives from torch's messages.
"""

import os
import struct
import weakref
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ioprof.format.schema import BATCHES_OF_SERIES
from ioprof.instrument.appending import append
from ioprof.instrument.host import host

if TYPE_CHECKING:
    from ioprof.instrument.hooks.loader_use import LoaderUse

_MOST_ENTRIES: Final = 4096
_ENTRY: Final = struct.Struct("<Q4q")
"""Inode of the pipe, epoch, first task, its number, rank of the consumer or -1."""


class Allotment:
    """The batch numbers of this process, from which each `Series` takes blocks."""

    def __init__(self) -> None:
        self.free = 0
        self._last: weakref.ref[Series] | None = None

    def take(self, series: "Series") -> int:
        """The first of `BATCHES_OF_SERIES` numbers that no other series has."""
        last = self._last() if self._last is not None else None
        if last is not None and last is not series and last.is_over:
            self.free = min(self.free, last.next_number)
        self._last = weakref.ref(series)
        first, self.free = self.free, self.free + BATCHES_OF_SERIES
        return first

    def give_back(self, series: "Series") -> None:
        """The series has ended: what it did not use is free again, if it took the newest block."""
        if self._last is not None and self._last() is series:
            self.free = min(self.free, series.next_number)


class Series:
    """The batches of one iterator over a loader, of one epoch after the other."""

    def __init__(self, allotment: Allotment, pipe: int = 0) -> None:
        self.pipe = pipe
        """Inode of the pipe of its workers; 0: it has no workers."""
        self.loader: str | None = None
        """Name of the loader, see `loader_names`."""
        self.use: LoaderUse | None = None
        """What the loader's batches are used for."""
        self.epoch = -1
        self.in_order = True
        """Batches arrive in the order of their tasks."""
        self.got = -1
        """The task whose batch arrived last, where they arrive out of order."""
        self.is_over = True
        """No task of this epoch will be sent any more."""
        self.sent = 0
        """Tasks of this epoch that were sent, or may be sent before this is set again."""
        self.limit = 0
        """The first task for which no block was taken."""
        self._before = 0
        self._allotment = allotment
        self._blocks: list[tuple[int, int]] = []

    @property
    def next_number(self) -> int:
        """One more than the number of the newest task, of this epoch or the one before; but nothing
        below the newest block.
        """
        if not self._blocks:
            return self._before
        first, number = self._blocks[-1]
        return number + max(0, self.sent - first)

    def begin_epoch(self) -> None:
        """Tasks are numbered from 0 again."""
        self.end_epoch()
        self.epoch += 1
        self._before = self.next_number
        self.sent, self.limit, self._blocks, self.is_over = 0, 0, [], False

    def end_epoch(self) -> None:
        """All tasks of this epoch were sent."""
        if not self.is_over:
            self.is_over = True
            self._allotment.give_back(self)

    def reach(self, spool: Path, rank: int) -> None:
        """Take numbers for all tasks that may be sent; to be called before they are, where `sent`
        is more than the limit.
        """
        while self.limit < self.sent:
            number = self._allotment.take(self)
            self._blocks.append((self.limit, number))
            if self.pipe:
                _publish(spool, _ENTRY.pack(self.pipe, self.epoch, self.limit, number, rank))
            self.limit += BATCHES_OF_SERIES

    def take(self, spool: Path, rank: int) -> int:
        """The number of the next batch, of a loader without workers."""
        self.got += 1
        self.sent = self.got + 1
        if self.sent > self.limit:
            self.reach(spool, rank)
        return self.number(self.got)

    def take_back(self) -> None:
        """There was no such batch."""
        self.got -= 1
        self.sent -= 1

    def number(self, task: int) -> int:
        """The number of a task that was sent; -1 for one that was not."""
        if self._blocks:
            first, number = self._blocks[-1]  # it is nearly always of the newest block
            if 0 <= task - first < BATCHES_OF_SERIES:
                return number + task - first
        return _number(self._blocks, task)

    def __del__(self) -> None:
        self.end_epoch()


class PublishedNumbers:
    """The worker's side: the numbers of its tasks, as the consumer `pid` wrote them to its file."""

    def __init__(self, spool: Path, pid: int, pipe: int) -> None:
        self.rank = -1
        """The consumer's, by the newest entry."""
        self._path = _path(spool, pid)
        self._pipe = pipe
        self._read_bytes = 0
        self._epoch = 0
        self._blocks: list[tuple[int, int]] = []
        self._later: list[tuple[int, int, int]] = []

    def begin_epoch(self) -> None:
        """A message that begins another epoch has arrived."""
        self._epoch += 1
        self._blocks = []

    def number(self, task: int) -> int:
        """The number of a task that has arrived; -1 where the file has no entry for it."""
        if not self._blocks or task >= self._blocks[-1][0] + BATCHES_OF_SERIES:
            self._read()
            self._blocks += [
                (first, number) for epoch, first, number in self._later if epoch == self._epoch
            ]
            self._later = [entry for entry in self._later if entry[0] > self._epoch]
        return _number(self._blocks, task)

    def number_of_job(self, epoch: int, task: int) -> int:
        """The number of a task where epochs overlap, by what was read; -1: it is not among that,
        see `look`.
        """
        for of, first, number in reversed(self._later):
            if of == epoch and first <= task < first + BATCHES_OF_SERIES:
                return number + task - first
        return -1

    def look(self) -> None:
        """Read what was published since; of epochs that overlap only the newest entries are
        kept.
        """
        self._read()
        del self._later[:-_MOST_ENTRIES]

    def _read(self) -> None:
        with suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
            whole = len(data) - len(data) % _ENTRY.size
            self._read_bytes += whole
            for pipe, epoch, first, number, rank in _ENTRY.iter_unpack(data[:whole]):
                if pipe == self._pipe:
                    self._later.append((epoch, first, number))
                    self.rank = rank


def pipe_of(queue: Any) -> int:
    """The inode of the pipe of a multiprocessing queue; 0 where it has none."""
    try:
        return os.fstat(queue._reader.fileno()).st_ino  # noqa: SLF001
    except (AttributeError, OSError, ValueError):
        return 0


def consumer_pid() -> int:
    """The process that made this one, a worker; a forkserver lies between the two."""
    import multiprocessing  # which a worker has loaded

    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _number(blocks: list[tuple[int, int]], task: int) -> int:
    place = len(blocks) - 1
    if place >= 0 and task < blocks[place][0]:
        place = bisect_right(blocks, task, key=lambda block: block[0]) - 1
    if place < 0 or task >= blocks[place][0] + BATCHES_OF_SERIES:
        return -1
    first, number = blocks[place]
    return number + task - first


def _path(spool: Path, pid: int) -> str:
    return os.path.join(spool, f"batches-{host()}-{pid}")


def _publish(spool: Path, entry: bytes) -> None:
    with suppress(OSError):  # workers then record their work without numbers
        append(_path(spool, os.getpid()), entry)
