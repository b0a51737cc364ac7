"""Which samples DALI returns in which run of its pipeline, so that every sample comes once per
epoch.

DALI's batches have one size, so an epoch's last ones are filled up with copies, which are cut off
again; and where an epoch ends in a batch of one sample more than asked (see `order.batch_bounds`),
that takes two runs.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from ioprof.format.dataset import Dataset, read_index
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.order import Batches, BatchRequest, batch_requests

_MOST_LISTED: Final = 1 << 21
"""Entries of a list of files, which takes DALI 0.7 s and 100 MB to read. Of more, whole epochs come
again in the order they had."""


class Part(Protocol):
    """One rank's samples."""

    epoch_size: int
    """Size of the epoch in all ranks together, by DALI's reader, without and with what fills up the
    shorter parts."""
    padded_epoch_size: int
    skipped_runs: int
    """How many runs make the batches before `first_batch`: its crops follow from theirs, so DALI
    must make them to get there."""

    def runs(self, number: int) -> int:
        """How many runs make batch `number`."""

    def samples(self, number: int) -> int:
        """How many samples batch `number` has; what comes beyond them are copies."""

    def in_progress(self, number: int) -> Iterator[int]:
        """Records that DALI may be reading or decoding while batch `number` is waited for."""


class ListedPart:
    """`files`: a list in the order that the loaders `files` and `lmdb` have, read from one end to
    the other.
    """

    def __init__(self, dataset: Dataset, options: LoaderOptions) -> None:
        self._dataset, self._options = dataset, options
        self._batches = Batches(dataset.records, options)
        epochs = max(1, _MOST_LISTED // (self._batches.per_epoch * options.batch_size))
        self._cycle = epochs * self._batches.per_epoch
        self._listed = range(min(self._cycle, options.num_batches))
        self.epoch_size = self.padded_epoch_size = (
            sum(map(self.runs, self._listed)) * options.batch_size
        )
        self.skipped_runs = sum(map(self.runs, range(options.first_batch)))

    def lines(self) -> Iterator[str]:
        """The list, as DALI reads it: a path, relative to the dataset, and a label."""
        paths, labels = read_index(self._dataset)
        for number, request in zip(self._listed, self._requests(self._listed), strict=True):
            copies = self.runs(number) * self._options.batch_size - len(request.indices)
            for index in request.indices + request.indices[-1:] * copies:
                yield f"{paths[index]} {labels[index]}\n"

    def runs(self, number: int) -> int:
        """How many runs make batch `number`."""
        return -(-self.samples(number) // self._options.batch_size)

    def samples(self, number: int) -> int:
        """How many samples batch `number` has."""
        return self._batches.samples(number)

    def in_progress(self, number: int) -> Iterator[int]:
        """The batch's own records, and those of the batches that are made ahead."""
        for request in self._requests(range(number, number + self._options.prefetch + 2)):
            yield from request.indices

    def _requests(self, numbers: range) -> Iterator[BatchRequest]:
        for number in numbers:
            first = number % self._cycle
            if number == numbers[0] or not first:
                requests = batch_requests(
                    self._dataset.records,
                    replace(self._options, first_batch=first, num_batches=self._cycle),
                )
            yield next(requests)


class StoredPart:
    """`lmdb` and `webdataset`: the records, in their stored order, are divided into consecutive
    parts, one per rank.

    In the first epoch rank r has part r, and in each further epoch the next (`stick_to_shard` is
    off). All parts are filled up to the length of the longest, and to whole batches
    (`pad_last_batch`). Samples leave through a buffer (`random_shuffle`).
    """

    def __init__(self, dataset: Dataset, options: LoaderOptions) -> None:
        self._options, self._records = options, dataset.records
        self._per_epoch = Batches(dataset.records, options).per_epoch
        longest = -(-dataset.records // options.num_ranks)
        self._runs = -(-longest // options.batch_size)
        self.epoch_size, self.padded_epoch_size = dataset.records, longest * options.num_ranks
        epochs, step = divmod(options.first_batch, self._per_epoch)
        self.skipped_runs = epochs * self._runs + step

    def runs(self, number: int) -> int:
        """How many runs make batch `number`."""
        return self._runs - self._per_epoch + 1 if self._is_last(number) else 1

    def samples(self, number: int) -> int:
        """How many samples batch `number` has."""
        before = (self._per_epoch - 1) * self._options.batch_size
        return (
            len(self._part(number)) - before if self._is_last(number) else self._options.batch_size
        )

    def in_progress(self, number: int) -> Iterator[int]:
        """The records that were read last, and what may still wait in the buffer, from the last to
        the first.
        """
        part, ahead = (
            self._part(number),
            self._options.batch_size * (self._options.prefetch + 2) + self._options.shuffle_buffer,
        )
        step = number % self._per_epoch
        read = part[: step * self._options.batch_size + ahead]
        return islice(reversed(read), 2 * ahead)

    def _is_last(self, number: int) -> bool:
        return number % self._per_epoch == self._per_epoch - 1

    def _part(self, number: int) -> range:
        ranks = self._options.num_ranks
        part = (self._options.rank + number // self._per_epoch) % ranks
        return range(self._records * part // ranks, self._records * (part + 1) // ranks)
