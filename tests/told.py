"""The answer of a trace in words, as reports have it."""

from ioprof.analysis.summary import summarise as analysed
from ioprof.analysis.totals import Totals
from ioprof.format.run_record import Summary
from ioprof.format.trace import Trace
from ioprof.report.texts.catalogue.answer import in_words


def summarise(trace: Trace, found: Totals | None = None) -> Summary:
    """`ioprof.analysis.summary.summarise`, and what its codes say."""
    return in_words(analysed(trace, found))
