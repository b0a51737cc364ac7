"""The whole run in bins of time: how much of each bin a class of spans took, its longest span, and
bytes by source.

Spans are read in parts, so that a run of any length can be drawn. A span is counted in every bin
that it reaches into, by C (native/bins.c), which runs beside the thread that reads the next part.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof import _bins
from ioprof.analysis.selection import look
from ioprof.format.schema import KINDS, SOURCES
from ioprof.format.trace import Trace
from ioprof.report.lanes import by_thread
from ioprof.report.page.classes import CLASSES, READ_KINDS
from ioprof.report.page.encoding import TICK_NS, block

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

STRIP_BINS: Final = 1024
"""Bins of the strip above the timeline."""
MOST_BINS: Final = 16_384
_MOST_CELLS: Final = 2_000_000
_DURATION_BINS: Final = 512  # eight for each factor of two, from 100 ns
_FEWEST_LONG: Final = 20
_LONG_RATIO: Final = 0.001  # of the spans of a class may be long ones
_LONG_FACTOR: Final = 4.0  # times the median, from which on a span may be a long one
_SOURCE_OF_CLASS: Final = np.array(
    [SOURCES.index(entry.source or "") if entry.kind in READ_KINDS else -1 for entry in CLASSES],
    np.int64,
)


@dataclass(frozen=True)
class Overview:
    """A run in bins of equal length."""

    bins: int
    end_ns: int
    pairs: list[tuple[int, int]]
    """Lane and class of each row of `busy_ns` and `longest`."""
    busy_ns: Floats
    longest: npt.NDArray[np.uint8]
    """Duration of the longest span, as its code (`_least_ns`); 0: none."""
    source_bytes: Floats
    """Bytes of reads for batches, if there are any, by source in the order of `SOURCES`."""
    durations: Floats
    """Spans by class and code."""

    @property
    def bin_ns(self) -> float:
        """The length of a bin."""
        return self.end_ns / self.bins

    def blocks(self) -> str:
        """Shares and longest spans of all rows, a byte for each bin; a share is 1 to 255 where it
        is not 0.
        """
        shares = np.ceil(self.busy_ns * (255 / self.bin_ns)).clip(0, 255).astype(np.uint8)
        return block(
            [row.tobytes() for pair in zip(shares, self.longest, strict=True) for row in pair]
        )

    def long_codes(self) -> list[int]:
        """For each class the code from which on a span is drawn at full height wherever it is; 255:
        none is.
        """
        return [_long_code(row) for row in self.durations]

    def busy_ratio(self, class_numbers: set[int], tracks: int) -> Floats:
        """Share of each bin of the strip in which spans of these classes ran, as the mean of so
        many lanes.
        """
        rows = [
            row
            for row, (_, number) in zip(self.busy_ns, self.pairs, strict=True)
            if number in class_numbers
        ]
        if not rows or not tracks:
            return np.zeros(STRIP_BINS)
        pooled: Floats = np.sum(rows, axis=0).reshape(STRIP_BINS, -1).mean(axis=1)
        return (pooled / (self.bin_ns * tracks)).clip(0, 1)

    def bytes_per_s(self) -> Floats:
        """Bytes per second by source in the bins of the strip."""
        per_bin: Floats = self.source_bytes.reshape(len(SOURCES), STRIP_BINS, -1).sum(axis=2)
        return per_bin / (self.end_ns / STRIP_BINS / 1e9)


def _least_ns() -> Integers:
    """The least duration of each code from 2 on: the code is 8 × log2 of the duration in 100 ns,
    plus 1.
    """
    near = np.floor(TICK_NS * 2.0 ** (np.arange(1, 254) / 8)).astype(np.int64)
    candidates = near[:, None] + np.arange(-2, 3)
    codes = (8 * np.log2(candidates / TICK_NS)).astype(np.int64)
    found: Integers = candidates[
        np.arange(len(near)), (codes >= np.arange(1, 254)[:, None]).argmax(axis=1)
    ]
    return found


_LEAST_NS: Final = _least_ns()


def overview(trace: Trace, table: pl.DataFrame, end_ns: int, is_fine: bool) -> Overview:
    """The run in bins; fine ones are for the timeline of a run whose spans are too many for the
    page.
    """
    filling = Filling(trace, table, end_ns, is_fine)
    look(trace, filling)
    return filling.found


class Filling:
    """`overview`, part by part."""

    def __init__(self, trace: Trace, table: pl.DataFrame, end_ns: int, is_fine: bool) -> None:
        pairs = [
            (int(track), int(number))
            for track, number in (
                table.select("track", "class").unique(maintain_order=True).iter_rows()
            )
        ]
        bins = MOST_BINS if is_fine else STRIP_BINS
        while bins > 2 * STRIP_BINS and bins * len(pairs) > _MOST_CELLS:
            bins //= 2
        self.found = Overview(
            bins,
            end_ns,
            pairs,
            np.zeros((len(pairs), bins)),
            np.zeros((len(pairs), bins), dtype=np.uint8),
            np.zeros((len(SOURCES), bins)),
            np.zeros((len(CLASSES), _DURATION_BINS)),
        )
        """What `overview` returns, when all parts were added."""
        is_read = pl.col("kind").is_in(list(READ_KINDS))
        makes_batches = not trace.sums.filter(is_read, pl.col("in_batch")).is_empty()
        moved = (
            pl.when(pl.col("batch").is_not_null() | (not makes_batches))
            .then(pl.col("bytes"))
            .cast(pl.Int64)
            .fill_null(0)
        )
        self.columns = {
            "start_ns": pl.col("start_ns"),
            "end_ns": pl.col("end_ns"),
            "moved": moved,
            **_keys(by_thread(trace)),
        }
        number = {pair: place for place, pair in enumerate(pairs)}
        process, kind, source = (
            column.to_numpy() for column in table.select(**_keys(pl.col("by_thread")))
        )
        self._processes = np.unique(process)
        self._pairs = np.full((len(self._processes) + 1, len(KINDS) + 1, len(SOURCES) + 1), -1)
        of_rows = [number[pair] for pair in table.select("track", "class").iter_rows()]
        self._pairs[np.searchsorted(self._processes, process), kind, source] = of_rows

    def add(self, part: pl.DataFrame) -> None:
        """Add the next part of the spans; those that have no lane are left out."""
        found = self.found
        columns = [np.ascontiguousarray(part[name].to_numpy()) for name in self.columns]
        classes = np.array([number for _, number in found.pairs], np.int64)
        arguments: list[Any] = [
            *columns, self._processes, self._pairs, _LEAST_NS, classes, _SOURCE_OF_CLASS[classes],
            found.busy_ns, found.longest, found.durations, found.source_bytes,
            *self._pairs.shape[1:], found.bin_ns, found.end_ns,
        ]  # fmt: skip
        _bins.add_spans(*arguments)


def _keys(is_thread: pl.Expr) -> dict[str, pl.Expr]:
    """Process, kind and source of spans, or of rows of the table of lanes. Threads of a rank count
    as a process of their own.
    """
    rank, pid = (
        (pl.col("rank").cast(pl.Int64) + 1).fill_null(0),
        pl.col("pid").cast(pl.Int64).fill_null(-(2**31)),
    )
    return {
        # process ids are below 2**22
        "process": (rank * 2**32 + pid + is_thread.cast(pl.Int64) * 2**31),
        "kind_code": (
            pl.col("kind").cast(pl.Enum(KINDS), strict=False).to_physical().fill_null(len(KINDS))
        ),
        "source_code_or_none": (
            pl.col("source")
            .cast(pl.Enum(SOURCES), strict=False)
            .to_physical()
            .fill_null(len(SOURCES))
        ),
    }


def _long_code(spans: Floats) -> int:
    """The least code above the median's by `_LONG_FACTOR` that only few spans reach."""
    total = spans.sum()
    if not total:
        return 255
    median = int(np.searchsorted(np.cumsum(spans), total / 2))
    least = median + int(8 * np.log2(_LONG_FACTOR))
    above = np.cumsum(spans[::-1])[::-1]  # spans of this code and above
    few = np.flatnonzero(above <= max(_FEWEST_LONG, _LONG_RATIO * total))
    return min(max(least, int(few[0]) if len(few) else 255), 255)
