"""The page of what a job needs: where the use of the accelerators bends, by layout and device."""

from typing import Final

import plotly.graph_objects as go

from ioprof.model.simulator.sizing import STORAGE_RATES, Size
from ioprof.report.article import Section, article
from ioprof.report.figures import layout
from ioprof.report.page.document import Chart
from ioprof.report.palette import CAUSE_COLOURS
from ioprof.report.texts.sizing import size_lines, size_tables
from ioprof.report.texts.units import amount

_HEIGHT: Final = 380
_GB: Final = 1e9


def size_page(found: Size) -> str:
    """The text of the page."""
    names = ("layouts", "devices") if found.next_devices else ("layouts",)
    of_layouts = {each.layout: each.bends_at_bytes_per_s for each in found.needs}
    of_devices = {"this device": found.needs[0].bends_at_bytes_per_s}  # of the first layout
    of_devices |= {each.device: each.bytes_per_s for each in found.next_devices}
    drawn = {"layouts": _figure(of_layouts), "devices": _figure(of_devices)}
    notes = (
        "Derived: the use that the storage's rate allows at most, while nothing is in memory. It"
        " bends where the accelerators need as much as the storage delivers.",
    )
    chart = Chart(
        "use",
        "Use of the accelerators by the rate of the storage; the table has the same numbers.",
        {name: drawn[name] for name in names},
        dict.fromkeys(names, notes),
    )
    layouts = tuple(need.layout for need in found.needs)
    tables = [
        Section(f"table-{place}", heading.capitalize(), (heading, *layouts), rows)
        for place, (heading, rows) in enumerate(size_tables(found).items())
    ]
    title = f"{found.job}, {found.ranks:,} ranks"
    heading = "Use of the accelerators by what the storage delivers"
    return article(title, "ioprof size", size_lines(found), [(heading, chart)], tables)


def _figure(needed: dict[str, float]) -> go.Figure:
    """Lines of use by rate, each with a mark where it bends."""
    drawn = go.Figure(layout=layout(_HEIGHT))
    colours = list(dict.fromkeys(CAUSE_COLOURS.values()))
    most = 2 * max(needed.values())
    for place, (name, bend) in enumerate(needed.items()):
        rates = sorted({*STORAGE_RATES, bend, most})
        drawn.add_scatter(
            x=[float(f"{each / _GB:.6g}") for each in rates],
            y=[float(f"{min(1.0, each / bend):.6g}") for each in rates],
            name=f"{name}: bends at {amount(bend)}/s",
            mode="lines+markers",
            line={"color": colours[place % len(colours)], "width": 2},
            marker={
                "color": colours[place % len(colours)],
                "size": [11 if each == bend else 4 for each in rates],
            },
            hovertemplate=f"{name}, %{{x:,.4g}} GB/s: %{{y:.1%}}<extra></extra>",
        )
    drawn.update_xaxes(title_text="storage delivers, GB/s", type="log")
    drawn.update_yaxes(title_text="use of the accelerators", rangemode="tozero")
    return drawn
