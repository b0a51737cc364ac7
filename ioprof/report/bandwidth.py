"""The bandwidth of a run over time, as a figure for notebooks."""

from typing import Final

import plotly.graph_objects as go
import polars as pl

from ioprof.format.run_record import Demand
from ioprof.format.schema import SOURCES
from ioprof.format.trace import Trace
from ioprof.report.figures import layout
from ioprof.report.page.overview import STRIP_BINS, overview
from ioprof.report.page.tracks import tracks_of
from ioprof.report.palette import SOURCE_COLOURS
from ioprof.report.texts.units import amount

_DIGITS: Final = 4


def bandwidth(trace: Trace, steps: pl.DataFrame, demand: Demand) -> go.Figure:
    """Bytes per second of reads for batches over the run, stacked by source; a dashed line is what
    the devices need.
    """
    ends = trace.found(lambda part: part.select(pl.col("end_ns").max()))["end_ns"].drop_nulls()
    end_ns = max(1, *ends.to_list())
    rows = overview(trace, tracks_of(trace, steps).table, end_ns, is_fine=False).bytes_per_s()
    times = [round((place + 0.5) * end_ns / STRIP_BINS / 1e9, 6) for place in range(STRIP_BINS)]
    figure = go.Figure(layout=layout(300, hovermode="x unified"))
    for source, values in zip(SOURCES, rows, strict=True):
        if values.any():
            name = "source unknown" if source == "unknown" else f"from {source.replace('_', ' ')}"
            figure.add_scatter(
                x=times,
                y=[float(f"{value / 1e6:.{_DIGITS}g}") for value in values],
                name=name,
                mode="lines",
                stackgroup="bytes",
                fillcolor=SOURCE_COLOURS[source],
                line={"width": 0, "color": SOURCE_COLOURS[source], "shape": "hv"},
                hovertemplate="%{y:,.1f} MB/s",
            )
    if demand.bytes_per_s:
        line = {"dash": "dash", "width": 1.5, "color": "#56616C"}
        name = f"the devices need {amount(demand.bytes_per_s)}/s, {demand.basis}"
        figure.add_scatter(
            x=[0, end_ns / 1e9],
            y=[demand.bytes_per_s / 1e6] * 2,
            mode="lines",
            name=name,
            line=line,
            hoverinfo="skip",
        )
    figure.update_xaxes(title_text="seconds since the run's first span")
    figure.update_yaxes(title_text="reads for batches, MB/s", rangemode="tozero")
    return figure
