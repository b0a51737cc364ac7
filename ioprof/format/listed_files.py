"""The files of other programs that an `indexed` dataset lists: each as it was when its records were
listed.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.errors import DatasetError

KINDS: Final = ("file", "tfrecord", "recordio", "lmdb")
"""How a record's bytes hold its image: keys of `foreign.values.VALUES`."""

_MAX_FILES_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Stamp:
    """A file as it was when it was listed."""

    path: str
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: str) -> "Stamp":
        """The file as it is now; raises OSError."""
        status = os.stat(path)
        return cls(path, status.st_size, status.st_mtime_ns)


def read_files(path: Path) -> tuple[str, list[Stamp]]:
    """Kind of the records and files of an `indexed` dataset; raises `DatasetError`."""
    try:
        if path.stat().st_size > _MAX_FILES_BYTES:
            raise DatasetError(
                f"{path}: too large for a list of files; remove the folder, and it is made again"
            )
        keys: Any = json.loads(path.read_bytes())
        kind, files = (
            keys["kind"],
            [
                Stamp(str(name), int(size), int(modified_ns))
                for name, size, modified_ns in keys["files"]
            ],
        )
    except OSError as error:
        raise DatasetError(
            f"{path}: cannot be read ({error.strerror}); remove the folder, and it is made again"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DatasetError(
            f"{path}: not a list of files; remove the folder, and it is made again"
        ) from None
    if kind not in KINDS:
        raise DatasetError(
            f"{path}: the kind {str(kind)[:40]!r} is not known; remove the folder, and it is made"
            " again"
        )
    return kind, files
