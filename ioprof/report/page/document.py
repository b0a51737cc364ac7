"""A page of plotly charts, which ships plotly and the data of its charts."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go
import plotly.offline

from ioprof.report.page.markup import Html, element
from ioprof.report.page.shell import (
    MEASURED,
    data_block,
    footer,
    resource,
    script_text,
    whole_page,
)
from ioprof.report.palette import DARK
from ioprof.report.texts.units import clean

_LONGEST: Final = 600
"""Characters of a sentence."""


@dataclass(frozen=True)
class Chart:
    """A figure of the page, with one view or several to choose from."""

    name: str
    label: str
    """What it shows, for those who cannot see it."""
    figures: dict[str, go.Figure]
    """By the words of the selector; the first is shown first."""
    notes: dict[str, tuple[str, ...]]
    """What was chosen and thinned, for each view."""


def document(
    title: str,
    brand: str,
    heading: str,
    answer: Iterable[str],
    sections: Iterable[Html],
    charts: Collection[Chart],
    about: str | None = None,
    schema: str | None = None,
) -> str:
    """The text of a page with the sentences of an answer and these sections, and the data of the
    charts that `figure` has made places for in them. `about`: a line below the heading, `schema`:
    of the numbers.
    """
    sentences = [element("p", clean(each, _LONGEST)) for each in answer]
    header = element(
        "header",
        element("p", brand, class_="brand"),
        element("h1", heading),
        element("p", about, class_="quiet") if about else None,
    )
    main = element(
        "main",
        element("section", *sentences, id="answer", aria_label="Answer") if sentences else None,
        *sections,
    )
    libraries = (script_text(plotly.offline.get_plotlyjs()), script_text(resource("page.js")))
    data = [
        data_block(f"figure-{chart.name}-{place}", figure.to_json())
        for chart in charts
        for place, figure in enumerate(chart.figures.values())
    ]
    data.append(data_block("shades", json.dumps(DARK)))
    return whole_page(title, (header, main, footer(schema), *data), libraries, generator=MEASURED)


def figure(chart: Chart) -> Html:
    """The place of a chart: its selector, legend, plot and the sentences below."""
    words = list(chart.figures)
    choices = (_choice(chart.name, word, place) for place, word in enumerate(words))
    selector = (
        element("fieldset", element("legend", "Show"), *choices, class_="switch")
        if len(words) > 1
        else None
    )
    legend = element(
        "div", class_="legend", role="group", aria_label="Legend; press an entry to hide it"
    )
    height = f"min-height:{chart.figures[words[0]].layout.height}px"
    plot = element(
        "div",
        class_="plot",
        tabindex="0",
        role="group",
        aria_label=chart.label,
        data_chart=chart.name,
        style=height,
    )
    captions = (
        element(
            "figcaption",
            " ".join(chart.notes[word]),
            class_="note",
            data_view=str(place),
            hidden=None if place == 0 else "",
        )
        for place, word in enumerate(words)
    )
    return element(
        "figure", selector, legend, plot, *captions, class_="chart", id=f"chart-{chart.name}"
    )


def _choice(chart: str, word: str, place: int) -> Html:
    button = element(
        "input",
        type="radio",
        name=f"view-{chart}",
        value=str(place),
        checked="" if place == 0 else None,
    )
    return element("label", button, element("span", word))
