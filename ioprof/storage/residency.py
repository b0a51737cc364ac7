"""Residency: how much of a dataset's files is in this machine's page cache; eviction and preloading
of files.

Residency is queried by the first of these methods that the kernel permits for a file, and the
result names the method:

1. `cachestat` (system call 451, Linux 6.5): counts pages; refused to users who neither own the file
   nor may write it.
2. `mincore` on a mapping: since Linux 5.2 it reports everything as resident to the same users, so
   it is not used for them.
3. `preadv2(RWF_NOWAIT)` (ext4, xfs, btrfs): reads cached pages and refuses others; permitted to
   every reader. But it starts to fetch what it refuses (seen on Linux 6.18), so only a sample of
   pages is tried, and uncached pages are dropped again.
4. None: the residency is unknown, never 0.

Eviction is `posix_fadvise(POSIX_FADV_DONTNEED)`, which needs no privileges, and skips pages that
are dirty, mapped or locked. So after a first try the file is written back by `fsync`, and evicted
again.
"""

import ctypes
import errno
import mmap
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.file_systems import file_system_on
from ioprof.reporter import Advance, ignore_progress

PAGE_BYTES: Final = mmap.PAGESIZE
THREADS: Final = 16
_CHUNK_FILES: Final = 64
_READ_BYTES: Final = 1 << 20
_PART_BYTES: Final = 1 << 26
_TRIES: Final = 3
# of one call, for all files together: each probe of an uncached page costs a read
_PROBES: Final = 1 << 14
_PROBES_OF_FILE: Final = 16
_PROBES_OF_LARGE_FILE: Final = 1024
_LARGE_PAGES: Final = 1 << 12
_CACHESTAT: Final = 451
_FAILED: Final = ctypes.c_void_p(-1).value
_OWN_CACHE: Final = {
    "gpfs": "GPFS keeps data in its own page pool, which the kernel does not count"
}
_CAP_FOWNER: Final = 3


@dataclass(frozen=True)
class Residency:
    """The part of a set of files that is in the page cache."""

    files: int
    bytes: int
    """Size in whole pages of the files whose residency is known."""
    resident_bytes: int
    """The part of `bytes` in the page cache."""
    methods: dict[str, int]
    """Number of files per method: `cachestat`, `mincore`, `RWF_NOWAIT sampled`."""
    unknown_files: int
    """Number of files whose residency is unknown, or that were not in the sample; they are not in
    `bytes`."""
    reason: str | None
    """The reason for the first unknown file."""

    @property
    def ratio(self) -> float | None:
        """Resident part of the bytes; None where nothing is known."""
        return self.resident_bytes / self.bytes if self.bytes else None

    def facts(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "files": self.files,
            "bytes": self.bytes,
            "resident_bytes": self.resident_bytes if self.bytes else None,
            "ratio": self.ratio,
            "methods": self.methods,
            "unknown_files": self.unknown_files,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class _Answer:
    pages: int = 0
    resident: int = 0
    method: str | None = None
    reason: str | None = None


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    # <linux/mman.h>, struct cachestat
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")
    )


_libc: Final = ctypes.CDLL(None, use_errno=True)


def cached_pages(descriptor: int, offset: int, length: int) -> int | None:
    """Pages of a range in the page cache, by cachestat; None where kernel, file system or
    permissions do not allow it.

    Length 0 means to the end of the file.
    """
    found = _Cachestat()
    arguments = (
        ctypes.c_uint(descriptor),
        ctypes.byref(_Range(offset, length)),
        ctypes.byref(found),
        ctypes.c_uint(0),
    )
    return int(found.cache) if _libc.syscall(ctypes.c_long(_CACHESTAT), *arguments) == 0 else None


class CacheQueries:
    """The kernel's answers about one open file; tests replace single methods by a subclass."""

    def file_system(self, device: int) -> str:
        """Type of the file system with this `st_dev`."""
        return file_system_on(device)

    def resident_pages(self, descriptor: int) -> int | None:
        """`cached_pages` of the whole file."""
        return cached_pages(descriptor, 0, 0)

    def may_use_mincore(self, descriptor: int, status: os.stat_result) -> bool:
        """The kernel's own condition (can_do_mincore in mm/mincore.c): owner, write permission, or
        CAP_FOWNER.
        """
        if status.st_uid == os.geteuid():
            return True
        with suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb") as lines:
            if any(
                line.startswith(b"CapEff:") and int(line.split()[1], 16) >> _CAP_FOWNER & 1
                for line in lines
            ):
                return True
        return os.access(
            f"/proc/self/fd/{descriptor}",
            os.W_OK,
            effective_ids=os.access in os.supports_effective_ids,
        )

    def is_cached(self, descriptor: int, place: int) -> bool:
        """Whether the page at this offset is cached, by RWF_NOWAIT; raises OSError where that is
        not supported.
        """
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        try:
            got = os.preadv(descriptor, [bytearray(1)], place, getattr(os, "RWF_NOWAIT", 0))
            # Linux 6.18 starts to fetch an uncached page, and a fast device may deliver it before
            # the call returns.
            return got > 0 and resource.getrusage(resource.RUSAGE_THREAD).ru_inblock == before
        except BlockingIOError:
            return False


_KERNEL: Final = CacheQueries()


def residency(
    paths: Sequence[str], advance: Advance = ignore_progress, queries: CacheQueries = _KERNEL
) -> Residency:
    """The part of these files in the page cache; raises `CommandError` for a file that cannot be
    opened.
    """
    return _total(_each(_Files(queries).query, paths, advance))


def evict(paths: Sequence[str], advance: Advance = ignore_progress) -> Residency:
    """Evict these files from the page cache, and return what remains; raises `CommandError` for a
    file that cannot be opened.
    """
    return _total(_each(_Files(_KERNEL).evict, paths, advance))


def warm(paths: Sequence[str], advance: Advance = ignore_progress) -> Residency:
    """Read all of these files once, in parallel, and return what is in the page cache then; raises
    `CommandError` as above.
    """
    parts = []
    for path in paths:
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise CommandError(f"{path}: cannot be read ({error.strerror})", exit_code=1) from None
        parts += [(path, start, size) for start in range(0, max(size, 1), _PART_BYTES)]
    for count in _parallel(_read_parts, parts):
        advance(count)
    return residency(paths)


def mapping_processes(paths: Iterable[str], proc: str = "/proc") -> dict[int, str]:
    """Processes that map any of these files, whose touched pages cannot be evicted: pid → command;
    only visible processes.
    """
    wanted = {(status.st_dev, status.st_ino) for status in map(os.stat, paths)}
    found = {}
    for pid in filter(str.isdigit, os.listdir(proc)):
        try:
            with open(f"{proc}/{pid}/maps", "rb") as lines:
                if any(_mapped_file(line) in wanted for line in lines):
                    with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as stream:
                        found[int(pid)] = stream.read().strip()
        except OSError:  # ended meanwhile, or not visible to this user
            continue
    return found


def proactive_reclaim(sys: str = "/sys") -> str | None:
    """What reclaims page cache on this machine although memory is free; None if nothing is known
    to.

    DAMON's `pageout` schemes and its reclaim module (kernel: admin-guide/mm/damon) reclaim pages
    not accessed for some seconds.
    """
    if _text(f"{sys}/module/damon_reclaim/parameters/enabled") == "Y":
        return "DAMON reclaims idle memory (module damon_reclaim)"
    kdamonds = f"{sys}/kernel/mm/damon/admin/kdamonds"
    for number in range(_number(f"{kdamonds}/nr_kdamonds")):
        context = f"{kdamonds}/{number}/contexts/0"
        schemes = range(_number(f"{context}/schemes/nr_schemes"))
        actions = {_text(f"{context}/schemes/{scheme}/action") for scheme in schemes}
        if _text(f"{kdamonds}/{number}/state") == "on" and actions & {"pageout", "cold"}:
            return "DAMON reclaims idle memory (a pageout scheme)"
    return None


# --------------------------------------------------------------------------------------- many files


def _each(
    function: Callable[[str], _Answer], paths: Sequence[str], advance: Advance
) -> Iterable[_Answer]:
    def chunk(part: Sequence[str]) -> list[_Answer]:
        return [function(path) for path in part]

    for answers in _parallel(chunk, paths):
        advance(sum(answer.pages for answer in answers) * PAGE_BYTES)
        yield from answers


def _parallel(function: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> Iterable[Any]:
    # In chunks: submitting each of a million small files would take longer than the work itself.
    chunks = (items[start : start + _CHUNK_FILES] for start in range(0, len(items), _CHUNK_FILES))
    with ThreadPoolExecutor(THREADS) as pool:
        while waiting := [pool.submit(function, chunk) for chunk in islice(chunks, 4 * THREADS)]:
            for future in waiting:
                yield future.result()


def _total(answers: Iterable[_Answer]) -> Residency:
    pages = resident = files = unknown = 0
    methods: Counter[str] = Counter()
    reason = None
    for answer in answers:
        files += 1
        if answer.method is None:
            unknown += 1
            reason = reason or answer.reason
            continue
        pages, resident = pages + answer.pages, resident + answer.resident
        methods[answer.method] += 1
    return Residency(
        files, pages * PAGE_BYTES, resident * PAGE_BYTES, dict(methods), unknown, reason
    )


# ----------------------------------------------------------------------------------------- one file


class _Files:
    """The files of one call, which share a maximum number of probes."""

    def __init__(self, queries: CacheQueries) -> None:
        self._queries, self._probes = queries, _PROBES

    def query(self, path: str) -> _Answer:
        descriptor = _open(path)
        try:
            return self._answer(descriptor)
        finally:
            os.close(descriptor)

    def evict(self, path: str) -> _Answer:
        descriptor = _open(path)
        try:
            for number in range(_TRIES):
                if number:
                    os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                answer = self._answer(descriptor)
                if answer.method is not None and not answer.resident:
                    break
            return answer
        except OSError as error:
            raise CommandError(
                f"{path}: cannot be evicted from the page cache ({error.strerror})", exit_code=1
            ) from None
        finally:
            os.close(descriptor)

    def _answer(self, descriptor: int) -> _Answer:
        status = os.fstat(descriptor)
        pages = -(-status.st_size // PAGE_BYTES)
        if reason := _OWN_CACHE.get(self._queries.file_system(status.st_dev)):
            return _Answer(reason=reason)
        if not pages:
            return _Answer(0, 0, "cachestat")
        resident = self._queries.resident_pages(descriptor)
        if resident is not None:
            return _Answer(pages, min(resident, pages), "cachestat")
        if self._queries.may_use_mincore(descriptor, status):
            resident = mincore_pages(descriptor, status.st_size)
            if resident is not None:
                return _Answer(pages, resident, "mincore")
        wanted = min(pages, _PROBES_OF_LARGE_FILE if pages > _LARGE_PAGES else _PROBES_OF_FILE)
        if self._probes < wanted:
            return _Answer(reason="its residency can only be probed, and it was not in the sample")
        self._probes -= wanted
        return self._by_nowait(descriptor, pages, wanted)

    def _by_nowait(self, descriptor: int, pages: int, probes: int) -> _Answer:
        places = [number * pages // probes * PAGE_BYTES for number in range(probes)]
        # so that no probe reads more than its own page
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            absent = [place for place in places if not self._queries.is_cached(descriptor, place)]
        except OSError as error:
            reason = (
                "this user neither owns nor may write it, so the kernel does not report what is"
                " cached"
            )
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                reason = f"cannot be read ({error.strerror})"
            return _Answer(reason=reason)
        for place in absent:
            # waits for the fetch that the probe started: a page being read cannot be dropped
            os.pread(descriptor, 1, place)
            os.posix_fadvise(descriptor, place, PAGE_BYTES, os.POSIX_FADV_DONTNEED)
        return _Answer(pages, (probes - len(absent)) * pages // probes, "RWF_NOWAIT sampled")


def _read_parts(parts: Sequence[tuple[str, int, int]]) -> int:
    buffer = bytearray(_READ_BYTES)
    done = 0
    for path, start, size in parts:
        descriptor = _open(path)
        try:
            end = min(start + _PART_BYTES, size)
            while start < end and (
                count := os.preadv(descriptor, [memoryview(buffer)[: end - start]], start)
            ):
                start, done = start + count, done + count
        except OSError as error:
            raise CommandError(f"{path}: cannot be read ({error.strerror})", exit_code=1) from None
        finally:
            os.close(descriptor)
    return done


def mincore_pages(descriptor: int, size: int) -> int | None:
    """Pages of a file of `size` bytes in the page cache, by mincore; None where it cannot be
    mapped.
    """
    _libc.mmap.restype = ctypes.c_void_p
    arguments = (
        ctypes.c_size_t(size),
        mmap.PROT_READ,
        mmap.MAP_SHARED,
        descriptor,
        ctypes.c_long(0),
    )
    address = _libc.mmap(None, *arguments)
    if address in (None, _FAILED):
        return None
    try:
        vector = (ctypes.c_ubyte * -(-size // PAGE_BYTES))()
        if _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) != 0:
            return None
        return sum(byte & 1 for byte in bytes(vector))
    finally:
        _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def _open(path: str) -> int:
    try:
        # a named pipe must not block here
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CommandError(f"{path}: cannot be opened ({error.strerror})", exit_code=1) from None


# -------------------------------------------------------------------------- the text files of /proc


def _mapped_file(line: bytes) -> tuple[int, int] | None:
    fields = line.split()
    try:
        major, minor = (int(number, 16) for number in fields[3].split(b":"))
        return os.makedev(major, minor), int(fields[4])
    except (ValueError, IndexError):
        return None


def _number(path: str) -> int:
    text = _text(path)
    return int(text) if text.isdigit() and len(text) < 4 else 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(100).strip()
    except OSError:
        return ""
