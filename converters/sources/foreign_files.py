"""Finding and mapping the files of foreign formats: shards of a split in a folder, an index in
JSON, a file as a buffer.
"""

import json
import mmap
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError, DatasetError
from ioprof.files import read_regular_file

_SYNONYMS: Final = {
    "val": ("val", "validation", "valid"),
    "validation": ("validation", "val", "valid"),
}
_SPLIT_WORDS: Final = ("train", "val", "validation", "valid", "test")
_MAX_INDEX_BYTES: Final = 1 << 28
_MAX_FILES: Final = 10**6
HEAD_BYTES: Final = 4096


def find_shards(path: Path, split: str, suffixes: tuple[str, ...]) -> list[Path]:
    """The file `path`, or the files with one of these suffixes in the folder `path`, its `data`, or
    its folder of the split.

    Where the names of files name splits, only those of `split`; raises `CommandError` if there are
    none.
    """
    if not path.is_dir():
        return [path] if path.name.lower().endswith(suffixes) and path.is_file() else []
    for folder in (path / split, path, path / "data"):
        found = sorted(
            folder / name
            for name in _list(folder)
            if name.lower().endswith(suffixes) and not name.startswith(".")
        )
        found = [file for file in found if file.is_file()]
        if not found:
            continue
        if folder == path / split:
            return found
        of_split = [
            file for file in found if _names_split(file.name, _SYNONYMS.get(split, (split,)))
        ]
        if not of_split and any(_names_split(file.name, _SPLIT_WORDS) for file in found):
            raise CommandError(
                f"{path}: no shard of the split {split} ({found[0].name}, ...); give another with"
                " --split"
            )
        return of_split or found
    return []


def head_of(file: Path) -> bytes:
    """The first bytes of a regular file; none for anything else, or for one that cannot be read."""
    try:
        # a named pipe must not block here
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return (
            os.pread(descriptor, HEAD_BYTES, 0)
            if stat.S_ISREG(os.fstat(descriptor).st_mode)
            else b""
        )
    except OSError:
        return b""
    finally:
        os.close(descriptor)


@contextmanager
def mapped(file: Path) -> Iterator[memoryview]:
    """A file as a buffer: of a large record only the pages are read that are looked at."""
    # a pipe would block
    with open(
        file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    ) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DatasetError(f"{file}: not a regular file")
        if not status.st_size:
            yield memoryview(b"")
            return
        # Not closed here: an exception holds on to parts of it. It goes with its last view.
        yield memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def read_index(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; raises `DatasetError`."""
    try:
        if file.stat().st_size > _MAX_INDEX_BYTES:
            raise DatasetError(
                f"{file}: more than {_MAX_INDEX_BYTES} bytes, too large for an index"
            )
        keys = json.loads(read_regular_file(file, _MAX_INDEX_BYTES))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file}: not JSON ({str(error)[:100]}); get the file again") from None
    if not isinstance(keys, dict):
        raise DatasetError(f"{file}: not a JSON object; get the file again")
    return keys


def inside(folder: Path, name: object, index: Path) -> Path:
    """The file that an index names, in or below its folder; raises `DatasetError` for any other
    place.
    """
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or name.startswith("/")
        or ".." in name.split("/")
        or not name
    ):
        raise DatasetError(
            f"{index}: names the file {str(name)[:80]!r}, which is not below its folder"
        )
    return folder / name


def shown_name(path: Path) -> str:
    """The name of a file or folder, for a description."""
    return path.resolve().name.encode(errors="replace").decode()


def _names_split(name: str, splits: tuple[str, ...]) -> bool:
    return any(
        re.search(rf"(?:^|[^a-z]){re.escape(split.lower())}(?:[^a-z]|$)", name.lower())
        for split in splits
    )


def _list(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    names = os.listdir(folder)
    if len(names) > _MAX_FILES:
        raise DatasetError(f"{folder}: more than {_MAX_FILES} files; give the folder of the shards")
    return names
