"""Reads files that torch.profiler wrote in any job, of any version, whose times are checked: see
`plausible.py`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from ioprof.clock import Anchor
from ioprof.ingest.kineto.events import Events, Tables, pieces
from ioprof.ingest.kineto.plausible import clip_overlaps, profiled_time
from ioprof.ingest.kineto.spans import IMPOSSIBLE, OUTSIDE_NS, WALL_NS, wall_spans
from ioprof.ingest.kineto.window import Window, add_heading
from ioprof.ingest.untrusted_values import valid_text

STEP_RANGE: Final = "ProfilerStep#"
WAIT_RANGE: Final = "enumerate(DataLoader)"
OPTIMIZER_RANGE: Final = "Optimizer.step#"
_WHOLE_RANGE: Final = "PyTorch Profiler"
"""Of the time that was profiled, in files since torch 1.8."""
OVERLAPS: Final = "a kernel or copy that ended after the next one of its stream had begun was cut"
LATE: Final = "an event that ended after the time that was profiled was cut"
OUTSIDE: Final = "an event outside of the time that was profiled was left out"
_WORLD_SIZE: Final = re.compile(r'"world_size"\s*:\s*"?(\d{1,9})\b')
_DEVICE: Final = re.compile(
    r'"deviceProperties"\s*:\s*\[\s*\{[^{}]{0,2000}?"name"\s*:\s*"((?:[^"\\]|\\.){1,100})"'
)
_NO_BASE_NS: Final = 1 << 60
"""Base of times that have none, so that they are times after 2001 as those of other files."""


@dataclass(frozen=True)
class ForeignTrace:
    """A file that torch.profiler wrote in any job, with wall clock times."""

    window: Window
    """Without spans."""
    tables: Tables
    wall: pl.DataFrame
    """What the device did, as `spans_of` takes it."""
    ranges: pl.DataFrame
    """What the script's process did: `name`, `start_ns`, `end_ns`, `pid`, `tid`; steps of the
    profiler, calls of optimizers and waits of DataLoaders."""
    world_size: int | None
    """Ranks of the job, if the file says so."""
    device: str | None
    """The accelerator's name, if the file says so."""


def read_foreign(path: Path) -> ForeignTrace:
    """Read a file that another program recorded."""
    window = Window(path, anchors=[Anchor(0, 0, 0)])
    events = Events((STEP_RANGE, WAIT_RANGE, OPTIMIZER_RANGE, _WHOLE_RANGE))
    for piece in pieces(path, window.damage):
        events.add(piece, window.damage)
    events.finish(window.damage)
    add_heading(window, events.heading)
    tables = _in_time(events.tables, window)
    last_ns = max(_last(tables.ranges), _last(tables.of_device), _last(tables.launches))
    if window.base_ns is None and 0 < last_ns < WALL_NS:
        window.base_ns = _NO_BASE_NS
    wall, num_cut = clip_overlaps(wall_spans(tables, window))
    window.damage[OVERLAPS] += num_cut
    size, device = _WORLD_SIZE.search(events.heading), _DEVICE.search(events.heading)
    return ForeignTrace(
        window,
        tables,
        wall,
        _ranges(tables, window),
        int(size[1]) if size else None,
        valid_text(device[1]) if device else None,
    )


def _ranges(tables: Tables, window: Window) -> pl.DataFrame:
    start_ns = pl.col("ts") + (window.base_ns or 0)
    names = pl.col("name").cast(pl.String)
    return (
        tables.ranges.drop_nulls(["ts", "dur"])
        .filter(~names.str.starts_with(_WHOLE_RANGE))
        .select(
            names,
            pl.col("device").alias("pid"),
            pl.col("stream").alias("tid"),
            start_ns=start_ns,
            end_ns=start_ns + pl.col("dur"),
        )
        .sort("start_ns")
    )


def _in_time(tables: Tables, window: Window) -> Tables:
    """The events within the time that was profiled; the others are counted."""
    names = tables.ranges["name"].cast(pl.String)
    is_whole = names.str.starts_with(_WHOLE_RANGE).fill_null(value=False)
    ranges = tables.ranges.filter(~is_whole)
    parts = (tables.of_device, tables.launches, ranges)
    starts = np.concatenate([part["ts"].drop_nulls().to_numpy() for part in parts])
    first, last = profiled_time(starts)
    until = None
    whole = tables.ranges.filter(is_whole).drop_nulls(["ts", "dur"])
    if len(whole) and len(starts):
        begin = int(whole["ts"][0]) - OUTSIDE_NS
        end = begin + int(whole["dur"][0]) + 2 * OUTSIDE_NS
        # where most is outside of that range, the range is what is wrong
        if ((starts >= begin) & (starts <= end)).mean() >= 0.5:
            first, last, until = begin, end, end
    for part in (tables.launches, ranges):
        window.damage[IMPOSSIBLE] += len(part) - len(part.drop_nulls(["ts", "dur"]))
    inside = pl.col("ts").is_null() | pl.col("ts").is_between(first, last)
    kept = [part.filter(inside) for part in parts]
    window.damage[OUTSIDE] += sum(map(len, parts)) - sum(map(len, kept))
    if until is None:
        return Tables(*kept)
    is_late = pl.col("ts") + pl.col("dur") > until
    window.damage[LATE] += sum(int(part.select(is_late.sum()).item()) for part in kept)
    return Tables(
        *(
            part.with_columns(
                dur=pl.when(is_late).then(until - pl.col("ts")).otherwise(pl.col("dur"))
            )
            for part in kept
        )
    )


def _last(events: pl.DataFrame) -> int:
    last = events["ts"].max()
    return last if isinstance(last, int) else 0
