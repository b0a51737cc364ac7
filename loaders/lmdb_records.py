"""Records of an `lmdb` dataset: one environment, or one per shard, keys `%08d_<name>` in order from one to the next.

How a value is got at decides what a cold random read costs. Records of 110 kB in random order, records per second of one process
and of eight, on a virtual disk that reads 8 MB ahead, and on XFS over a loop device that reads 128 kB ahead (2 cores):

                                          8 MB ahead       128 kB ahead
    memory map, with readahead              51    346      1,093  2,469     up to 93 times the record's bytes are read
    memory map, without (MADV_RANDOM)      320  1,118        361    658     28 reads of a page for each record, one after the other
    pread of the value                   1,309  2,207      2,296  2,721     one read of the record's bytes

Cached, all take 10 to 30 µs. The map is the default nevertheless: it is what LMDB is to everybody who reads it, and what a job that
reads LMDB will get; `pread` shows what the same file could give.
"""

import os
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Final, Protocol

import lmdb

from ioprof import tensorprotos
from ioprof.dataset import Dataset, open_environment
from ioprof.errors import DatasetError
from ioprof.file_systems import file_system_of, is_shared
from ioprof.loaders.base import LMDB_READS, LoaderOptions, Record
from ioprof.loaders.lmdb_pages import LmdbPages
from ioprof.loaders.records import Records
from ioprof.record.reads import fault_in
from ioprof.record.span import intern

_KEY: Final = "%08d_"
_WORTH_READING_AHEAD: Final = 16
"""A window of so many records at most; at 23 both ways were alike, at 5 it was better with, at 75 better without."""


class Values(Protocol):
    """The values of one environment. Raises `DatasetError`."""

    def value(self, number: int, batch: int) -> bytes | memoryview:
        """The value of record `number`, its reads recorded under `batch`."""


class LmdbRecords(Records):
    """Reads the values of environments that are opened without locks, in each process anew: what ioprof writes, or `Datum`s."""

    layouts: ClassVar[tuple[str, ...]] = ("lmdb",)

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._folders = self.dataset.shard_paths()
        self._ends: list[int] = []
        self._values: dict[int, Values] = {}
        self._owner = 0

    def check(self) -> None:
        """Raise `DatasetError` if an environment cannot be opened or was cut short, or the records are too few or many."""
        entries = sum(self._entries())
        if entries != self.dataset.records:
            wanted, where = self.dataset.records, self._folders[0] / "data.mdb" if len(self._folders) == 1 else self.dataset.path
            raise DatasetError(f"{where}: holds {entries} records, the manifest says {wanted}; convert the dataset again")

    def read(self, index: int, batch: int) -> Record:
        """Record `index`; `DatasetError` names the key if it is missing or damaged."""
        try:
            image, shape, label = tensorprotos.decode(self._shard_values(self._shard(index)).value(index, batch))
        except (DatasetError, lmdb.Error) as error:
            raise DatasetError(f"{self.name(index)}: {error}") from None
        return Record(image, shape, label)

    def name(self, index: int) -> str:
        """The environment and the key of record `index`."""
        return f"{self._folders[self._shard(index)] / 'data.mdb'} key {_KEY % index}*"

    def _shard_values(self, shard: int) -> Values:
        # An environment must not be used across a fork (lmdb.h, "Do not use opened MDB_env after fork").
        if self._owner != os.getpid():
            self._values, self._owner = {}, os.getpid()
        if shard not in self._values:
            self._values[shard] = self._opened(shard)
        return self._values[shard]

    def _opened(self, shard: int) -> Values:
        folder = self._folders[shard]
        if self.options.lmdb_read != LMDB_READS[0]:
            first, end = ([0, *self._ends][shard], self._ends[shard]) if self._ends else (0, self.dataset.records)
            return LmdbPages(str(folder / "data.mdb"), first, end - first)
        return MappedValues(folder, pays_to_read_ahead(folder / "data.mdb", self.dataset.bytes // self.dataset.records))

    def _entries(self) -> list[int]:
        entries = []
        for folder in self._folders:
            environment = open_environment(folder)
            try:
                entries.append(int(environment.stat()["entries"]))
            finally:
                environment.close()
        return entries

    def _shard(self, index: int) -> int:
        if len(self._folders) == 1:
            return 0
        if not self._ends:
            self._ends = list(accumulate(self._entries()))
        return min(bisect_right(self._ends, index), len(self._ends) - 1)


class MappedValues:
    """Reads values through the memory map, copying them out at once so that their page faults are not taken for decoding."""

    def __init__(self, folder: Path, readahead: bool) -> None:
        self._file = str(folder / "data.mdb")
        environment = open_environment(folder)
        if not readahead:
            environment.close()
            environment = lmdb.open(str(folder), readonly=True, lock=False, create=False, max_dbs=0, readahead=False)
        self._cursor = environment.begin(buffers=True).cursor()

    def value(self, number: int, batch: int) -> bytes:
        """A copy of the value of record `number`, recorded as one `fault` span."""
        return fault_in(lambda: self._find(number), file=intern(self._file), batch=batch)

    def _find(self, number: int) -> memoryview:
        prefix = (_KEY % number).encode()
        if not self._cursor.set_range(prefix) or not bytes(self._cursor.key()).startswith(prefix):
            raise DatasetError("missing, though the manifest counts it; convert the dataset again")
        return memoryview(self._cursor.value())


def pays_to_read_ahead(path: Path, record_bytes: int) -> bool:
    """Whether random reads of records of this size through a memory map of `path` are faster with the kernel's readahead.

    On file systems of other hosts they are: without it Lustre fetches each page of 4 KiB by itself (LU-13669). On a local disk a
    fault reads a whole window around it, however little of that is wanted.
    """
    if is_shared(file_system_of(str(path))):
        return True
    window_bytes = _readahead_bytes(path.stat().st_dev)
    return window_bytes is None or window_bytes <= _WORTH_READING_AHEAD * record_bytes


def _readahead_bytes(device: int) -> int | None:
    number = f"{os.major(device)}:{os.minor(device)}"
    for place in (f"/sys/class/bdi/{number}", f"/sys/dev/block/{number}/queue", f"/sys/dev/block/{number}/../queue"):
        with suppress(OSError, ValueError):
            return int((Path(place) / "read_ahead_kb").read_text()) << 10
    return None
