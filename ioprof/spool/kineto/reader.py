"""From files to windows."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from ioprof.clock import Anchor
from ioprof.errors import CaptureError
from ioprof.spool.kineto.events import Events, texts
from ioprof.spool.kineto.spans import spans_of, wall_spans
from ioprof.spool.kineto.window import FILE, Window, take_heading, take_meta, take_name
from ioprof.trace import Trace


def read_windows(folder: Path) -> list[Window]:
    """Every window in a spool folder, by host, process and number. Raises `CaptureError` where there is no such folder."""
    if not folder.is_dir():
        raise CaptureError(f"{folder}: no such spool folder; it is made by: ioprof record -- COMMAND")
    traces = {_stem(path): path for path in sorted(folder.glob("kineto-*")) if FILE.fullmatch(path.name)}
    described = {path.name.removesuffix(".meta.json"): path for path in folder.glob("kineto-*.meta.json")}
    stems = sorted(traces.keys() | described.keys())
    windows = [read_window(traces.get(stem, folder / f"{stem}.json"), described.get(stem)) for stem in stems]
    return sorted(windows, key=lambda window: (window.host, window.pid or 0, window.number or 0))


def read_window(path: Path, meta: Path | None = None, anchor: Anchor | None = None) -> Window:
    """One file. `meta` is its `.meta.json`; without one, `anchor` is a reading of its host's wall clock, to tie its times down."""
    window = Window(path, anchors=[anchor] if anchor else [])
    take_name(window)
    if meta is not None:
        take_meta(window, meta)
    events = Events()
    for text in texts(path, window.damage):
        events.take(text, window.damage)
    events.finish(window.damage)
    take_heading(window, events.heading)
    if window.clock_moved_ns:
        window.damage[f"the wall clock was set by {window.clock_moved_ns / 1e9:+.6f} s within this window"] += 1
    wall = wall_spans(events, window)
    if len(wall) and not window.anchors:
        window.damage["nothing ties its times to the monotonic clock"] += 1
    elif len(wall):
        window.spans = spans_of(wall, window)
    return window


def _stem(path: Path) -> str:
    return path.name.removesuffix(".tmp").removesuffix(".gz").removesuffix(".json")


def add_windows(trace: Trace, spool: Path) -> Trace:
    """The trace with what the GPU sessions left in the same spool folder, on the trace's clock.

    Adds `run["capture"]["gpu"]`: `windows`, see `Window.facts`, with times of the trace, and `notes`, why there are not more.
    A window's rank is that of its process in `run["processes"]`, if it is there.
    """
    windows, notes = read_windows(spool), list(_notes(spool))
    if not windows and not notes:
        return trace
    clocks, capture = trace.run.get("clocks") or {}, trace.run.get("capture") or {}
    ranks = {(entry["host"], entry["pid"]): entry["rank"] for entry in trace.run.get("processes") or []}
    placed = [window.placed(_shift_ns(clocks, window), ranks.get((window.host, window.pid), window.rank)) for window in windows]
    facts = {
        **capture,
        "gpu": {"windows": [window.facts() for window in placed], "notes": notes},
        "damaged": [*capture.get("damaged", []), *(entry for window in placed for entry in window.damage_facts())],
    }
    return replace(trace, run={**trace.run, "capture": facts}, spans=pl.concat([trace.spans, *(each.spans for each in placed)]))


def _shift_ns(clocks: dict[str, Any], window: Window) -> int:
    """What to add to the window's times to get those of the trace."""
    zero_ns = clocks.get("zero_monotonic_ns") or 0
    for tie in clocks.get("ties") or []:
        if tie["clock"] == window.host:
            drift_ns = tie["drift_ppm"] / 1e6 * ((window.start_ns or tie["reference_ns"]) - tie["reference_ns"])
            return int(tie["offset_ns"] + round(drift_ns) - zero_ns)
    offsets = {entry["host"]: entry["offset_ns"] for entry in clocks.get("anchors") or []}
    first_ns = next(iter(offsets.values()), 0)
    return int(offsets.get(window.host, first_ns) - first_ns - zero_ns)


def _notes(spool: Path) -> Iterator[dict[str, Any]]:
    """What the sessions said of windows that were not recorded."""
    for path in sorted(spool.glob("gpu-*.json")):
        try:
            said = json.loads(path.read_bytes())
            yield {
                "host": said["host"],
                "pid": said["pid"],
                "reasons": {str(why): int(count) for why, count in said["notes"].items()},
            }
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            continue
