"""Records of a `parquet` dataset: row groups that are read as a whole, since a row cannot be read
by itself.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from ioprof.errors import DatasetError
from ioprof.foreign.parquet_rows import ParquetRows, Row
from ioprof.format.dataset import Dataset
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.streams import StreamOrder, StreamRecords

_AGAIN = "convert the dataset again"


class ParquetRecords(StreamRecords):
    """Reads the row groups of a dataset; each is a shard of the order."""

    layouts: ClassVar[tuple[str, ...]] = ("parquet",)

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._shard: tuple[int, Path, ParquetRows] | None = None
        """The one that is open, and the process that opened it."""

    def check(self) -> None:
        """Raise `CommandError` without pyarrow, and `DatasetError` if a shard is missing or has
        other rows than it should.
        """
        _ = self._order

    def name(self, index: int) -> str:
        """The shard and the row group of record `index`."""
        path, group, first = self._groups[self._shard_of(index)]
        return f"{path} record {index:08d} (row {index - first} of row group {group})"

    def _reader(self, numbers: range) -> "GroupReader":
        path, group, first = self._groups[self._shard_of(numbers.start)]
        if self._shard is None or self._shard[:2] != (os.getpid(), path):
            self._shard = os.getpid(), path, ParquetRows(path)
        return GroupReader(self._shard[2].group(group), first, numbers)

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
