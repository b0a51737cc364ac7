"""How numbers and names are written in every report: the same function for the terminal, the page
and the figures.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from ioprof.errors import CommandError

MISSING: Final = "–"
"""Stands where a number could not be measured; never 0."""

ADVICE_LENGTH: Final = 400
"""Characters of an advice; longer text is cut in the middle, so what is put into one must be
short."""
NAME_LENGTH: Final = 60

_TIME_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS: Final = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def duration(seconds: float | None) -> str:
    """Three significant digits with the unit that fits: `1.23 ms`, `87.4 s`, `12,345 s`."""
    if seconds is None:
        return MISSING
    scale, unit = next(
        ((scale, unit) for scale, unit in _TIME_UNITS if abs(seconds) >= scale * 0.9995),
        _TIME_UNITS[-1],
    )
    return f"{_three_digits(seconds / scale)} {unit}" if seconds else "0 s"


def amount(num_bytes: float | None) -> str:
    """Bytes in decimal units, three significant digits: `1.23 GB`."""
    if num_bytes is None:
        return MISSING
    scale, unit = next(
        ((scale, unit) for scale, unit in _BYTE_UNITS if abs(num_bytes) >= scale * 0.9995),
        (1.0, "B"),
    )
    return f"{_three_digits(num_bytes / scale)} {unit}" if unit != "B" else f"{num_bytes:.0f} B"


def count(number: float | None) -> str:
    """A whole number with separators: `12,345`."""
    return MISSING if number is None else f"{number:,.0f}"


def rate(per_second: float | None) -> str:
    """A rate to one decimal, `1,785.7`; below 10 to three significant digits."""
    if per_second is None:
        return MISSING
    return f"{per_second:,.1f}" if abs(per_second) >= 10 else _three_digits(per_second)


def percent(ratio: float | None, digits: int = 1) -> str:
    """A ratio in percent: `51.2%`. What is not quite 0 or not quite 1 never reads as 0 or 100:
    `< 0.1%`, `> 99.9%`.
    """
    if ratio is None:
        return MISSING
    least = 10.0**-digits
    if 0 < ratio * 100 < least / 2:
        return f"< {least:.{digits}f}%"
    if 100 - least / 2 <= ratio * 100 < 100:
        return f"> {100 - least:.{digits}f}%"
    return f"{ratio * 100:.{digits}f}%"


def parse_percentage(option: str, text: str) -> float:
    """The ratio of an option in percent: 0.05 of `5%`. CommandError: it is none, or below 0."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = math.nan
    if not text.endswith("%") or not 0 <= value < math.inf:
        raise CommandError(f"{option} {text}: is no percentage; give one such as 5%")
    return value


def parts(values: Sequence[float | None], total: float, digits: int) -> list[str]:
    """The values rounded so that their decimals add up to `total` exactly (largest remainder); a
    null is `MISSING`. The largest value, which sentences name, is rounded as it would be alone.
    """
    known = [value for value in values if value is not None]
    scale = 10**digits
    units = round(total * scale)
    weight = sum(known)
    exact = [value / weight * units if weight > 0 else 0.0 for value in known]
    floors = [int(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda place: floors[place] - exact[place])
    if exact:
        largest = max(order, key=lambda place: known[place])
        order.remove(largest)
        floors[largest] = round(exact[largest])
    for place in order[: max(0, units - sum(floors))] if weight > 0 else []:
        floors[place] += 1
    rounded = iter(f"{value // scale:,}.{value % scale:0{digits}d}" for value in floors)
    return [MISSING if value is None else next(rounded) for value in values]


def shares(values: Sequence[float | None]) -> list[str]:
    """The values as percentages of their sum, one decimal, that sum to exactly 100.0."""
    return parts(values, 100.0, 1)


def clean(text: object, length: int = NAME_LENGTH) -> str:
    """A string from data made safe to show: control, bidirectional and unpaired characters escaped,
    cut in the middle.

    The result may still contain markup, which the caller escapes.
    """
    return _cut(visible(_cut(str(text), 4 * length)), length)


def visible(text: str) -> str:
    """The text with every control, bidirectional, unpaired and odd space character written as its
    escape.
    """
    return (
        text
        if text.isprintable()
        else "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )
    )


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def sentence(text: str) -> str:
    """With a capital at its beginning."""
    return text[:1].upper() + text[1:]


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers as text: `1, 4 to 7`."""
    rows = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in row] for _, row in rows]
    return ", ".join(
        f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in found
    )
