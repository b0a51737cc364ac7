"""Which sample is in which batch of which rank: a pure function of the seed, the same for every
layout and number of workers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ioprof.loaders.base import LoaderOptions


class BatchRequest(NamedTuple):
    """The order to make one batch."""

    number: int
    """Counts from 0 over all epochs."""
    epoch: int
    indices: list[int]
    """Records of the dataset, in the order in which they stand in the batch."""


def epoch_order(records: int, seed: int, epoch: int) -> np.ndarray:
    """The order of all records in one epoch, (records,) int64: a permutation that depends on seed
    and epoch alone.
    """
    return np.random.default_rng([seed, epoch]).permutation(records)


def batch_bounds(records: int, per_step: int, num_ranks: int) -> list[tuple[int, int]]:
    """Where each step's samples, of all ranks together, begin and end in the epoch's order.

    Each sample is used once per epoch and every rank has the same number of batches, or the
    gradient exchange would hang: the last step is smaller, and where it would leave a rank without
    a sample it is joined to the step before.
    """
    starts = list(range(0, records, per_step))
    if len(starts) > 1 and records - starts[-1] < num_ranks:
        starts.pop()
    return list(zip(starts, [*starts[1:], records], strict=True))


class Batches:
    """How many samples each batch of one rank has."""

    def __init__(self, records: int, options: LoaderOptions) -> None:
        self.bounds = batch_bounds(
            records, options.batch_size * options.num_ranks, options.num_ranks
        )
        """Where each step's samples begin and end in an epoch's order."""
        self._rank, self._num_ranks = options.rank, options.num_ranks

    @property
    def per_epoch(self) -> int:
        """Batches of each rank in one epoch."""
        return len(self.bounds)

    def samples(self, number: int) -> int:
        """Samples of batch `number`: ranks take turns within a step's samples."""
        first, last = self.bounds[number % len(self.bounds)]
        return len(range(first + self._rank, last, self._num_ranks))


def batch_requests(records: int, options: LoaderOptions) -> Iterator[BatchRequest]:
    """The batches of one rank, in order, from `first_batch` to `num_batches`. Ranks take turns
    within a step's samples.
    """
    bounds = Batches(records, options).bounds
    order, known = np.empty(0, np.int64), -1
    for number in range(options.first_batch, options.num_batches):
        epoch, step = divmod(number, len(bounds))
        if epoch != known:
            order, known = epoch_order(records, options.seed, epoch), epoch
        first, last = bounds[step]
        yield BatchRequest(
            number, epoch, order[first:last][options.rank :: options.num_ranks].tolist()
        )


def batches_per_epoch(records: int, options: LoaderOptions) -> int:
    """How many batches each rank has in one epoch."""
    return Batches(records, options).per_epoch
