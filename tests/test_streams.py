"""Order of shards that are read sequentially: properties of the assignment to readers and of the
shuffle buffer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.order import batches_per_epoch
from ioprof.loaders.streams import StreamOrder, cut, shuffled

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=8)
"""Number of records of each shard."""
JOBS = st.tuples(
    st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.integers(1, 9), st.integers(0, 3)
)
"""Ranks, batch size, workers, buffer, seed."""


def shards_of(sizes: list[int]) -> list[range]:
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def order(
    shards: list[range], job: tuple[int, ...], rank: int, epochs: int, first: int = 0
) -> StreamOrder:
    ranks, batch_size, workers, buffer, seed = job
    records = sum(map(len, shards))
    batches = epochs * batches_per_epoch(records, LoaderOptions(batch_size, 1, rank, ranks))
    options = LoaderOptions(
        batch_size,
        batches,
        rank,
        ranks,
        workers=workers,
        seed=seed,
        shuffle_buffer=buffer,
        first_batch=first,
    )
    return StreamOrder(shards, options)


@given(SIZES, JOBS)
def test_every_record_is_in_one_batch_of_one_rank(sizes, job):
    """In each epoch, for any shard sizes, ranks and workers divide the shards without gaps and
    overlaps."""
    shards, ranks = shards_of(sizes), min(job[0], sum(sizes))
    requests = [
        request
        for rank in range(ranks)
        for request in order(shards, (ranks, *job[1:]), rank, 2).requests()
    ]
    for epoch in (0, 1):
        used = [
            index for request in requests if request.epoch == epoch for index in request.indices
        ]
        assert list(range(sum(sizes))) == sorted(used)
    assert all(request.indices for request in requests)


@given(SIZES, JOBS, st.data())
def test_a_lane_reads_what_its_batches_ask_for(sizes, job, data):
    """It reads exactly the remaining records of its batches from the requested one on, each
    once."""
    shards, ranks = shards_of(sizes), min(job[0], sum(sizes))
    ordered = order(shards, (ranks, *job[1:]), data.draw(st.integers(0, ranks - 1)), 2)
    requests = list(ordered.requests())
    asked = data.draw(st.sampled_from(requests))
    ranges, done = ordered.piece(asked.number)
    mine = [
        each
        for each in requests
        if each.epoch == asked.epoch and ordered.lane(each.number) == ordered.lane(asked.number)
    ]
    assert done == {index for each in mine if each.number < asked.number for index in each.indices}
    read = [index for each in ranges for index in each]
    assert sorted(index for each in mine for index in each.indices) == sorted(read)
    assert all(any(set(each) <= set(shard) for shard in shards) for each in ranges)


@given(SIZES, JOBS, st.data())
def test_a_resumed_order_is_the_tail(sizes, job, data):
    """From any batch on, numbers, epochs and records are the same."""
    shards, ranks = shards_of(sizes), min(job[0], sum(sizes))
    whole = list(order(shards, (ranks, *job[1:]), ranks - 1, 3).requests())
    first = data.draw(st.integers(0, len(whole)))
    assert whole[first:] == list(order(shards, (ranks, *job[1:]), ranks - 1, 3, first).requests())


@given(SIZES, st.integers(1, 9), st.integers(0, 99))
def test_the_buffer_holds_no_more_than_it_may(sizes, buffer, seed):
    """Every record is returned once, and the buffer never holds more records than its length."""
    ranges = shards_of(sizes)
    left = list(shuffled(ranges, buffer, np.random.default_rng(seed)))
    assert list(range(sum(sizes))) == sorted(left)
    furthest = np.maximum.accumulate(left) + 1  # so many had to be read
    assert (furthest - np.arange(len(left)) <= buffer).all()


def test_a_buffer_of_one_changes_nothing():
    """Records are returned in the order of the shard."""
    assert list(range(50)) == list(
        shuffled([range(20), range(20, 50)], 1, np.random.default_rng(0))
    )


def test_a_larger_buffer_shuffles_more():
    """The mean displacement of a record is proportional to the buffer size: at least half of it."""
    away = {}
    for buffer in (10, 100, 1000):
        left = np.array(list(shuffled([range(20_000)], buffer, np.random.default_rng(1))))
        away[buffer] = np.abs(left - np.arange(20_000)).mean() / buffer
    assert {10: True, 100: True, 1000: True} == {
        buffer: 0.5 < share < 1 for buffer, share in away.items()
    }, away


@given(SIZES, st.integers(0, 100), st.integers(0, 100))
def test_a_cut_is_what_slicing_the_whole_would_be(sizes, one, other):
    """Whether ranges are contiguous from one position to another."""
    ranges, (begin, end) = shards_of(sizes), sorted((one, other))
    whole = [number for each in ranges for number in each]
    parts = cut(ranges, begin, end)
    assert whole[begin:end] == [number for part in parts for number in part]
    assert all(parts)
