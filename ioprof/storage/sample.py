"""A sample file of a path, for trying what its file system supports: the path itself, or a file in
the folder.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ioprof.storage.kernel_text import Unknown, refusal

_MAX_ENTRIES: Final = 64  # over all folders: on a shared file system each is a request to a server
_MAX_FOLDER_ENTRIES: Final = 16
_FAR_OFFSET: Final = 1 << 62


def first_entries(folder: str, most: int) -> list["os.DirEntry[str]"]:
    """The first `most` entries of a folder; empty where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(most), strict=False)]
    except OSError:
        return []


List = Callable[[str, int], list["os.DirEntry[str]"]]


def sample_of(
    path: Path, status: os.stat_result, list_entries: List = first_entries
) -> Path | None:
    """The path itself if it is a file, otherwise the largest of the first files in or below the
    folder, on the same device.

    None where no file can be read.
    """
    if stat.S_ISREG(status.st_mode):
        return path if os.access(path, os.R_OK) else None
    if not stat.S_ISDIR(status.st_mode):
        return None
    found = [
        (size, name)
        for size, name in _files(path, status.st_dev, list_entries)
        if os.access(name, os.R_OK)
    ]
    return Path(max(found)[1]) if found else None


def answers_nowait(path: Path) -> bool | Unknown:
    """Whether the file system of that file supports preadv2(RWF_NOWAIT); reads nothing.

    The read is far beyond the end of the file, which suffices: the flag is checked first. Within
    the file, Linux 6.18 would start to fetch uncached pages.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return Unknown("this build of Python has no RWF_NOWAIT")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return refusal(error, path)
    try:
        os.preadv(descriptor, [bytearray(1)], _FAR_OFFSET, os.RWF_NOWAIT)
    except BlockingIOError:
        return True  # supported: the read would have to wait
    except OSError as error:
        return False if error.errno == errno.EOPNOTSUPP else refusal(error, path)
    finally:
        os.close(descriptor)
    return True


def _files(folder: Path, device: int, list_entries: List) -> Iterator[tuple[int, str]]:
    """Sizes and paths, a few per folder, depth first: a tree of a thousand classes has no file at
    its top.
    """
    left, folders = _MAX_ENTRIES, [os.fspath(folder)]
    while folders and left > 0:
        entries = list_entries(folders.pop(), min(left, _MAX_FOLDER_ENTRIES))
        left -= len(entries) + 1
        for entry in entries:
            # removed meanwhile, or in a folder that may be listed but not searched
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif (
                    entry.is_file(follow_symlinks=False)
                    and (status := entry.stat()).st_dev == device
                ):
                    yield status.st_size, entry.path
