"""Records of a `webdataset` dataset: tars that are read from one end to the other, in large reads, each by one worker.

Random access is what a tar is not for: it has no index, and to make one takes a read for every record. So batches follow
`streams.StreamOrder`, and not the order that `files` and `lmdb` share.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final

from ioprof.dataset import Dataset
from ioprof.errors import DatasetError
from ioprof.loaders.base import LoaderOptions, Record
from ioprof.loaders.order import BatchRequest
from ioprof.loaders.records import Records
from ioprof.loaders.streams import Piece, StreamOrder
from ioprof.loaders.tar_reading import TarReader, first_number

_AGAIN: Final = "convert the dataset again"


class TarRecords(Records):
    """Reads what the batches ask for in the order of `StreamOrder`, and nothing else: record after record of a lane."""

    layouts: ClassVar[tuple[str, ...]] = ("webdataset",)

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._lanes: dict[int, Lane] = {}
        self._owner = 0

    def check(self) -> None:
        """Raise `DatasetError` if a shard is missing or begins otherwise than it should, or the last lacks the last record."""
        self.read_alone(self.dataset.records - 1)

    def requests(self) -> Iterator[BatchRequest]:
        """The batches of this rank; each process is asked for its records in this order."""
        return self._order.requests()  # the shards are looked at here and now, before there are workers that would each do so

    def read(self, index: int, batch: int) -> Record:
        """Record `index`, which must be the next in the lane of `batch`; what lies before it is kept until it is asked for."""
        if self._owner != os.getpid():
            self._lanes, self._owner = {}, os.getpid()
        number, epoch = self._order.lane(batch), self._order.epoch(batch)
        lane = self._lanes.get(number)
        if lane is None or lane.epoch != epoch:
            lane = self._lanes[number] = Lane(epoch, self._order.piece(batch), self._reader)
        image, label = lane.take(index, batch)
        return Record(image, self.raw_shape, self._label(index, label))

    def read_alone(self, index: int) -> Record:
        """Record `index`, by a search of its own."""
        _, image, label = self._reader(range(index, index + 1), -1).next(-1)
        return Record(image, self.raw_shape, self._label(index, label))

    def name(self, index: int) -> str:
        """The tar and the key of record `index`."""
        return f"{self._path(index)} record {index:08d}"

    def _label(self, index: int, text: bytes) -> int:
        label = int(text) if len(text) < 10 and text.isdigit() else -1
        if not 0 <= label < len(self.dataset.classes):
            raise DatasetError(f"{self.name(index)}: its label is {text[:20]!r}; {_AGAIN}")
        return label

    def _reader(self, numbers: range, batch: int) -> TarReader:
        return TarReader(self._path(numbers.start), self._order.shards[self._shard(numbers.start)], numbers, batch=batch)

    def _shard(self, index: int) -> int:
        return bisect_right(self._order.shards, index, key=lambda shard: shard.start) - 1

    def _path(self, index: int) -> str:
        return str(self._paths[self._shard(index)])

    @cached_property
    def _paths(self) -> list[Path]:
        return self.dataset.shard_paths()

    @cached_property
    def _order(self) -> StreamOrder:
        starts = [first_number(str(path)) for path in self._paths]
        shards = [range(start, end) for start, end in zip(starts, [*starts[1:], self.dataset.records], strict=True)]
        if starts[0] != 0 or not all(shards):
            wrong = next((place for place, shard in enumerate(shards) if not shard), 0)
            raise DatasetError(f"{self._paths[wrong]}: begins with record {starts[wrong]}, which cannot be; {_AGAIN}")
        return StreamOrder(shards, self.options)


class Lane:
    """What one worker reads in one epoch: record after record, each kept until it is asked for."""

    def __init__(self, epoch: int, piece: Piece, reader: Callable[[range, int], TarReader]) -> None:
        self.epoch = epoch
        self._done, self._open = piece.done, reader
        self._ranges = iter(_without_leading(piece))
        self._reader: TarReader | None = None
        self._held: dict[int, tuple[bytes, bytes]] = {}

    def take(self, index: int, batch: int) -> tuple[bytes, bytes]:
        """Image and label of record `index`; the reads that it takes to get there are recorded under `batch`."""
        while index not in self._held:
            if self._reader is None:
                self._reader = self._open(next(self._ranges), batch)
            number, image, label = self._reader.next(batch)
            if number not in self._done:
                self._held[number] = image, label
            if self._reader.is_done:
                self._reader = None
        return self._held.pop(index)


def _without_leading(piece: Piece) -> Iterator[range]:
    """The ranges without what lies at their beginnings and is done."""
    for each in piece.ranges:
        start = next((number for number in each if number not in piece.done), each.stop)
        if start < each.stop:
            yield range(start, each.stop)
