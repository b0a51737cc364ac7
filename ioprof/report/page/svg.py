"""Small charts in the page: they follow its width and colour scheme, print, and each bar may be a
link into the timeline.

Bars are SVG, stretched to the width; axes are text beside it, which keeps its size on a narrow
screen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ioprof.report.page.markup import Html, element

_WIDTH: Final = 1000

Tick = tuple[float, str]
"""Place on an axis, from 0 to 1, and its text."""


@dataclass(frozen=True)
class Bar:
    """A bar of a chart: parts from bottom to top, as shares of the axis."""

    left: float
    """From 0 to 1."""
    width: float
    parts: tuple[tuple[str, float], ...]
    """CSS class and height of each part."""
    text: str
    link: str | None = None
    is_cut: bool = False
    """Whether it is higher than the axis."""


def bars(
    shown: Sequence[Bar],
    label: str,
    ticks_x: Sequence[Tick],
    ticks_y: Sequence[Tick],
    height: int = 190,
    titles: tuple[str, str] = ("", ""),
) -> Html:
    """A chart of bars; `titles` are those of the upright and of the level axis."""
    grid = [
        element(
            "line",
            x1="0",
            x2=str(_WIDTH),
            y1=_n((1 - place) * height),
            y2=_n((1 - place) * height),
            class_="grid",
        )
        for place, _ in ticks_y
    ]
    base = element("line", x1="0", x2=str(_WIDTH), y1=str(height), y2=str(height), class_="base")
    drawn = element(
        "svg",
        *grid,
        *(_bar(bar, height) for bar in shown),
        base,
        viewBox=f"0 0 {_WIDTH} {height}",
        preserveAspectRatio="none",
        class_="svg",
        role="group",
        aria_label=label,
    )
    beside = [
        element("span", text, class_="tick-y", style=f"bottom:{_n(place * 100)}%")
        for place, text in ticks_y
    ]
    below = [
        element("span", text, class_=f"tick-x {_anchor(place)}", style=f"left:{_n(place * 100)}%")
        for place, text in ticks_x
    ]
    return element(
        "div",
        element("span", titles[0], class_="axis-y") if titles[0] else None,
        element("div", drawn, *beside, *below, class_="plot-area", style=f"height:{height}px"),
        element("span", titles[1], class_="axis-x") if titles[1] else None,
        class_="chart-box",
    )


def _bar(bar: Bar, height: int) -> Html:
    left, wide = (
        bar.left * _WIDTH,
        max(bar.width * _WIDTH - (0.8 if bar.width * _WIDTH > 2 else 0), 0.8),
    )
    drawn, top = [], 0.0
    for name, part in bar.parts:
        if part <= 0 or top >= 1:
            continue
        tall = min(part, 1 - top)
        drawn.append(
            element(
                "rect",
                x=_n(left),
                width=_n(wide),
                y=_n((1 - top - tall) * height),
                height=_n(tall * height),
                class_=name,
            )
        )
        top += tall
    if bar.is_cut:
        drawn.append(element("rect", x=_n(left), width=_n(wide), y="0", height="4", class_="cut"))
    title = element("title", bar.text)
    if bar.link is None:
        return element("g", title, *drawn)
    return element("a", title, *drawn, href=bar.link, aria_label=bar.text)


def even_ticks(most: float, number: int = 4) -> list[float]:
    """Values from 0 at equal, round distances, at most so many and one more."""
    least = most / number
    power = 10.0 ** (len(str(int(least))) - 1 if least >= 1 else 0)
    distance = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= least)
    return [place * distance for place in range(int(most / distance) + 1)]


def _anchor(place: float) -> str:
    return "start" if place < 0.03 else "end" if place > 0.97 else "middle"


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
