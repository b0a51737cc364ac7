"""Records of an `lmdb` dataset: one memory-mapped environment per split, keys `%08d_<name>` in order."""

import os
from pathlib import Path
from typing import Final

import lmdb

from ioprof import tensorprotos
from ioprof.dataset import Dataset
from ioprof.errors import DatasetError
from ioprof.loaders.base import Record
from ioprof.record.reads import fault_in
from ioprof.record.span import intern

_KEY: Final = "%08d_"


class LmdbRecords:
    """Reads each record through the memory map, copying it out at once so that its page faults are not taken for decoding."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._file = str(dataset.data_path / "data.mdb")
        self._cursor: lmdb.Cursor | None = None
        self._owner = 0

    def check(self) -> None:
        """Raise `DatasetError` if the environment cannot be opened, was cut short, or holds another number of records."""
        environment = self._open()
        try:
            entries = environment.stat()["entries"]
        finally:
            environment.close()
        if entries != self._dataset.records:
            wanted = self._dataset.records
            raise DatasetError(f"{self._file}: holds {entries} records, the manifest says {wanted}; convert the dataset again")

    def read(self, index: int, batch: int) -> Record:
        """Record `index`; `DatasetError` names the key if it is missing or damaged."""
        try:
            data = fault_in(lambda: self._value(index), file=intern(self._file), batch=batch)
        except lmdb.Error as error:
            raise DatasetError(f"{self.name(index)}: cannot be read ({error})") from None
        try:
            image, shape, label = tensorprotos.decode(data)
        except DatasetError as error:
            raise DatasetError(f"{self.name(index)}: {error}") from None
        return Record(bytes(image), shape, label)

    def name(self, index: int) -> str:
        """The environment and the key of record `index`."""
        return f"{self._file} key {_KEY % index}*"

    def _value(self, index: int) -> memoryview:
        cursor = self._process_cursor()
        prefix = (_KEY % index).encode()
        if not cursor.set_range(prefix) or not bytes(cursor.key()).startswith(prefix):
            raise DatasetError(f"{self.name(index)}: missing, though the manifest counts it; convert the dataset again")
        return memoryview(cursor.value())

    def _process_cursor(self) -> lmdb.Cursor:
        # An environment must not be used across a fork (lmdb.h, "Do not use opened MDB_env after fork").
        if self._cursor is None or self._owner != os.getpid():
            self._cursor = self._open().begin(buffers=True).cursor()
            self._owner = os.getpid()
        return self._cursor

    def _open(self) -> lmdb.Environment:
        path = Path(self._file)
        if path.exists() and not path.is_file():  # a FIFO would be waited for until somebody writes to it
            raise DatasetError(f"{self._file}: not a regular file; convert the dataset again")
        # No lock: nobody writes to a finished dataset, and locks fail on many cluster file systems.
        try:
            environment = lmdb.open(str(self._dataset.data_path), readonly=True, lock=False, create=False, max_dbs=0)
        except (lmdb.Error, OSError) as error:
            message = f"{self._file}: not an LMDB environment that can be opened ({error}); convert the dataset again"
            raise DatasetError(message) from None
        self._check_length(environment)
        return environment

    def _check_length(self, environment: lmdb.Environment) -> None:
        # Touching a mapped page beyond the end of the file is SIGBUS, which no exception handler sees.
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        size = os.stat(self._file).st_size
        if size < needed:
            environment.close()
            raise DatasetError(f"{self._file}: cut short ({size} bytes, its pages need {needed}); convert the dataset again")
