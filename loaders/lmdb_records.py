"""Records of an `lmdb` dataset: one environment, or one per shard, keys `%08d_<name>` in order from
one to the next.

How a value is got at decides what a cold random read costs. Records of 110 kB in random order,
records per second of one process and of eight, on a virtual disk that reads 8 MB ahead, and on XFS
over a loop device that reads 128 kB ahead (2 cores):

                                          8 MB ahead       128 kB ahead
    memory map, with readahead              51    346      1,093  2,469     up to 93 times the record's bytes are read
    memory map, without (MADV_RANDOM)      320  1,118        361    658     28 reads of a page for each record, one after the other
    pread of the value                   1,309  2,207      2,296  2,721     one read of the record's bytes

Cached, all take 10 to 30 µs. The map is the default nevertheless: it is what LMDB is to everybody
who reads it, and what a job that reads LMDB will get; `pread` shows what the same file could give.
"""  # noqa: E501

import math
import os
from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Final, Protocol

import lmdb

from ioprof.errors import DatasetError
from ioprof.foreign import tensorprotos
from ioprof.format.dataset import Dataset, open_environment
from ioprof.instrument.mapped import fault_in, readahead_ended
from ioprof.instrument.span import intern
from ioprof.loaders.base import LMDB_READS, LoaderOptions, LoadingFacts, Record
from ioprof.loaders.lmdb_pages import LmdbPages
from ioprof.loaders.lmdb_readahead import (
    FITS,
    LOST,
    Readahead,
    Watch,
    available_bytes,
    choose,
    fits,
)
from ioprof.loaders.records import Records

_KEY: Final = "%08d_"


class Values(Protocol):
    """The values of one environment. Raises `DatasetError`."""

    def value(self, number: int) -> bytes | memoryview:
        """The value of record `number`."""


class LmdbRecords(Records):
    """Reads the values of environments that are opened without locks, in each process anew: what
    ioprof writes, or `Datum`s.
    """

    layouts: ClassVar[tuple[str, ...]] = ("lmdb",)

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._folders = self.dataset.shard_paths()
        self._ends: list[int] = []
        self._values: dict[int, Values] = {}
        self._owner = 0
        self._watch: Watch | None = None

    def check(self) -> None:
        """Raise `DatasetError` if an environment cannot be opened or was cut short, or the records
        are too few or many.
        """
        entries = sum(self._entries())
        if entries != self.dataset.records:
            wanted, where = (
                self.dataset.records,
                self._folders[0] / "data.mdb" if len(self._folders) == 1 else self.dataset.path,
            )
            raise DatasetError(
                f"{where}: holds {entries} records, the manifest says {wanted}; convert the dataset"
                " again"
            )

    def read(self, index: int) -> Record:
        """Record `index`; `DatasetError` names the key if it is missing or damaged."""
        try:
            shard = self._shard(index)
            value = self._shard_values(shard).value(index)
            self._watch_readahead(shard, len(value))
            image, shape, label = tensorprotos.decode(value)
        except (DatasetError, lmdb.Error) as error:
            raise DatasetError(f"{self.name(index)}: {error}") from None
        return Record(image, shape, label)

    def facts(self) -> LoadingFacts:
        """As of all records, and whether the kernel reads ahead."""
        facts = super().facts()
        if not self._is_mapped:
            return facts
        return replace(
            facts,
            lmdb_readahead=self._readahead.is_on,
            lmdb_readahead_reason=self._readahead.reason,
        )

    def name(self, index: int) -> str:
        """The environment and the key of record `index`."""
        return f"{self._folders[self._shard(index)] / 'data.mdb'} key {_KEY % index}*"

    @cached_property
    def _readahead(self) -> Readahead:
        return choose(
            self.options.lmdb_readahead,
            self._folders[0] / "data.mdb",
            self._data_bytes // self.dataset.records,
            self._data_bytes,
            self._memory_bytes(),
        )

    def _memory_bytes(self) -> int:
        """What is left for the data once all ranks have their batches under way or ready, which
        are not there when this is asked.
        """
        options = self.options
        batches = max(1, options.workers) * options.prefetch * options.num_ranks
        return available_bytes() - batches * math.prod(options.largest_batch)

    @cached_property
    def _data_bytes(self) -> int:
        return sum((folder / "data.mdb").stat().st_size for folder in self._folders)

    @property
    def _is_mapped(self) -> bool:
        return self.options.lmdb_read == LMDB_READS[0]

    def _watch_readahead(self, shard: int, value_bytes: int) -> None:
        values = self._values[shard]
        if self._watch is None or not isinstance(values, MappedValues):
            return  # such as of a copy that is being made, which is read by pread
        if self._watch.is_lost(value_bytes, values.fetched_bytes):
            self._end_readahead(shard)

    def _end_readahead(self, shard: int) -> None:
        readahead_ended(file=intern(self._folders[shard] / "data.mdb"))
        self._readahead, self._values, self._watch = Readahead(False, LOST), {}, None

    def _shard_values(self, shard: int) -> Values:
        # An environment must not be used across a fork (lmdb.h, "Do not use opened MDB_env after
        # fork").
        if self._owner != os.getpid():
            self._values, self._owner = {}, os.getpid()
            self._watch = None
            if self._is_mapped and self._readahead.reason == FITS:
                # that was decided before the processes of the job had what they need
                if fits(self._data_bytes, self._memory_bytes()):
                    self._watch = Watch(self._data_bytes)
                else:
                    self._end_readahead(shard)
        if shard not in self._values:
            self._values[shard] = self._opened(shard)
        return self._values[shard]

    def _opened(self, shard: int) -> Values:
        folder = self._folders[shard]
        if self._is_mapped and self._readahead.is_on:
            return MappedValues(folder, None)
        first, end = (
            ([0, *self._ends][shard], self._ends[shard])
            if self._ends
            else (0, self.dataset.records)
        )
        pages = LmdbPages(str(folder / "data.mdb"), first, end - first)
        return MappedValues(folder, pages) if self._is_mapped else pages

    def _entries(self) -> list[int]:
        entries = []
        for folder in self._folders:
            environment = open_environment(folder, readahead=False)  # which no page needs
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
    """Reads values through the memory map, copying them out at once so that their page faults are
    not taken for decoding.
    """

    def __init__(self, folder: Path, announcing: LmdbPages | None) -> None:
        """`announcing`: has each value read before it is touched, and the kernel reads nothing
        ahead; None: the kernel does.
        """
        self._file, self._announcing = str(folder / "data.mdb"), announcing
        self.fetched_bytes = 0
        """What the kernel fetched for the value that was asked for last."""
        environment = open_environment(folder, readahead=announcing is None)
        self._cursor = environment.begin(buffers=True).cursor()

    def value(self, number: int) -> bytes:
        """A copy of the value of record `number`, recorded as a `fault` span."""
        announce = None
        if self._announcing is not None:
            # whatever is wrong shows when the value is looked up
            with suppress(DatasetError):
                announce = self._announcing.announcing(number)
        touched = fault_in(lambda: self._find(number), file=intern(self._file), announce=announce)
        self.fetched_bytes = touched.fetched_bytes
        return touched.data

    def _find(self, number: int) -> memoryview:
        prefix = (_KEY % number).encode()
        if not self._cursor.set_range(prefix) or not bytes(self._cursor.key()).startswith(prefix):
            raise DatasetError("missing, though the manifest counts it; convert the dataset again")
        return memoryview(self._cursor.value())
