"""The layout `lmdb`: one environment, or one per shard."""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

import lmdb

from ioprof.converters.target import Record, Target
from ioprof.dataset import environment_names
from ioprof.tensorprotos import Shape, encode_image

_FIRST_MAP_BYTES: Final = 1 << 28
_BATCH_BYTES: Final = 1 << 22  # 32 MB took three times the processor time per record: its pages leave the caches and the heap
_BATCH_RECORDS: Final = 1000
_MAX_RECORDS: Final = 10**8


class LmdbLayout:
    """Appended in key order, so that the order of the records is the order of the file; a shard after the other.

    Values above 2 KB lie in pages of their own; the file ends with its last page, and is no larger than what it holds. A commit
    that a kill interrupts was never there: the pages behind the last commit are written again.
    """

    def __init__(self, target: Target, start: int = 0) -> None:
        size = target.image.size if target.image.encoding == "raw" else None
        self._shape: Shape | None = (size, size, 3) if size else None
        self._images, self.shards = target.images, target.shards
        self._folders = [target.folder / name for name in environment_names(target.split, target.shards)]
        self._shard = 0
        self._environment = _opened(self._folders[0])
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._durable = self._entries()
        while self._shard + 1 < len(self._folders) and self._folders[self._shard + 1].exists():
            self._next_shard()
            self._durable += self._entries()
        if self._durable > start:  # what nothing tells of
            self._begin_anew()

    def durable(self) -> int:
        """How many records are there for certain."""
        return self._durable

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError when it cannot."""
        if record.number >= _MAX_RECORDS:
            raise OSError(f"an LMDB of more than {_MAX_RECORDS} records would not be in key order")
        place = record.number if record.place is None else record.place
        while self.shards and self._shard < min(self.shards - 1, place * self.shards // max(1, self._images)):
            self._finish_shard()
            self._next_shard()
        value = encode_image(record.data, record.label, self._shape)
        self._batch.append((f"{record.number:08d}_{record.name}".encode(), value))
        self._batch_bytes += len(value)
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_RECORDS:
            self._commit()

    def finish(self) -> None:
        """All records have been added: bring them to the file system."""
        self._finish_shard()
        while self._shard + 1 < len(self._folders):  # all images of the last shards were bad
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
        self._environment = _opened(self._folders[self._shard])

    def _begin_anew(self) -> None:
        self._environment.close()
        for folder in self._folders:
            if folder.exists():
                shutil.rmtree(folder)
        self._shard = self._durable = 0
        self._environment = _opened(self._folders[0])

    def _entries(self) -> int:
        return int(self._environment.stat()["entries"])

    def _commit(self) -> None:
        while not self._committed():
            size = 2 * self._environment.info()["map_size"]
            try:
                self._environment.set_mapsize(size)
            except lmdb.Error as error:
                raise _no_map(size, error) from error
        self._durable += len(self._batch)
        self._batch, self._batch_bytes = [], 0
        # Maps the file anew: pages of it that LMDB has looked at would stay in this process for ever.
        self._environment.set_mapsize(self._environment.info()["map_size"])

    def _committed(self) -> bool:
        # The map is only address space, but it has to hold the batch; LMDB drops the whole transaction when it does not.
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
        # LMDB calls the short write of a disk that is nearly full an input/output error (mdb_page_flush, "filesystem full?").
        if shutil.disk_usage(self._environment.path()).free < self._batch_bytes:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return OSError(str(error))

    def __enter__(self) -> "LmdbLayout":
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.close()


def _opened(folder: Path) -> lmdb.Environment:
    folder.mkdir(exist_ok=True)
    size = _FIRST_MAP_BYTES
    if (folder / "data.mdb").exists():  # LMDB takes no map that is smaller than what is there
        size = max(size, (folder / "data.mdb").stat().st_size)
    # lock=False: no lock.mdb is left in the dataset. sync=False: the whole file system is synced at the end, once.
    try:
        return lmdb.open(os.fspath(folder), map_size=size, lock=False, sync=False, metasync=False)
    except lmdb.Error as error:
        raise _no_map(size, error) from error


def _no_map(size: int, error: lmdb.Error) -> OSError:
    return OSError(f"no LMDB map of {size} bytes: {error}; where address space is limited: ulimit -v unlimited")
