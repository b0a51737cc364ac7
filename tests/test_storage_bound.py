"""Whether storage was bound by its latency or its rate, from windows whose truth is known."""

import numpy as np
import polars as pl
import pytest

from ioprof.analysis.reads.storage_bound import Quartiles, by_window, storage_bound

WIDE, NARROW = Quartiles(1e6, 4e6, 9e6), Quartiles(3.9e6, 4e6, 4.1e6)
"""Quartiles of times of reads that differ, and of reads that take as long as each other, in
nanoseconds."""
SIZES, ONE_SIZE = Quartiles(2e4, 6e4, 1e5), Quartiles(1e5, 1e5, 1e5)
"""Quartiles of their bytes."""


def windows(
    slope: float, noise: float, seed: int, number: int = 40
) -> tuple[np.ndarray, np.ndarray]:
    """Reads and bytes per window: reads change with that power of bytes per read, and by a relative
    noise."""
    random = np.random.default_rng(seed)
    size = np.exp(random.normal(11.0, 0.3, number))
    reads = 100.0 * (size / size.mean()) ** slope * np.exp(random.normal(0.0, noise, number))
    return reads, reads * size


@pytest.mark.parametrize(("slope", "kind"), [(-1.0, "throughput"), (0.0, "latency"), (-0.5, None)])
def test_the_kind_follows_from_the_slope(slope: float, kind: str | None) -> None:
    """A shared rate, a latency, and what lies between: not known."""
    assert kind == storage_bound(WIDE, SIZES, *windows(slope, 0.05, seed=1)).kind


def test_reads_that_take_as_long_as_each_other_have_a_latency() -> None:
    """If their sizes differ: under a rate their times would, too."""
    assert "latency" == storage_bound(NARROW, SIZES, *windows(-1.0, 0.05, seed=1)).kind


def test_reads_of_one_size_and_one_time_fit_a_latency_and_a_rate() -> None:
    """Chunks of 100 kB in 4 ms each: a latency of 4 ms, or a rate of 25 MB/s. The reason says
    so."""
    reads = np.full(40, 125.0)
    found = storage_bound(NARROW, ONE_SIZE, reads, reads * 1e5)
    assert found.kind is None
    assert "equal_reads" == found.why.code


@pytest.mark.parametrize("number", [1, 5])
def test_few_windows_show_nothing(number: int) -> None:
    """Nor is there an error."""
    assert storage_bound(WIDE, SIZES, *windows(-1.0, 0.05, seed=1, number=number)).kind is None


@pytest.mark.parametrize("is_rate", [False, True])
@pytest.mark.parametrize(("noise", "number"), [(0.1, 8), (0.2, 20), (0.3, 40)])
def test_noise_makes_it_unknown_before_it_makes_it_wrong(
    is_rate: bool, noise: float, number: int
) -> None:
    """Of 300 runs at most one in a hundred is called the wrong kind."""
    wrong = "latency" if is_rate else "throughput"
    kinds = [
        storage_bound(WIDE, SIZES, *windows(-1.0 if is_rate else 0.0, noise, seed, number)).kind
        for seed in range(300)
    ]
    assert kinds.count(wrong) <= 3


def test_reads_count_evenly_over_their_time() -> None:
    """Over windows of 10: one from 5 to 25, one within a window, one that takes no time, one that
    begins before and one after."""
    rows = [(5, 25, 40), (12, 14, 8), (20, 20, 1), (-10, 10, 6), (31, 40, 100)]
    reads = pl.DataFrame(
        rows, schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "bytes": pl.Int64}, orient="row"
    )
    edges = np.arange(0, 31, 10)
    assert [0.75, 1.5, 1.25] == pytest.approx(by_window(edges, reads))
    assert [13.0, 28.0, 11.0] == pytest.approx(by_window(edges, reads, "bytes"))
    assert 0 == len(by_window(edges[:1], reads))
