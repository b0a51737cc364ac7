"""One step drawn in characters: what workers, copies, accelerator and exchange did, and what was
waited for.
"""

import textwrap
from typing import Final

import polars as pl

from ioprof.format.trace import Trace
from ioprof.report.lanes import Timeline, Window, timeline_of
from ioprof.report.texts.units import duration
from ioprof.report.views import typical_step

MARKS: Final = {
    "wait": (".", "waiting for a batch"),
    "fetch": ("-", "between stages"),
    "storage": ("S", "read from storage"),
    "page_cache": ("p", "read from page cache"),
    "unknown": ("?", "read, source unknown"),
    "socket": ("n", "received from a socket"),
    "pipe": ("r", "received from a pipe"),
    "open": ("o", "open"),
    "decode": ("d", "decode"),
    "transform": ("t", "transform"),
    "collate": ("c", "collate"),
    "deliver": (">", "delivery"),
    "h2d": ("=", "copy"),
    "d2h": ("=", "copy"),
    "compute": ("#", "compute"),
    "kernel": ("#", "compute"),
    "comm": ("~", "exchange (with waiting for other ranks)"),
}
"""The character of each kind of span, or of a read's source, and what the legend calls it."""
_OF_DEVICE: Final = ("copies", "compute", "exchange")
_OUTER: Final = ("fetch", "wait")  # drawn only where nothing inside them is


def step_picture(trace: Trace, steps: pl.DataFrame, warmup: int = 0, width: int = 100) -> str:
    """The step most like the median one, on the rank that made it, as text of at most `width`
    columns; "" if there is no step.

    Each character is an equal part of the time, and shows what took most of that part.
    """
    if not len(steps):
        return ""
    step = typical_step(steps, warmup)
    heading = f"Step {step['step']} of rank {step['rank']}, like the median step:"
    window = Window(step["start_ns"], step["end_ns"])
    timeline = timeline_of(trace, window, [step["rank"]])
    emulated = trace.run.is_emulated
    lanes = {
        place: f"{lane.name} (emulated)" if emulated and lane.name in _OF_DEVICE else lane.name
        for place, lane in enumerate(timeline.lanes)
        if lane.name != "reads"
    }
    margin = max(map(len, lanes.values()), default=0) + 2
    rows = {place: _row(timeline, place, width - margin) for place in lanes}
    lines = [f"{lanes[place]:<{margin}}{row}".rstrip() for place, row in rows.items()]
    return "\n".join(
        [
            heading,
            _scale(window, margin, width),
            *lines,
            "",
            *_legend("".join(rows.values()), width),
        ]
    )


def _row(timeline: Timeline, lane: int, width: int) -> str:
    """One character per cell of a lane: the mark of what took most of the cell, a blank where
    nothing did.
    """
    start_ns, end_ns = timeline.window.start_ns, timeline.window.end_ns
    bars = timeline.bars.filter(pl.col("lane") == lane)
    cells = pl.DataFrame({"cell": range(width)}).with_columns(
        begin=start_ns + pl.col("cell") * (end_ns - start_ns) // width,
        until=start_ns + (pl.col("cell") + 1) * (end_ns - start_ns) // width,
    )
    covered = cells.join(
        bars.select("kind", "source", "start_ns", "end_ns"), how="cross"
    ).with_columns(
        ns=pl.min_horizontal("until", "end_ns") - pl.max_horizontal("begin", "start_ns"),
        mark=pl.coalesce("source", "kind"),
    )
    inner = ~pl.col("mark").is_in(_OUTER)
    ranked = (
        covered.filter(pl.col("ns") > 0)
        .group_by("cell", "mark")
        .agg(pl.col("ns").sum())
        .with_columns(inner=inner)
    )
    chosen = ranked.sort("inner", "ns", "mark", descending=True).unique("cell", keep="first")
    marks = dict(chosen.select("cell", "mark").iter_rows())
    return "".join(MARKS[marks[cell]][0] if cell in marks else " " for cell in range(width))


def _scale(window: Window, margin: int, width: int) -> str:
    length = duration((window.end_ns - window.start_ns) / 1e9)
    return f"{'':<{margin}}|{f' {length} ':-^{max(0, width - margin - 2)}}|"


def _legend(drawn: str, width: int) -> list[str]:
    texts = dict(MARKS.values())
    entries = [f"{mark} {text}".replace(" ", "\0") for mark, text in texts.items() if mark in drawn]
    return [line.replace("\0", " ") for line in textwrap.wrap("   ".join(entries), width)]
