"""The places in the page where the scripts draw the run: the strip, the timeline, and the panels
below.
"""

from typing import Final

from ioprof.report.page.markup import Html, element

_BUTTONS: Final = (
    ("p", "‹ stall", "Previous stall (p)"),
    ("n", "stall ›", "Next stall, the longest first (n)"),
    ("w", "+", "Zoom in (w)"),
    ("s", "−", "Zoom out (s)"),
    ("0", "all", "Show all of the run (0)"),
    ("c", "copy link", "Copy a link to this view (c)"),
)
_KEYS: Final = (
    ("w s or + −", "zoom in and out"),
    ("a d or ← →", "move"),
    ("0", "whole run"),
    ("n p", "next and previous stall, the longest first"),
    ("/", "search for a step, a function, a kind of span or a file"),
    ("click", "pin a span and what belongs to it, select a step, or mark a function"),
    ("[ ]", "along the way from the read to the step"),
    ("drag on the axis, or Shift and drag", "select a stretch"),
    ("f", "zoom to the selection"),
    ("double click", "zoom to a span"),
    ("i", "show or fold the start-up, before the first step"),
    ("c", "copy a link to this view"),
    ("wheel", "zoom, once the timeline was clicked; with Ctrl at once; with Shift it moves"),
    ("Esc", "clear"),
)


def timeline_section(notes: tuple[str, ...]) -> Html:
    """The strip and the timeline of the whole run."""
    buttons = (
        element("button", text, type="button", data_act=act, title=title, aria_label=title)
        for act, text, title in _BUTTONS
    )
    start_up = element(
        "button",
        "start-up",
        type="button",
        id="start-up",
        data_act="i",
        aria_pressed="false",
        hidden="",
        title="Show or fold what was before the first step (i)",
    )
    search = element(
        "div",
        element(
            "input",
            type="search",
            id="search",
            placeholder="step, function, file  ( / )",
            aria_label="Search for a step, a function, a kind of span or a file",
            autocomplete="off",
            spellcheck="false",
        ),
        element("ul", id="results", hidden=""),
        class_="search",
    )
    keys = (element("dt", key) + element("dd", meaning) for key, meaning in _KEYS)
    strip_label = (
        "The whole run: device, steps, reads, CPU and I/O pressure; drag to choose what the"
        " timeline shows"
    )
    glossary = element("dl", *(Html(key) for key in keys), class_="glossary")
    return element(
        "section",
        element(
            "div",
            element("h2", "The whole run", id="time-heading"),
            element("div", start_up, *buttons, class_="buttons"),
            search,
            class_="bar-of-tools",
        ),
        element("p", "", id="said", role="status", class_="note"),
        element(
            "div",
            element("div", id="strip-labels"),
            element("canvas", id="strip", role="img", aria_label=strip_label),
            class_="strip",
        ),
        element(
            "div",
            element("canvas", id="axis", aria_hidden="true"),
            _lanes(),
            element("div", id="tip", hidden="", aria_hidden="true"),
            id="timeline-view",
            tabindex="0",
            role="group",
            aria_label="Timeline of the run; keys: w, s zoom, a, d move, n next stall, / search",
        ),
        element("ul", id="legend", class_="inline", aria_label="Colours"),
        element(
            "noscript",
            element(
                "p",
                "The timeline is drawn by a script, which this browser does not run.",
                class_="nothing",
            ),
        ),
        element("div", element("div", id="summary"), element("div", id="details"), class_="panels"),
        element("div", id="flame", hidden=""),
        element("details", element("summary", "Keys and mouse"), glossary, class_="screen-only"),
        *(element("p", note, class_="note") for note in notes),
        id="time",
        aria_labelledby="time-heading",
    )


def _lanes() -> Html:
    return element(
        "div",
        element(
            "div",
            element("div", element("div", id="pinned-labels"), id="pinned"),
            element("canvas", id="canvas", aria_hidden="true"),
            element("div", id="labels"),
            id="stage",
        ),
        id="lanes",
        tabindex="0",
        role="group",
        aria_label="Rows of the timeline",
    )
