"""Records of a `webdataset` dataset: tars that are read from one end to the other, in large reads,
each by one worker.

Random access is what a tar is not for: it has no index, and to make one takes a read for every
record. So batches follow `streams.StreamOrder`, and not the order that `files` and `lmdb` share.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final, Protocol

from ioprof.errors import DatasetError
from ioprof.format.dataset import Dataset
from ioprof.loaders.base import LoaderOptions, Record
from ioprof.loaders.order import BatchRequest
from ioprof.loaders.records import Records
from ioprof.loaders.streams import Piece, StreamOrder
from ioprof.loaders.tar_reading import TarReader, first_number

_AGAIN: Final = "convert the dataset again"


class TarRecords(Records):
    """Reads the batches in the order of `StreamOrder`: each lane reads its piece of the tars from
    one end to the other.
    """

    layouts: ClassVar[tuple[str, ...]] = ("webdataset",)

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._lanes: dict[int, Lane] = {}
        self._owner = 0

    def check(self) -> None:
        """Raise `DatasetError` if a shard is missing or begins otherwise than it should, or the
        last lacks the last record.
        """
        self.read(self.dataset.records - 1)

    def requests(self) -> Iterator[BatchRequest]:
        """The batches of this rank, in order."""
        # the shards are looked at here and now, before there are workers that would each do so
        return self._order.requests()

    def of_batch(self, request: BatchRequest) -> Iterator[Record]:
        """The records of a batch, in order, read from where its lane is; records before them are
        kept for later batches.
        """
        if self._owner != os.getpid():
            self._lanes, self._owner = {}, os.getpid()
        number, epoch = self._order.lane(request.number), self._order.epoch(request.number)
        lane = self._lanes.get(number)
        if lane is None or lane.epoch != epoch:
            lane = self._lanes[number] = Lane(
                epoch, self._order.piece(request.number), self._reader
            )
        for index in request.indices:
            image, label = lane.take(index)
            yield Record(image, self.raw_shape, self._label(index, label))

    def read(self, index: int) -> Record:
        """Record `index`, by a search of its own."""
        _, image, label = self._reader(range(index, index + 1)).next()
        return Record(image, self.raw_shape, self._label(index, label))

    def name(self, index: int) -> str:
        """The tar and the key of record `index`."""
        return f"{self._path(index)} record {index:08d}"

    def _label(self, index: int, text: bytes) -> int:
        label = int(text) if len(text) < 10 and text.isdigit() else -1
        if not 0 <= label < len(self.dataset.classes):
            raise DatasetError(f"{self.name(index)}: its label is {text[:20]!r}; {_AGAIN}")
        return label

    def _reader(self, numbers: range) -> TarReader:
        return TarReader(
            self._path(numbers.start), self._order.shards[self._shard(numbers.start)], numbers
        )

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
        shards = [
            range(start, end)
            for start, end in zip(starts, [*starts[1:], self.dataset.records], strict=True)
        ]
        if starts[0] != 0 or not all(shards):
            wrong = next((place for place, shard in enumerate(shards) if not shard), 0)
            raise DatasetError(
                f"{self._paths[wrong]}: begins with record {starts[wrong]}, which cannot be;"
                f" {_AGAIN}"
            )
        return StreamOrder(shards, self.options)


class SequentialReader(Protocol):
    """Hands out consecutive records."""

    @property
    def is_done(self) -> bool:
        """Whether there are no more records."""

    def next(self) -> tuple[int, bytes, bytes]:
        """Number, image and label of the next record."""


class Lane:
    """What one worker reads in one epoch: record after record, each kept until it is taken."""

    def __init__(
        self, epoch: int, piece: Piece, reader: Callable[[range], SequentialReader]
    ) -> None:
        self.epoch = epoch
        self._done, self._open = piece.done, reader
        self._ranges = iter(_without_leading(piece))
        self._reader: SequentialReader | None = None
        self._held: dict[int, tuple[bytes, bytes]] = {}

    def take(self, index: int) -> tuple[bytes, bytes]:
        """Image and label of record `index`."""
        while index not in self._held:
            if self._reader is None:
                self._reader = self._open(next(self._ranges))
            number, image, label = self._reader.next()
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
