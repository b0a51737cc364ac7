"""The history of a job: its runs, its level, and from which run on it takes another time; as text
and as a page.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Final

import plotly.graph_objects as go

from ioprof.analysis.regression import (
    FEWEST_OF_LEVEL,
    FEWEST_RUNS,
    Level,
    LevelChange,
    PastRun,
    level_changes,
    level_of,
    levels,
)
from ioprof.files import write_atomically
from ioprof.report.figures import escape, layout
from ioprof.report.page.document import Chart, document, figure
from ioprof.report.page.markup import Html, element, table
from ioprof.report.page.sections import section
from ioprof.report.palette import CAUSE_COLOURS
from ioprof.report.texts.units import MISSING, clean, duration, percent

_HEIGHT: Final = 300
_COMMIT: Final = 12


@dataclass(frozen=True)
class History:
    """The runs of one job that completed and have a time, oldest first."""

    job: str
    runs: tuple[PastRun, ...]

    @property
    def seconds(self) -> list[float]:
        """Of each run, per sample, or per step."""
        return [run.seconds or 0.0 for run in self.runs]

    @cached_property
    def changes(self) -> tuple[LevelChange, ...]:
        """From which runs on the job takes another time."""
        return level_changes(self.seconds)

    @property
    def level(self) -> Level | None:
        """Of the runs since the last change. None: too few."""
        *earlier, own = levels(self.seconds, self.changes)
        return level_of(own, earlier)

    @property
    def is_slower(self) -> bool:
        """Whether the last change was found with the newest run, and is to a slower level."""
        last = self.changes[-1] if self.changes else None
        return bool(last and last.ratio > 1 and last.found_at == len(self.runs) - 1)

    def lines(self) -> Iterator[str]:
        """The changes and the level, in sentences."""
        if not self.runs:
            yield "no run that completed and made a step: nothing to compare"
            return
        for change in self.changes:
            run = self.runs[change.at]
            way = "slower" if change.ratio > 1 else "faster"
            yield (
                f"{percent(abs(change.ratio - 1))} {way} from {_named(run)} on (the run before:"
                f" {_named(self.runs[change.at - 1])})"
            )
        level = self.level
        if level is None:
            yield (
                f"fewer than {FEWEST_OF_LEVEL} runs since the last change: their level is not known"
                " yet"
                if self.changes
                else f"fewer than {FEWEST_RUNS} runs: how much they vary is not known yet"
            )
            return
        yield (
            f"level: {duration(level.mean_s)} per {self.runs[-1].unit}, runs vary by"
            f" {percent(level.variation)}; a change of {percent(level.detectable)} is found within"
            " three runs"
        )


def histories(runs: Sequence[PastRun]) -> list[History]:
    """One per job, of runs that are ordered by job; a run of another unit than the newest is left
    out.
    """
    found = []
    for job, group in groupby(runs, key=lambda run: run.job):
        done = [run for run in group if run.seconds and run.status in ("complete", None)]
        units = {run.unit for run in done[-1:]}
        found.append(History(job, tuple(run for run in done if run.unit in units)))
    return found


def history_json(found: Sequence[History]) -> str:
    """The histories as a JSON array."""
    rows = [
        {
            "job": each.job,
            "runs": [asdict(run) for run in each.runs],
            "changes": [asdict(change) for change in each.changes],
            "level": asdict(each.level) if each.level else None,
        }
        for each in found
    ]
    return json.dumps(rows, indent=1, allow_nan=False)


def write_trend(found: Sequence[History], path: Path) -> None:
    """Write the page: a section per job."""
    shown = [each for each in found if each.runs]
    charts = [_chart(each, place) for place, each in enumerate(shown)]
    sections = (
        section(
            f"job-{place}",
            clean(each.job, 120),
            *(element("p", line) for line in each.lines()),
            figure(chart),
            _table(each),
        )
        for place, (each, chart) in enumerate(zip(shown, charts, strict=True))
    )
    title = "Runs over time"
    write_atomically(path, document(title, "ioprof history", title, (), sections, charts))


def _chart(history: History, place: int) -> Chart:
    drawn = go.Figure(layout=layout(_HEIGHT))
    names = [escape(_named(run)) for run in history.runs]
    drawn.add_scatter(
        x=list(range(1, len(names) + 1)),
        y=[float(f"{value * 1e3:.6g}") for value in history.seconds],
        text=names,
        mode="lines+markers",
        name="runs",
        line={"color": CAUSE_COLOURS["compute"], "width": 1},
        hovertemplate="%{text}: %{y:,.4g} ms<extra></extra>",
    )
    for change in history.changes:
        cause = "storage" if change.ratio > 1 else "page_cache"
        drawn.add_vline(
            change.at + 0.5,
            line={"dash": "dot", "width": 1.5, "color": CAUSE_COLOURS[cause]},
            annotation={"text": f"{change.ratio - 1:+.1%}", "showarrow": False, "yref": "paper"},
        )
    unit = history.runs[-1].unit or "step"
    drawn.update_xaxes(title_text="run, oldest first")
    drawn.update_yaxes(title_text=f"ms per {unit}", rangemode="tozero")
    label = f"Milliseconds per {unit} of each run; the table has the same numbers."
    return Chart(f"trend-{place}", label, {"time": drawn}, {"time": ()})


def _table(history: History) -> Html:
    rows = [
        (
            run.started[:19].replace("T", " "),
            clean(run.name, 60),
            (run.commit or MISSING)[:_COMMIT],
            duration(run.seconds),
            (run.bound_by or MISSING).replace("_", " "),
        )
        for run in reversed(history.runs)
    ]
    headings = ("started", "run", "commit", f"time per {history.runs[-1].unit}", "main wait")
    return table(headings, rows, frozenset({3}))


def _named(run: PastRun) -> str:
    commit = f" ({run.commit[:_COMMIT]})" if run.commit else ""
    return f"{clean(run.name, 60)}{commit}"
