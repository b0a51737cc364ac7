"""Folders: where the data is, and where a recording is kept while the job runs."""

import ctypes
import errno
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.doctor.finding import Finding, Surroundings, limited, missing, ok, untried
from ioprof.file_systems import is_in_memory, is_shared, keeps_own_books

_CACHESTAT: Final = 451  # the same on every architecture since 6.5 (asm-generic/unistd.h)
_SPOOL_BYTES: Final = 1 << 30
_LOOKED_AT: Final = 200  # entries of a folder, to find one file in it
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True)
class Mount:
    """The mount that a path is on."""

    point: str
    file_system: str
    source: str


def mount_of(path: Path, proc: Path = Path("/proc")) -> Mount:
    """The mount of an existing path, by its number, which bind mounts and subvolumes cannot confuse (man proc_pid_fdinfo)."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        info = (proc / f"self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    number = next(line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:"))
    for line in (proc / "self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if fields[0] == number:
            return Mount(fields[4].encode().decode("unicode_escape"), rest[0], rest[1] if len(rest) > 1 else "")
    raise ValueError(f"{path}: its mount {number} is not in {proc}/self/mountinfo")


def read_sources(surroundings: Surroundings) -> Iterator[Finding]:
    """For every path: whether a read can be told to have come from storage or from the page cache."""
    for path in surroundings.paths:
        name = f"read sources of {path}"
        try:
            yield _read_source(name, path, mount_of(path, surroundings.proc))
        except (OSError, ValueError) as error:  # such as a mount that went away: the other paths are still there
            yield untried(name, error)


def _read_source(name: str, path: Path, mount: Mount) -> Finding:
    kind = mount.file_system
    if is_in_memory(kind):
        return ok(name, f"{kind}: files are in memory", "its reads are page cache, all of them")
    refused = _refusal(path, _try_nowait)
    if not refused:
        return ok(name, f"{kind} answers RWF_NOWAIT", "each read is told to be storage or page cache, exactly")
    seen = f"{kind}: RWF_NOWAIT: {refused}"
    if keeps_own_books(kind):
        means = "reads are timed, and their source is unknown: this file system shows neither blocks nor cached pages"
        return limited(name, seen, means, f"no setting allows it; a copy on ext4, xfs or btrfs does: cp -r {path} FOLDER")
    means = "a read is told to be storage or page cache by the thread's own counters; reads that met another's read stay unknown"
    return limited(name, seen, means, f"no setting allows it; a copy on ext4, xfs or btrfs does: cp -r {path} FOLDER")


def residency(surroundings: Surroundings) -> Iterator[Finding]:
    """For every path: whether it can be asked how much of a file is in the page cache."""
    for path in surroundings.paths:
        name = f"cached share of {path}"
        refused = _refusal(path, _try_cachestat)
        means = "how much of a dataset is cached before a run cannot be said"
        if not refused:
            yield ok(name, "cachestat(2) answers", "how much of a file is cached can be said before a run")
        elif refused == os.strerror(errno.ENOSYS):
            yield missing(name, f"cachestat(2): {refused}", means, "Linux 6.5 or newer")
        elif refused == os.strerror(errno.EPERM):
            seen = f"cachestat(2): {refused}: the file belongs to another user"
            yield missing(name, seen, means, f"run ioprof as the owner of the files: stat -c %U {path}")
        else:
            yield missing(name, f"cachestat(2): {refused}", means, f"name a file that you can read: ioprof doctor {path / 'FILE'}")


def _refusal(path: Path, attempt: Callable[[int], str]) -> str:
    """Why it is not possible on a file at, or directly below, `path`; "" if it is."""
    try:
        with _file_at(path) as descriptor:
            return attempt(descriptor)
    except OSError as error:
        return error.strerror or str(error)


@contextmanager
def _file_at(path: Path) -> Iterator[int]:
    """A descriptor of a file that is there, or of a nameless one that is gone again when the block ends."""
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
        few = [entry for entry, _ in zip(entries, range(_LOOKED_AT), strict=False)]
    for entry in few:
        with suppress(FileNotFoundError):  # whoever uses the folder may have removed it meanwhile
            if entry.is_file(follow_symlinks=False) and entry.stat().st_size and os.access(entry.path, os.R_OK):
                return os.open(entry.path, _READ)
    return _nameless_in(folder)


def _nameless_in(folder: Path) -> int:
    descriptor, path = tempfile.mkstemp(prefix=".ioprof-doctor-", dir=folder)
    Path(path).unlink()
    os.write(descriptor, b"ioprof")
    return descriptor


def _try_nowait(descriptor: int) -> str:
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return ""  # the answer that it has to be read first
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def _try_cachestat(descriptor: int) -> str:
    whole_file, result = struct.pack("=QQ", 0, 0), ctypes.create_string_buffer(40)
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.syscall(ctypes.c_long(_CACHESTAT), descriptor, ctypes.c_char_p(whole_file), result, 0)
    return os.strerror(ctypes.get_errno()) if failed else ""


def spool_folder(surroundings: Surroundings) -> Iterator[Finding]:
    """Where a recording is kept while the job runs: it has to be this host's own, and have room."""
    name, asked = "spool folder", surroundings.environment.get("TMPDIR")
    folder = Path(asked or "/tmp")  # noqa: S108  where Python looks next, and where a recording would go
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "is no folder" if not folder.is_dir() else "cannot be written"
        means = "Python passes it over in silence for another folder; the recording may go where there is no room"
        yield limited(name, f"{folder} (TMPDIR) {what}" if asked else f"{folder} {what}", means, "export TMPDIR=/a/local/folder")
        return
    mount, free = mount_of(folder, surroundings.proc), shutil.disk_usage(folder).free
    seen = f"{folder} on {mount.file_system}, {free / 1e9:.1f} GB free"
    if is_shared(mount.file_system):
        means = "a recording over the network slows the job down, and loses what a killed process had not written back"
        yield limited(name, seen, means, "export TMPDIR=/a/local/folder, such as /dev/shm or the node's own disk")
    elif free < _SPOOL_BYTES:
        yield limited(
            name, seen, "a long recording may fill it; what found no room is counted and named", "export TMPDIR=/a/folder/with/room"
        )
    else:
        yield ok(
            name,
            seen,
            "there is room for recordings, on this host" + (", in its memory" if is_in_memory(mount.file_system) else ""),
        )
