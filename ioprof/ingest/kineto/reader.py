"""Reads Kineto files and the windows that they belong to."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from ioprof.clock import Anchor
from ioprof.errors import CaptureError
from ioprof.files import read_regular_file
from ioprof.format.run_record import ClockRecord, GpuCapture, GpuNote
from ioprof.format.trace import Trace
from ioprof.ingest.kineto.events import Events, Tables, pieces
from ioprof.ingest.kineto.spans import spans_of, wall_spans
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
    add_spans(events.tables, window)
    return window


def add_spans(events: Tables, window: Window) -> None:
    """Add what the device did, and when threads of the host waited for it."""
    wall, waits = wall_spans(events, window), wall_waits(events, window)
    if window.anchors:
        window.spans = pl.concat([spans_of(wall, window), wait_spans(waits, window)]).sort(
            "start_ns", maintain_order=True
        )
    elif len(wall) or len(waits):
        window.damage["no wall clock reading to convert its times with"] += 1


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
    first_steps = {
        (process.host, process.pid): run.attempts[process.attempt].first_step
        for process in run.processes
        if process.attempt < len(run.attempts)
    }
    aligned = [
        window.aligned(
            _shift_ns(run.clocks, window),
            ranks.get((window.host, window.pid), window.rank),
            first_steps.get((window.host, window.pid), 0),
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
