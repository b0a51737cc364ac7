"""Checks of folders: those with the data, and the one that stores a recording while the job
runs.
"""

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ioprof.doctor.finding import Finding, Surroundings, failed, limited, missing, ok
from ioprof.file_systems import has_unreliable_counters, is_in_memory, is_shared
from ioprof.storage.kernel_text import Roots, Unknown
from ioprof.storage.mounts import mount_number, mount_of_number
from ioprof.storage.residency import cached_pages

_SPOOL_BYTES: Final = 1 << 30
_MAX_ENTRIES: Final = 200  # of a folder, to find one file in it
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_COPY_HINT: Final = "no setting allows it; a copy on ext4, xfs or btrfs does: cp -r {path} FOLDER"

Attempt = Callable[[int], str]
"""Tries something with a file descriptor; returns why it is not possible, or ""."""


def file_system_of(path: Path, proc: Path = Path("/proc")) -> str:
    """Type of the file system of an existing path. ValueError where the kernel does not say it."""
    roots = Roots(proc)
    mount = mount_of_number(mount_number(path, roots), roots)
    if isinstance(mount, Unknown):
        raise ValueError(mount.reason)
    return mount.file_system


def read_sources(surroundings: Surroundings) -> Iterator[Finding]:
    """For every path: whether the source of a read, storage or page cache, can be known."""
    for path in surroundings.paths:
        name = f"read sources of {path}"
        try:
            yield read_source(name, path, file_system_of(path, surroundings.proc))
        except (
            OSError,
            ValueError,
        ) as error:  # e.g. a mount that was removed: the other paths are still checked
            yield failed(name, error)


def read_source(name: str, path: Path, file_system: str, attempt: Attempt | None = None) -> Finding:
    """Whether the source of a read of `path` can be known on this type of file system; `attempt` is
    by default `try_nowait`.
    """
    if is_in_memory(file_system):
        return ok(
            name, f"{file_system}: files are in memory", "all its reads are from the page cache"
        )
    refused = find_refusal(path, attempt or try_nowait)
    if not refused:
        return ok(
            name,
            f"{file_system} supports RWF_NOWAIT",
            "the source of each read, storage or page cache, is known exactly",
        )
    means = (
        "the thread's counters show the source of a read; it is unknown for reads that wait for"
        " another thread's read"
    )
    if has_unreliable_counters(file_system):
        means = (
            "reads are timed, but their source is unknown: this file system counts neither blocks"
            " nor cached pages"
        )
    return limited(
        name, f"{file_system}: RWF_NOWAIT: {refused}", means, _COPY_HINT.format(path=path)
    )


def residency(surroundings: Surroundings, attempt: Attempt | None = None) -> Iterator[Finding]:
    """For every path: whether the cached part of a file can be queried; `attempt` is by default
    `try_cachestat`.
    """
    for path in surroundings.paths:
        name = f"cached share of {path}"
        refused = find_refusal(path, attempt or try_cachestat)
        means = "the cached part of a dataset before a run is unknown"
        if not refused:
            yield ok(
                name,
                "cachestat(2) is permitted",
                "the cached part of a dataset before a run is known",
            )
        elif refused == os.strerror(errno.ENOSYS):
            yield missing(name, f"cachestat(2): {refused}", means, "Linux 6.5 or newer")
        elif refused == os.strerror(errno.EPERM):
            seen = f"cachestat(2): {refused}: the file belongs to another user"
            yield missing(
                name, seen, means, f"run ioprof as the owner of the files: stat -c %U {path}"
            )
        else:
            yield missing(
                name,
                f"cachestat(2): {refused}",
                means,
                f"name a file that you can read: ioprof doctor {path / 'FILE'}",
            )


def find_refusal(path: Path, attempt: Attempt) -> str:
    """Why `attempt` is not possible on a file at, or directly below, `path`; "" if it is."""
    try:
        with _file_at(path) as descriptor:
            return attempt(descriptor)
    except OSError as error:
        return error.strerror or str(error)


@contextmanager
def _file_at(path: Path) -> Iterator[int]:
    """A descriptor of an existing file, or of a temporary unnamed one."""
    try:
        descriptor = os.open(path, _READ) if path.is_file() else _file_in(path)
    except PermissionError:
        raise OSError(errno.EACCES, "no file in it can be read") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _file_in(folder: Path) -> int:
    with os.scandir(folder) as entries:
        few = [entry for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False)]
    for entry in few:
        with suppress(FileNotFoundError):  # another process may have removed it meanwhile
            if (
                entry.is_file(follow_symlinks=False)
                and entry.stat().st_size
                and os.access(entry.path, os.R_OK)
            ):
                return os.open(entry.path, _READ)
    descriptor, path = tempfile.mkstemp(prefix=".ioprof-doctor-", dir=folder)
    Path(path).unlink()
    os.write(descriptor, b"ioprof")
    return descriptor


def try_nowait(descriptor: int) -> str:
    """Try preadv2(RWF_NOWAIT)."""
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return ""  # supported: the page is not cached
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def try_cachestat(descriptor: int) -> str:
    """Try cachestat(2)."""
    is_known = cached_pages(descriptor, 0, 0) is not None
    return "" if is_known else os.strerror(ctypes.get_errno())


def spool_folder(surroundings: Surroundings) -> Iterator[Finding]:
    """Where a recording is stored while the job runs: it must be local to this host, and have free
    space.
    """
    name, variable = "spool folder", surroundings.environment.get("TMPDIR")
    folder = Path(variable or "/tmp")  # noqa: S108  the next default of Python, and where a recording would be stored
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "is not a folder" if not folder.is_dir() else "cannot be written"
        means = (
            "Python silently uses another folder; the recording may be stored where there is no"
            " space"
        )
        seen = f"{folder} (TMPDIR) {what}" if variable else f"{folder} {what}"
        yield limited(name, seen, means, "export TMPDIR=/a/local/folder")
        return
    yield assess_spool(
        folder, file_system_of(folder, surroundings.proc), shutil.disk_usage(folder).free
    )


def assess_spool(folder: Path, file_system: str, free_bytes: int) -> Finding:
    """Whether a writable folder is suitable for recordings."""
    name, seen = "spool folder", f"{folder} on {file_system}, {free_bytes / 1e9:.1f} GB free"
    if is_shared(file_system):
        means = (
            "a recording over the network slows the job down, and loses data that a killed process"
            " had not written back"
        )
        return limited(
            name,
            seen,
            means,
            "export TMPDIR=/a/local/folder, such as /dev/shm or the node's own disk",
        )
    if free_bytes < _SPOOL_BYTES:
        means = (
            "a long recording may fill it; events that cannot be stored are counted and reported"
        )
        return limited(name, seen, means, "export TMPDIR=/a/folder/with/space")
    return ok(
        name,
        seen,
        "there is space for recordings, local to this host"
        + (", in memory" if is_in_memory(file_system) else ""),
    )
