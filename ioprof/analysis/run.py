"""A run with what the analysis says of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import polars as pl

from ioprof.analysis.kept import kept_analysis
from ioprof.analysis.summary import summarise
from ioprof.analysis.totals import totals
from ioprof.format.run_files import SPANS
from ioprof.format.run_record import Summary
from ioprof.format.trace import Trace, damaged_table


@dataclass(frozen=True)
class Run:
    """A run: what was recorded, what its steps' time is charged to, and the summary.

    >>> run = Run.load("runs/first")
    >>> run.summary.verdict.text
    """

    trace: Trace
    steps: pl.DataFrame
    """One row per rank and step, see `ioprof.analysis.charge.blame.blame`."""
    summary: Summary
    folder: Path | None = None
    """The run folder; None: there is none."""

    @classmethod
    def of(cls, trace: Trace, folder: Path | None = None) -> Self:
        """The analysis of a trace."""
        found = totals(trace)
        return cls(trace, found.charged.steps, cls.in_words(summarise(trace, found)), folder)

    @classmethod
    def in_words(cls, summary: Summary) -> Summary:
        """The summary; in `ioprof.report.run.Run` with what its codes say, in words."""
        return summary

    def with_summary(self, summary: Summary) -> Self:
        """The same run with another summary."""
        return replace(self, summary=self.in_words(summary))

    @classmethod
    def in_folder(cls, trace: Trace, folder: Path) -> Self:
        """The analysis of a trace that was loaded from a run folder."""
        if trace.is_stored and (kept := kept_analysis(folder)):
            steps, summary = kept
            return cls(trace, steps, cls.in_words(summary), folder)
        return cls.of(trace, folder)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The run in a run folder; `RunError` says what is wrong with the folder.

        It is analysed anew, unless it is large and this version of ioprof has done so before.
        """
        try:
            return cls.in_folder(Trace.load(path), Path(path))
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
        ) as error:  # of a table that is only read now
            raise damaged_table(Path(path) / SPANS, error) from None
