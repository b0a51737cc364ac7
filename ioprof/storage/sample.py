"""A file to try things on: the path itself, or one in the folder."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ioprof.storage.kernel_text import Unknown, refusal

_LOOKED_AT: Final = 64  # entries, over all folders: on a shared file system each is a request to a server
_OF_FOLDER: Final = 16
_FAR: Final = 1 << 62


def sample_of(path: Path, status: os.stat_result) -> Path | None:
    """The path itself if it is a file, else the largest of the first files at or below the folder, on the same device; readable."""
    if stat.S_ISREG(status.st_mode):
        return path if os.access(path, os.R_OK) else None
    if not stat.S_ISDIR(status.st_mode):
        return None
    found = [(size, name) for size, name in _files(path, status.st_dev) if os.access(name, os.R_OK)]
    return Path(max(found)[1]) if found else None


def answers_nowait(path: Path) -> bool | Unknown:
    """Whether preadv2(RWF_NOWAIT) is answered for that file; reads nothing.

    It asks far behind the file's end: the flag is looked at first. Within the file, 6.18 would begin to read what it refuses.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return Unknown("this build of Python has no RWF_NOWAIT")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return refusal(error, path)
    try:
        os.preadv(descriptor, [bytearray(1)], _FAR, os.RWF_NOWAIT)
    except BlockingIOError:
        return True  # the answer that it would have to wait
    except OSError as error:
        return False if error.errno == errno.EOPNOTSUPP else refusal(error, path)
    finally:
        os.close(descriptor)
    return True


def _files(folder: Path, device: int) -> Iterator[tuple[int, str]]:
    """Sizes and paths, a few of each folder, and folders in folders first: a tree of a thousand classes has no file at its top."""
    left, folders = _LOOKED_AT, [os.fspath(folder)]
    while folders and left > 0:
        entries = _entries(folders.pop(), min(left, _OF_FOLDER))
        left -= len(entries) + 1
        for entry in entries:
            with suppress(OSError):  # gone meanwhile, or in a folder that may be listed and not entered
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False) and (status := entry.stat()).st_dev == device:
                    yield status.st_size, entry.path


def _entries(folder: str, most: int) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(most), strict=False)]
    except OSError:
        return []
