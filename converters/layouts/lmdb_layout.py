"""The layout `lmdb`: a single LMDB environment, or one per shard."""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from ioprof.converters.layouts.interface import Record, Target
from ioprof.foreign.tensorprotos import Shape, encode_image
from ioprof.format.dataset import environment_names

_MAX_RECORDS: Final = 10**8


@dataclass(frozen=True)
class LmdbTuning:
    """Sizes of maps and transactions. They change no record, only memory and speed."""

    first_map_bytes: int = 1 << 28
    """Of a new environment; doubled whenever a batch does not fit."""
    batch_bytes: int = 1 << 22
    """Of one transaction. With 32 MB each record took three times the CPU time: the pages no longer
    fit the CPU caches."""
    batch_records: int = 1000


DEFAULT_TUNING: Final = LmdbTuning()


class LmdbLayout:
    """Records are appended in key order, so they have the same order in the file; shards are
    written one after the other.

    Values above 2 KB are stored in overflow pages of their own; the file ends with its last page. A
    commit interrupted by a kill has no effect: LMDB reuses the pages after the last commit.
    """

    def __init__(self, target: Target, start: int = 0, tuning: LmdbTuning = DEFAULT_TUNING) -> None:
        size = target.image.size if target.image.encoding == "raw" else None
        self._shape: Shape | None = (size, size, 3) if size else None
        self._images, self.shards, self._tuning = target.images, target.shards, tuning
        self._folders = [
            target.folder / name for name in environment_names(target.split, target.shards)
        ]
        self._shard = 0
        self._environment = self._open(self._folders[0])
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._durable = int(self._environment.stat()["entries"])
        while self._shard + 1 < len(self._folders) and self._folders[self._shard + 1].exists():
            self._next_shard()
            self._durable += int(self._environment.stat()["entries"])
        if self._durable > start:  # the journal does not list all of them: start again
            self._environment.close()
            for folder in self._folders:
                if folder.exists():
                    shutil.rmtree(folder)
            self._shard = self._durable = 0
            self._environment = self._open(self._folders[0])

    def num_durable(self) -> int:
        """Number of records that are committed."""
        return self._durable

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError on failure."""
        if record.number >= _MAX_RECORDS:
            raise OSError(
                f"an LMDB of more than {_MAX_RECORDS} records is not possible: its keys have 8"
                " digits"
            )
        place = record.number if record.place is None else record.place
        while self.shards and self._shard < min(
            self.shards - 1, place * self.shards // max(1, self._images)
        ):
            self._finish_shard()
            self._next_shard()
        value = encode_image(record.data, record.label, self._shape)
        self._batch.append((f"{record.number:08d}_{record.name}".encode(), value))
        self._batch_bytes += len(value)
        if (
            self._batch_bytes >= self._tuning.batch_bytes
            or len(self._batch) >= self._tuning.batch_records
        ):
            self._commit()

    def finish(self) -> None:
        """Commit the last records; called once all have been added."""
        self._finish_shard()
        # no image of the last shards was good: they stay empty
        while self._shard + 1 < len(self._folders):
            self._next_shard()

    def _finish_shard(self) -> None:
        self._commit()
        try:
            self._environment.sync(True)
        except lmdb.Error as error:
            raise self._as_os_error(error) from error

    def _next_shard(self) -> None:
        self._environment.close()
        self._shard += 1
        self._environment = self._open(self._folders[self._shard])

    def _commit(self) -> None:
        while not self._try_commit():
            size = 2 * self._environment.info()["map_size"]
            try:
                self._environment.set_mapsize(size)
            except lmdb.Error as error:
                raise _map_error(size, error) from error
        self._durable += len(self._batch)
        self._batch, self._batch_bytes = [], 0
        # Remaps the file: otherwise the pages that LMDB has read would stay mapped and count as
        # this process's memory.
        self._environment.set_mapsize(self._environment.info()["map_size"])

    def _try_commit(self) -> bool:
        # False where the map is too small for the batch: LMDB then aborts the transaction. The map
        # is only address space.
        if not self._batch:
            return True
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
        # LMDB reports a short write on a nearly full disk as EIO (mdb_page_flush, "filesystem
        # full?").
        if shutil.disk_usage(self._environment.path()).free < self._batch_bytes:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return OSError(str(error))

    def _open(self, folder: Path) -> lmdb.Environment:
        folder.mkdir(exist_ok=True)
        size = self._tuning.first_map_bytes
        if (folder / "data.mdb").exists():  # LMDB refuses a map that is smaller than the file
            size = max(size, (folder / "data.mdb").stat().st_size)
        # lock=False: no lock.mdb is left in the dataset. sync=False: the whole file system is
        # synced once, at the end.
        try:
            return lmdb.open(
                os.fspath(folder), map_size=size, lock=False, sync=False, metasync=False
            )
        except lmdb.Error as error:
            raise _map_error(size, error) from error

    def __enter__(self) -> "LmdbLayout":
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.close()


def _map_error(size: int, error: lmdb.Error) -> OSError:
    return OSError(
        f"no LMDB map of {size} bytes: {error}; where address space is limited: ulimit -v unlimited"
    )
