"""Several runs compared: their summaries, and what differs from the first, as a table or as
JSON.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ioprof.analysis.changed_setting import Change, changed_setting
from ioprof.format.run_record import RunDifference, Summary
from ioprof.report.run import Run
from ioprof.report.texts.difference_text import changes_text, difference_text
from ioprof.report.texts.text import WIDTH, comparison_text
from ioprof.report.texts.units import clean, percent


@dataclass(frozen=True)
class Comparison:
    """Summaries of runs; the first run is the baseline. `print(comparison)` prints the table; a
    notebook shows the bars too.
    """

    summaries: tuple[Summary, ...]
    differences: tuple[RunDifference, ...] = ()
    """Of each run but the first, against the first."""
    runs: tuple[Run, ...] = ()
    """The runs themselves, for `write_html`."""

    def write_html(self, path: Path | str) -> None:
        """Write the comparison as one page that opens offline; as `ioprof compare --html`."""
        from ioprof.report.page.compare_page import ComparedRuns, write_comparison

        write_comparison(ComparedRuns(self.runs, self.differences), Path(path))

    def _repr_html_(self) -> str:
        from ioprof.report.card import comparison_card
        from ioprof.report.page.compare_page import ComparedRuns

        return comparison_card(ComparedRuns(self.runs, self.differences))

    @property
    def speedups(self) -> tuple[float | None, ...]:
        """Steady samples per second of each run, divided by that of the first; None where a run has
        no such rate.
        """
        rates = [summary.throughput.steady_samples_per_s for summary in self.summaries]
        return tuple(rate / rates[0] if rate is not None and rates[0] else None for rate in rates)

    @property
    def changes(self) -> tuple[tuple[Change, ...], ...]:
        """Of each run but the first: what of its recorded setting is not as in the first."""
        return tuple(changed_setting(self.runs[0], each) for each in self.runs[1:])

    def slower_than(self, ratio: float) -> tuple[str, ...]:
        """A sentence for each run that is slower than the first by more than this ratio (0.05: 5
        %), or cannot be compared.

        A run is slower if its steps, or samples, take more time by more than the ratio, and that is
        certain: see `CauseDifference`.
        """
        found = []
        for summary, entry in zip(self.summaries[1:], self.differences, strict=True):
            name = clean(summary.run.name)
            if entry.step is None or entry.ratio is None:
                found.append(f"{name}: cannot be compared ({entry.reason})")
            elif entry.ratio > 1 + ratio and entry.step.differs:
                found.append(
                    f"{name}: a {entry.per} takes {percent(entry.ratio - 1)} longer than in the"
                    f" first run, {_cause(entry)}"
                )
        return tuple(found)

    def to_json(self) -> str:
        """A JSON array of the summaries, each as in its summary.json; those after the first have
        the keys `difference` and `changes` as well.
        """
        parts = [self.summaries[0].to_json()]
        changes = self.changes if self.runs else ((),) * len(self.differences)
        for summary, entry, changed in zip(
            self.summaries[1:], self.differences, changes, strict=True
        ):
            more = {"difference": entry.to_dict(), "changes": [asdict(each) for each in changed]}
            parts.append(json.dumps({**summary.to_dict(), **more}, indent=1, allow_nan=False))
        return "[" + ",\n".join(parts) + "]"

    def __rich__(self) -> RenderableType:
        return Group(comparison_text(self.summaries), *(Text(line) for line in self._lines()))

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=WIDTH, highlight=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip("\n")

    def _lines(self) -> Iterator[str]:
        yield ""
        for place, (summary, entry) in enumerate(
            zip(self.summaries[1:], self.differences, strict=True)
        ):
            yield f"{clean(summary.run.name)}: {difference_text(entry)}"
            if self.runs:
                yield f"  {changes_text(self.changes[place])}"
        if any(entry.step for entry in self.differences):
            yield (
                "Intervals of 95 % from the steps of these runs; runs with the same settings may"
                " differ by more."
            )


def _cause(entry: RunDifference) -> str:
    grown = max(entry.causes, key=lambda each: each.other_s - each.first_s, default=None)
    return f"most of it {grown.cause.replace('_', ' ')}" if grown else "of unknown cause"
