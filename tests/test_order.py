"""Properties of the order of samples in batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.order import batch_bounds, batch_requests, batches_per_epoch, epoch_order

JOBS = st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 3)).flatmap(
    lambda job: st.tuples(
        st.just(job[0]), st.just(job[1]), st.just(job[2]), st.integers(job[0], 200)
    )
)


def options(ranks: int, batch_size: int, seed: int, rank: int, batches: int) -> LoaderOptions:
    return LoaderOptions(batch_size, batches, rank, ranks, seed=seed)


@given(JOBS)
def test_an_epoch_uses_every_sample_once_over_all_ranks(job):
    """The ranks' shards are disjoint and complete, and all ranks have the same number of batches,
    none of them empty."""
    ranks, batch_size, seed, records = job
    batches = batches_per_epoch(records, options(ranks, batch_size, seed, 0, 0))

    shards = [
        list(batch_requests(records, options(ranks, batch_size, seed, rank, batches)))
        for rank in range(ranks)
    ]

    used = [index for shard in shards for request in shard for index in request.indices]
    assert list(range(records)) == sorted(used)
    assert [batches] * ranks == [len(shard) for shard in shards]
    assert all(request.indices for shard in shards for request in shard)


@given(JOBS)
def test_batches_are_full_but_for_the_last(job):
    """All batches except the last of an epoch have the requested size; that one has at most one
    more sample per rank."""
    ranks, batch_size, _, records = job

    sizes = [last - first for first, last in batch_bounds(records, ranks * batch_size, ranks)]

    assert all(size == ranks * batch_size for size in sizes[:-1])
    assert ranks <= sizes[-1] < ranks * batch_size + ranks


@given(JOBS)
def test_the_order_of_the_job_does_not_depend_on_how_many_ranks_share_it(job):
    """With the same samples per step, the samples of each step do not depend on the number of
    ranks."""
    ranks, batch_size, seed, records = job
    alone = batch_requests(records, options(1, batch_size * ranks, seed, 0, 1))
    shared = [
        next(batch_requests(records, options(ranks, batch_size, seed, rank, 1)))
        for rank in range(ranks)
    ]

    together = sorted(index for request in shared for index in request.indices)
    if len(batch_bounds(records, batch_size * ranks, ranks)) > 1:
        assert sorted(next(alone).indices) == together


def test_epochs_differ_and_seeds_differ():
    """An order is a permutation determined by seed and epoch, and differs for another seed or
    epoch."""
    orders = {(seed, epoch): epoch_order(1000, seed, epoch) for seed in (0, 1) for epoch in (0, 1)}

    assert all(np.array_equal(np.arange(1000), np.sort(order)) for order in orders.values())
    assert len({order.tobytes() for order in orders.values()}) == 4
    assert np.array_equal(epoch_order(1000, 1, 1), orders[1, 1])


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_numbers_count_on_through_the_epochs(epochs):
    """A batch number is unique within a run."""
    per_epoch = batches_per_epoch(20, options(2, 3, 0, 0, 0))

    requests = list(batch_requests(20, options(2, 3, 0, 1, per_epoch * epochs)))

    assert list(range(per_epoch * epochs)) == [request.number for request in requests]
    assert [number // per_epoch for number in range(per_epoch * epochs)] == [
        request.epoch for request in requests
    ]
