"""Reads Kineto files and the windows that they belong to."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.clock import Anchor
from ioprof.errors import CaptureError
from ioprof.files import read_regular_file
from ioprof.format.run_record import ClockRecord, GpuCapture, GpuNote
from ioprof.format.trace import Trace
from ioprof.ingest.kineto.events import Events, pieces
from ioprof.ingest.kineto.spans import WALL_NS, spans_of, wall_spans
from ioprof.ingest.kineto.waits import wait_spans, wall_waits
from ioprof.ingest.kineto.window import FILE, Window, add_heading, add_meta, add_name


def read_windows(folder: Path) -> list[Window]:
    """Every window in a spool folder, by host, process and number. Raises `CaptureError` if there
    is no such folder.
    """
    if not folder.is_dir():
        raise CaptureError(
            f"{folder}: no such spool folder; it is made by: ioprof record -- COMMAND"
        )
    traces = {
        path.name.removesuffix(".tmp").removesuffix(".gz").removesuffix(".json"): path
        for path in sorted(folder.glob("kineto-*"))
        if FILE.fullmatch(path.name)
    }
    metas = {
        path.name.removesuffix(".meta.json"): path for path in folder.glob("kineto-*.meta.json")
    }
    stems = sorted(traces.keys() | metas.keys())
    windows = [
        read_window(traces.get(stem, folder / f"{stem}.json"), metas.get(stem)) for stem in stems
    ]
    return sorted(windows, key=lambda window: (window.host, window.pid or 0, window.number or 0))


def read_window(path: Path, meta: Path | None = None, anchor: Anchor | None = None) -> Window:
    """Read one file. `meta` is its `.meta.json`. Without one, `anchor` is a wall clock reading of
    its host, to convert its times.
    """
    window = Window(path, anchors=[anchor] if anchor else [])
    add_name(window)
    if meta is not None:
        add_meta(window, meta)
    events = Events()
    for piece in pieces(path, window.damage):
        events.add(piece, window.damage)
    events.finish(window.damage)
    add_heading(window, events.heading)
    if window.clock_moved_ns:
        window.damage[
            f"the wall clock was set by {window.clock_moved_ns / 1e9:+.6f} s during this window"
        ] += 1
    add_spans(events, window)
    return window


def add_spans(events: Events, window: Window) -> None:
    """Add what the device did, and when threads of the host waited for it."""
    wall, waits = wall_spans(events, window), wall_waits(events, window)
    if window.anchors:
        window.spans = pl.concat([spans_of(wall, window), wait_spans(waits, window)]).sort(
            "start_ns", maintain_order=True
        )
    elif len(wall) or len(waits):
        window.damage["no wall clock reading to convert its times with"] += 1


STEP_RANGE: Final = "ProfilerStep#"
WAIT_RANGE: Final = "enumerate(DataLoader)"
_WORLD_SIZE: Final = re.compile(r'"world_size"\s*:\s*"?(\d{1,9})\b')
_NO_BASE_NS: Final = 1 << 60
"""Base of times that have none, so that they are times after 2001 as those of other files."""


@dataclass(frozen=True)
class ForeignTrace:
    """A file that torch.profiler wrote in any job, with wall clock times."""

    window: Window
    ranges: pl.DataFrame
    """What the script's process did: `name`, `start_ns`, `end_ns`, `pid`, `tid`; steps of the
    profiler and waits of DataLoaders."""
    world_size: int | None
    """Ranks of the job, if the file says so."""


def read_foreign(path: Path) -> ForeignTrace:
    """Read a file that another program recorded. Its steps are those of `torch.profiler`'s
    `step()`.
    """
    window = Window(path, anchors=[Anchor(0, 0, 0)])
    events = Events((STEP_RANGE, WAIT_RANGE))
    for piece in pieces(path, window.damage):
        events.add(piece, window.damage)
    events.finish(window.damage)
    add_heading(window, events.heading)
    found = events.ranges.drop_nulls(["ts", "dur"])
    if window.base_ns is None and 0 < max(_last(found), _last(events.of_device)) < WALL_NS:
        window.base_ns = _NO_BASE_NS
    start_ns = pl.col("ts") + (window.base_ns or 0)
    ranges = found.select(
        pl.col("name").cast(pl.String),
        pl.col("device").alias("pid"),
        pl.col("stream").alias("tid"),
        start_ns=start_ns,
        end_ns=start_ns + pl.col("dur"),
    ).sort("start_ns")
    steps = ranges.with_columns(
        step=pl.col("name").str.extract(rf"^{STEP_RANGE}(\d{{1,15}})$").cast(pl.Int64)
    ).drop_nulls("step")
    if len(steps):
        window.pid, window.loop_tid = steps["pid"][0], steps["tid"][0]
        ends = list(zip(steps["step"].to_list(), steps["end_ns"].to_list(), strict=True))
        window.marks = [(max(0, ends[0][0] - 1), steps["start_ns"][0]), *ends]
    add_spans(events, window)
    size = _WORLD_SIZE.search(events.heading)
    return ForeignTrace(window, ranges, int(size[1]) if size else None)


def _last(events: pl.DataFrame) -> int:
    last = events["ts"].max()
    return last if isinstance(last, int) else 0


def add_windows(trace: Trace, spool: Path) -> Trace:
    """Add the GPU windows of the same spool folder to the trace, on the clock of the trace.

    Adds `CaptureRecord.gpu`: `windows` (see `Window.facts`) with times of the trace, and `notes`,
    why windows are missing. The rank of a window is that of its process in `RunRecord.processes`,
    if the process is there.
    """
    windows, notes = read_windows(spool), list(_notes(spool))
    if not windows and not notes:
        return trace
    run = trace.run
    ranks = {(process.host, process.pid): process.rank for process in run.processes}
    aligned = [
        window.aligned(
            _shift_ns(run.clocks, window), ranks.get((window.host, window.pid), window.rank)
        )
        for window in windows
    ]
    gpu = GpuCapture(windows=tuple(window.facts() for window in aligned), notes=tuple(notes))
    damaged = (
        *run.capture.damaged,
        *(entry for window in aligned for entry in window.damage_facts()),
    )
    spans = pl.concat([trace.spans, *(each.spans for each in aligned)])
    return replace(
        trace, run=run.replace(capture=run.capture.replace(gpu=gpu, damaged=damaged)), spans=spans
    )


def _shift_ns(clocks: ClockRecord, window: Window) -> int:
    """What to add to the times of a window to get times of the trace."""
    zero_ns = clocks.zero_monotonic_ns or 0
    for estimate in clocks.ties:
        if estimate.clock == window.host:
            reference_ns = estimate.reference_ns or 0
            since_ns = (window.start_ns or reference_ns) - reference_ns
            drift_ns = (estimate.drift_ppm or 0.0) / 1e6 * since_ns
            return (estimate.offset_ns or 0) + round(drift_ns) - zero_ns
    offsets = {anchor.host: anchor.offset_ns or 0 for anchor in clocks.anchors}
    first_ns = next(iter(offsets.values()), 0)
    return offsets.get(window.host, first_ns) - first_ns - zero_ns


def _notes(spool: Path) -> Iterator[GpuNote]:
    """Notes of the sessions about windows that were not recorded."""
    for path in sorted(spool.glob("gpu-*.json")):
        try:
            note = json.loads(read_regular_file(path))
            reasons = {str(why): int(count) for why, count in note["notes"].items()}
            yield GpuNote(host=str(note["host"]), pid=int(note["pid"]), reasons=reasons)
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            continue
