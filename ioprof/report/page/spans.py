"""The spans of a page's timeline, exact to 100 ns, as blocks of columns."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from ioprof.report.page.encoding import (
    Integers,
    block,
    differences,
    optional_differences,
    ticks,
    varints,
    zigzag,
)
from ioprof.report.texts.units import NAME_LENGTH, clean

SPANS_PER_BLOCK: Final = 40_000
"""Spans in one block: so many are inflated without making the page wait."""
_THREADS: Final = 2
FINE_PARTS: Final = 10_000
"""Of a step: a share is written with one decimal of a percent, so it is that of the summary."""
COARSE_PARTS: Final = 255
_MOST_FINE_STEPS: Final = 20_000
"""Steps whose shares are fine: they take some 2 bytes for each cause, 0.3 MB in all."""
LONGEST_PATH: Final = 300
"""Characters of a path that the page has; longer ones are cut in the middle."""


@dataclass(frozen=True)
class SpanBlocks:
    """Spans as blocks of text, and the tables that they refer to."""

    blocks: list[str]
    counts: list[list[tuple[int, int]]]
    """For each block the lanes in it and the number of spans of each."""
    paths: list[str]
    sizes: Integers
    """Bytes of each file; -1: not known."""
    names: list[str]
    """Names of spans, by number."""


def span_blocks(spans: pl.DataFrame, files: pl.DataFrame) -> SpanBlocks:
    """Spans with the columns `track` and `class`, in order of lane and start."""
    ordered = spans.sort("track", "start_ns", "end_ns", descending=[False, False, True])
    used = ordered.select(pl.col("file").drop_nulls().unique(maintain_order=True)).with_row_index(
        "place"
    )
    paths = used.join(
        files.select("file", "path", "size_bytes"), on="file", how="left", maintain_order="left"
    )
    names = ordered.select(
        pl.col("name").cast(pl.String).drop_nulls().unique(maintain_order=True)
    ).with_row_index("name_place")
    ordered = ordered.with_columns(pl.col("name").cast(pl.String)).join(
        names, on="name", how="left", maintain_order="left"
    )
    ordered = ordered.join(
        paths.select("file", "place", "size_bytes"), on="file", how="left", maintain_order="left"
    )
    parts = list(ordered.iter_slices(SPANS_PER_BLOCK))
    with ThreadPoolExecutor(_THREADS) as threads:
        blocks = list(threads.map(lambda part: block(_columns(part)), parts))
    return SpanBlocks(
        blocks,
        [list(part.group_by("track", maintain_order=True).len().iter_rows()) for part in parts],
        [_path(path) for path in paths["path"]],
        paths["size_bytes"].fill_null(-1).to_numpy(),
        [clean(name, NAME_LENGTH) for name in names["name"]],
    )


def _columns(part: pl.DataFrame) -> list[bytes]:
    """The columns of one block: class, start after the end before, duration, bytes, file, batch,
    step, name.
    """
    start, end = ticks(part["start_ns"].to_numpy()), ticks(part["end_ns"].to_numpy())
    track = part["track"].to_numpy()
    before = np.where(np.diff(track, prepend=-1) == 0, np.concatenate(([0], end[:-1])), 0)
    size = _or_missing(part["size_bytes"])
    moved = _or_missing(part["bytes"])
    coded = np.where(moved < 0, 0, np.where((moved == size) & (size >= 0), 1, moved + 2))
    return [
        part["class"].to_numpy().astype(np.uint8).tobytes(),
        varints(zigzag(start - before)),
        varints(np.maximum(end - start, 0)),
        varints(coded),
        *(
            optional_differences(_or_missing(part[name]))
            for name in ("place", "batch", "step", "name_place")
        ),
    ]


def _or_missing(column: pl.Series) -> Integers:
    return column.cast(pl.Int64).fill_null(-1).to_numpy()


def _path(path: str | None) -> str:
    if path is None:
        return ""
    return path if len(path) <= LONGEST_PATH and path.isprintable() else clean(path, LONGEST_PATH)


def parts_of_step(num_steps: int) -> int:
    """Units of the share of a cause in a step, in a page of so many steps."""
    return FINE_PARTS if num_steps <= _MOST_FINE_STEPS else COARSE_PARTS


def step_columns(steps: pl.DataFrame, causes: tuple[str, ...]) -> tuple[str, list[tuple[Any, int]]]:
    """Steps as a block, and the ranks in it with the number of steps of each.

    Columns: step, start after the end before, duration, then for each cause its share of the step
    in `parts_of_step`. The edges of the causes one after the other are rounded, so that the shares
    of a step that was charged add up to the whole.
    """
    ordered = steps.sort("rank", "start_ns")
    start, end = ticks(ordered["start_ns"].to_numpy()), ticks(ordered["end_ns"].to_numpy())
    wall = np.maximum(ordered["end_ns"].to_numpy() - ordered["start_ns"].to_numpy(), 1)
    parts = parts_of_step(len(steps))
    spent_ns, edge = np.zeros(len(wall), np.int64), np.zeros(len(wall), np.int64)
    shares: list[bytes] = []
    for cause in causes:
        spent_ns = spent_ns + ordered[f"{cause}_ns"].fill_null(0).to_numpy()
        until = np.rint(spent_ns / wall * parts).astype(np.int64)
        shares.append(varints(np.maximum(until - edge, 0)))
        edge = until
    before = np.concatenate(([0], end[:-1])) if len(end) else end
    columns = [
        differences(ordered["step"].to_numpy()),
        varints(zigzag(start - before)),
        varints(np.maximum(end - start, 0)),
        *shares,
    ]
    return block(columns), list(ordered.group_by("rank", maintain_order=True).len().iter_rows())
