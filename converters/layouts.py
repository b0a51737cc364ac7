"""How records are laid out on disk. Each layout is a writer that is given the records in order."""

import contextlib
import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import lmdb

from ioprof.dataset import ImageFormat
from ioprof.tensorprotos import Shape, encode_image


@dataclass(frozen=True)
class Target:
    """What a layout writes to."""

    folder: Path
    split: str
    image: ImageFormat
    wnids: tuple[str, ...]
    """Of all classes, in the order of their labels."""


@dataclass(frozen=True)
class Record:
    """One sample as every layout stores it."""

    number: int
    """Its place in the order of the dataset."""
    wnid: str
    name: str
    """Of its file, unique within its class."""
    label: int
    data: bytes


class Layout(Protocol):
    """A writer of records, used as a context manager; leaving it without `finish` leaves what was written as it is."""

    def __init__(self, target: Target) -> None: ...

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError when it cannot."""

    def finish(self) -> None:
        """All records have been added: bring them to the file system."""

    def __enter__(self) -> "Layout": ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class FilesLayout:
    """A file per record in class folders, and the index in order."""

    def __init__(self, target: Target) -> None:
        self._folder, self._split = target.folder, target.split
        # All classes, also those that a limit leaves empty: tools that number the folders must find the same labels.
        for wnid in target.wnids:
            (target.folder / target.split / wnid).mkdir(parents=True)
        self._index = (target.folder / f"{target.split}.txt").open("x", encoding="utf-8", newline="\n")

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError when it cannot."""
        path = f"{self._split}/{record.wnid}/{record.name}"
        with open(os.path.join(self._folder, path), "xb", buffering=0) as stream:
            _write_all(stream.fileno(), record.data)
        self._index.write(f"{path} {record.label}\n")

    def finish(self) -> None:
        """All records have been added: bring them to the file system."""
        self._index.flush()

    def __enter__(self) -> "FilesLayout":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a full disk has been reported by `finish` already
            self._index.close()


class LmdbLayout:
    """One LMDB environment, appended in key order, so that the order of the records is the order of the file.

    Values above 2 KB lie in pages of their own; the file ends with its last page, and is no larger than what it holds.
    """

    def __init__(self, target: Target) -> None:
        size = target.image.size if target.image.encoding == "raw" else None
        self._shape: Shape | None = (size, size, 3) if size else None
        path = target.folder / target.split
        path.mkdir()
        # lock=False: no lock.mdb is left in the dataset. sync=False: the whole file system is synced at the end, once.
        try:
            self._environment = lmdb.open(os.fspath(path), map_size=_FIRST_MAP_BYTES, lock=False, sync=False, metasync=False)
        except lmdb.Error as error:
            raise _no_map(_FIRST_MAP_BYTES, error) from error
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError when it cannot."""
        if record.number >= _MAX_RECORDS:
            raise OSError(f"an LMDB of more than {_MAX_RECORDS} records would not be in key order")
        value = encode_image(record.data, record.label, self._shape)
        self._batch.append((f"{record.number:08d}_{record.name}".encode(), value))
        self._batch_bytes += len(value)
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_RECORDS:
            self._commit()

    def finish(self) -> None:
        """All records have been added: bring them to the file system."""
        self._commit()
        try:
            self._environment.sync(True)
        except lmdb.Error as error:
            raise self._as_os_error(error) from error

    def _commit(self) -> None:
        while not self._committed():
            self._enlarge(2 * self._environment.info()["map_size"])
        self._batch, self._batch_bytes = [], 0

    def _enlarge(self, size: int) -> None:
        try:
            self._environment.set_mapsize(size)
        except lmdb.Error as error:
            raise _no_map(size, error) from error

    def _committed(self) -> bool:
        # The map is only address space, but it has to hold the batch; LMDB drops the whole transaction when it does not.
        try:
            with self._environment.begin(write=True) as transaction:
                for key, value in self._batch:
                    transaction.put(key, value, append=True)
        except lmdb.MapFullError:
            return False
        except lmdb.Error as error:
            raise self._as_os_error(error) from error
        return True

    def _as_os_error(self, error: lmdb.Error) -> OSError:
        # LMDB calls the short write of a disk that is nearly full an input/output error (mdb_page_flush, "filesystem full?").
        if shutil.disk_usage(self._environment.path()).free < self._batch_bytes:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return OSError(str(error))

    def __enter__(self) -> "LmdbLayout":
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.close()


def _no_map(size: int, error: lmdb.Error) -> OSError:
    return OSError(f"no LMDB map of {size} bytes: {error}; where address space is limited: ulimit -v unlimited")


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):  # a disk that fills up takes a part and refuses the next
        written += os.write(descriptor, data[written:])


_FIRST_MAP_BYTES: Final = 1 << 28
_BATCH_BYTES: Final = 1 << 22  # 32 MB took three times the processor time per record: its pages leave the caches and the heap
_BATCH_RECORDS: Final = 1000
_MAX_RECORDS: Final = 10**8

LAYOUTS: Final[dict[str, type[Any]]] = {"files": FilesLayout, "lmdb": LmdbLayout}
"""Name on the command line and in the manifest → its writer, a `Layout`."""
