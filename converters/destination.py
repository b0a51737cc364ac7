"""The folder that a job writes: there whole or not at all."""

import contextlib
import ctypes
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from ioprof.dataset import MANIFEST_NAME, is_plain_name, sync_folder
from ioprof.errors import CommandError

SYNTHETIC_NAME = "synthetic.json"
"""Lies in a folder that `generate` made; with a dataset's manifest, what says that ioprof made a folder and may replace it."""


def checked_destination(path: Path, force: bool) -> Path:
    """The absolute path of the folder to make; raises `CommandError` if something is there that may not be replaced."""
    destination = Path(os.path.realpath(path))
    if not is_plain_name(destination.name) or not str(destination).isprintable():
        raise CommandError(f"{path}: no folder of this name can be made (the root, a control character, or no UTF-8)")
    try:
        occupied = os.path.lexists(destination) and not _is_empty_folder(destination)
        ours = occupied and any((destination / name).is_file() for name in (MANIFEST_NAME, SYNTHETIC_NAME))
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})") from None
    if occupied and not ours:
        raise CommandError(f"{path}: exists, and ioprof did not make it; give another place, or remove it yourself")
    if occupied and not force:
        raise CommandError(f"{path}: exists; replace it with --force")
    _check_parent(destination)
    return destination


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
def new_folder(destination: Path) -> Iterator[Path]:
    """A hidden folder beside `destination`, renamed to it when the block ends well and removed when it does not.

    What stood at `destination` is removed only after the new folder has taken its place. SIGKILL leaves the hidden folder behind,
    named `.NAME.partial-PID`; nothing ever takes it for a result, and it can be removed by hand.
    """
    missing = [parent for parent in destination.parents if not parent.exists()]
    partial = destination.with_name(f".{destination.name}.partial-{os.getpid()}")
    with _terminate_like_interrupt():
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            yield partial
            _replace(destination, partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty: someone else uses it by now
                for parent in missing:
                    parent.rmdir()
            raise


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    # A batch system ends a job by SIGTERM and, some seconds later, SIGKILL: time enough to remove what is half made.
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def sync_file_system(folder: Path) -> None:
    """Wait until everything on the file system of `folder` is on stable storage, whatever the number of files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def _replace(destination: Path, partial: Path) -> None:
    # A folder cannot be renamed over one that is not empty, so for a moment neither bears the name; both are whole all the time.
    old = destination.with_name(f".{destination.name}.replaced-{os.getpid()}")
    replacing = os.path.lexists(destination)
    if replacing:
        destination.rename(old)
    try:
        partial.rename(destination)
    except BaseException:
        if replacing:
            old.rename(destination)
        raise
    sync_folder(destination.parent)
    if replacing:
        shutil.rmtree(old, ignore_errors=True)


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
