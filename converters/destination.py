"""The folder that a job writes: there whole or not at all."""

import contextlib
import ctypes
import errno
import json
import os
import secrets
import shutil
import signal
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from ioprof.dataset import MANIFEST_NAME, is_plain_name, sync_folder
from ioprof.errors import CommandError
from ioprof.schema import DATASET_SCHEMA

SYNTHETIC_NAME: Final = "synthetic.json"
"""Lies in a folder that `generate` made; with a dataset's manifest, what says that ioprof made a folder and may replace it."""

SYNTHETIC_SCHEMA: Final = "ioprof.synthetic/1"

PART_NAME: Final = "part.json"
"""Lies in a folder that holds a part of a dataset."""

PART_SCHEMA: Final = "ioprof.part/1"

_SCHEMAS: Final = {MANIFEST_NAME: DATASET_SCHEMA, SYNTHETIC_NAME: SYNTHETIC_SCHEMA, PART_NAME: PART_SCHEMA}
SPACE_MARGIN: Final = 1.05
"""How much more than was estimated there has to be."""

_MAX_MANIFEST_BYTES: Final = 1 << 28
_SHOWN_NAME_BYTES: Final = 150  # of a destination, in the name of its half-made folder, which is to have at most 255
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AT_FDCWD: Final = -100  # <fcntl.h>
_RENAME_NOREPLACE: Final = 1  # <linux/fs.h>
_RENAME_EXCHANGE: Final = 2
_OCCUPIED: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_NO_RENAMEAT2: Final = (errno.ENOSYS, errno.EINVAL)  # an old kernel; a file system without it (NFS, some FUSE)


def checked_destination(path: Path, force: bool) -> Path:
    """The absolute path of the folder to make; raises `CommandError` if something is there that may not be replaced."""
    destination = Path(os.path.realpath(path))
    if not is_plain_name(destination.name) or not str(destination).isprintable():
        raise CommandError(f"{path}: no folder of this name can be made (the root, a control character, or no UTF-8)")
    if os.path.ismount(destination):
        raise CommandError(f"{path}: is a mount point, which cannot be replaced; give a folder inside it: {path}/dataset")
    try:
        occupied = os.path.lexists(destination) and not _is_empty_folder(destination)
        ours = occupied and _is_ours(destination)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})") from None
    if occupied and not ours:
        raise CommandError(f"{path}: exists, and ioprof did not make it; give another place, or remove it yourself")
    if occupied and not force:
        raise CommandError(f"{path}: exists; replace it with --force")
    _check_parent(destination)
    return destination


def leftovers(destination: Path) -> list[Path]:
    """Half-made folders for `destination` whose job was killed, or runs on another host; not those at work on this one."""
    prefix = _partial_prefix(destination)
    try:
        names = sorted(name for name in os.listdir(destination.parent) if name.startswith(prefix) and name.isprintable())
    except OSError:  # not made yet
        return []
    return [destination.with_name(name) for name in names if not _is_at_work(name.removeprefix(prefix))]


def require_space(destination: Path, needed_bytes: int, needed_files: int) -> None:
    """Raise `CommandError` when the file system of `destination` has not that much room."""
    place = _existing_parent(destination)
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    if needed_bytes > free:
        raise CommandError(
            f"{destination}: needs about {needed_bytes / 1e9:.3f} GB, {place} has {free / 1e9:.3f} GB free; "
            "give another place, or fewer images",
            exit_code=1,
        )
    if status.f_files and needed_files > status.f_favail:  # some file systems have no fixed number of inodes, and report 0
        raise CommandError(
            f"{destination}: needs {needed_files} files, {place} has inodes for {status.f_favail}; use --layout lmdb", exit_code=1
        )


@contextlib.contextmanager
def new_folder(destination: Path, force: bool = False) -> Iterator[Path]:
    """A hidden folder beside `destination`, renamed to it when the block ends well and removed when it does not.

    With `force`, what ioprof made and stands at `destination` by then is removed after the new folder has taken its place; nothing
    else is ever replaced. SIGKILL leaves the hidden folder behind, named `.NAME.partial-HOST-PID-RANDOM`; see `leftovers`. Raises
    `CommandError` for a full disk or memory, whichever part of the job met it.
    """
    try:
        with end_like_interrupt(), _half_made(destination) as partial:
            yield partial
            put_in_place(partial, destination, force)
    except OSError as error:
        what = error.strerror or str(error)
        raise CommandError(f"{destination}: cannot be written ({what}); nothing was left behind", exit_code=1) from error
    except MemoryError as error:
        raise CommandError("out of memory; use fewer --workers; nothing was left behind", exit_code=1) from error


@contextlib.contextmanager
def _half_made(destination: Path) -> Iterator[Path]:
    missing = [parent for parent in destination.parents if not parent.exists()]
    suffix = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
    partial = destination.with_name(_partial_prefix(destination) + suffix)  # not mkdtemp: its folders are for their owner only
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        yield partial
        shutil.rmtree(partial, ignore_errors=True)  # where the new one has taken a place, this is the old one
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: someone else uses it by now
            for parent in missing:
                parent.rmdir()
        raise


@contextlib.contextmanager
def end_like_interrupt() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP end the job as Ctrl-C does.

    A batch system ends a job by SIGTERM and, some seconds later, SIGKILL, and a lost connection by SIGHUP: time enough to leave
    things in order. A signal that is ignored (nohup) stays so.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def sync_file_system(folder: Path) -> None:
    """Wait until everything on the file system of `folder` is on stable storage, whatever the number of files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------ into place


def put_in_place(partial: Path, destination: Path, force: bool) -> None:
    """Rename `partial` to `destination`; afterwards it is gone or, with `force`, what stood at the destination before."""
    with _signals_wait():
        try:
            _move(partial, destination)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            if not force or not _is_ours(destination):
                raise _appeared(destination, force) from None
            _exchange(partial, destination)
            if not _is_ours(partial):  # between the last look and the exchange
                _exchange(partial, destination)
                raise _appeared(destination, force) from None
    try:
        sync_folder(destination.parent)
    except OSError as error:
        why = f"{destination.parent} could not be synced ({error.strerror})"
        raise CommandError(f"{destination}: is whole and in its place, but {why}: a power cut may undo it", exit_code=1) from error


def _appeared(destination: Path, force: bool) -> CommandError:
    todo = "give another place" if force else "give another place, or --force if ioprof made it"
    return CommandError(f"{destination}: appeared while the work was done, and was left as it is; {todo}", exit_code=1)


def _move(partial: Path, destination: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        destination.rmdir()  # an empty folder may be filled; any other refuses
    try:
        _renameat2(partial, destination, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _NO_RENAMEAT2:
            raise
        partial.rename(destination)  # refuses a folder that is not empty, and a file


def _exchange(partial: Path, destination: Path) -> None:
    try:
        _renameat2(partial, destination, _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in _NO_RENAMEAT2:
            raise
        _exchange_in_steps(partial, destination)


def _exchange_in_steps(partial: Path, destination: Path) -> None:
    # For a moment neither bears the name; both are whole all the time, and no signal comes between.
    # Under a name that is no leftover to remove, should SIGKILL come now.
    aside = partial.with_name(f"{partial.name.replace('.partial-', '.replacing-')}.replaced")
    destination.rename(aside)
    try:
        partial.rename(destination)
    except BaseException:
        aside.rename(destination)
        raise
    aside.rename(partial)


def _renameat2(old: Path, new: Path, flags: int) -> None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # glibc before 2.28
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(new))


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    # Not pthread_sigmask: it holds for one thread, and a signal that another thread takes would be raised in this one all the same.
    waiting: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        waiting.append(number)

    main = threading.current_thread() is threading.main_thread()
    before = {int(number): handler for number in _ENDING if main and callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in waiting[:1]:
        signal.raise_signal(number)


# ------------------------------------------------------------------------------------------------ what is there


def partial_name(destination: Path) -> str:
    """Of the hidden folder beside `destination` that becomes it."""
    shown = destination.name.encode()[:_SHOWN_NAME_BYTES].decode(errors="ignore")
    rest = destination.name[len(shown) :]
    return f".{shown}{f'~{zlib.crc32(rest.encode()):08x}' if rest else ''}.partial"


def _partial_prefix(destination: Path) -> str:
    return partial_name(destination) + "-"


def _is_at_work(suffix: str) -> bool:
    host, _, rest = suffix.rpartition("-")[0].rpartition("-")
    return host == os.uname().nodename and Path(f"/proc/{rest}").exists()


def _is_ours(folder: Path) -> bool:
    return any(_schema(folder / name) == schema for name, schema in _SCHEMAS.items())


def _schema(manifest: Path) -> object:
    if not manifest.is_file() or manifest.stat().st_size > _MAX_MANIFEST_BYTES:
        return None
    try:
        keys = json.loads(manifest.read_bytes())
    except (ValueError, RecursionError):
        return None
    return keys.get("schema") if isinstance(keys, dict) else None


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.parents if os.path.lexists(parent))


def _check_parent(destination: Path) -> None:
    parent = _existing_parent(destination)
    if not parent.is_dir():
        raise CommandError(f"{destination}: {parent} is not a folder; give another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CommandError(f"{destination}: {parent} cannot be written; give another place")


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not os.listdir(path)
