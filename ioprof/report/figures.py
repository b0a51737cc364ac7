"""The figures of the report, as plotly figures: for the page and for notebooks.

Each draws one table of `ioprof.report.views` or `ioprof.report.lanes`; every string from the run is
escaped on its way in, because plotly reads a subset of HTML in all its texts.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from ioprof.format.schema import CAUSES, SOURCES
from ioprof.format.trace import Trace
from ioprof.report.lanes import READS, Timeline, Window, timeline_of
from ioprof.report.palette import (
    CAUSE_COLOURS,
    KIND_NAMES,
    RANK_COLOURS,
    SOURCE_COLOURS,
    kind_colour,
)
from ioprof.report.texts.units import NAME_LENGTH, amount, clean, count, duration, shares
from ioprof.report.views import (
    BINS_PER_DECADE,
    bars_of_time_by_cause,
    latency_bins,
    rates,
    seconds_by_cause,
    step_rows,
)

LANE_PIXELS: Final = 26
_DEVICE_KINDS: Final = ("h2d", "d2h", "compute", "kernel", "comm")
_FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
_PATH_BYTES: Final = 72
_LEAST_LABELLED: Final = 0.045
"""Share of a bar below which a number does not fit in."""
_LABEL_GAP: Final = 0.06
"""Part of a timeline's width that the label of a step needs."""
_LATENCY_TICKS: Final = {
    -7: "100 ns",
    -6: "1 µs",
    -5: "10 µs",
    -4: "100 µs",
    -3: "1 ms",
    -2: "10 ms",
    -1: "100 ms",
    0: "1 s",
    1: "10 s",
    2: "100 s",
}


def escape(text: object, length: int = NAME_LENGTH) -> str:
    """A string from data for plotly: control characters visible, markup inert, at most `length`
    characters long.
    """
    return (
        clean(text, length)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("%{", "%&#123;")
    )


def escape_path(path: str) -> str:
    """A path for a hover box: cut so that thousands of boxes, escapes and all, leave the page
    small.
    """
    for length in (56, 28, 14):
        shown = escape(path, length)
        if len(json.dumps(shown)) + 5 * sum(shown.count(mark) for mark in "<>&") <= _PATH_BYTES:
            return shown
    return escape(path, 7)


def time_by_cause(
    steps: pl.DataFrame, emulated: Collection[str] = (), unit: str = "share"
) -> go.Figure:
    """Stacked bars, one for each rank and one for all: `unit` is `share` (percent of the step time)
    or `seconds`.
    """
    table = seconds_by_cause(steps)
    ranks: list[int | None] = [None, *bars_of_time_by_cause(steps)] if len(table) else []
    printed = {
        rank: _printed_shares(table.filter(pl.col("rank").eq_missing(rank))) for rank in ranks
    }
    figure = go.Figure(layout=layout(max(1, len(ranks)) * 32 + 92, barmode="stack", bargap=0.22))
    for cause in CAUSES:
        found = {row["rank"]: row for row in table.filter(pl.col("cause") == cause).to_dicts()}
        if any(row["seconds"] for row in found.values()):
            rows = [found.get(rank, {"seconds": 0.0, "share": 0.0}) for rank in ranks]
            shown = [printed[rank].get(cause, "0.0") for rank in ranks]
            figure.add_bar(
                **_cause_bars(cause, rows, shown, unit), **_names_of_bars(cause, ranks, emulated)
            )
    title = "share of step time, %" if unit == "share" else "seconds (all ranks: mean of a rank)"
    figure.update_xaxes(title_text=title, range=[0, 100] if unit == "share" else None)
    figure.update_yaxes(autorange="reversed", type="category", ticks="", showgrid=False)
    return figure


def throughput(
    steps: pl.DataFrame,
    samples_per_step: int,
    device_rate: float | None = None,
    emulated: bool = False,
) -> go.Figure:
    """Samples per second of each rank over time; `device_rate` draws what one device alone would
    reach.
    """
    table = rates(steps, samples_per_step)
    figure = go.Figure(layout=layout(300, hovermode="closest"))
    ranks = table["rank"].unique(maintain_order=True).to_list() if len(table) else []
    for place, rank in enumerate(ranks):
        mine = table.filter(pl.col("rank") == rank)
        line: dict[str, Any] = {"color": RANK_COLOURS[place % len(RANK_COLOURS)], "shape": "hv"}
        dash = ("solid", "dash", "dot", "dashdot")[place % 4]
        figure.add_scatter(
            **_rate_line(mine, "rate"),
            name=f"rank {rank}",
            line={**line, "width": 1.6, "dash": dash},
        )
        if (mine["of"] > 1).any():
            thin = {**line, "width": 0.8}
            figure.add_scatter(
                **_rate_line(mine, "lowest"),
                name=f"rank {rank}, slowest step",
                line=thin,
                opacity=0.6,
            )
    if device_rate and ranks:
        name = (
            f"one device alone: {device_rate:,.1f} samples/s,"
            f" {'emulated' if emulated else 'derived'}"
        )
        ends = [_rounded(end / 1e9, 9) for end in (min(table["start_ns"]), max(table["end_ns"]))]
        line = {"dash": "dash", "width": 1, "color": "#7B8794"}
        figure.add_scatter(
            x=ends, y=[device_rate] * 2, mode="lines", name=name, line=line, hoverinfo="skip"
        )
    figure.update_xaxes(title_text="seconds since the run's first span")
    figure.update_yaxes(
        title_text=f"samples/s of one rank{', emulated' if emulated else ''}", rangemode="tozero"
    )
    return figure


def step_causes(steps: pl.DataFrame, emulated: Collection[str] = ()) -> go.Figure:
    """What each step's time went to, stacked over the steps, for the rank that delayed the step."""
    table = step_rows(steps)
    figure = go.Figure(layout=layout(340, hovermode="x unified"))
    edges = (
        [*table["step"].to_list(), int(table["step"][-1]) + int(table["of"][-1])]
        if len(table)
        else []
    )
    for cause in CAUSES:
        column = table[f"{cause}_ns"]
        if not column.drop_nulls().sum():
            continue
        values = [_rounded((value or 0) / 1e6) for value in column]
        figure.add_scatter(
            x=edges,
            y=[*values, values[-1]],
            name=_labelled(cause, emulated),
            mode="lines",
            stackgroup="causes",
            fillcolor=CAUSE_COLOURS[cause],
            line={"width": 0, "color": CAUSE_COLOURS[cause], "shape": "hv"},
            hovertemplate="%{y:,.2f} ms",
        )
    _add_hover_of_step(figure, table, edges)
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text="milliseconds", rangemode="tozero")
    return figure


def timeline(
    trace: Trace, window: Window, ranks: Sequence[int] | None = None, emulated: bool = False
) -> go.Figure:
    """The lanes of the reads, workers and device of `ranks` in `window`, on one time axis."""
    view = timeline_of(trace, window, trace.ranks[:4] if ranks is None else ranks)
    figure = go.Figure(
        layout=layout(
            max(3, len(view.lanes)) * LANE_PIXELS + 130,
            barmode="overlay",
            bargap=0,
            hovermode="closest",
        )
    )
    several = len({lane.rank for lane in view.lanes}) > 1
    marks = {"compute", "copies", "exchange"} if emulated else set()
    labels = [
        f"{f'rank {lane.rank} · ' if several else ''}{lane.name}{', emulated' if lane.name in marks else ''}"  # noqa: E501
        for lane in view.lanes
    ]
    for (kind, source), bars in view.bars.group_by("kind", "source", maintain_order=True):
        figure.add_bar(
            **_timeline_trace(str(kind), source and str(source), bars, view.window, emulated)
        )
    _add_boundaries(figure, view)
    figure.update_xaxes(
        title_text=f"milliseconds since {view.window.start_ns / 1e9:.3f} s into the run",
        range=[0, (view.window.end_ns - view.window.start_ns) / 1e6],
        side="bottom",
    )
    figure.update_yaxes(
        tickvals=list(range(len(labels))),
        ticktext=labels,
        range=[len(labels) - 0.4, -0.6],
        ticks="",
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )
    return figure


def read_latency(trace: Trace) -> go.Figure:
    """How long reads took, by where the bytes came from: one histogram for each source, both axes
    logarithmic.
    """
    table = latency_bins(trace).drop_nulls("bin")
    sources = [source for source in SOURCES if (table["source"] == source).any()]
    figure = make_subplots(
        rows=max(1, len(sources)), cols=1, shared_xaxes=True, vertical_spacing=0.07
    )
    figure.update_layout(
        layout(90 + 130 * max(1, len(sources)), bargap=0.06, hovermode="closest", showlegend=True)
    )
    for row, source in enumerate(sources, start=1):
        figure.add_bar(
            **_latency_bars(table.filter(pl.col("source") == source), source), row=row, col=1
        )
    # the axis begins below 1 so that a single read has a bar
    figure.update_yaxes(
        type="log",
        title_text="reads",
        title_font_size=12,
        dtick=1,
        range=[-0.3, None],
        autorangeoptions={"minallowed": -0.3},
    )
    figure.update_xaxes(
        tickvals=list(_LATENCY_TICKS), ticktext=list(_LATENCY_TICKS.values()), title_font_size=12
    )
    figure.update_xaxes(title_text="time of one read", row=max(1, len(sources)), col=1)
    return figure


def _latency_bars(table: pl.DataFrame, source: str) -> dict[str, Any]:
    edges = [number / BINS_PER_DECADE for number in table["bin"]]
    name = "source unknown" if source == "unknown" else f"from {source.replace('_', ' ')}"
    ranges = [
        f"{duration(10**edge)} to {duration(10 ** (edge + 1 / BINS_PER_DECADE))}" for edge in edges
    ]
    return {
        "x": [_rounded(edge + 0.5 / BINS_PER_DECADE) for edge in edges],
        "y": table["reads"].to_list(),
        "width": 0.92 / BINS_PER_DECADE,
        "name": name,
        "marker": {"color": SOURCE_COLOURS[source]},
        "customdata": ranges,
        "hovertemplate": f"{name}<br>%{{customdata}}: %{{y:,}} reads<extra></extra>",
    }


def layout(height: int, **more: Any) -> dict[str, Any]:
    """What all figures have in common."""
    return {
        "height": height,
        "template": "none",
        "font": {"family": _FONT, "size": 12},
        "margin": {"l": 10, "r": 16, "t": 30, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.04,
            "yanchor": "bottom",
            "traceorder": "normal",
            "font": {"size": 12},
        },
        "xaxis": {
            "automargin": True,
            "zeroline": False,
            "ticks": "outside",
            "title": {"font": {"size": 12}},
        },
        "yaxis": {"automargin": True, "zeroline": False, "title": {"font": {"size": 12}}},
        "hoverlabel": {"align": "left", "font": {"family": _FONT, "size": 12}},
        "dragmode": "zoom",
        **more,
    }


def _printed_shares(table: pl.DataFrame) -> dict[str, str]:
    """The shares of one rank as the tables print them: they add up to 100.0."""
    return dict(zip(table["cause"], shares(table["share"].to_list()), strict=True))


def _cause_bars(
    cause: str, rows: list[dict[str, Any]], printed: list[str], unit: str
) -> dict[str, Any]:
    """Lengths and texts of one cause's bars; the first row is all ranks together, in seconds shown
    as the mean of a rank.
    """
    values = [
        row["seconds"] / (max(1, len(rows) - 1) if unit == "seconds" and not place else 1)
        for place, row in enumerate(rows)
    ]
    if unit == "seconds":
        lengths, texts = values, [f"{value:,.1f} s" for value in values]
    else:
        lengths, texts = [row["share"] * 100 for row in rows], [f"{share}%" for share in printed]
    return {
        "x": [_rounded(length) for length in lengths],
        "text": [
            text if row["share"] >= _LEAST_LABELLED else ""
            for text, row in zip(texts, rows, strict=True)
        ],
        "customdata": [
            [duration(value), f"{share}%"] for value, share in zip(values, printed, strict=True)
        ],
        **_bar_style(cause),
    }


def _names_of_bars(
    cause: str, ranks: list[int | None], emulated: Collection[str]
) -> dict[str, Any]:
    name = _labelled(cause, emulated)
    return {
        "y": ["all ranks" if rank is None else f"rank {rank}" for rank in ranks],
        "orientation": "h",
        "name": name,
        "hovertemplate": (
            f"<b>{name}</b><br>%{{y}}: %{{customdata[0]}}, %{{customdata[1]}}<extra></extra>"
        ),
    }


def _rate_line(table: pl.DataFrame, column: str) -> dict[str, Any]:
    times = [*table["start_ns"], table["end_ns"][-1]]
    values = [*table[column], table[column][-1]]
    return {
        "x": [_rounded(value / 1e9, 9) for value in times],
        "y": [_rounded(value) for value in values],
        "mode": "lines",
        "hovertemplate": "%{x:.3f} s: %{y:,.1f} samples/s",
    }


def _bar_style(cause: str) -> dict[str, Any]:
    return {
        "marker": {"color": CAUSE_COLOURS[cause], "line": {"width": 0}},
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": "#101418" if cause in LIGHT else "#ffffff", "size": 11},
        "constraintext": "none",
    }


LIGHT: Final = (
    "compute", "exchange", "page_cache", "decode", "transform", "delivery", "validation", "host",
)  # fmt: skip
"""Causes whose colour needs dark text on it."""


def _labelled(cause: str, emulated: Collection[str]) -> str:
    return f"{cause} (emulated)" if cause in emulated else cause


def _add_hover_of_step(figure: go.Figure, table: pl.DataFrame, edges: list[int]) -> None:
    """An invisible line that adds rank and wall time to the hover box."""
    if not len(table):
        return
    rows = zip(table["rank"], table["wall_ns"], table["of"], strict=True)
    texts = [
        f"rank {rank}: {duration(wall / 1e9)}{f', longest of {of} steps' if of > 1 else ''}"
        for rank, wall, of in rows
    ]
    walls = [_rounded(wall / 1e6) for wall in table["wall_ns"]]
    figure.add_scatter(
        x=edges[:-1],
        y=walls,
        mode="lines",
        name="step",
        line={"width": 0},
        showlegend=False,
        customdata=texts,
        hovertemplate="%{customdata}",
    )


def _timeline_trace(
    kind: str, source: str | None, bars: pl.DataFrame, window: Window, emulated: bool
) -> dict[str, Any]:
    height = 0.86 if kind == "fetch" else 0.62
    part = height / bars["rows"]
    centres = bars["lane"] - height / 2 + part * (bars["row"] + 0.5)
    name = _span_name(kind, source, emulated)
    details = [_details(bar) for bar in bars.iter_rows(named=True)]
    return {
        "orientation": "h",
        "name": name,
        "y": [_rounded(value) for value in centres],
        "width": [_rounded(value) for value in part],
        "base": [_rounded((value - window.start_ns) / 1e6, 9) for value in bars["start_ns"]],
        "x": [_rounded(value / 1e6) for value in bars["end_ns"] - bars["start_ns"]],
        "marker": {"color": kind_colour(kind, source), "line": {"width": 0}},
        "customdata": details,
        "hovertemplate": f"<b>{name}</b>%{{customdata}}<br>from %{{base:,.3f}} ms<extra></extra>",
    }


def _span_name(kind: str, source: str | None, emulated: bool) -> str:
    origin = (
        f" from {source.replace('_', ' ')}"
        if source in ("storage", "page_cache", "socket", "pipe")
        else ", source unknown"
        if kind in READS
        else ""
    )
    return f"{KIND_NAMES.get(kind, kind)}{origin}{' (emulated)' if emulated and kind in _DEVICE_KINDS else ''}"  # noqa: E501


def _details(bar: dict[str, Any]) -> str:
    """What the hover box says of one bar; already escaped."""
    lines = [f", {duration(bar['busy_ns'] / 1e9)}"]
    if bar["count"] > 1:
        lines[0] = f", {count(bar['count'])} spans, {duration(bar['busy_ns'] / 1e9)} together"
    if bar["path"] is not None:
        lines.append(escape_path(bar["path"]))
    facts = [
        amount(bar["bytes"]) if bar["bytes"] else "",
        *(f"{name} {bar[name]}" for name in ("batch", "step") if bar[name] is not None),
    ]
    lines.append(", ".join(fact for fact in facts if fact))
    return "<br>".join(line for line in lines if line)


def _add_boundaries(figure: go.Figure, view: Timeline) -> None:
    """A thin line where a step begins, over the lanes of its rank, and its number on top of the
    first rank.
    """
    places = {
        rank: [place for place, lane in enumerate(view.lanes) if lane.rank == rank]
        for rank in {lane.rank for lane in view.lanes}
    }
    shapes = []
    for row in view.boundaries.head(120).iter_rows(named=True):
        at, lanes = (row["start_ns"] - view.window.start_ns) / 1e6, places.get(row["rank"])
        if lanes and at >= 0:
            edge = {
                "x0": _rounded(at),
                "x1": _rounded(at),
                "y0": lanes[0] - 0.5,
                "y1": lanes[-1] + 0.5,
            }
            shapes.append(
                {"type": "line", "line": {"width": 1, "color": "#7B8794", "dash": "dot"}, **edge}
            )
    lines = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": lanes[0] - 0.5,
            "y1": lanes[0] - 0.5,
        }
        for lanes in places.values()
        if lanes[0]
    ]
    shapes += [{"line": {"width": 1, "color": "#7B8794"}, **line} for line in lines]
    figure.update_layout(shapes=shapes, annotations=_step_labels(view))


def _step_labels(view: Timeline) -> list[dict[str, Any]]:
    first = view.lanes[0].rank if view.lanes else None
    width = (view.window.end_ns - view.window.start_ns) / 1e6
    notes: list[dict[str, Any]] = []
    for row in view.boundaries.filter(pl.col("rank") == first).iter_rows(named=True):
        at = max(0.0, (row["start_ns"] - view.window.start_ns) / 1e6)
        if not notes or at - notes[-1]["x"] >= _LABEL_GAP * width:
            place = {"x": _rounded(at), "y": -0.6, "xanchor": "left", "yanchor": "bottom"}
            notes.append(
                {"text": f"step {row['step']}", "showarrow": False, "font": {"size": 11}, **place}
            )
    return notes


def _rounded(value: float, digits: int = 6) -> float:
    """Significant digits enough for any pixel, in a third of the bytes; places in time need more
    than lengths do.
    """
    return float(f"{value:.{digits}g}")
