"""A run whose summary is told in words: what reports, commands and Python get."""

from ioprof.analysis import run
from ioprof.format.run_record import Summary
from ioprof.report.texts.catalogue.answer import in_words


class Run(run.Run):
    """A run: what was recorded, what its steps' time is charged to, and the summary.

    >>> run = Run.load("runs/first")
    >>> run.summary.verdict.text
    """

    @classmethod
    def in_words(cls, summary: Summary) -> Summary:
        """The summary with what its codes say."""
        return in_words(summary)
