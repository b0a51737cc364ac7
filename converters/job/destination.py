"""The folder that a job writes: it appears complete, by rename, or not at all."""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from ioprof.converters.manifests import SCHEMAS, SYNTHETIC_NAME, SYNTHETIC_SCHEMA
from ioprof.errors import CommandError
from ioprof.files import make_folders, read_json_object, sync
from ioprof.format.dataset import is_plain_name

SPACE_MARGIN: Final = 1.05
"""Required free space / estimated size."""

_OWN_NAMES: Final = r"(dataset|synthetic|part|staged)\.json|journal|synset_words\.txt|label_table\.ssv|ILSVRC2012_\w+\.tar|data|\..+\.\d+\.tmp"  # noqa: E501
"""In a folder that ioprof made, beside what has the name of its split (`converters/layouts`,
`generation.py`, `parts.py`)."""
_CLASS: Final = r"n\d{8}"
"""In a tree that `generate` made: the folder of a class."""
_MAX_KEPT_NAME_BYTES: Final = (
    150  # of the destination's name in that of its partial folder, which may have at most 255 bytes
)
_DEFERRED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AT_FDCWD: Final = -100  # <fcntl.h>
_RENAME_NOREPLACE: Final = 1  # <linux/fs.h>
_RENAME_EXCHANGE: Final = 2
_OCCUPIED: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# an old kernel; a file system without it (NFS, some FUSE)
_NO_RENAMEAT2: Final = (
    errno.ENOSYS,
    errno.EINVAL,
)


def check_destination(path: Path, force: bool) -> Path:
    """The absolute path of the folder to create; raises `CommandError` if something exists there
    that may not be replaced.
    """
    destination = Path(os.path.realpath(path))
    if not is_plain_name(destination.name) or not str(destination).isprintable():
        raise CommandError(
            f"{path}: not a valid name for a folder (the root, a control character, or no UTF-8);"
            " give another"
        )
    if os.path.ismount(destination):
        raise CommandError(
            f"{path}: is a mount point, which cannot be replaced; give a folder inside it:"
            f" {path}/dataset"
        )
    try:
        occupied = os.path.lexists(destination) and not (
            destination.is_dir() and not os.listdir(destination)
        )
        ours = occupied and _is_ours(destination)
        foreign = _foreign_name(destination) if ours else None
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})") from None
    if occupied and not ours:
        raise CommandError(
            f"{path}: exists, and ioprof did not make it; give another place, or remove it yourself"
        )
    if foreign is not None:
        raise CommandError(
            f"{path}: contains {foreign}, which ioprof did not write; move that, or give another"
            " place"
        )
    if occupied and not force:
        raise CommandError(f"{path}: exists; replace it with --force")
    parent = _existing_parent(destination)
    if not parent.is_dir():
        raise CommandError(f"{destination}: {parent} is not a folder; give another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CommandError(f"{destination}: {parent} cannot be written; give another place")
    return destination


def leftovers(destination: Path) -> list[Path]:
    """Partial folders for `destination` whose job was killed or runs on another host; those of
    running jobs here are excluded.
    """
    prefix = _partial_prefix(destination)
    try:
        names = sorted(
            name
            for name in os.listdir(destination.parent)
            if name.startswith(prefix) and name.isprintable()
        )
    except OSError:  # the parent does not exist yet
        return []
    found = []
    for name in names:
        host, _, pid = name.removeprefix(prefix).rpartition("-")[0].rpartition("-")
        if host != os.uname().nodename or not Path(f"/proc/{pid}").exists():
            found.append(destination.with_name(name))
    return found


def require_space(
    destination: Path,
    needed_bytes: int,
    needed_files: int,
    smaller: str = "give another place, or fewer images",
    fewer_files: str = "use --layout lmdb",
) -> None:
    """Raise `CommandError` when the file system of `destination` has too little free space, with
    how to need less, or too few free inodes, with how to need fewer.
    """
    place = _existing_parent(destination)
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    if needed_bytes > free:
        raise CommandError(
            f"{destination}: needs about {needed_bytes / 1e9:.3f} GB, {place} has {free / 1e9:.3f}"
            f" GB free; {smaller}",
            exit_code=1,
        )
    # some file systems have no fixed number of inodes, and report 0
    if status.f_files and needed_files > status.f_favail:
        raise CommandError(
            f"{destination}: needs {needed_files} files, {place} has inodes for {status.f_favail};"
            f" {fewer_files}",
            exit_code=1,
        )


@contextlib.contextmanager
def new_folder(destination: Path, force: bool = False) -> Iterator[Path]:
    """A hidden folder next to `destination`, renamed to it when the block succeeds and removed when
    it raises.

    With `force`, a folder at `destination` that ioprof made is replaced, and removed afterwards;
    nothing else is ever replaced. SIGKILL leaves the hidden folder behind, named
    `.NAME.partial-HOST-PID-RANDOM`; see `leftovers`. Raises `CommandError` for a full disk or
    exhausted memory anywhere in the block.
    """
    try:
        with termination_as_interrupt(), _partial_folder(destination) as partial:
            yield partial
            put_in_place(partial, destination, force)
    except OSError as error:
        what = error.strerror or str(error)
        raise CommandError(
            f"{destination}: cannot be written ({what}); nothing was left behind", exit_code=1
        ) from error
    except MemoryError as error:
        raise CommandError(
            "out of memory; use fewer --workers; nothing was left behind", exit_code=1
        ) from error


@contextlib.contextmanager
def _partial_folder(destination: Path) -> Iterator[Path]:
    missing = [parent for parent in destination.parents if not parent.exists()]
    suffix = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
    # not mkdtemp: it creates folders with mode 0700
    partial = destination.with_name(_partial_prefix(destination) + suffix)
    try:
        make_folders(destination.parent)
        partial.mkdir()
        yield partial
        shutil.rmtree(partial, ignore_errors=True)  # after an exchange this is the replaced folder
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: another process uses it now
            for parent in missing:
                parent.rmdir()
        raise


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does.

    A batch system ends a job by SIGTERM and, some seconds later, SIGKILL; a lost connection sends
    SIGHUP. The time between is enough to clean up. A signal that is ignored (nohup) stays ignored.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if main and signal.getsignal(number) is signal.SIG_DFL
    ]
    try:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def sync_file_system(folder: Path) -> None:
    """Wait until everything on the file system of `folder` is on stable storage: one call for any
    number of files (syncfs).
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------- renaming


def renameat2(old: Path, new: Path, flags: int) -> None:
    """The system call of that name (man 2 renameat2); raises OSError, with ENOSYS where the C
    library has no such function.
    """
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # glibc before 2.28
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if (
        function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags))
        != 0
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(new))


Rename = Callable[[Path, Path, int], None]


def put_in_place(partial: Path, destination: Path, force: bool, rename: Rename = renameat2) -> None:
    """Rename `partial` to `destination`. With `force` a folder that ioprof made is exchanged:
    afterwards it is at `partial`.

    SIGINT, SIGTERM and SIGHUP are deferred meanwhile. `rename` is `renameat2`; where it fails as on
    a file system without it, two renames are used.
    """
    with _deferred_signals():
        try:
            _move(partial, destination, rename)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            if not force or not _is_ours(destination) or _foreign_name(destination) is not None:
                raise _occupied_error(destination, force) from None
            _exchange(partial, destination, rename)
            if not _is_ours(partial):  # another folder was put there after the check above
                _exchange(partial, destination, rename)
                raise _occupied_error(destination, force) from None
    try:
        sync(destination.parent)
    except OSError as error:
        why = f"{destination.parent} could not be synced ({error.strerror})"
        raise CommandError(
            f"{destination}: is complete, but {why}: a power cut may undo the rename", exit_code=1
        ) from error


def _occupied_error(destination: Path, force: bool) -> CommandError:
    todo = "give another place" if force else "give another place, or --force if ioprof made it"
    return CommandError(
        f"{destination}: appeared during the conversion, and was not replaced; {todo}", exit_code=1
    )


def _move(partial: Path, destination: Path, rename: Rename) -> None:
    with contextlib.suppress(FileNotFoundError):
        destination.rmdir()  # an empty folder is replaced; for any other this raises OSError
    try:
        rename(partial, destination, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _NO_RENAMEAT2:
            raise
        partial.rename(destination)  # raises for a file, and for a folder that is not empty


def _exchange(partial: Path, destination: Path, rename: Rename) -> None:
    try:
        rename(partial, destination, _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in _NO_RENAMEAT2:
            raise
        _exchange_in_steps(partial, destination)


def _exchange_in_steps(partial: Path, destination: Path) -> None:
    # Between the two renames nothing is at `destination`; both folders stay complete, and signals
    # are deferred. The temporary name does not match `leftovers`, so that nobody removes the folder
    # after a SIGKILL here.
    aside = partial.with_name(f"{partial.name.replace('.partial-', '.replacing-')}.replaced")
    destination.rename(aside)
    try:
        partial.rename(destination)
    except BaseException:
        aside.rename(destination)
        raise
    aside.rename(partial)


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    # Not pthread_sigmask: it applies to one thread, and Python runs handlers in this thread also
    # when another received the signal.
    received: list[int] = []

    def record(number: int, _: FrameType | None) -> None:
        received.append(number)

    main = threading.current_thread() is threading.main_thread()
    before = {
        int(number): handler
        for number in _DEFERRED_SIGNALS
        if main and callable(handler := signal.getsignal(number))
    }
    try:
        for number in before:
            signal.signal(number, record)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received[:1]:
        signal.raise_signal(number)


# ----------------------------------------------------------------------- names and existing folders


def partial_name(destination: Path) -> str:
    """The name of the hidden folder next to `destination` that is renamed to it."""
    kept = destination.name.encode()[:_MAX_KEPT_NAME_BYTES].decode(errors="ignore")
    rest = destination.name[len(kept) :]
    return f".{kept}{f'~{zlib.crc32(rest.encode()):08x}' if rest else ''}.partial"


def _partial_prefix(destination: Path) -> str:
    return partial_name(destination) + "-"


def _is_ours(folder: Path) -> bool:
    return any(_read_schema(folder / name) == schema for name, schema in SCHEMAS.items())


def _foreign_name(folder: Path) -> str | None:
    """The first name in a folder which ioprof made that it does not write into such folders."""
    splits = {
        str(keys.get("split"))
        for name in SCHEMAS
        if (keys := read_json_object(folder / name)) is not None
    } | {"train"}
    classes = rf"|{_CLASS}" if _read_schema(folder / SYNTHETIC_NAME) == SYNTHETIC_SCHEMA else ""
    own = re.compile(f"{_OWN_NAMES}{classes}|({'|'.join(map(re.escape, sorted(splits)))})([-.].*)?")
    return next((name for name in sorted(os.listdir(folder)) if not own.fullmatch(name)), None)


def _read_schema(manifest: Path) -> object:
    return (read_json_object(manifest) or {}).get("schema")


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.parents if os.path.lexists(parent))
