"""The section on steps: their times as a histogram and in order, each bar a link into the timeline,
and the longest as a table.
"""

import math
from typing import Final

import polars as pl

from ioprof.format.run_record import Summary
from ioprof.format.schema import CAUSES
from ioprof.report import views
from ioprof.report.page.markup import Html, element, join, table
from ioprof.report.page.sections import CAUSE_MEANINGS, nothing, swatch
from ioprof.report.page.svg import Bar, bars, even_ticks
from ioprof.report.texts.statements import is_emulated
from ioprof.report.texts.units import count, duration, percent

_BARS: Final = 160
_BINS: Final = 36


def step_section(summary: Summary, steps: pl.DataFrame) -> Html:
    """What stands below the heading."""
    if not len(steps):
        return nothing("no step was recorded")
    emulated = element(
        "p", "Durations are emulated: they include the time of an emulated device.", class_="note"
    )
    return join(
        _series(steps),
        element("h3", "How long steps take"),
        _histogram(steps),
        _longest(steps),
        emulated if is_emulated(summary) else None,
    )


def step_link(step: int, rank: int) -> str:
    """Where a step is in the timeline."""
    return f"#step={step}&rank={rank}"


def _series(steps: pl.DataFrame) -> Html:
    rows = views.step_rows(steps, _BARS)
    usual = views.usual_height_ms(steps)
    most = usual * 1e6 if usual else float(rows["wall_ns"].max() or 1)  # type: ignore[arg-type]
    scale = most * 1.04
    drawn = [
        Bar(
            place / len(rows),
            1 / len(rows),
            tuple((f"cause-{cause}", (row[f"{cause}_ns"] or 0) / scale) for cause in CAUSES),
            f"step {row['step']} of rank {row['rank']}: {duration(row['wall_ns'] / 1e9)}",
            step_link(row["step"], row["rank"]),
            row["wall_ns"] > scale,
        )
        for place, row in enumerate(rows.iter_rows(named=True))
    ]
    first, last = int(rows["step"][0]), int(rows["step"][-1])
    ticks_x = (
        [(0.0, f"step {count(first)}"), (1.0, f"step {count(last)}")]
        if len(rows) > 1
        else [(0.5, f"step {count(first)}")]
    )
    ticks_y = [(value / scale, duration(value / 1e9)) for value in even_ticks(scale)]
    label = "Time of each step by cause; each bar leads to the step in the timeline."
    notes = [
        note for note in (views.thinning_of_steps(steps, _BARS), _cut_note(rows, scale)) if note
    ]
    if steps["rank"].n_unique() > 1:
        notes.insert(
            0,
            "for each step the rank with most time outside gradient exchange: the one that the"
            " others waited for",
        )
    said = " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes)
    keys = [
        element("li", swatch(cause), cause.replace("_", " "), title=CAUSE_MEANINGS[cause])
        for cause in CAUSES
        if rows[f"{cause}_ns"].fill_null(0).sum()
    ]
    return join(
        element("ul", *keys, class_="keys"),
        bars(drawn, label, ticks_x, ticks_y, titles=("time of a step", "steps in order")),
        element("p", said, class_="note") if said else None,
    )


def _cut_note(rows: pl.DataFrame, scale: float) -> str | None:
    longer = rows.filter(pl.col("wall_ns") > scale)["wall_ns"].to_list()
    if not longer:
        return None
    cut = "1 bar is" if len(longer) == 1 else f"{len(longer)} bars are"
    return f"{cut} cut at the edge and marked; the longest is {duration(max(longer) / 1e9)}"


def _histogram(steps: pl.DataFrame) -> Html:
    """Steps by their time; both axes are logarithmic, so that a single long step is visible."""
    walls = steps.select("step", "rank", wall_ns=views.wall_ns().clip(lower_bound=1)).sort(
        "wall_ns", descending=True
    )
    low, high = (
        math.log10(float(walls["wall_ns"].min()) * 0.999),  # type: ignore[arg-type]
        math.log10(float(walls["wall_ns"].max()) * 1.001),  # type: ignore[arg-type]
    )
    if high - low < 0.3:
        low, high = (low + high) / 2 - 0.15, (low + high) / 2 + 0.15
    place = (
        ((pl.col("wall_ns").log10() - low) / (high - low) * _BINS)
        .floor()
        .clip(0, _BINS - 1)
        .cast(pl.Int64)
    )
    binned = walls.group_by(bin=place, maintain_order=True).agg(
        pl.len().alias("steps"), pl.col("step", "rank", "wall_ns").first()
    )
    most = math.log10(float(binned["steps"].max()) + 1)  # type: ignore[arg-type]
    drawn = [
        Bar(
            row["bin"] / _BINS,
            1 / _BINS,
            (("plain", math.log10(row["steps"] + 1) / most * 0.98),),
            f"{count(row['steps'])} {'step' if row['steps'] == 1 else 'steps'} of"
            f" {_edge(low, high, row['bin'])} to {_edge(low, high, row['bin'] + 1)}; leads to the"
            f" longest, step {row['step']} of rank {row['rank']}",
            step_link(row["step"], row["rank"]),
        )
        for row in binned.sort("bin").iter_rows(named=True)
    ]
    ticks_x = [(share, _edge(low, high, share * _BINS)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    ticks_y = [
        (math.log10(number + 1) / most * 0.98, count(number))
        for number in (1, 10, 100, 1000, 10_000, 100_000)
        if math.log10(number + 1) <= most
    ]
    label = (
        "Histogram of the times of all steps of all ranks, both axes logarithmic; each bar leads to"
        " its longest step."
    )
    chart = bars(drawn, label, ticks_x, ticks_y, 140, ("steps", "time of a step"))
    return join(
        chart,
        element(
            "p", "Both axes are logarithmic; each bar leads to its longest step.", class_="note"
        ),
    )


def _edge(low: float, high: float, place: float) -> str:
    return duration(10 ** (low + (high - low) * place / _BINS) / 1e9)


def _longest(steps: pl.DataFrame) -> Html:
    rows = [
        (
            element("a", f"step {row['step']}", href=step_link(row["step"], row["rank"])),
            str(row["rank"]),
            f"{row['start_ns'] / 1e9:,.3f}",
            duration(row["wall_ns"] / 1e9),
            (
                join(swatch(row["cause"]), row["cause"])
                if row["cause"]
                else "not known: its GPU was not recorded"
            ),
            percent(row["cause_ns"] / row["wall_ns"]) if row["cause"] and row["wall_ns"] else "",
        )
        for row in views.longest_steps(steps).iter_rows(named=True)
    ]
    headings = ("step", "rank", "began at, s", "took", "greatest cause after compute", "its share")
    found = table(headings, rows, frozenset({1, 2, 3, 5}))
    return element("details", element("summary", f"The {len(rows)} longest steps"), found, open="")
