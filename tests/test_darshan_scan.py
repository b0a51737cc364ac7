"""The scanner in C finds in Darshan's traces what NumPy finds, also in those that are damaged."""

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest
from damaged_darshan import check_case, reads_by_numpy, shown
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from ioprof import _scan
from ioprof.interchange.darshan_reads import Layout, Reads, TracedFile, reads_in

PLAIN = Layout("<", has_threads=False)


def record(
    number: int,
    rank: int,
    *reads: tuple[int, int, float, float],
    writes: int = 0,
    count: int | None = None,
) -> bytes:
    """A record that says that it has `count` reads, after one write or none."""
    head = struct.pack(
        "<Qqq64s2q", number, rank, 0, b"node1", writes, len(reads) if count is None else count
    )
    return (
        head
        + struct.pack("<2q2d", 0, 9, 0.1, 0.2) * writes
        + b"".join(struct.pack("<2q2d", *read) for read in reads)
    )


READERS = [reads_in, lambda blocks, *rest: reads_by_numpy(b"".join(blocks), *rest)]


@pytest.mark.parametrize("read", READERS)
def test_reads_of_all_records_are_found(read: Callable[..., Reads]) -> None:
    """Times are rounded to the nearest nanosecond, halves to even; a read that is impossible is
    counted."""
    data = record(5, 3, (0, 10, 0.5, 0.75), (-1, 20, 2.5e-9, 3.5e-9), writes=1)
    data += record(2**64 - 1, -1, (7, 1, 0.0, float("nan")), (8, 1, 1.0, 2.0))
    found = read([data], PLAIN, 1000)
    assert {name: column.tolist() for name, column in found.columns.items()} == {
        "start_ns": [500_001_000, 1002, 1_000_001_000],
        "end_ns": [750_001_000, 1004, 2_000_001_000],
        "bytes": [10, 20, 1],
        "offset": [0, -1, 8],
    }
    assert found.files == [TracedFile(5, 3, b"node1", 2), TracedFile(2**64 - 1, None, b"node1", 1)]
    assert (found.num_writes, found.num_impossible, found.is_damaged) == (1, 1, False)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("count", [2, 1 << 60, (1 << 63) - 1, -1])
def test_a_record_that_is_not_complete_is_left_out(count: int, read: Callable[..., Reads]) -> None:
    """With its counts; what was before it is kept."""
    whole, call = record(5, 0, (0, 10, 0.5, 0.75)), (0, 10, float("nan"), 1.0)
    found = read([whole + record(6, 0, call, writes=1, count=count)], PLAIN, 0)
    assert ([10], [TracedFile(5, 0, b"node1", 1)]) == (found.columns["bytes"].tolist(), found.files)
    assert (found.num_writes, found.num_impossible, found.is_damaged) == (0, 0, True)


@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_data_gives_the_same_reads_and_counts(seed: int) -> None:
    """Of both byte orders and versions, with changed, cut and doubled bytes, in blocks that end
    anywhere."""
    check_case(random.Random(seed))


def test_columns_grow() -> None:
    """Far beyond their first size, also in one block."""
    count = 400_000
    calls = np.zeros((count, 4), "<i8")
    calls[:, 0] = np.arange(count)
    data = record(1, 0, count=count) + calls.tobytes()
    pieces = [data[place : place + 99_999] for place in range(0, len(data), 99_999)]
    for blocks in ([data], pieces):
        found = reads_in(blocks, PLAIN, 0)
        assert np.array_equal(np.arange(count), found.columns["offset"])
        assert not found.columns["bytes"].any()
    assert shown(reads_by_numpy(data, PLAIN, 0)) == shown(found)


def test_a_scanner_is_used_once() -> None:
    scanner = _scan.DarshanScanner(1, 0, False, False)
    scanner.tables()
    for call in (lambda: scanner.scan(b""), lambda: scanner.__init__(1, 0, False, False)):
        with pytest.raises(RuntimeError):
            call()
    assert ([], b"") == (
        np.frombuffer(scanner.tables()[0][0], np.int64).tolist(),
        scanner.tables()[1],
    )
    with pytest.raises(ValueError, match="an impossible time"):
        _scan.DarshanScanner(1, -1, False, False)
