"""Which sample is in which batch where shards are read from one end to the other: a pure function
of seed, ranks and workers.

The shards of an epoch, in a seeded order, are one long stream of records. It is cut into
consecutive pieces, one for each worker of each rank (a *lane*), as long as that lane's batches
need; a cut may lie within a shard. So each record is in one lane, all ranks have as many batches,
and of no shard is anything read twice but for what lies around a cut. A lane reads its piece in
order, and its samples leave through a buffer, from which one is drawn at a time (as in the
webdataset library and in DALI). `StreamRecords` reads the records in this order.
"""

import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ioprof.errors import DatasetError
from ioprof.format.dataset import Dataset
from ioprof.loaders.base import LoaderOptions, Record
from ioprof.loaders.order import Batches, BatchRequest
from ioprof.loaders.records import Records

_FIRST_FILL = 10
"""A sample leaves once a tenth of the buffer is full; until it is full, two come for each that
leaves."""


class Piece(NamedTuple):
    """What a lane reads in an epoch."""

    ranges: list[range]
    """Records, in the order in which they are read: of one shard each."""
    done: set[int]
    """Those of them that are in batches of the epoch before the one that was asked about."""


class StreamOrder:
    """The batches of one rank over `shards`, each a range of records; there must be as many records
    as ranks, or more.
    """

    def __init__(self, shards: Sequence[range], options: LoaderOptions) -> None:
        self.shards, self._options = shards, options
        self._batches = Batches(sum(map(len, shards)), options)
        self._num_lanes = max(1, options.workers)

    def epoch(self, number: int) -> int:
        """The epoch of a batch."""
        return number // self._batches.per_epoch

    def lane(self, number: int) -> int:
        """Which lane makes a batch: they take turns, as DataLoader's workers do."""
        return number % self._num_lanes

    def requests(self) -> Iterator[BatchRequest]:
        """The batches of this rank, from `first_batch` to `num_batches`."""
        known, lanes = -1, [iter(range(0))]
        for number in range(self._options.first_batch, self._options.num_batches):
            epoch = self.epoch(number)
            if epoch != known:
                known, lanes = (
                    epoch,
                    [self._leaving(epoch, lane, number) for lane in range(self._num_lanes)],
                )
            yield BatchRequest(
                number, epoch, list(islice(lanes[self.lane(number)], self._batches.samples(number)))
            )

    def piece(self, number: int) -> Piece:
        """What the lane of batch `number` reads in that batch's epoch, and what of it is in its
        earlier batches.
        """
        epoch, lane = self.epoch(number), self.lane(number)
        ranges = self._ranges(epoch, lane)
        return Piece(
            ranges,
            set(
                islice(
                    self._shuffled(ranges, epoch, lane), self._samples_before(epoch, lane, number)
                )
            ),
        )

    def _leaving(self, epoch: int, lane: int, number: int) -> Iterator[int]:
        """The records of a lane from batch `number` on, in the order in which they leave its
        buffer.
        """
        return islice(
            self._shuffled(self._ranges(epoch, lane), epoch, lane),
            self._samples_before(epoch, lane, number),
            None,
        )

    def _samples_before(self, epoch: int, lane: int, number: int) -> int:
        begin = epoch * self._batches.per_epoch
        return sum(
            self._batches.samples(earlier)
            for earlier in range(begin, number)
            if self.lane(earlier) == lane
        )

    def _ranges(self, epoch: int, lane: int) -> list[range]:
        sizes = self._lane_sizes(epoch)
        place = self._options.rank * self._num_lanes + lane
        begin = int(sizes[:place].sum())
        order = (
            np.random.default_rng([self._options.seed, epoch])
            .permutation(len(self.shards))
            .tolist()
        )
        return cut([self.shards[shard] for shard in order], begin, begin + int(sizes[place]))

    def _lane_sizes(self, epoch: int) -> npt.NDArray[np.int64]:
        """How many samples each lane delivers in an epoch, (ranks × lanes,), the lanes of a rank
        side by side.
        """
        ranks = np.arange(self._options.num_ranks)[:, None]
        steps = np.array(self._batches.bounds)
        samples = (
            steps[:, 1] - steps[:, 0] - ranks + self._options.num_ranks - 1
        ) // self._options.num_ranks
        lanes = (epoch * len(steps) + np.arange(len(steps))) % self._num_lanes
        sizes = np.zeros((self._options.num_ranks, self._num_lanes), np.int64)
        np.add.at(sizes, (ranks, lanes), samples)
        return sizes.ravel()

    def _shuffled(self, ranges: list[range], epoch: int, lane: int) -> Iterator[int]:
        source = np.random.default_rng([self._options.seed, epoch, self._options.rank, lane])
        return shuffled(ranges, self._options.shuffle_buffer, source)


def cut(ranges: Sequence[range], begin: int, end: int) -> list[range]:
    """Places `begin` to `end` of the ranges laid end to end."""
    ends = list(accumulate(map(len, ranges)))
    parts = [
        each[max(0, begin - (last - len(each))) : max(0, end - (last - len(each)))]
        for each, last in zip(ranges, ends, strict=True)
    ]
    return [part for part in parts if part]


def shuffled(ranges: Sequence[range], buffer: int, source: np.random.Generator) -> Iterator[int]:
    """All numbers of the ranges, in order but for a buffer of so many, from which one is drawn at a
    time.
    """
    waiting: list[int] = []
    numbers = (number for each in ranges for number in each)
    for number in numbers:
        waiting.append(number)
        if len(waiting) < buffer:
            waiting += islice(numbers, 1)
        if len(waiting) * _FIRST_FILL >= buffer:
            yield _drawn(waiting, source)
    while waiting:
        yield _drawn(waiting, source)


def _drawn(waiting: list[int], source: np.random.Generator) -> int:
    place = int(source.random() * len(waiting))
    waiting[place], waiting[-1] = waiting[-1], waiting[place]
    return waiting.pop()


# ------------------------------------------------------------------------------------------ reading


class StreamRecords(Records):
    """Reads the batches in the order of `StreamOrder`: each lane reads its piece of the shards from
    one end to the other.
    """

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._lanes: dict[int, Lane] = {}
        self._owner = 0

    @property
    @abstractmethod
    def _order(self) -> StreamOrder:
        """Raises `DatasetError` if the shards are not those of the manifest."""

    @abstractmethod
    def _reader(self, numbers: range) -> "SequentialReader":
        """Of these records, which are of one shard."""

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
            yield self._record(index, *lane.take(index))

    def read(self, index: int) -> Record:
        """Record `index`, by a search of its own."""
        _, image, label = self._reader(range(index, index + 1)).next()
        return self._record(index, image, label)

    def _record(self, index: int, image: bytes, text: bytes) -> Record:
        label = int(text) if len(text) < 10 and text.isdigit() else -1
        if not 0 <= label < len(self.dataset.classes):
            shown = text[:20].decode(errors="backslashreplace")
            raise DatasetError(
                f"{self.name(index)}: its label is {shown!r}; convert the dataset again"
            )
        return Record(image, self.raw_shape, label)

    def _shard_of(self, index: int) -> int:
        return bisect_right(self._order.shards, index, key=lambda shard: shard.start) - 1


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
