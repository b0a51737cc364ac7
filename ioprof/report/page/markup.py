"""HTML that cannot be injected into: a string becomes part of a page only escaped, or through
`element`.
"""

import html
from collections.abc import Sequence
from typing import Final

from ioprof.report.texts.units import visible

_VOID: Final = ("input", "meta", "link")


class Html(str):
    """Text that is HTML already. Only this module makes it from data."""

    __slots__ = ()


def element(tag: str, /, *children: str | None, **attributes: str | None) -> Html:
    """`<tag attributes>children</tag>`; what is not `Html` is escaped, null children and attributes
    are left out.

    An underscore in an attribute's name stands for a hyphen, one at its end is dropped: `class_`,
    `aria_label`.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{given}>" if tag in _VOID else f"<{tag}{given}>{join(*children)}</{tag}>")


def join(*children: str | None) -> Html:
    """The children one after the other, escaped where they are not `Html`."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escaped(child)
            for child in children
            if child is not None
        )
    )


def escaped(text: str) -> Html:
    """Text made safe between tags and inside a quoted attribute; control and bidirectional
    characters become visible.
    """
    return Html(html.escape(visible(text), quote=True))


def table(
    headings: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    numeric: frozenset[int] = frozenset(),
    caption: str | None = None,
) -> Html:
    """A table; columns in `numeric` are aligned right, the first cell of a row is its heading."""
    head = element(
        "tr",
        *(
            element("th", heading, scope="col", class_="number" if place in numeric else None)
            for place, heading in enumerate(headings)
        ),
    )
    body = (
        element("tr", *(_cell(cell, place, place in numeric) for place, cell in enumerate(row)))
        for row in rows
    )
    title = element("caption", caption) if caption else None
    return element(
        "div",
        element("table", title, element("thead", head), element("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=caption or "Table",
    )


def _cell(cell: str, place: int, number: bool) -> Html:
    if place == 0:
        return element("th", cell, scope="row", class_="number" if number else None)
    return element("td", cell, class_="number" if number else None)
