"""Which spans an analysis looks at: rank by rank, so that memory follows the largest rank and not the run."""

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from ioprof.analysis.intervals import Intervals, pack
from ioprof.trace import Trace

COMPUTE: Final = ("compute", "kernel")
"""Kinds during which an accelerator does useful work."""
COPIES: Final = ("h2d", "d2h")
READS: Final = ("open", "read", "fault")
"""Kinds that wait for a file."""

_ROWS_AT_ONCE: Final = 2_000_000


def kind_in(kinds: Sequence[str]) -> pl.Expr:
    """Rows of one of these kinds."""
    return pl.col("kind").is_in(list(kinds))


def by_rank(trace: Trace, kinds: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
    """Each rank that recorded one of the kinds, in order, and those spans of it and of its workers."""
    kept = ["start_ns", "end_ns", "kind", "rank", *columns]
    counts = trace.spans.filter(kind_in(kinds), pl.col("rank").is_not_null()).group_by("rank").len().sort("rank")
    for ranks in _batches(counts["rank"].to_list(), counts["len"].to_list()):
        rows = trace.spans.select(kept).lazy().filter(pl.col("rank").is_in(ranks), kind_in(kinds)).collect()
        parts = rows.partition_by("rank", as_dict=True) if len(ranks) > 1 else {(ranks[0],): rows}
        del rows
        for rank in ranks:
            yield rank, parts.pop((rank,))


def intervals(spans: pl.DataFrame, start: str = "start_ns", end: str = "end_ns") -> Intervals:
    """The times of the rows, as they stand."""
    return pack(spans[start].to_numpy(), spans[end].to_numpy())


def _batches(ranks: list[int], rows: list[int]) -> Iterator[list[int]]:
    """Ranks in groups that hold a bounded number of rows, each at least one rank."""
    group: list[int] = []
    held = 0
    for rank, count in zip(ranks, rows, strict=True):
        if group and held + count > _ROWS_AT_ONCE:
            yield group
            group, held = [], 0
        group.append(rank)
        held += count
    if group:
        yield group
