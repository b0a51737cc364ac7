"""The tables, the figure, the page and the notebook of a study over several settings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import plotly.graph_objects as go
from rich.table import Table

from ioprof.analysis.grid import QUANTITIES, Cell, Grid, Part
from ioprof.files import write_atomically
from ioprof.report.article import Section, article
from ioprof.report.figures import layout
from ioprof.report.page.document import Chart
from ioprof.report.palette import CAUSE_COLOURS
from ioprof.report.terminal import plain_table
from ioprof.report.texts.simulation import RESOURCES
from ioprof.report.texts.units import (
    MISSING,
    amount,
    clean,
    count,
    duration,
    percent,
    rate,
    sentence,
)

_HEIGHT: Final = 360
_SHOWN: Final = {"total_s": duration, "samples_per_s": rate, "use": percent}
_BASES: Final = {
    "measured": "Measured, in one run for each number.",
    "emulated": "Measured, in one run for each number, with an emulated accelerator: a clock takes"
    " the time of its computation.",
    "predicted": "Predicted by simulation; in brackets: with all stated and assumed values at their"
    " worse ends, and at their better ends.",
}
_PARTS: Final = "A mean step of a rank: what computation does not hide, of all that each part takes"
_DASHES: Final = ("solid", "dash", "dot", "dashdot")


def grid_tables(grid: Grid) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Title, headings and rows of a table for each combination of the outer axes."""
    *outer, last = grid.axes
    tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for place, cells in grid.rows():
        shown = [_cell(grid, each) for each in cells]
        tables.setdefault(place[:-1], []).append((place[-1] if place else "", *shown))
    heading = outer[-1].name if outer else ""
    for place, rows in tables.items():
        title = ", ".join(place)
        yield title, (heading, *(f"{last.name}: {value}" for value in last.values)), rows


def terminal_tables(grid: Grid) -> Iterator[Table]:
    """The same for a terminal."""
    for title, headings, rows in grid_tables(grid):
        yield plain_table(map(clean, headings), rows, title=clean(title))


def grid_notes(grid: Grid) -> Iterator[str]:
    """What the study asks, what its numbers are, and where they bend."""
    date = f" ({grid.date})" if grid.date else ""
    yield f"{grid.name}: {grid.about}. Source: {grid.source}{date}."
    what = QUANTITIES[grid.quantity]
    bases = sorted({each.basis for each in grid.cells})
    beside = " beside the computation" if bases == ["predicted"] else ""
    yield f"Each number: {what}, and what took most of the time{beside}."
    for basis in bases:
        yield _BASES[basis]
    yield from filter(None, grid.basis_notes)
    for each in grid.datasets:
        per_s = each.images / each.seconds if each.seconds else None
        yield (
            f"The conversion to {each.name} took {duration(each.seconds)} (measured):"
            f" {count(each.images)} images, {rate(per_s)} per second, {amount(each.bytes)}."
        )


def parts_table(grid: Grid) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows: what a step of each cell is made of, and what computation hides."""
    names = dict.fromkeys(part.name for cell in grid.cells for part in cell.parts)
    rows = []
    for cell in grid.cells:
        parts = {part.name: part for part in cell.parts}
        shown = (_part(parts[name]) if name in parts else MISSING for name in names)
        needs = amount(cell.needs_bytes_per_s) + "/s" if cell.needs_bytes_per_s else MISSING
        rows.append((", ".join(cell.place), cell.basis, *shown, needs))
    return ("a step", "basis", *(_words(grid, name) for name in names), "needs"), rows


def _part(part: Part) -> str:
    """How long it takes, and how much of that is not hidden."""
    if part.seconds is None or part.seconds <= part.exposed_s:
        return duration(part.exposed_s)
    return f"{duration(part.exposed_s)} of {duration(part.seconds)}"


def bend_lines(grid: Grid) -> Iterator[str]:
    """Where faster devices begin to wait; and in each row between which columns the throughput per
    rank falls most, and what takes the time then.
    """
    last = grid.axes[-1].name
    for each in grid.limits():
        name, binds = ", ".join(each.row), _words(grid, each.binds)
        needs = f"{name}: {each.first} needs {amount(each.needs_bytes_per_s)}/s;"
        starves = f"; of the devices here {each.starves} is the first that waits"
        if each.feeds < 1:
            yield f"{needs} {binds}: enough for {percent(each.feeds)} of that."
        else:
            yield (
                f"{needs} a device {each.feeds:.2g} times as fast is fed, then {binds} would be in"
                f" use all the time{starves if each.starves else ''}."
            )
    for bend in grid.bends():
        text = (
            f"from {bend.before} to {bend.after} {last} the throughput per rank falls from"
            f" {percent(bend.efficiency_before)} to {percent(bend.efficiency_after)} of that in the"
            f" first column; {_words(grid, bend.bound_by)} then takes {percent(bend.share)} of a"
            " step."
        )
        yield f"{', '.join(bend.row)}: {text}" if bend.row else sentence(text)


def grid_figure(grid: Grid) -> go.Figure:
    """Samples/s, or what the study is about, over the last axis; a line for each row."""
    drawn = go.Figure(layout=layout(_HEIGHT))
    colours = list(dict.fromkeys(CAUSE_COLOURS.values()))
    rows = list(grid.rows())
    inner = list(dict.fromkeys(place[-1:] for place, _ in rows))
    outer = list(dict.fromkeys(place[:-1] for place, _ in rows))
    is_use = grid.quantity == "use"
    for place, found in rows:
        cells = [each for each in found if each is not None]
        name = ", ".join(place)
        colour = colours[inner.index(place[-1:]) % len(colours)]
        values = [each.value if is_use else each.samples_per_s or 0.0 for each in cells]
        drawn.add_scatter(
            x=[each.place[-1] for each in cells],
            y=[float(f"{each:.6g}") for each in values],
            name=name,
            mode="lines+markers",
            line={
                "color": colour,
                "dash": _DASHES[outer.index(place[:-1]) % len(_DASHES)],
                "width": 2,
            },
            marker={"color": colour, "size": 7},
            hovertemplate=f"{name}, %{{x}}: %{{y:,.4g}}<extra></extra>",
        )
    drawn.update_xaxes(title_text=grid.axes[-1].name, type="category")
    drawn.update_yaxes(title_text=_drawn(grid), type="linear" if is_use else "log")
    return drawn


def _drawn(grid: Grid) -> str:
    """What the figure shows: of times, the rates, since those bend."""
    return QUANTITIES["use" if grid.quantity == "use" else "samples_per_s"]


def write_grid(grid: Grid, folder: Path) -> None:
    """Write the page `study.html` and the notebook `study.ipynb` beside `study.json`."""
    label = "A line for each row of the tables, which have the same numbers."
    basis = ", ".join(sorted({each.basis for each in grid.cells}))
    chart = Chart("grid", label, {"grid": grid_figure(grid)}, {"grid": (f"Numbers: {basis}.",)})
    tables = [
        Section(f"table-{place}", title or "Table", headings, rows)
        for place, (title, headings, rows) in enumerate(grid_tables(grid))
    ]
    headings, rows = parts_table(grid)
    tables.append(Section("parts", _PARTS, headings, rows))
    notes = (*grid_notes(grid), *bend_lines(grid))
    page = article(grid.name, "ioprof study", notes, [(_drawn(grid).capitalize(), chart)], tables)
    write_atomically(folder / "study.html", page)
    write_atomically(folder / "study.ipynb", notebook(grid))


def notebook(grid: Grid) -> str:
    """A notebook that shows the study from its study.json."""
    notes = "\n\n".join((*grid_notes(grid), *bend_lines(grid)))
    code = (
        "import polars as pl\n\nfrom ioprof.analysis.grid import Grid\n"
        "from ioprof.report.grid import grid_figure\n"
        "from ioprof.report.notebook_figure import NotebookFigure\n\n"
        'grid = Grid.load("study.json")',
        "names = [axis.name for axis in grid.axes]\n"
        "pl.DataFrame(\n"
        "    [\n"
        "        dict(zip(names, cell.place)) | {grid.quantity: cell.value, 'low': cell.low,"
        " 'high': cell.high, 'basis': cell.basis, 'bound by': cell.bound_by}\n"
        "        for cell in grid.cells\n"
        "    ]\n"
        ")",
        "NotebookFigure(grid_figure(grid))",
    )
    cells: list[dict[str, object]] = [
        {
            "cell_type": "markdown",
            "id": "about",
            "metadata": {},
            "source": f"# {grid.name}\n\n{notes}",
        }
    ]
    cells += [
        {
            "cell_type": "code",
            "id": f"code-{place}",
            "metadata": {},
            "source": text,
            "outputs": [],
            "execution_count": None,
        }
        for place, text in enumerate(code)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1) + "\n"


def _cell(grid: Grid, cell: Cell | None) -> str:
    if cell is None:
        return MISSING
    shown = _SHOWN[grid.quantity]
    between = ""
    if cell.low is not None and cell.high is not None:
        between = f" ({shown(cell.low)} to {shown(cell.high)})"
    return f"{shown(cell.value)}{between}; {_words(grid, cell.bound_by)} {percent(cell.share, 0)}"


def _words(grid: Grid, bound_by: str) -> str:
    """Of a simulation a resource has a name; of a run it is a cause."""
    is_simulated = all(each.basis == "predicted" for each in grid.cells)
    return RESOURCES.get(bound_by, bound_by) if is_simulated else bound_by
