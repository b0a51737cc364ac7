"""The charts of the page: which figures, in which views, and the sentences below that say what was chosen and thinned."""

from dataclasses import dataclass

import plotly.graph_objects as go
import polars as pl

from ioprof.analysis.result import Summary
from ioprof.report import figures, views
from ioprof.report.facts import is_emulated
from ioprof.report.lanes import READS, timeline_of
from ioprof.trace import Trace


@dataclass(frozen=True)
class Chart:
    """A figure of the page, with one view or several to choose from."""

    name: str
    label: str
    """What it shows, for those who cannot see it."""
    figures: dict[str, go.Figure]
    """By the words of the selector; the first is shown first."""
    notes: dict[str, tuple[str, ...]]
    """What was chosen and thinned, for each view."""


def charts(trace: Trace, steps: pl.DataFrame, summary: Summary) -> dict[str, Chart]:
    """The charts that this run has data for, by name."""
    found: list[Chart] = []
    if len(steps):
        found += [_time(steps, summary), *_throughput(steps, summary), _steps(steps, summary), _timeline(trace, steps, summary)]
    if trace.spans["kind"].cast(pl.String).is_in(READS).any():
        label = "Histogram of the time of one read, by where the bytes came from."
        notes = ("Both axes are logarithmic, so that a single slow read is visible.",)
        found.append(Chart("latency", label, {"reads": figures.read_latency(trace)}, {"reads": notes}))
    return {chart.name: chart for chart in found}


def _time(steps: pl.DataFrame, summary: Summary) -> Chart:
    emulated = _emulated_causes(summary)
    drawn = {"share": figures.time_by_cause(steps, emulated), "seconds": figures.time_by_cause(steps, emulated, "seconds")}
    thinned = views.thinning_of_ranks(steps, views.bars_of_time_by_cause(steps))
    label = "Stacked bars of the time of all steps by cause, for each rank; the table has the same numbers."
    return Chart("time", label, drawn, dict.fromkeys(drawn, _sentences(thinned)))


def _throughput(steps: pl.DataFrame, summary: Summary) -> list[Chart]:
    samples, whole = summary.run.get("batch_size"), summary.throughput.device_samples_per_s
    if not isinstance(samples, int) or samples <= 0:
        return []
    emulated = is_emulated(summary)
    figure = figures.throughput(steps, samples, whole / steps["rank"].n_unique() if whole else None, emulated)
    label = "Samples per second of each rank over time; a stall is a drop towards zero."
    notes = _sentences(
        views.thinning_of_rates(steps),
        views.thinning_of_ranks(steps, views.chosen_ranks(steps)),
        "Rates are emulated: the steps include the time of an emulated device" if emulated else None,
    )
    return [Chart("throughput", label, {"rate": figure}, {"rate": notes})]


def _steps(steps: pl.DataFrame, summary: Summary) -> Chart:
    emulated, several = _emulated_causes(summary), steps["rank"].n_unique() > 1
    whose = (
        "For each step the rank with most time outside gradient exchange: the one that the others waited for" if several else None
    )
    notes = _sentences(whose, views.thinning_of_steps(steps))
    drawn, said = {"all": figures.step_causes(steps, emulated)}, {"all": notes}
    highest = views.usual_height_ms(steps)
    if highest:
        longer = int((views.step_rows(steps)["wall_ns"] > highest * 1e6).sum())
        drawn["usual steps"] = figures.step_causes(steps, emulated, highest)
        cut = f"The axis ends at 1.5 times the 95th percentile; {longer:,} longer step{'' if longer == 1 else 's'} cut at its edge"
        said["usual steps"] = (*notes, *_sentences(cut))
    return Chart("steps", "Stacked areas of what each step's time went to.", drawn, said)


def _timeline(trace: Trace, steps: pl.DataFrame, summary: Summary) -> Chart:
    drawn: dict[str, go.Figure] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for window in views.windows(steps, summary.steps.warmup):
        ranks = views.chosen_ranks(steps, including=window.rank)
        view = timeline_of(trace, window, ranks)
        drawn[window.name] = figures.draw_timeline(view, is_emulated(summary))
        notes[window.name] = _sentences(window.reason, *view.notes, views.thinning_of_ranks(steps, ranks))
    label = "Lanes of reads, loader workers, waits, copies, compute and gradient exchange on one time axis."
    return Chart("timeline", label, drawn, notes)


def _emulated_causes(summary: Summary) -> set[str]:
    return {entry.cause for entry in summary.steps.causes if entry.basis == "emulated"}


def _sentences(*sentences: str | None) -> tuple[str, ...]:
    return tuple(f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}." for sentence in sentences if sentence)
