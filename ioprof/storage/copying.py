"""Copies a dataset's files to another folder: in parallel, with a sha256 of the bytes as they were
read, and resumable.

    parts_of(files) ─▶ [Part]          small files whole, large ones in parts of `PART_BYTES`
    copy(parts, ...) ─▶ Task, as it is done: the caller writes its parts to a journal, and passes the missing ones to the next call

A part that is not in the journal is copied again. So files need no rename; the destination has no
manifest until it is complete, and is no dataset before.
"""  # noqa: E501

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from ioprof.errors import CommandError

THREADS: Final = 16
"""One reader gets a small share of the rate of most shared file systems: reading a small file is
mostly latency."""
PART_BYTES: Final = 1 << 25
TASK_PARTS: Final = 64
"""Maximum number of parts in one task."""
_TASK_BYTES: Final = 1 << 22
_BUFFER_BYTES: Final = 1 << 20
_QUEUED_PER_THREAD: Final = 4


class Part(NamedTuple):
    """A contiguous part of a file, or the whole file."""

    source: str
    target: str
    """Path relative to the destination folder."""
    start: int
    bytes: int
    file_bytes: int
    """Length of the whole file."""


class Copied(NamedTuple):
    """A part that has been copied."""

    number: int
    """Its index in the list of all parts."""
    sha256: bytes
    """Hash of its bytes as they were read from the source."""


@dataclass(frozen=True)
class Task:
    """The parts that one thread copied in one go, with times by the caller's clock, for spans and
    totals.
    """

    copied: tuple[Copied, ...]
    source: str
    """Source of the first part."""
    start_ns: int
    end_ns: int
    read_ns: int
    """Time for opening and reading the source."""
    write_ns: int
    """Time for creating and writing the copy."""
    bytes: int


def parts_of(files: Sequence[tuple[str, str]], part_bytes: int = PART_BYTES) -> list[Part]:
    """The parts of these files, given as source and target; raises `CommandError` for a missing
    file.
    """
    parts = []
    for source, target in files:
        try:
            size = os.stat(source).st_size
        except OSError as error:
            raise CommandError(
                f"{source}: cannot be staged ({error.strerror})", exit_code=1
            ) from None
        for start in range(0, max(size, 1), part_bytes):
            parts.append(Part(source, target, start, min(part_bytes, size - start), size))
    return parts


def copy(
    parts: Sequence[Part],
    wanted: Sequence[int],
    folder: Path,
    now_ns: Callable[[], int],
    done: Callable[[Task], None],
    threads: int = THREADS,
    task_parts: int = TASK_PARTS,
) -> Iterator[Task]:
    """Copy the parts whose numbers are `wanted` into `folder`, prepared by `make_folders`; yields
    each task when it is done.

    `done` is called in the thread that did the task. Close the iterator to stop. Raises
    `CommandError` where the source cannot be read, and OSError where the copy cannot be written.
    """
    stopping = threading.Event()
    copier = _Copier(folder, now_ns, done, stopping)
    tasks = _group_parts(parts, wanted, task_parts)
    with ThreadPoolExecutor(threads) as pool:
        try:
            running: set[Future[Task]] = set()
            while running := running | {
                pool.submit(copier.copy, task)
                for task in islice(tasks, threads * _QUEUED_PER_THREAD - len(running))
            }:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def make_folders(parts: Sequence[Part], folder: Path) -> None:
    """Create the folders of the targets, and large files at their full length, so that their parts
    can be written in any order.
    """
    for name in dict.fromkeys(part.target.rpartition("/")[0] for part in parts):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for part in parts:
        if part.start == 0 and part.bytes < part.file_bytes:
            with open(folder / part.target, "ab") as stream:
                stream.truncate(part.file_bytes)


def part_matches(part: Part, folder: Path, sha256: bytes) -> bool:
    """Whether the part of the copy has this hash: to check what was written before the machine
    crashed.
    """
    found = hashlib.sha256()
    try:
        with open(folder / part.target, "rb", buffering=0) as stream:
            left = part.bytes
            stream.seek(part.start)
            while left and (data := stream.read(min(left, _BUFFER_BYTES))):
                found.update(data)
                left -= len(data)
    except OSError:
        return False
    return found.digest() == sha256


def sampled_read_ns(
    ranges: Sequence[tuple[str, int, int]], now_ns: Callable[[], int], threads: int
) -> tuple[int, int]:
    """Total nanoseconds of opening and reading each of these ranges (path, start, bytes), and the
    number of ranges that were read.

    `threads` read at the same time, as a job's workers would. Ranges that cannot be read are
    skipped.
    """

    def timed(place: tuple[str, int, int]) -> int | None:
        start_ns = now_ns()
        try:
            with open(place[0], "rb", buffering=0) as stream:
                os.posix_fadvise(stream.fileno(), place[1], place[2], os.POSIX_FADV_DONTNEED)
                os.pread(stream.fileno(), place[2], place[1])
        except OSError:
            return None
        return now_ns() - start_ns

    with ThreadPoolExecutor(threads) as pool:
        durations = [duration for duration in pool.map(timed, ranges) if duration is not None]
    return sum(durations), len(durations)


def _group_parts(
    parts: Sequence[Part], wanted: Sequence[int], task_parts: int
) -> Iterator[list[tuple[int, Part]]]:
    """Several small files per task, in order, to amortise the cost of the task and of its journal
    write.
    """
    task: list[tuple[int, Part]] = []
    size = 0
    for number in wanted:
        part = parts[number]
        if task and (size + part.bytes > _TASK_BYTES or len(task) == task_parts):
            yield task
            task, size = [], 0
        task.append((number, part))
        size += part.bytes
    if task:
        yield task


class _Copier:
    def __init__(
        self,
        folder: Path,
        now_ns: Callable[[], int],
        done: Callable[[Task], None],
        stopping: threading.Event,
    ) -> None:
        self._folder, self._now_ns, self._done, self._stopping = str(folder), now_ns, done, stopping

    def copy(self, numbered: list[tuple[int, Part]]) -> Task:
        start_ns = self._now_ns()
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        copied, read_ns = [], 0
        for number, part in numbered:
            sha256, part_read_ns = self._copy_part(part, buffer)
            read_ns += part_read_ns
            copied.append(Copied(number, sha256))
        end_ns = self._now_ns()
        size = sum(part.bytes for _, part in numbered)
        task = Task(
            tuple(copied),
            numbered[0][1].source,
            start_ns,
            end_ns,
            read_ns,
            end_ns - start_ns - read_ns,
            size,
        )
        self._done(task)
        return task

    def _copy_part(self, part: Part, buffer: memoryview) -> tuple[bytes, int]:
        begin_ns = self._now_ns()
        found, read_ns = hashlib.sha256(), 0
        with _Source(part) as source:
            target = os.open(
                f"{self._folder}/{part.target}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
            try:
                place, end = part.start, part.start + part.bytes
                while place < end and not self._stopping.is_set():
                    count = source.read(buffer[: end - place], place)
                    read_ns += self._now_ns() - begin_ns
                    found.update(buffer[:count])
                    _pwrite_all(target, buffer[:count], place)
                    place += count
                    begin_ns = self._now_ns()
                if part.bytes == part.file_bytes:
                    # a previous copy, of a longer file, may be there
                    os.ftruncate(target, part.file_bytes)
            finally:
                os.close(target)
        return found.digest(), read_ns


class _Source:
    """A source file, open for reading; errors are raised as `CommandError` with its path."""

    def __init__(self, part: Part) -> None:
        self._part = part
        try:
            self._descriptor = os.open(part.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self._error(error.strerror) from None

    def read(self, buffer: memoryview, place: int) -> int:
        try:
            count = os.preadv(self._descriptor, [buffer], place)
        except OSError as error:
            raise self._error(error.strerror) from None
        if not count:
            raise self._error(f"it ends at byte {place:,}, before its {self._part.file_bytes:,}")
        return count

    def __enter__(self) -> "_Source":
        return self

    def __exit__(self, *_: object) -> None:
        # The source is not read again: its pages are dropped, so that the page cache holds the
        # copy.
        os.posix_fadvise(
            self._descriptor, self._part.start, self._part.bytes, os.POSIX_FADV_DONTNEED
        )
        os.close(self._descriptor)

    def _error(self, why: str | None) -> CommandError:
        return CommandError(f"{self._part.source}: cannot be staged ({why})", exit_code=1)


def _pwrite_all(descriptor: int, data: memoryview, place: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, place)
        data, place = data[count:], place + count
