"""Reads that know where their bytes came from: the storage device or network, or the page cache.

One ladder, by what the file system allows (the same question has no single answer on Linux):

1. tmpfs and its like hold their files in memory: `page_cache`.
2. `preadv2(RWF_NOWAIT)` (ext4, xfs, btrfs) returns only what is cached; what it leaves is read from storage. Before Linux 5.9, and
   again in 6.18, it starts to fetch what is not, and returns it where a fast device is done at once: then 3. decides.
3. What this thread's counters did during the read (getrusage, RUSAGE_THREAD): blocks in mean that it was fetched, whether the
   thread waited for it or not; neither blocks nor a voluntary switch mean that it was not. A switch without blocks has several
   causes: `unknown`.
4. FUSE, GPFS and BeeGFS keep their own books and show no blocks: `unknown`.

Latency alone is never taken as proof.
"""

import errno
import os
import resource
import stat
from collections.abc import Callable
from typing import Final

from ioprof.file_systems import file_system_on, is_in_memory, keeps_own_books
from ioprof.record.preload import sees_reads
from ioprof.record.span import PAGE_CACHE, STORAGE, UNKNOWN, intern, span

LARGEST_FILE: Final = 1 << 30
"""Bytes that `read_file` reads at most: an image of a gigabyte is a file that came into a dataset by mistake."""

_no_nowait: set[tuple[int, str]] = set()  # device numbers and types of file systems that refused RWF_NOWAIT


def read_file(path: str, *, batch: int = -1) -> bytearray:
    """All bytes of the file `path`, recorded as one `open` and one or two `read` spans, unless the capture library records them.

    Raises OSError as open and read do, and where it is no regular file or larger than `LARGEST_FILE`.
    """
    if sees_reads():
        return _read_unrecorded(path)
    file = intern(path)
    with span("open", file=file, batch=batch) as opening:
        before = _usage()
        descriptor = _open(path)
        status = os.fstat(descriptor)
        opening.source = _source_by_usage(before, _usage())
    try:
        _check(path, status)
        # Hierarchical storage (GPFS, DMAPI) answers a read that would recall a file from tape with EAGAIN where it may not wait.
        os.set_blocking(descriptor, True)
        return _read_all(descriptor, status.st_size, status.st_dev, file, batch)
    finally:
        os.close(descriptor)


def fault_in(find: Callable[[], memoryview], *, file: int = -1, batch: int = -1) -> bytes:
    """A copy of the memory-mapped bytes that `find` finds, recorded as one `fault` span, so that later stages touch no mapped page.

    Finding them is part of it: a search reads pages too, and py-lmdb touches a value's pages before it returns them. `storage` when
    a major fault, or a wait with blocks read, happened meanwhile: then at least one page came from the device.
    """
    with span("fault", file=file, batch=batch) as touching:
        before = _usage()
        data = bytes(find())
        after = _usage()
        touching.bytes = len(data)
        touching.source = STORAGE if after.ru_majflt > before.ru_majflt else _source_by_usage(before, after)
    return data


def _read_unrecorded(path: str) -> bytearray:
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        _check(path, status)
        os.set_blocking(descriptor, True)
        data = bytearray(status.st_size)
        done = 0
        while done < len(data) and (count := os.preadv(descriptor, [memoryview(data)[done:]], done)):
            done += count
        del data[done:]  # the file shrank since fstat
        return data
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    # Without O_NONBLOCK a FIFO would be waited for until somebody writes to it (man 7 fifo).
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there (man 2 open)
            raise _irregular(path) from None
        raise


def _check(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _irregular(path)
    if status.st_size > LARGEST_FILE:
        raise OSError(errno.EFBIG, f"{status.st_size:,} bytes are too many for one image; the limit is {LARGEST_FILE:,}", path)


def _irregular(path: str) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", path)


def read_into(data: memoryview, descriptor: int, offset: int, device: int, file: int, batch: int) -> int:
    """Fill `data` from `offset` of a file on `device`, recorded by source; returns how many bytes, fewer where the file ends."""
    done = _read_cached(data, descriptor, offset, device, file, batch)
    while done < len(data):
        with span("read", file=file, batch=batch, offset=offset + done) as reading:
            before = _usage()
            reading.bytes = count = os.preadv(descriptor, [data[done:]], offset + done)
            reading.source = STORAGE if _answers_nowait(device) else _source_elsewhere(device, before, _usage())
        if count == 0:
            break
        done += count
    return done


def _read_all(descriptor: int, size: int, device: int, file: int, batch: int) -> bytearray:
    data = bytearray(size)
    done = read_into(memoryview(data), descriptor, 0, device, file, batch)
    return data if done == size else data[:done]  # the file shrank since fstat


def _read_cached(data: memoryview, descriptor: int, offset: int, device: int, file: int, batch: int) -> int:
    """Read what the page cache holds, from `offset` on; 0 where it holds nothing or the file system cannot say."""
    if not len(data) or not _answers_nowait(device):
        return 0
    with span("read", file=file, batch=batch, offset=offset, source=PAGE_CACHE) as reading:
        before = _usage()
        try:
            reading.bytes = count = os.preadv(descriptor, [data], offset, os.RWF_NOWAIT)
            if _usage().ru_inblock > before.ru_inblock:
                reading.source = STORAGE
        except BlockingIOError:
            reading.bytes = count = 0
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            _no_nowait.add((device, file_system_on(device)))
            reading.source = UNKNOWN  # nothing was learnt
            reading.bytes = count = 0
    return count


def _answers_nowait(device: int) -> bool:
    kind = file_system_on(device)
    return hasattr(os, "RWF_NOWAIT") and (device, kind) not in _no_nowait and not is_in_memory(kind)


def _usage() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_THREAD)


def _source_by_usage(before: resource.struct_rusage, after: resource.struct_rusage) -> int:
    if after.ru_inblock > before.ru_inblock:
        return STORAGE
    return UNKNOWN if after.ru_nvcsw > before.ru_nvcsw else PAGE_CACHE


def _source_elsewhere(device: int, before: resource.struct_rusage, after: resource.struct_rusage) -> int:
    file_system = file_system_on(device)
    if is_in_memory(file_system):
        return PAGE_CACHE
    if keeps_own_books(file_system):
        return UNKNOWN
    return _source_by_usage(before, after)
