"""How much of a dataset's files this machine's page cache holds, and getting them out of it or into it.

Asked in the first of these ways that the kernel allows for a file, and said which one it was:

1. `cachestat` (system call 451, Linux 6.5): counts pages; refused to those who neither own the file nor may write it.
2. `mincore` on a mapping: since Linux 5.2 it tells the same people that everything is resident, so they are not believed.
3. `preadv2(RWF_NOWAIT)` (ext4, xfs, btrfs): reads what is cached and refuses the rest; allowed to everybody. But it begins to read
   what it refuses (seen on Linux 6.18), so only a sample of pages is asked for, and those that were not there are dropped again.
4. None: the residency is unknown, never 0.

Getting a file out is `posix_fadvise(POSIX_FADV_DONTNEED)`, which needs no rights, and leaves what is dirty, mapped or locked. So it
is tried, what stayed is brought to the storage by `fsync`, and it is tried again.
"""

import ctypes
import errno
import mmap
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.file_systems import file_system_on

Advance = Callable[[int], object]
"""Is told how many more bytes are done."""

PAGE_BYTES: Final = mmap.PAGESIZE
THREADS: Final = 16
_CHUNK_FILES: Final = 64
_READ_BYTES: Final = 1 << 20
_PART_BYTES: Final = 1 << 26
_TRIES: Final = 3
_PROBES: Final = 1 << 14  # of one call, for all files together: each that finds nothing costs a read
_PROBES_OF_FILE: Final = 16
_PROBES_OF_LARGE_FILE: Final = 1024
_LARGE_PAGES: Final = 1 << 12
_CACHESTAT: Final = 451
_FAILED: Final = ctypes.c_void_p(-1).value
_OWN_CACHE: Final = {"gpfs": "GPFS keeps data in its own page pool, which the kernel does not count"}
_CAP_FOWNER: Final = 3


@dataclass(frozen=True)
class Residency:
    """What part of some files was in the page cache."""

    files: int
    bytes: int
    """Of the whole pages of those files whose residency could be told."""
    resident_bytes: int
    """Those of them that were in the page cache."""
    methods: dict[str, int]
    """How many files were asked in which way: `cachestat`, `mincore`, `RWF_NOWAIT sampled`."""
    unknown_files: int
    """Files of which nothing can be told, or that were not in the sample; they are not in `bytes`."""
    reason: str | None
    """Why not, of the first of them."""

    @property
    def ratio(self) -> float | None:
        """Part of the bytes that is resident; null where nothing could be told."""
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


def residency(paths: Sequence[str], advance: Advance = lambda _: None) -> Residency:
    """What of these files is in the page cache; raises `CommandError` for one that cannot be opened."""
    return _summed(_each(_Files().asked, paths, advance))


def evict(paths: Sequence[str], advance: Advance = lambda _: None) -> Residency:
    """Get these files out of the page cache, and say what stayed; raises `CommandError` for one that cannot be opened."""
    return _summed(_each(_Files().evicted, paths, advance))


def warm(paths: Sequence[str], advance: Advance = lambda _: None) -> Residency:
    """Read all of these files once, in parallel, and say what is in the page cache then; raises `CommandError` as above."""
    sizes = [(path, _size(path)) for path in paths]
    parts = [(path, start, size) for path, size in sizes for start in range(0, max(size, 1), _PART_BYTES)]
    for count in _parallel(_read_parts, parts):
        advance(count)
    return residency(paths)


def mapped_by(paths: Iterable[str], proc: str = "/proc") -> dict[int, str]:
    """Processes that map any of these files, which keeps what they touched in memory: number to command; those that one may see."""
    wanted = {(status.st_dev, status.st_ino) for status in map(os.stat, paths)}
    found = {}
    for pid in filter(str.isdigit, os.listdir(proc)):
        try:
            with open(f"{proc}/{pid}/maps", "rb") as lines:
                if any(_mapped_file(line) in wanted for line in lines):
                    found[int(pid)] = _command(f"{proc}/{pid}/comm")
        except OSError:  # ended meanwhile, or not to be seen by us
            continue
    return found


def proactive_reclaim(sys: str = "/sys") -> str | None:
    """What drops pages from this machine's page cache though there is memory left; None if nothing is known to.

    DAMON's `pageout` schemes and its module for reclaim (kernel: admin-guide/mm/damon) take what nobody touched for some seconds.
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


# ------------------------------------------------------------------------------------------------ many files


def _each(function: Callable[[str], _Answer], paths: Sequence[str], advance: Advance) -> Iterable[_Answer]:
    def chunk(part: Sequence[str]) -> list[_Answer]:
        return [function(path) for path in part]

    for answers in _parallel(chunk, paths):
        advance(sum(answer.pages for answer in answers) * PAGE_BYTES)
        yield from answers


def _parallel(function: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> Iterable[Any]:
    # One call of a function per file would be most of the time that a million small files take.
    chunks = (items[start : start + _CHUNK_FILES] for start in range(0, len(items), _CHUNK_FILES))
    with ThreadPoolExecutor(THREADS) as pool:
        while waiting := [pool.submit(function, chunk) for chunk in islice(chunks, 4 * THREADS)]:
            for future in waiting:
                yield future.result()


def _summed(answers: Iterable[_Answer]) -> Residency:
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
    return Residency(files, pages * PAGE_BYTES, resident * PAGE_BYTES, dict(methods), unknown, reason)


# ------------------------------------------------------------------------------------------------ one file


class _Files:
    """The files of one call: they share what may be spent on probing."""

    def __init__(self) -> None:
        self._probes = _PROBES

    def asked(self, path: str) -> _Answer:
        descriptor = _open(path)
        try:
            return self._answer(descriptor)
        finally:
            os.close(descriptor)

    def evicted(self, path: str) -> _Answer:
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
            raise CommandError(f"{path}: cannot be evicted from the page cache ({error.strerror})", exit_code=1) from None
        finally:
            os.close(descriptor)

    def _answer(self, descriptor: int) -> _Answer:
        status = os.fstat(descriptor)
        pages = -(-status.st_size // PAGE_BYTES)
        if reason := _OWN_CACHE.get(file_system_on(status.st_dev)):
            return _Answer(reason=reason)
        if not pages:
            return _Answer(0, 0, "cachestat")
        resident = _by_cachestat(descriptor)
        if resident is not None:
            return _Answer(pages, min(resident, pages), "cachestat")
        if _may_trust_mincore(descriptor, status):
            resident = _by_mincore(descriptor, status.st_size)
            if resident is not None:
                return _Answer(pages, resident, "mincore")
        wanted = min(pages, _PROBES_OF_LARGE_FILE if pages > _LARGE_PAGES else _PROBES_OF_FILE)
        if self._probes < wanted:
            return _Answer(reason="its residency is found out by probing, and it was not in the sample")
        self._probes -= wanted
        return _by_nowait(descriptor, pages, wanted)


def _read_parts(parts: Sequence[tuple[str, int, int]]) -> int:
    buffer = bytearray(_READ_BYTES)
    done = 0
    for path, start, size in parts:
        descriptor = _open(path)
        try:
            end = min(start + _PART_BYTES, size)
            while start < end and (count := os.preadv(descriptor, [memoryview(buffer)[: end - start]], start)):
                start, done = start + count, done + count
        except OSError as error:
            raise CommandError(f"{path}: cannot be read ({error.strerror})", exit_code=1) from None
        finally:
            os.close(descriptor)
    return done


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    # <linux/mman.h>, struct cachestat
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted"))


_libc: Final = ctypes.CDLL(None, use_errno=True)


def _by_cachestat(descriptor: int) -> int | None:
    """Pages of the file in the page cache; None where this kernel, this file system or this user is refused."""
    found = _Cachestat()
    arguments = (ctypes.c_uint(descriptor), ctypes.byref(_Range(0, 0)), ctypes.byref(found), ctypes.c_uint(0))
    if _libc.syscall(ctypes.c_long(_CACHESTAT), *arguments) != 0:
        return None
    return int(found.cache)


def _may_trust_mincore(descriptor: int, status: os.stat_result) -> bool:
    """As the kernel decides (can_do_mincore in mm/mincore.c): the owner, who may write, or who may act as any owner."""
    if status.st_uid == os.geteuid() or _has_capability(_CAP_FOWNER):
        return True
    return os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _has_capability(number: int) -> bool:
    try:
        with open("/proc/self/status", "rb") as lines:
            return any(line.startswith(b"CapEff:") and int(line.split()[1], 16) >> number & 1 for line in lines)
    except (OSError, ValueError, IndexError):
        return False


def _by_mincore(descriptor: int, size: int) -> int | None:
    _libc.mmap.restype = ctypes.c_void_p
    arguments = (ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, descriptor, ctypes.c_long(0))
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


def _by_nowait(descriptor: int, pages: int, probes: int) -> _Answer:
    places = [number * pages // probes * PAGE_BYTES for number in range(probes)]
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # so that no probe reads more than its own page
    try:
        absent = [place for place in places if not _is_cached(descriptor, place)]
    except OSError as error:
        reason = "neither its owner nor allowed to write it, so the kernel does not say what is cached"
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            reason = f"cannot be read ({error.strerror})"
        return _Answer(reason=reason)
    for place in absent:
        os.pread(descriptor, 1, place)  # waits for the read that the probe began: a page that is being read cannot be dropped
        os.posix_fadvise(descriptor, place, PAGE_BYTES, os.POSIX_FADV_DONTNEED)
    return _Answer(pages, (probes - len(absent)) * pages // probes, "RWF_NOWAIT sampled")


def _is_cached(descriptor: int, place: int) -> bool:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
    try:
        got = os.preadv(descriptor, [bytearray(1)], place, getattr(os, "RWF_NOWAIT", 0))
        # Linux 6.18 starts to fetch what is not there, and has it at once from a fast device.
        return got > 0 and resource.getrusage(resource.RUSAGE_THREAD).ru_inblock == before
    except BlockingIOError:
        return False


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not block here
    except OSError as error:
        raise CommandError(f"{path}: cannot be opened ({error.strerror})", exit_code=1) from None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})", exit_code=1) from None


# ------------------------------------------------------------------------------------------------ the text files of /proc


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


def _command(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read().strip()
