"""Records of a `parquet` dataset: row groups that are read as a whole, since a row cannot be read
by itself.

So batches follow `streams.StreamOrder`, of which each row group is a shard, and not the order that
`files` and `lmdb` share.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from ioprof.errors import DatasetError
from ioprof.foreign.parquet_rows import ParquetRows, Row
from ioprof.format.dataset import Dataset
from ioprof.loaders.base import LoaderOptions, Record
from ioprof.loaders.order import BatchRequest
from ioprof.loaders.records import Records
from ioprof.loaders.streams import StreamOrder
from ioprof.loaders.tar_shards import Lane

_AGAIN = "convert the dataset again"


class ParquetRecords(Records):
    """Reads the batches in the order of `StreamOrder`: each lane reads its row groups one after the
    other.
    """

    layouts: ClassVar[tuple[str, ...]] = ("parquet",)

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._lanes: dict[int, Lane] = {}
        self._owner = 0
        self._shard: tuple[Path, ParquetRows] | None = None

    def check(self) -> None:
        """Raise `CommandError` without pyarrow, and `DatasetError` if a shard is missing or has
        other rows than it should.
        """
        _ = self._order

    def requests(self) -> Iterator[BatchRequest]:
        """The batches of this rank, in order."""
        # the footers are read here and now, before there are workers that would each do so
        return self._order.requests()

    def of_batch(self, request: BatchRequest) -> Iterator[Record]:
        """The records of a batch, in order, read from where its lane is; records before them are
        kept for later batches.
        """
        self._after_fork()
        number, epoch = self._order.lane(request.number), self._order.epoch(request.number)
        lane = self._lanes.get(number)
        if lane is None or lane.epoch != epoch:
            lane = self._lanes[number] = Lane(
                epoch, self._order.piece(request.number), self._reader
            )
        for index in request.indices:
            image, label = lane.take(index)
            yield Record(image, self.raw_shape, self._label(index, int(label)))

    def read(self, index: int) -> Record:
        """Record `index`, with all of its row group."""
        self._after_fork()
        _, image, label = self._reader(range(index, index + 1)).next()
        return Record(image, self.raw_shape, self._label(index, int(label)))

    def name(self, index: int) -> str:
        """The shard and the row group of record `index`."""
        path, group, first = self._groups[self._group(index)]
        return f"{path} record {index:08d} (row {index - first} of row group {group})"

    def _after_fork(self) -> None:
        if self._owner != os.getpid():
            self._lanes, self._shard, self._owner = {}, None, os.getpid()

    def _label(self, index: int, label: int) -> int:
        if not 0 <= label < len(self.dataset.classes):
            raise DatasetError(f"{self.name(index)}: its label is {label}; {_AGAIN}")
        return label

    def _reader(self, numbers: range) -> "GroupReader":
        path, group, first = self._groups[self._group(numbers.start)]
        if self._shard is None or self._shard[0] != path:
            self._shard = path, ParquetRows(path)
        return GroupReader(self._shard[1].group(group), first, numbers)

    def _group(self, index: int) -> int:
        return bisect_right(self._order.shards, index, key=lambda shard: shard.start) - 1

    @cached_property
    def _groups(self) -> list[tuple[Path, int, int]]:
        """Shard, number, and first record of each row group that has records."""
        found, first = [], 0
        for path in self.dataset.shard_paths():
            rows = ParquetRows(path)
            rows.close()
            for group, size in enumerate(rows.group_sizes):
                if size:
                    found.append((path, group, first))
                first += size
        if first != self.dataset.records:
            raise DatasetError(
                f"{self.dataset.path}: holds {first} records, the manifest says"
                f" {self.dataset.records}; {_AGAIN}"
            )
        return found

    @cached_property
    def _order(self) -> StreamOrder:
        starts = [first for _, _, first in self._groups]
        return StreamOrder(
            list(map(range, starts, [*starts[1:], self.dataset.records])), self.options
        )


class GroupReader:
    """Hands out records `numbers` of a row group whose first record is `first`."""

    def __init__(self, rows: list[Row], first: int, numbers: range) -> None:
        self._rows, self._first, self._left = rows, first, numbers

    @property
    def is_done(self) -> bool:
        """Whether there are no more records."""
        return not self._left

    def next(self) -> tuple[int, bytes, bytes]:
        """Number, image and label of the next record."""
        number, self._left = self._left[0], self._left[1:]
        row = self._rows[number - self._first]
        return number, row.data, str(row.label).encode()
