"""Reads of memory-mapped files, which no hook sees: only who makes them knows which bytes they are
for.
"""

import resource
from collections.abc import Callable
from typing import Final, NamedTuple

from ioprof.clock import monotonic_ns
from ioprof.format.schema import READAHEAD, READAHEAD_ENDED
from ioprof.instrument.manual import current_batch
from ioprof.instrument.span import PAGE_CACHE, STORAGE, UNKNOWN, emit

_BLOCK_BYTES: Final = 512


class Touched(NamedTuple):
    """A value of a map that is in memory now."""

    data: bytes
    """A copy."""
    fetched_bytes: int
    """What this thread fetched from storage for it, readahead included; 0 where the file system
    does not count it, too."""


def fault_in(
    find: Callable[[], memoryview], *, file: int = -1, announce: Callable[[], None] | None = None
) -> Touched:
    """Copy the memory-mapped bytes that `find` returns, and record that as a `fault` span; later
    stages then touch no mapped page.

    Finding them is part of it: a search reads pages too, and py-lmdb touches a value's pages before
    it returns them. `announce`, called before, has the kernel begin to read the value; that is a
    `read` span, as the capture library counts it among the reads.

    The source is `storage` if this thread read blocks or had a major fault meanwhile (man 2
    getrusage, RUSAGE_THREAD): then at least one page came from the device. If it was only switched
    out, the source is unknown, unless the kernel's own record of page faults says more (see
    `ingest.joining.join_faults`). Bytes from storage are those of the blocks that it read: less
    than the value, where the rest was in memory; more, where the kernel read ahead. What is more is
    a span of length 0 with the name `schema.READAHEAD`.
    """
    batch, start_ns, before = current_batch(), monotonic_ns(), _usage()

    def record(kind: str, since_ns: int, size: int, source: int, name: str | None = None) -> None:
        if size > 0:
            emit(kind, since_ns, end_ns, name, batch=batch, file=file, bytes=size, source=source)

    announced, end_ns = 0, start_ns
    if announce is not None:
        announce()
        end_ns, between = monotonic_ns(), _usage()
        announced, before = _fetched(before, between), between
        record("read", start_ns, announced, STORAGE)
        start_ns = end_ns
    data = bytes(find())
    end_ns, after = monotonic_ns(), _usage()
    fetched, waited = _fetched(before, after), after.ru_nvcsw > before.ru_nvcsw
    size = len(data)
    if fetched:
        record("fault", start_ns, min(fetched, size), STORAGE)
        record("fault", end_ns, fetched - size, STORAGE, READAHEAD)
    elif announced and waited:  # for what was counted already
        record("fault", start_ns, 1, STORAGE, READAHEAD)
    elif after.ru_majflt > before.ru_majflt:  # the file system counts no blocks
        record("fault", start_ns, size, STORAGE)
    elif not announced:
        record("fault", start_ns, size, UNKNOWN if waited else PAGE_CACHE)
    if announced or fetched:
        record("fault", end_ns, size - announced - fetched, PAGE_CACHE)
    return Touched(data, announced + fetched)


def readahead_ended(*, file: int = -1) -> None:
    """Record that the job switched readahead of a map off in this process."""
    now_ns = monotonic_ns()
    emit("fault", now_ns, now_ns, READAHEAD_ENDED, batch=current_batch(), file=file, bytes=0)


def _usage() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_THREAD)


def _fetched(before: resource.struct_rusage, after: resource.struct_rusage) -> int:
    return (after.ru_inblock - before.ru_inblock) * _BLOCK_BYTES
