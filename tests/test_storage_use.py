"""Latency and rate of storage, as a replay takes them from reads."""

import numpy as np
import polars as pl
import pytest

from ioprof.format.run_record import RunRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.model.storage_use import _is_steady, reads_of_batches, storage_use


def reads_of(times_s: np.ndarray, sizes: np.ndarray, pauses_s: float | np.ndarray = 0.0) -> Trace:
    """A trace of one worker that reads these files one after the other, with a pause after each."""
    begins_s = np.concatenate(([0.0], np.cumsum(times_s + pauses_s)[:-1]))
    starts, ends = ((each * 1e9).astype(np.int64) for each in (begins_s, begins_s + times_s))
    spans = [
        {
            "kind": "read",
            "start_ns": start,
            "end_ns": end,
            "host": "node1",
            "rank": 0,
            "pid": 101,
            "tid": 101,
            "batch": number // 8,
            "bytes": size,
            "file": number,
            "source": "storage",
        }
        for number, (start, end, size) in enumerate(
            zip(starts.tolist(), ends.tolist(), sizes.tolist(), strict=True)
        )
    ]
    return Trace(RunRecord(), pl.DataFrame(spans, schema=table_schema(SPAN_COLUMNS)))


def reads_on_one_disk(times_s: np.ndarray, sizes: np.ndarray) -> pl.DataFrame:
    """What of those is looked at."""
    return reads_of_batches(reads_of(times_s, sizes))


def test_storage_that_delivers_a_constant_rate_is_bound_by_it() -> None:
    """Reads take what their bytes take at 4 MB/s."""
    sizes = np.random.default_rng(0).integers(10_000, 300_000, 200)
    found = storage_use(reads_on_one_disk(sizes / 4e6, sizes))
    assert found.is_rate_bound
    assert found.bytes_per_s == pytest.approx(4e6, rel=0.01)


@pytest.mark.parametrize("saves_up", [False, True])
def test_storage_may_work_while_nobody_reads(saves_up: bool) -> None:
    """A quota of 4 MB/s saves up to 400 kB while the reader computes, which then come at once; a
    disk of 4 MB/s does not."""
    sizes, saved = np.random.default_rng(0).integers(10_000, 100_000, 1000), 0.0
    pauses_s, times_s = (
        np.random.default_rng(1).uniform(0.1, 0.7, 1000) * sizes / 4e6,
        np.zeros(len(sizes)),
    )
    for number, size in enumerate(sizes):
        times_s[number] = max(0.0, size - saved) / 4e6 + 1e-4
        saved = (
            min(4e5, max(0.0, saved - size) + (pauses_s[number] + 1e-4) * 4e6) if saves_up else 0.0
        )
    found = storage_use(reads_of_batches(reads_of(times_s, sizes, pauses_s)))
    assert found.is_rate_bound
    assert found.bytes_per_s == pytest.approx(4e6, rel=0.03)


def test_storage_whose_reads_take_equally_long_is_bound_by_latency() -> None:
    """5 ms each, whatever their size."""
    random = np.random.default_rng(0)
    found = storage_use(
        reads_on_one_disk(random.normal(5e-3, 2e-4, 1000), random.integers(10_000, 300_000, 1000))
    )
    assert not found.is_rate_bound
    assert found.latency_s == pytest.approx(5e-3, rel=0.05)


def test_a_cache_that_the_first_batches_fill_makes_no_steady_rate() -> None:
    """8 batches read 1.6 MB each within half a second, later ones 36 kB each in small reads: the
    disk is idle most of the time."""
    random = np.random.default_rng(0)
    sizes = np.concatenate([np.full(64, 200_000), random.integers(3_000, 6_000, 6000)])
    times_s = sizes / 32e6 * random.lognormal(0.0, 0.5, len(sizes))
    pauses_s = np.concatenate([np.zeros(64), random.uniform(5e-3, 1e-2, 6000)])
    assert not _is_steady(reads_of_batches(reads_of(times_s, sizes, pauses_s)))
