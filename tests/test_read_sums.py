"""Sums over reads: those of groups of reads, by the C library, which writes to no memory but that
of its buffers."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from compiling import sanitized
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from repository import NATIVE, PROGRAMS

from ioprof import _read_sums
from ioprof.analysis.charge.duration_classes import LEAST_NS, duration_class, quantiles_ns
from ioprof.analysis.reads.read_sums import IS_CALL, IS_OPEN, IS_READ, ReadSums
from ioprof.format.schema import SOURCES

FILES = pl.Series("file", [0, 1, 7], dtype=pl.Int64)
EPOCHS = pl.DataFrame(
    {"rank": [0, 0, 1], "batch": [0, 1, 0], "epoch": [0, 1, 1]}, schema_overrides={"rank": pl.Int32}
)
_OR_NONE = {
    name: st.none() | st.integers(0, most)
    for name, most in (("file", 9), ("offset", 3), ("rank", 2), ("batch", 2))
}
READS = st.lists(
    st.fixed_dictionaries(
        {
            "start_ns": st.integers(0, 99),
            "end_ns": st.integers(99, 10**10),
            "bytes": st.none() | st.integers(0, 10**7),
            "source": st.none() | st.sampled_from(SOURCES),
            "flags": st.sampled_from([0, IS_READ, IS_OPEN, IS_CALL | IS_READ]),
            **_OR_NONE,
        }
    ),
    min_size=1,
    max_size=40,
)
SCHEMA = {
    **dict.fromkeys(("start_ns", "end_ns", "bytes", "file", "offset", "batch"), pl.Int64),
    "rank": pl.Int32, "source": pl.Enum(SOURCES), "flags": pl.UInt8,
}  # fmt: skip


def summed(reads: pl.DataFrame, parts: int = 1) -> list[pl.DataFrame]:
    """All sums of reads that come in so many parts."""
    sums = ReadSums(FILES, EPOCHS)
    for part in np.array_split(np.arange(len(reads)), parts):
        rows = reads[part]
        sums.add(rows.select(**ReadSums.columns), rows["flags"].to_numpy())
    return [sums.groups(), sums.files(), sums.small(), sums.epochs()]


@given(READS, st.integers(1, 3))
def test_parts_and_their_order_change_nothing(rows: list[dict[str, object]], parts: int) -> None:
    """In any number of parts, and in any order of the reads."""
    reads = pl.DataFrame(rows, schema=SCHEMA)
    for expected, found in zip(summed(reads), summed(reads.reverse(), parts), strict=True):
        assert_frame_equal(expected, found)


@given(READS)
def test_sums_are_those_of_groups_of_reads(rows: list[dict[str, object]]) -> None:
    """As polars groups them."""
    reads = pl.DataFrame(rows, schema=SCHEMA)
    groups, files, small, epochs = summed(reads)
    size, took = pl.col("bytes").fill_null(0), pl.col("end_ns") - pl.col("start_ns")
    counted = reads.filter(pl.col("flags").is_in([IS_READ, IS_READ | IS_CALL])).with_columns(
        size=size, took=took, source=pl.col("source").fill_null("unknown").cast(pl.String)
    )
    added = {
        "accesses": pl.len().cast(pl.Int64),
        "bytes": pl.col("size").sum(),
        "took_ns": pl.col("took").sum(),
    }
    classes = {
        "size_class": (
            pl.when(pl.col("size") >= 1)
            .then(pl.col("size").log(4) + 1e-9)
            .otherwise(0)
            .floor()
            .cast(pl.Int64)
        ),
        "time_class": duration_class(pl.col("took")).cast(pl.Int64),
    }
    expected = (
        counted.group_by("source", **classes)
        .agg(**added, max_ns=pl.col("took").max())
        .sort("source", *classes)
    )
    assert_frame_equal(expected, groups)
    opened = (
        reads.filter(pl.col("flags") == IS_OPEN)
        .group_by("file")
        .agg(opens=pl.len().cast(pl.Int64), open_ns=took.sum())
    )
    of_files = (
        counted.filter(pl.col("file").is_in(FILES.implode()))
        .sort(-pl.col("took"), "offset")
        .group_by("file")
        .agg(
            **added,
            max_ns=pl.col("took").max(),
            max_offset=pl.col("offset").first(),
            end=pl.when(pl.col("offset").has_nulls().not_()).then(
                (pl.col("offset") + pl.col("size")).max()
            ),
        )
    )
    of_files = (
        of_files.join(opened, on="file", how="left")
        .with_columns(pl.col("opens", "open_ns").fill_null(0))
        .sort("file")
    )
    assert_frame_equal(of_files, files.select(of_files.columns))
    calls = counted.filter(pl.col("flags") == IS_READ | IS_CALL, pl.col("size") <= 8192)
    assert calls["size"].sum() == small["bytes"].sum()
    assert len(calls.filter(pl.col("size") < 4096)) == small.filter("below_page")["accesses"].item()
    of_epochs = (
        counted.join(EPOCHS, on=["rank", "batch"])
        .group_by("epoch", "source")
        .agg(accesses=added["accesses"], bytes=added["bytes"])
    )
    assert_frame_equal(of_epochs, epochs, check_row_order=False)


@given(st.integers(1, 10**14))
def test_limits_of_classes_are_those_of_the_classes(took_ns: int) -> None:
    """As polars computes the class of a duration."""
    expected = pl.select(duration_class(pl.lit(took_ns, dtype=pl.Int64))).item()
    assert int(np.searchsorted(LEAST_NS, took_ns, side="right")) - 1 == expected


def test_buffers_that_do_not_fit_are_refused() -> None:
    """A source beyond those of the sums, an epoch beyond them, and a column that is too short."""
    one, limits, key = np.zeros(1, np.int64), np.array([1]), np.array([0])
    sums = (
        np.zeros((1, 32, 1, 4), np.int64),
        np.zeros((1, 8), np.int64),
        np.zeros((2, 3), np.int64),
        np.zeros((1, 1, 2), np.int64),
    )
    flags, source = np.array([IS_READ], np.uint8), np.zeros(1, np.uint8)
    for sources, epochs, last in (
        (source + 1, key, one),
        (source, key + 1, one),
        (source, key, one[:0]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            _read_sums.add_reads(
                one, one, one, one, one, one, last, sources, flags, limits, key, epochs, *sums, 1, 1
            )
    assert not any(each.any() for each in sums)


@pytest.mark.job
def test_sanitizers_find_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No access outside of a buffer and no undefined behaviour, also of numbers that have no
    place."""
    built, variables = sanitized(
        "_read_sums", [str(NATIVE / "read_sums.c")], tmp_path_factory.mktemp("built")
    )
    command = [sys.executable, str(PROGRAMS / "sanitized_read_sums.py"), str(built), "2000"]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert (0, "done\n") == (ended.returncode, ended.stdout), ended.stderr[-3000:]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.floats(0, 1))
def test_a_quantile_lies_in_the_class_of_the_duration_of_that_place(
    counts: list[int], ratio: float
) -> None:
    """Of all durations in ascending order; also at the edge of a class."""
    classes = np.arange(len(counts)) * 3
    place = round(ratio * (sum(counts) - 1))
    expected = np.repeat(classes, counts)[place]
    [found] = quantiles_ns(classes, np.array(counts), [ratio])
    assert [expected] == pl.select(duration_class(pl.lit(found))).to_series().to_list()
