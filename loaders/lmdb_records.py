"""Records of an `lmdb` dataset: memory-mapped environments, one per shard, keys `%08d_<name>` in order from one to the next."""

import os
from bisect import bisect_right
from itertools import accumulate
from typing import Final

import lmdb

from ioprof import tensorprotos
from ioprof.dataset import Dataset, open_environment
from ioprof.errors import DatasetError
from ioprof.loaders.base import Record
from ioprof.record.reads import fault_in
from ioprof.record.span import intern

_KEY: Final = "%08d_"


class LmdbRecords:
    """Reads each record through the memory map, copying it out at once so that its page faults are not taken for decoding.

    A value is what ioprof writes, or a Caffe `Datum`.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._folders = dataset.shard_paths()
        self._ends: list[int] = []
        self._cursors: dict[int, lmdb.Cursor] = {}
        self._owner = 0

    def check(self) -> None:
        """Raise `DatasetError` if an environment cannot be opened or was cut short, or the records are too few or many."""
        entries = sum(self._entries())
        if entries != self._dataset.records:
            wanted, where = self._dataset.records, self._folders[0] / "data.mdb" if len(self._folders) == 1 else self._dataset.path
            raise DatasetError(f"{where}: holds {entries} records, the manifest says {wanted}; convert the dataset again")

    def read(self, index: int, batch: int) -> Record:
        """Record `index`; `DatasetError` names the key if it is missing or damaged."""
        try:
            data = fault_in(lambda: self._value(index), file=intern(self._file(index)), batch=batch)
        except lmdb.Error as error:
            raise DatasetError(f"{self.name(index)}: cannot be read ({error})") from None
        try:
            image, shape, label = tensorprotos.decode(data)
        except DatasetError as error:
            raise DatasetError(f"{self.name(index)}: {error}") from None
        return Record(bytes(image), shape, label)

    def name(self, index: int) -> str:
        """The environment and the key of record `index`."""
        return f"{self._file(index)} key {_KEY % index}*"

    def _value(self, index: int) -> memoryview:
        cursor = self._process_cursor(self._shard(index))
        prefix = (_KEY % index).encode()
        if not cursor.set_range(prefix) or not bytes(cursor.key()).startswith(prefix):
            raise DatasetError(f"{self.name(index)}: missing, though the manifest counts it; convert the dataset again")
        return memoryview(cursor.value())

    def _process_cursor(self, shard: int) -> lmdb.Cursor:
        # An environment must not be used across a fork (lmdb.h, "Do not use opened MDB_env after fork").
        if self._owner != os.getpid():
            self._cursors, self._owner = {}, os.getpid()
        if shard not in self._cursors:
            self._cursors[shard] = open_environment(self._folders[shard]).begin(buffers=True).cursor()
        return self._cursors[shard]

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

    def _file(self, index: int) -> str:
        return str(self._folders[self._shard(index)] / "data.mdb")
