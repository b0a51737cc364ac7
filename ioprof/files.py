"""Writing a file whole or not at all, checking before that it can be written, reading small files
of strangers, and holes of files: blocks that were given back and read as zeros (man fallocate,
FALLOC_FL_PUNCH_HOLE).
"""

import ctypes
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError

DESCRIPTION_BYTES: Final = 256 << 20
"""No run.json, summary.json or job.json is larger: one of 1,000 ranks has 2 MB."""
_KEEP_SIZE_AND_PUNCH_HOLE: Final = 1 | 2  # <linux/falloc.h>


def open_regular_file(path: Path) -> BufferedReader:
    """A file that somebody else may have made, to be read. OSError for what is no regular file: a
    pipe would block.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return open(descriptor, "rb")


def read_regular_file(path: Path, most_bytes: int = DESCRIPTION_BYTES) -> bytes:
    """The content of a file that somebody else may have made. OSError for what is no regular file,
    or has more than `most_bytes`.

    A link to /dev/zero, for example, never ends.
    """
    with open_regular_file(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes >> 20} MiB", str(path))
    return content


def read_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file that somebody else may have made; None: there is none, or it cannot
    be read.
    """
    try:
        found = json.loads(read_regular_file(path))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def replaced_file(path: Path, *, synced: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; what the block writes there becomes `path` by
    rename when the block ends.

    A file that is there is replaced. If the block raises, `path` stays as it was and the temporary
    file is removed; a process that is killed leaves it, named `.NAME.PID.tmp`. `synced` waits until
    data and name are on stable storage, so that the file is whole after a power cut, too.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if synced:
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        sync(path.parent)


def write_atomically(path: Path, content: str | bytes, *, synced: bool = False) -> None:
    """Write `content` (text as UTF-8) to `path`, whole or not at all; see `replaced_file`."""
    with replaced_file(path, synced=synced) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Ioprof's folder in the user's cache folder (XDG_CACHE_HOME, else ~/.cache); it need not be
    there. RuntimeError: no home.
    """
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ioprof"


def make_folders(path: Path) -> None:
    """Make a folder, and those above it that are not there. Path.mkdir calls itself for each level,
    of which 1,000 can be.
    """
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)


def remove_own(folder: Path, is_own: Callable[[str], object]) -> list[str]:
    """Remove files and links below a folder of whose paths in it `is_own` is true, then each folder
    that is empty by that.

    No link is followed. Returns the paths in the folder of what stays.
    """
    left: list[str] = []
    emptied: set[str] = set()
    for place, folders, names, descriptor in os.fwalk(folder, topdown=False):
        for name in (*names, *folders):  # a link to a folder is one of the folders
            path = os.path.relpath(f"{place}/{name}", folder)
            try:
                if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    if path not in emptied:
                        left.append(path)
                        continue
                    os.rmdir(name, dir_fd=descriptor)
                elif is_own(path):
                    os.unlink(name, dir_fd=descriptor)
                else:
                    left.append(path)
                    continue
            except OSError:
                left.append(path)
                continue
            emptied.add(os.path.relpath(place, folder))
    if not left:
        with suppress(OSError):
            folder.rmdir()
    return left


def check_new_file(path: Path, force: bool, example: str, option: str = "") -> None:
    """CommandError unless a file can be written to `path` later on; one that is there only with
    `force`.

    `example` is a file's name, and `option` the option that the path was given with, if any:
    `--html`.
    """
    given = f"{option} " if option else ""
    if path.is_dir():
        raise CommandError(
            f"{given}{path}: is a folder; name a file in it: {given}{path / example}"
        )
    if not path.parent.is_dir():
        raise CommandError(
            f"{given}{path}: there is no folder {path.parent}; make it first: mkdir -p"
            f" {path.parent}"
        )
    if os.path.lexists(path) and not force:  # also a link to nothing
        raise CommandError(
            f"{given}{path}: is there already; replace it with --force or choose another name"
        )


def sync(path: Path) -> None:
    """Wait until a file's data, or the names in a folder, are on stable storage (man 2 fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Give back the blocks that lie wholly in this part of a file; all of it reads as zeros then.
    The file keeps its size.

    Raises OSError: EOPNOTSUPP where the file system cannot.
    """
    library = ctypes.CDLL(None, use_errno=True)
    places = (ctypes.c_longlong(offset), ctypes.c_longlong(length))
    if library.fallocate(descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, *places):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def data_parts(descriptor: int, start: int, unit: int) -> Iterator[tuple[int, int]]:
    """The parts of a file from `start` on that are no holes, begin and end; rounded outward to
    units, which count from `start`.

    Where the file system knows no holes that is one part (man lseek, SEEK_DATA).
    """
    end = os.fstat(descriptor).st_size
    while start < end:
        try:
            data = os.lseek(descriptor, start, os.SEEK_DATA)
            hole = os.lseek(descriptor, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is only a hole up to the end
                return
            data, hole = start, end
        first = start + (data - start) // unit * unit
        last = min(end, start - (start - hole) // unit * unit)
        yield first, last
        start = max(last, first + unit)
