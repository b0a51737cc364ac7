"""The frame of every page of ioprof: one HTML file that opens anywhere, offline, with all data
inside and no request ever.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final

from ioprof import __version__
from ioprof.report.page.markup import Html, element
from ioprof.report.palette import cause_styles, code_styles, source_styles

GENERATOR: Final = "ioprof"
"""What a page of runs says that it was made by: it can be made again, so it may be replaced."""
MEASURED: Final = "ioprof, of measurements"
"""The same of a page that has what was measured for it, and is not replaced."""
_JSON_ESCAPES: Final = {
    ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"
}


def whole_page(
    title: str,
    parts: Iterable[Html],
    scripts: Sequence[str],
    styles: str = "",
    after: Iterable[Html] = (),
    generator: str = GENERATOR,
) -> str:
    """The text of a page with these parts, then the scripts, which alone may run, then what stands
    `after` them.
    """
    body = element("body", *parts, *(element("script", Html(script)) for script in scripts), *after)
    head = _head(title, scripts, styles, generator)
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _head(title: str, scripts: Iterable[str], styles: str, generator: str) -> Html:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=generator),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} – ioprof"),
        element("style", Html(resource("page.css") + styles + cause_styles())),
    )


def footer(schema: str | None = None) -> Html:
    """What made the page, and the schema of its numbers."""
    made_by = f"ioprof {__version__}" + (f", {schema}" if schema else "")
    return element("footer", f"{made_by}. This file contains all it shows and requests nothing.")


def page_styles(*names: str) -> str:
    """The styles of the parts of a run's page, and of these further files."""
    return (
        "".join(resource(f"page/{name}") for name in ("timeline.css", *names))
        + source_styles()
        + code_styles()
    )


def data_block(name: str, text: str) -> Html:
    """Text that the page's scripts read, by the name."""
    return Html(
        f'<script type="application/json" id="{name}">{text.translate(_JSON_ESCAPES)}</script>\n'
    )


def _policy(scripts: Iterable[str]) -> str:
    """Nothing may be fetched, and only these scripts may run, whatever else got into the page."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {hashes}; {rest}"


def script_text(text: str) -> str:
    """A script that the HTML parser takes as it is: it must not end early, and changed line ends
    would change its hash.
    """
    return (
        text.replace("\r\n", "\n")
        .replace("\r", "\n")
        .replace("</script", "<\\/script")
        .replace("<!--", "<\\!--")
    )


def resource(name: str) -> str:
    """The text of a file of this package."""
    return files("ioprof.report").joinpath(name).read_text(encoding="utf-8")
