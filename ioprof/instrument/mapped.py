"""Reads of memory-mapped files, which no hook sees: only who makes them knows which bytes they are
for.
"""

import resource
from collections.abc import Callable

from ioprof.instrument.manual import current_batch
from ioprof.instrument.span import PAGE_CACHE, STORAGE, UNKNOWN, span


def fault_in(find: Callable[[], memoryview], *, file: int = -1) -> bytes:
    """A copy of the memory-mapped bytes that `find` returns, recorded as one `fault` span; later
    stages then touch no mapped page.

    Finding them is part of it: a search reads pages too, and py-lmdb touches a value's pages before
    it returns them. The source is `storage` if this thread had a major fault or read blocks
    meanwhile (man 2 getrusage, RUSAGE_THREAD): then at least one page came from the device. If it
    was only switched out, the source is unknown.
    """
    with span("fault", file=file, batch=current_batch()) as touching:
        before = resource.getrusage(resource.RUSAGE_THREAD)
        data = bytes(find())
        after = resource.getrusage(resource.RUSAGE_THREAD)
        touching.bytes = len(data)
        if after.ru_majflt > before.ru_majflt or after.ru_inblock > before.ru_inblock:
            touching.source = STORAGE
        else:
            touching.source = UNKNOWN if after.ru_nvcsw > before.ru_nvcsw else PAGE_CACHE
    return data
