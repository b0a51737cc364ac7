"""The table and the figure of a study, as text and as a page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from rich import box
from rich.table import Table

from ioprof import __version__
from ioprof.analysis.study import Iteration, Study, StudyRow
from ioprof.files import write_atomically
from ioprof.report.charts import Chart
from ioprof.report.document import document, figure
from ioprof.report.markup import element, table
from ioprof.report.palette import CAUSE_COLOURS
from ioprof.report.sections import section
from ioprof.report.units import MISSING, amount, clean, count, duration, percent, rate

_EXCHANGE: Final = {
    "data": ("all-reduce", "late ranks"),
    "pipeline": ("transfer", "bubbles"),
    "fsdp": ("collectives", "late ranks"),
}
"""What ranks do with one another, and what waiting for others is called, by what they divide among them."""
_PARTS: Final = (
    ("forward_backward_s", "compute"), ("optimizer_s", "transform"), ("exchange_s", "exchange"), ("straggler_s", "straggler"),
    ("input_s", "storage"), ("other_s", "host"),
)  # fmt: skip
"""Fields of an iteration, and the cause whose colour each has."""
_HEIGHT: Final = 360

Columns = list[tuple[str, Callable[[StudyRow], str]]]


def study_table(study: Study) -> Table:
    """The table for a terminal."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    (heading, value), *lines = _columns(study)
    drawn.add_column(heading)
    for row in study.rows:
        drawn.add_column(clean(value(row)), justify="right")
    for name, cell in lines:
        drawn.add_row(name, *(clean(cell(row)) for row in study.rows))
    return drawn


def study_notes(study: Study) -> list[str]:
    """What the columns mean, and how the numbers came to be."""
    bases = sorted({row.basis for row in study.rows})
    source = study.source if study.year is None else f"{study.source} ({study.year})"
    notes = [f"{study.preset}: {study.about}. Source: {source}."]
    if bases == ["measured"]:
        notes.append("All times are measured.")
    else:
        notes.append("Times of compute, copies and exchange are emulated; loading, reads and waiting are measured.")
    if study.varied == "ranks":
        notes.append("From 'step' on: means of a step after the warm-up over all ranks; they sum to the step.")
    if any(row.needed_bytes_per_s for row in study.rows):
        notes.append(
            "'needs': what all ranks together must get so that the devices never wait; from storage, while nothing is cached."
        )
    if any(row.predicted_s for row in study.rows):
        epochs = max(row.epochs or 0 for row in study.rows)
        notes.append(f"The whole job, with start, end and {epochs} epochs, is predicted from a first, cold epoch and a later one.")
    return notes


def write_study(study: Study, folder: Path) -> None:
    """Write the numbers as `study.json`, and table and figure as `study.html`, each whole or not at all."""
    write_atomically(folder / "study.json", study.to_json())
    columns, title = _columns(study), f"{study.preset}: {study.varied.replace('_', ' ')}"
    charts = [_chart(study)]
    cells = [tuple(clean(cell(row)) for _, cell in columns) for row in study.rows]
    header = element("header", element("p", "ioprof study", class_="brand"), element("h1", clean(title)))
    main = element(
        "main",
        element("section", *(element("p", clean(note, 400)) for note in study_notes(study)), id="answer", aria_label="Answer"),
        section("figure", "What a step is made of", *(figure(chart) for chart in charts)),
        section("runs", "Runs", table(tuple(heading for heading, _ in columns), cells, frozenset(range(1, len(columns))))),
    )
    footer = element("footer", f"ioprof {__version__}. This file contains all it shows and requests nothing.")
    write_atomically(folder / "study.html", document(title, (header, main, footer), charts))


def _columns(study: Study) -> Columns:
    heading = study.varied.replace("_", " ").removeprefix("dataset ")
    first: Columns = [(heading, lambda row: row.value)]
    return first + (_of_ranks(study) if study.varied == "ranks" else _of_scales())


def _of_ranks(study: Study) -> Columns:
    exchange, waiting = _EXCHANGE.get(study.parallel, _EXCHANGE["data"])
    return [
        ("batch", lambda row: count(row.samples_per_step)),
        ("time", lambda row: duration(row.seconds)),
        ("samples/s", lambda row: rate(row.samples_per_s)),
        ("speed-up", lambda row: MISSING if row.speedup is None else f"{row.speedup:.2f}"),
        ("step", _part("step_s")),
        ("forward + backward", _part("forward_backward_s")),
        ("optimizer", _part("optimizer_s")),
        (exchange, _part("exchange_s")),
        (waiting, _part("straggler_s")),
        ("input", _part("input_s")),
        ("other", _part("other_s")),
    ]


def _of_scales() -> Columns:
    return [
        ("dataset", lambda row: amount(row.dataset_bytes)),
        ("first epoch", lambda row: duration(row.first_epoch_s)),
        ("later epoch", lambda row: duration(row.later_epoch_s)),
        ("from storage", lambda row: _shares(row)),
        ("whole job", lambda row: _predicted(row)),
        ("samples/s", lambda row: rate(row.samples_per_s)),
        ("step waits for input", lambda row: _waiting(row.iteration)),
        ("bound by", lambda row: (row.bound_by or MISSING).replace("_", " ")),
        ("needs", lambda row: _per_s(row.needed_bytes_per_s)),
        ("needs reads/s", lambda row: rate(row.needed_reads_per_s)),
        ("fetched at that rate", lambda row: _per_s(row.fetched_bytes_per_s)),
        ("got", lambda row: _per_s(row.got_bytes_per_s)),
    ]


def _per_s(num_bytes: float | None) -> str:
    return MISSING if num_bytes is None else f"{amount(num_bytes)}/s"


def _part(name: str) -> Callable[[StudyRow], str]:
    def cell(row: StudyRow) -> str:
        value: float | None = None if row.iteration is None else getattr(row.iteration, name)
        return duration(value)

    return cell


def _shares(row: StudyRow) -> str:
    """Of the dataset, in the first and in the last epoch that was made."""
    if not row.storage_bytes or not row.dataset_bytes:
        return MISSING
    return ", ".join(percent(min(1.0, each / row.dataset_bytes), 0) for each in (row.storage_bytes[0], row.storage_bytes[-1]))


def _predicted(row: StudyRow) -> str:
    if row.predicted_s is None:
        return duration(row.seconds)
    return f"{duration(row.predicted_s)} ± {duration(row.error_s)}"


def _waiting(found: Iteration | None) -> str:
    return MISSING if found is None or not found.step_s else percent(found.input_s / found.step_s)


def _chart(study: Study) -> Chart:
    """Bars of what a step is made of."""
    exchange, waiting = _EXCHANGE.get(study.parallel, _EXCHANGE["data"])
    names = {"forward_backward_s": "forward + backward", "exchange_s": exchange, "straggler_s": waiting}
    rows = [row for row in study.rows if row.iteration is not None]
    drawn = go.Figure(layout=_layout())
    for field, cause in _PARTS:
        values = [(getattr(row.iteration, field) or 0.0) * 1e3 for row in rows]
        if any(values):
            name = names.get(field, field.removesuffix("_s"))
            drawn.add_bar(
                x=[row.value for row in rows], y=[float(f"{value:.6g}") for value in values], name=name,
                marker={"color": CAUSE_COLOURS[cause]}, hovertemplate=f"{name}, %{{x}}: %{{y:,.4g}} ms<extra></extra>",
            )  # fmt: skip
    drawn.update_xaxes(title_text=study.varied.replace("_", " "), type="category")
    drawn.update_yaxes(title_text="milliseconds per step", rangemode="tozero")
    label = "Bars of the parts of a step for each run; the table has the same numbers."
    return Chart("iteration", label, {"step": drawn}, {"step": ("Means of a step after the warm-up over all ranks.",)})


def _layout() -> dict[str, Any]:
    axis = {"automargin": True, "zeroline": False, "ticks": "outside", "title": {"font": {"size": 12}}}
    return {
        "height": _HEIGHT, "template": "none", "barmode": "stack", "margin": {"l": 10, "r": 16, "t": 30, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "xaxis": axis, "yaxis": axis,
    }  # fmt: skip
