"""The reader of native/probe.c in Python threads, for an ioprof installed without a C compiler; it fills in the same rows.

Waits for the global interpreter lock are counted as waits of the reads.
"""

import errno
import mmap
import os
import resource
import stat
import threading
from itertools import count
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.storage.probe.outcomes import Ending, Kind
from ioprof.storage.residency import cached_pages

_BUFFER_BYTES: Final = 4 << 20
_WAKE_S: Final = 0.05


def visit(
    kind: int,
    targets: tuple[Any, ...],
    places: Any,
    outcomes: Any,
    clients: int,
    direct: bool,
    ask: bool,
    in_order: bool,
    limit_ns: int,
    limit_bytes: int,
) -> tuple[int, int, int]:
    """The same as `ioprof._probe.visit`: fills in `outcomes`; returns when all began, when the first finished, and why."""
    job = _Job(kind, targets, places, outcomes, clients, direct, ask, in_order, limit_ns, limit_bytes)
    workers = [threading.Thread(target=job.work, args=(number,), name=f"ioprof-probe-{number}") for number in range(clients)]
    try:
        for worker in workers:
            worker.start()
        job.start_ns = monotonic_ns()
        job.go.set()
        for worker in workers:
            while worker.is_alive():
                worker.join(_WAKE_S)
    finally:
        job.stop = True
        job.go.set()  # an exception before all were started must not leave the others waiting forever
        for worker in workers:
            if worker.is_alive():
                worker.join()
    return job.start_ns, *min(job.ends)


class _Job:
    def __init__(self, kind: int, targets: tuple[Any, ...], places: Any, outcomes: Any, clients: int, *rest: Any) -> None:
        self.kind, self.targets, self.outcomes, self.clients = kind, targets, outcomes, clients
        self.direct, self.ask, self.in_order, self.limit_ns, self.limit_bytes = rest
        self.places: list[tuple[int, int, int]] = places.tolist()  # accessing a cell of a NumPy array takes longer than a read
        longest = max((length for _, _, length in self.places), default=1)
        self.buffer_bytes = -(-min(max(longest, 1), _BUFFER_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.go, self.lock, self.numbers = threading.Event(), threading.Lock(), count()
        self.start_ns = self.claimed = self.device_bytes = 0
        self.stop = False
        self.ends: list[tuple[int, int]] = []

    def work(self, client: int) -> None:
        buffer = memoryview(mmap.mmap(-1, self.buffer_bytes))  # page-aligned, as O_DIRECT requires
        self.go.wait()
        own = iter(range(*(len(self.places) * part // self.clients for part in (client, client + 1))))
        deadline, now = self.start_ns + self.limit_ns, self.start_ns
        ending = Ending.TIME
        while now < deadline:
            number, ending = self._claim(own)
            if number is None:
                break
            now = self._visit(number, client, buffer)
            ending = Ending.TIME
        self.ends.append((monotonic_ns(), int(ending)))

    def _claim(self, own: Any) -> tuple[int | None, Ending]:
        if self.stop:
            return None, Ending.STOPPED
        number = next(own, None) if self.in_order else next(self.numbers)
        if number is None or number >= len(self.places):
            return None, Ending.PLACES
        length = self.places[number][2] if self.kind != Kind.OPENS else 0
        with self.lock:
            self.claimed += length
            if self.claimed > self.limit_bytes or self.device_bytes > self.limit_bytes:
                return None, Ending.BYTES
        return number, Ending.TIME

    def _visit(self, number: int, client: int, buffer: memoryview) -> int:
        target, offset, length = self.places[number]
        blocks_before, waits_before = _usage()
        start = monotonic_ns()
        try:
            descriptor = self.targets[target] if self.kind == Kind.RANGES else self._open(self.targets[target])
        except OSError as error:
            end = monotonic_ns()
            self.outcomes[number] = (start, end, end, end, -(error.errno or errno.EIO), 0, -1, 0, client)
            return end
        opened = begin = end = monotonic_ns()
        cached, read = -1, 0
        try:
            if self.kind != Kind.OPENS:
                pages = cached_pages(descriptor, offset, length) if self.ask and length else None
                cached = -1 if pages is None else pages * mmap.PAGESIZE
                waits_before = _usage()[1] if self.kind == Kind.FILES else waits_before
                begin, read, end = _timed_read(descriptor, buffer, offset, length)
        finally:
            if self.kind != Kind.RANGES:
                os.close(descriptor)
        if self.kind == Kind.RANGES:
            start = opened = begin
        blocks, waits = _usage()
        device_bytes = (blocks - blocks_before) * 512
        with self.lock:
            self.device_bytes += device_bytes
        self.outcomes[number] = (start, opened, begin, end, read, device_bytes, cached, waits - waits_before, client)
        return end

    def _open(self, path: bytes) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if self.kind == Kind.OPENS else 0)
        descriptor = os.open(path, flags | (os.O_DIRECT if self.direct else 0))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        return descriptor


def _usage() -> tuple[int, int]:
    """Blocks read and voluntary context switches of this thread."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_inblock, used.ru_nvcsw


def _timed_read(descriptor: int, buffer: memoryview, offset: int, length: int) -> tuple[int, int, int]:
    """Begin of the read, bytes or -errno, end of the read."""
    begin, done = monotonic_ns(), 0
    try:
        while done < length and (got := os.preadv(descriptor, [buffer[: min(length - done, len(buffer))]], offset + done)):
            done += got
    except OSError as error:
        done = -(error.errno or errno.EIO)
    return begin, done, monotonic_ns()
