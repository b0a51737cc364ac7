"""A page of sentences, figures and tables, of what is no run: a study, or what a job needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ioprof.report.page.document import Chart, document, figure
from ioprof.report.page.markup import table
from ioprof.report.page.sections import section
from ioprof.report.texts.units import clean


@dataclass(frozen=True)
class Section:
    """A table with its heading."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def article(
    title: str,
    brand: str,
    sentences: Iterable[str],
    charts: Sequence[tuple[str, Chart]],
    tables: Iterable[Section],
) -> str:
    """The text of the page; charts with their headings."""
    sections = (
        *(section(f"figure-{chart.name}", heading, figure(chart)) for heading, chart in charts),
        *(
            section(
                each.name,
                each.title,
                table(each.headings, each.rows, frozenset(range(1, len(each.headings)))),
            )
            for each in tables
        ),
    )
    drawn = [chart for _, chart in charts]
    return document(title, brand, clean(title), sentences, sections, drawn)
