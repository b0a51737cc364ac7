"""Copying a dataset's files to another folder: in parallel, each byte hashed as it was read, and from where it was left off.

    parts_of(files) ─▶ [Part]          small files whole, large ones in parts of `PART_BYTES`
    copy(parts, ...) ─▶ Copied of each, as it is done: the caller notes it in a journal, and gives the next call what is left

A part that is not in the journal was never there: it is written again. So nothing is renamed, and the folder that is written to is
one that nobody takes for a dataset until it is whole.
"""

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
"""Most shared file systems serve one reader far below what they have: a small file is little else than waiting for servers."""
PART_BYTES: Final = 1 << 25
_TASK_BYTES: Final = 1 << 22
_TASK_PARTS: Final = 64
_BUFFER_BYTES: Final = 1 << 20
_QUEUED_PER_THREAD: Final = 4


class Part(NamedTuple):
    """Some bytes of a file, or all of them."""

    source: str
    target: str
    """Below the folder that is copied to."""
    start: int
    bytes: int
    file_bytes: int
    """Of the whole file."""


class Copied(NamedTuple):
    """A part that is there."""

    number: int
    """Its place in the list of all parts."""
    sha256: bytes
    """Of its bytes as they were read from the source."""


@dataclass(frozen=True)
class Task:
    """What one thread did in one go, for spans and sums; times as the caller's clock gives them."""

    copied: tuple[Copied, ...]
    source: str
    """Of the first of them."""
    start_ns: int
    end_ns: int
    read_ns: int
    """Spent on opening and reading the source."""
    write_ns: int
    """Spent on making and writing the copy."""
    bytes: int


def parts_of(files: Sequence[tuple[str, str]]) -> list[Part]:
    """The parts of these files, given as source and target; raises `CommandError` for one that is missing."""
    parts = []
    for source, target in files:
        try:
            size = os.stat(source).st_size
        except OSError as error:
            raise CommandError(f"{source}: cannot be staged ({error.strerror})", exit_code=1) from None
        for start in range(0, max(size, 1), PART_BYTES):
            parts.append(Part(source, target, start, min(PART_BYTES, size - start), size))
    return parts


def copy(
    parts: Sequence[Part],
    wanted: Sequence[int],
    folder: Path,
    now_ns: Callable[[], int],
    done: Callable[[Task], None],
    threads: int = THREADS,
) -> Iterator[Task]:
    """Copy the parts whose numbers are `wanted` into `folder`, whose class folders are there; yields each task when it is done.

    `done` is called in the thread that did it. Close the iterator to stop. Raises `CommandError` where the source cannot be read,
    and OSError where the copy cannot be written.
    """
    stopping = threading.Event()
    copier = _Copier(folder, now_ns, done, stopping)
    tasks = _tasks(parts, wanted)
    with ThreadPoolExecutor(threads) as pool:
        try:
            running: set[Future[Task]] = set()
            while running := running | {
                pool.submit(copier.copy, task) for task in islice(tasks, threads * _QUEUED_PER_THREAD - len(running))
            }:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def make_folders(parts: Sequence[Part], folder: Path) -> None:
    """The folders of the targets, and the large files at their full length, for parts that may come in any order."""
    for name in dict.fromkeys(part.target.rpartition("/")[0] for part in parts):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for part in parts:
        if part.start == 0 and part.file_bytes > PART_BYTES:
            with open(folder / part.target, "ab") as stream:
                stream.truncate(part.file_bytes)


def is_there(part: Part, folder: Path, sha256: bytes) -> bool:
    """Whether the part of the copy has these very bytes: to find out what a crash of the machine has left."""
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


def sampled_read_ns(ranges: Sequence[tuple[str, int, int]], now_ns: Callable[[], int], threads: int) -> tuple[int, int]:
    """Nanoseconds that opening and reading each of these ranges (path, start, bytes) took, summed, and how many ranges that were.

    By so many threads at a time, as a job's workers would. Ranges that cannot be read count as no range.
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
        found = [took for took in pool.map(timed, ranges) if took is not None]
    return sum(found), len(found)


def _tasks(parts: Sequence[Part], wanted: Sequence[int]) -> Iterator[list[tuple[int, Part]]]:
    """Small files a few at a time, in order, so that one journal line and one thread's turn are worth their cost."""
    task: list[tuple[int, Part]] = []
    size = 0
    for number in wanted:
        part = parts[number]
        if task and (size + part.bytes > _TASK_BYTES or len(task) == _TASK_PARTS):
            yield task
            task, size = [], 0
        task.append((number, part))
        size += part.bytes
    if task:
        yield task


class _Copier:
    def __init__(self, folder: Path, now_ns: Callable[[], int], done: Callable[[Task], None], stopping: threading.Event) -> None:
        self._folder, self._now_ns, self._done, self._stopping = str(folder), now_ns, done, stopping

    def copy(self, numbered: list[tuple[int, Part]]) -> Task:
        start_ns = self._now_ns()
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        copied, read_ns = [], 0
        for number, part in numbered:
            sha256, took_ns = self._copy_part(part, buffer)
            read_ns += took_ns
            copied.append(Copied(number, sha256))
        end_ns = self._now_ns()
        size = sum(part.bytes for _, part in numbered)
        task = Task(tuple(copied), numbered[0][1].source, start_ns, end_ns, read_ns, end_ns - start_ns - read_ns, size)
        self._done(task)
        return task

    def _copy_part(self, part: Part, buffer: memoryview) -> tuple[bytes, int]:
        begin_ns = self._now_ns()
        found, read_ns = hashlib.sha256(), 0
        with _Source(part) as source:
            target = os.open(f"{self._folder}/{part.target}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                place, end = part.start, part.start + part.bytes
                while place < end and not self._stopping.is_set():
                    count = source.read(buffer[: end - place], place)
                    read_ns += self._now_ns() - begin_ns
                    found.update(buffer[:count])
                    _write(target, buffer[:count], place)
                    place += count
                    begin_ns = self._now_ns()
                if part.file_bytes <= PART_BYTES:
                    os.ftruncate(target, part.file_bytes)  # what an earlier try, of another file, left behind its end
            finally:
                os.close(target)
        return found.digest(), read_ns


class _Source:
    """A file that is read; whatever goes wrong is a `CommandError` about it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        try:
            self._descriptor = os.open(part.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self._failed(error.strerror) from None

    def read(self, buffer: memoryview, place: int) -> int:
        try:
            count = os.preadv(self._descriptor, [buffer], place)
        except OSError as error:
            raise self._failed(error.strerror) from None
        if not count:
            raise self._failed(f"it ends at byte {place:,}, before its {self._part.file_bytes:,}")
        return count

    def __enter__(self) -> "_Source":
        return self

    def __exit__(self, *_: object) -> None:
        # It is not read again from here: memory is left to the copy, which is.
        os.posix_fadvise(self._descriptor, self._part.start, self._part.bytes, os.POSIX_FADV_DONTNEED)
        os.close(self._descriptor)

    def _failed(self, why: str | None) -> CommandError:
        return CommandError(f"{self._part.source}: cannot be staged ({why})", exit_code=1)


def _write(descriptor: int, data: memoryview, place: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, place)
        data, place = data[count:], place + count
