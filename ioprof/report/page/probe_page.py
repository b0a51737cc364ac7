"""A probe's result as one HTML file: how rates and times change with the number of readers, and the
table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go

from ioprof.files import write_atomically
from ioprof.report.figures import layout
from ioprof.report.page.document import Chart, document, figure
from ioprof.report.page.markup import Html, element, join, table
from ioprof.report.page.sections import nothing, section
from ioprof.report.palette import CAUSE_COLOURS
from ioprof.report.texts.probing import HEADINGS, NUMERIC, notes, rows
from ioprof.report.texts.units import clean, duration

_COLOURS: Final = {"buffered": CAUSE_COLOURS["h2d"], "direct": CAUSE_COLOURS["storage"]}
_PERCENTILES: Final = {"p50_s": "solid", "p95_s": "dash", "p99_s": "dot"}
_HEIGHT: Final = 340
_LONGEST: Final = 300
_TEST: Final = "random"


def write_page(found: dict[str, Any], path: Path) -> None:
    """Write what `ioprof probe --json` prints as a page to `path`, whole or not at all."""
    write_atomically(path, page(found))


def page(found: dict[str, Any]) -> str:
    """The text of the page."""
    levels = [level for level in found["levels"] if level["test"] == _TEST]
    charts = [_rates(levels), _times(levels)] if levels else []
    place = clean(found["path"], _LONGEST)
    about = f"{clean(found['read'], _LONGEST)}. On {clean(found['host'])}, {clean(found['began'])}"
    return document(
        f"{place}: what it delivers",
        "ioprof probe",
        place,
        notes(found),
        _sections(found, charts),
        charts,
        about,
        clean(found["schema"]),
    )


def _sections(found: dict[str, Any], charts: list[Chart]) -> tuple[Html, ...]:
    facts = (
        join(element("dt", clean(label)), element("dd", clean(text, _LONGEST)))
        for label, text in found.get("storage_lines", ())
    )
    drawn = [figure(chart) for chart in charts] or [nothing("no random record read was measured")]
    caption = "Each level runs so many clients in a closed loop"
    return (
        section("records", "Random record reads", *drawn),
        section("levels", "All levels", table(HEADINGS, rows(found), NUMERIC, caption)),
        section("storage", "What it lies on", element("dl", *facts, class_="facts")),
    )


def _rates(levels: list[dict[str, Any]]) -> Chart:
    drawn = {
        "bytes/s": _figure(levels, [("bytes_per_s", "solid")], "MB/s", 1e-6, "linear"),
        "reads/s": _figure(levels, [("operations_per_s", "solid")], "reads/s", 1.0, "linear"),
    }
    words = ("Reads that were served from memory are not counted.",)
    return Chart(
        "rates",
        "Lines of the rate over the number of clients; the table has the same numbers.",
        drawn,
        dict.fromkeys(drawn, words),
    )


def _times(levels: list[dict[str, Any]]) -> Chart:
    drawn = {
        "time of one read": _figure(levels, list(_PERCENTILES.items()), "milliseconds", 1e3, "log")
    }
    words = ("A percentile with too few reads is left out; the axis is logarithmic.",)
    label = (
        "Lines of the 50th, 95th and 99th percentile of the time of one read over the number of"
        " clients."
    )
    return Chart("times", label, drawn, dict.fromkeys(drawn, words))


def _figure(
    levels: list[dict[str, Any]],
    values: list[tuple[str, str]],
    unit: str,
    factor: float,
    scale: str,
) -> go.Figure:
    drawn = go.Figure(layout=layout(_HEIGHT))
    for line in _lines(levels, values, factor):
        drawn.add_scatter(**line)
    clients = sorted({level["clients"] for level in levels})
    drawn.update_xaxes(
        title_text="clients",
        type="log",
        tickvals=clients,
        ticktext=[str(number) for number in clients],
    )
    drawn.update_yaxes(
        title_text=unit,
        type=scale,
        **({"rangemode": "tozero"} if scale == "linear" else {"dtick": "D2"}),
    )
    return drawn


def _lines(
    levels: list[dict[str, Any]], values: list[tuple[str, str]], factor: float
) -> Iterator[dict[str, Any]]:
    for mode, colour in _COLOURS.items():
        for name, dash in values:
            points = [
                (level, level["latency"].get(name, level.get(name)))
                for level in levels
                if level["mode"] == mode
            ]
            known = [(level, value) for level, value in points if value is not None]
            if known:
                word = name.removesuffix("_s") if name in _PERCENTILES else ""
                yield {
                    "x": [level["clients"] for level, _ in known],
                    "y": [float(f"{value * factor:.6g}") for _, value in known],
                    "mode": "lines+markers",
                    "name": f"{mode} {word}".strip(),
                    "line": {"color": colour, "dash": dash, "width": 1.8},
                    "marker": {"color": colour, "size": 6},
                    "customdata": [_hover(level) for level, _ in known],
                    "hovertemplate": (
                        f"{mode} {word}, %{{x}} clients:"
                        " %{y:,.4g}<br>%{customdata}<extra></extra>"
                    ),
                }


def _hover(level: dict[str, Any]) -> str:
    return (
        f"{level['operations']:,} reads in {duration(level['seconds'])}, longest"
        f" {duration(level['latency']['max_s'])}"
    )
