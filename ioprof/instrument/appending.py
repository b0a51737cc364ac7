"""Appends to a small file of the spool, in a process of the job."""

import os
from errno import EFBIG

try:
    from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit
except ImportError:  # a frozen program need not have it
    getrlimit = None  # type: ignore[assignment]


def append(path: str | os.PathLike[str], data: bytes) -> None:
    """Write at the end of a file, which is made if it is not there, in one call. Raises `OSError`.

    A file that would become longer than the job's limit (RLIMIT_FSIZE) is an error like any other:
    the kernel would send the job a SIGXFSZ, which ends it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        limit = -1 if getrlimit is None else getrlimit(RLIMIT_FSIZE)[0]
        if limit not in (-1, RLIM_INFINITY) and os.fstat(descriptor).st_size + len(data) > limit:
            raise OSError(EFBIG, os.strerror(EFBIG), os.fspath(path))
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
