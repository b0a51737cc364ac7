"""The table and the figure of a study, as text and as a page."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import plotly.graph_objects as go
from rich.table import Table

from ioprof.analysis.study import Iteration, Study, StudyRow
from ioprof.files import write_atomically
from ioprof.report.article import Section, article
from ioprof.report.figures import layout
from ioprof.report.page.document import Chart
from ioprof.report.palette import CAUSE_COLOURS
from ioprof.report.terminal import plain_table
from ioprof.report.texts.units import MISSING, amount, clean, count, duration, percent, rate

_EXCHANGE: Final = {
    "data": ("all-reduce", "late ranks"),
    "pipeline": ("transfer", "bubbles"),
    "fsdp": ("collectives", "late ranks"),
}
"""What ranks do with one another, and what waiting for others is called, by what they divide among
them."""
_PARTS: Final = (
    ("forward_backward_s", "compute"),
    ("optimizer_s", "transform"),
    ("exchange_s", "exchange"),
    ("straggler_s", "straggler"),
    ("input_s", "storage"),
    ("other_s", "host"),
)
"""Fields of an iteration, and the cause whose colour each has."""
_HEIGHT: Final = 360

Columns = list[tuple[str, Callable[[StudyRow], str]]]


def study_table(study: Study) -> Table:
    """The table for a terminal."""
    (heading, value), *lines = _columns(study)
    headings = (heading, *(clean(value(row)) for row in study.rows))
    cells = ((name, *(clean(cell(row)) for row in study.rows)) for name, cell in lines)
    return plain_table(headings, cells, range(1, len(headings)))


def study_notes(study: Study) -> list[str]:
    """What the columns mean, and how the numbers came to be."""
    bases = sorted({row.basis for row in study.rows})
    date = str(study.year or "") or (f"year unknown: {study.undated}" if study.undated else "")
    source = f"{study.source} ({date})" if date else study.source
    notes = [f"{study.preset}: {study.about}. Source: {source}."]
    if models := sorted({row.model for row in study.rows if row.model}):
        notes.append(f"Model of these runs: {', '.join(models)}.")
    if bases == ["measured"]:
        notes.append("All times are measured.")
    else:
        notes.append(
            "Times of compute, copies and exchange are emulated; loading, reads and waiting are"
            " measured."
        )
    if study.varied == "ranks":
        notes.append(
            "From 'step' on: means of a step after the warm-up over all ranks; they sum to the"
            " step."
        )
    if any(row.needed_bytes_per_s for row in study.rows):
        notes.append(
            "'needs': what all ranks together must get so that the devices never wait; from"
            " storage, while nothing is cached."
        )
    if any(row.predicted_s for row in study.rows):
        epochs = max(row.epochs or 0 for row in study.rows)
        notes.append(
            f"The whole job, with start, end and {epochs} epochs, is predicted from a first, cold"
            " epoch and a later one."
        )
    return notes


def write_study(study: Study, folder: Path) -> None:
    """Write the numbers as `study.json`, and table and figure as `study.html`, each whole or not at
    all.
    """
    write_atomically(folder / "study.json", study.to_json())
    columns, title = _columns(study), f"{study.preset}: {study.varied.replace('_', ' ')}"
    drawn = [*_charts_of_scales(study), ("What a step is made of", _chart(study))]
    cells = [tuple(clean(cell(row)) for _, cell in columns) for row in study.rows]
    runs = Section("runs", "Runs", tuple(heading for heading, _ in columns), cells)
    page = article(title, "ioprof study", study_notes(study), drawn, [runs])
    write_atomically(folder / "study.html", page)


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
        ("step waits for input", lambda row: _waiting(row.iteration, "input_s")),
        ("for late ranks", lambda row: _waiting(row.iteration, "straggler_s")),
        ("main wait", lambda row: (row.bound_by or MISSING).replace("_", " ")),
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
    return ", ".join(
        percent(min(1.0, each / row.dataset_bytes), 0)
        for each in (row.storage_bytes[0], row.storage_bytes[-1])
    )


def _predicted(row: StudyRow) -> str:
    if row.predicted_s is None:
        return duration(row.seconds)
    return f"{duration(row.predicted_s)} ± {duration(row.error_s)}"


def _waiting(found: Iteration | None, field: str) -> str:
    return (
        MISSING
        if found is None or not found.step_s
        else percent(getattr(found, field) / found.step_s)
    )


def _chart(study: Study) -> Chart:
    """Bars of what a step is made of."""
    exchange, waiting = _EXCHANGE.get(study.parallel, _EXCHANGE["data"])
    names = {
        "forward_backward_s": "forward + backward",
        "exchange_s": exchange,
        "straggler_s": waiting,
    }
    rows = [row for row in study.rows if row.iteration is not None]
    drawn = go.Figure(layout=layout(_HEIGHT, barmode="stack"))
    for field, cause in _PARTS:
        values = [(getattr(row.iteration, field) or 0.0) * 1e3 for row in rows]
        if any(values):
            name = names.get(field, field.removesuffix("_s"))
            drawn.add_bar(
                x=[row.value for row in rows],
                y=[float(f"{value:.6g}") for value in values],
                name=name,
                marker={"color": CAUSE_COLOURS[cause]},
                hovertemplate=f"{name}, %{{x}}: %{{y:,.4g}} ms<extra></extra>",
            )
    drawn.update_xaxes(title_text=study.varied.replace("_", " "), type="category")
    drawn.update_yaxes(title_text="milliseconds per step", rangemode="tozero")
    label = "Bars of the parts of a step for each run; the table has the same numbers."
    return Chart(
        "iteration",
        label,
        {"step": drawn},
        {"step": ("Means of a step after the warm-up over all ranks.",)},
    )


def _charts_of_scales(study: Study) -> list[tuple[str, Chart]]:
    """For datasets of several sizes: how long an epoch takes, and how fast the data came; with the
    headings.
    """
    rows = [
        row
        for row in study.rows
        if study.varied != "ranks" and row.dataset_bytes and row.later_epoch_s
    ]
    if not rows:
        return []
    limits = sorted({row.memory_limit_bytes for row in rows if row.memory_limit_bytes})
    times, rates = go.Figure(layout=layout(_HEIGHT)), go.Figure(layout=layout(_HEIGHT))
    colours = {
        word: CAUSE_COLOURS[cause]
        for word, cause in (("first", "storage"), ("later", "page_cache"), ("needed", "compute"))
    }
    _add_line(times, rows, lambda row: row.first_epoch_s, "first epoch, cold", colours["first"])
    _add_line(times, rows, lambda row: row.later_epoch_s, "later epoch", colours["later"])
    _add_line(
        times, rows, _least_epoch_s, "without waiting for input", colours["needed"], dash="dash"
    )
    _add_line(
        rates,
        rows,
        lambda row: _over(row.needed_bytes_per_s),
        "the devices need",
        colours["needed"],
        dash="dash",
    )
    _add_line(
        rates, rows, lambda row: _over(row.got_bytes_per_s), "the workers got", colours["first"]
    )
    for drawn in (times, rates):
        drawn.update_xaxes(title_text="dataset, GB", rangemode="tozero")
        for limit in limits:
            note = {
                "text": "memory limit",
                "yref": "paper",
                "y": 1,
                "showarrow": False,
                "xanchor": "left",
            }
            drawn.add_vline(
                limit / 1e9,
                line={"dash": "dot", "width": 1, "color": CAUSE_COLOURS["host"]},
                annotation=note,
            )
    times.update_yaxes(title_text="seconds per epoch", rangemode="tozero")
    rates.update_yaxes(title_text="MB/s", type="log", dtick=1)
    need = max((row.needed_bytes_per_s or 0.0 for row in rows), default=0.0)
    notes = (
        ["The memory limit is that of the job: its processes' own memory counts too."]
        if limits
        else []
    )
    reads = max((row.needed_reads_per_s or 0.0 for row in rows), default=0.0)
    if need and reads:
        notes.append(f"So that the devices never wait: {amount(need)}/s in {rate(reads)} reads/s.")
    named = [
        (
            "How long an epoch takes",
            "epochs",
            "Seconds per epoch by the size of the dataset",
            times,
            notes[:1] if limits else [],
        ),
        (
            "How fast the data must come, and came",
            "rates",
            "Bytes per second by the size of the dataset",
            rates,
            notes[-1:],
        ),
    ]
    return [
        (
            heading,
            Chart(
                name,
                f"{label}; the table has the same numbers.",
                {name: drawn},
                {name: tuple(said)},
            ),
        )
        for heading, name, label, drawn, said in named
    ]


def _add_line(
    drawn: go.Figure,
    rows: list[StudyRow],
    value: Callable[[StudyRow], float | None],
    name: str,
    colour: str,
    dash: str = "solid",
) -> None:
    """A line over the sizes of datasets, with a mark for each run; runs without the value are left
    out.
    """
    points = [
        ((row.dataset_bytes or 0) / 1e9, found, row.value)
        for row in rows
        if (found := value(row)) is not None
    ]
    if points:
        sizes, values, scales = zip(*points, strict=True)
        drawn.add_scatter(
            x=[float(f"{size:.6g}") for size in sizes],
            y=[float(f"{each:.6g}") for each in values],
            name=name,
            text=scales,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"color": colour, "size": 7},
            hovertemplate=f"{name}, %{{text}}: %{{y:,.4g}}<extra></extra>",
        )


def _least_epoch_s(row: StudyRow) -> float | None:
    """How long an epoch takes where the devices never wait."""
    return (
        row.dataset_samples / row.at_samples_per_s
        if row.dataset_samples and row.at_samples_per_s
        else None
    )


def _over(bytes_per_s: float | None) -> float | None:
    return bytes_per_s / 1e6 if bytes_per_s else None
