"""One HTML file that opens anywhere, offline: plotly inside, all data inside, no request ever. What every page of ioprof has."""

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Final

import plotly.offline

from ioprof.report.charts import Chart
from ioprof.report.markup import Html, element
from ioprof.report.palette import DARK, cause_styles

_JSON_ESCAPES: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def document(title: str, parts: Iterable[Html], charts: Collection[Chart]) -> str:
    """The text of a page with these parts, and the data of the charts that `figure` has made places for in them."""
    libraries = (_script_text(plotly.offline.get_plotlyjs()), _script_text(_resource("page.js")))
    data = [
        _data(f"figure-{chart.name}-{place}", figure.to_json())
        for chart in charts
        for place, figure in enumerate(chart.figures.values())
    ]
    scripts = (element("script", Html(library)) for library in libraries)
    body = element("body", *parts, *data, _data("shades", json.dumps(DARK)), *scripts)
    return f"<!doctype html>\n{element('html', _head(title, libraries), body, lang='en')}\n"


def figure(chart: Chart) -> Html:
    """The place of a chart: its selector, legend, plot and the sentences below."""
    words = list(chart.figures)
    choices = (_choice(chart.name, word, place) for place, word in enumerate(words))
    selector = element("fieldset", element("legend", "Show"), *choices, class_="switch") if len(words) > 1 else None
    legend = element("div", class_="legend", role="group", aria_label="Legend; press an entry to hide it")
    height = f"min-height:{chart.figures[words[0]].layout.height}px"
    plot = element("div", class_="plot", tabindex="0", role="group", aria_label=chart.label, data_chart=chart.name, style=height)
    captions = (
        element("figcaption", " ".join(chart.notes[word]), class_="note", data_view=str(place), hidden=None if place == 0 else "")
        for place, word in enumerate(words)
    )
    return element("figure", selector, legend, plot, *captions, class_="chart", id=f"chart-{chart.name}")


def write_whole(text: str, path: Path) -> None:
    """Write `path` whole or not at all; a file that is there is replaced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _head(title: str, scripts: Iterable[str]) -> Html:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} – ioprof"),
        element("style", Html(_resource("page.css") + cause_styles())),
    )


def _choice(chart: str, word: str, place: int) -> Html:
    button = element("input", type="radio", name=f"view-{chart}", value=str(place), checked="" if place == 0 else None)
    return element("label", button, element("span", word))


def _data(name: str, text: str) -> Html:
    return Html(f'<script type="application/json" id="{name}">{text.translate(_JSON_ESCAPES)}</script>\n')


def _policy(scripts: Iterable[str]) -> str:
    """Nothing may be fetched, and only these scripts may run, whatever else got into the page."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {hashes}; {rest}"


def _script_text(text: str) -> str:
    """A script that the HTML parser takes as it is: it must not end early, and changed line ends would change its hash."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _resource(name: str) -> str:
    return files("ioprof.report").joinpath(name).read_text(encoding="utf-8")
