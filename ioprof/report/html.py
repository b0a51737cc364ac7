"""The report as one HTML file that opens anywhere, offline: plotly inside, all data inside, no request ever."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from ioprof.analysis.result import Summary
from ioprof.report import sections
from ioprof.report.charts import Chart, charts
from ioprof.report.document import document, figure, write_whole
from ioprof.report.facts import Fact, title
from ioprof.report.markup import Html, element
from ioprof.report.preparation import run_facts
from ioprof.trace import Trace


def write_html(trace: Trace, steps: pl.DataFrame, summary: Summary, path: Path) -> None:
    """Write the report to `path`, whole or not at all; a file that is there is replaced."""
    write_whole(page(trace, steps, summary), path)


def page(trace: Trace, steps: pl.DataFrame, summary: Summary) -> str:
    """The text of the page."""
    drawn = charts(trace, steps, summary)
    parts = (sections.header(summary), _main(steps, summary, drawn, run_facts(trace)), sections.footer())
    return document(f"{title(summary)}: {sections.bound_by(summary)}", parts, drawn.values())


def _main(steps: pl.DataFrame, summary: Summary, drawn: dict[str, Chart], more: Sequence[Fact]) -> Html:
    def chart(name: str, missing: str | None) -> Html | None:
        return figure(drawn[name]) if name in drawn else sections.nothing(missing) if missing else None

    no_rate = "the batch size was not recorded" if len(steps) else "no step was recorded"
    return element(
        "main",
        sections.verdict(summary, more),
        sections.section(
            "time", "Where the time went", sections.time_table(summary), chart("time", None), sections.rank_table(summary, steps)
        ),
        sections.section("throughput", "Throughput over time", chart("throughput", no_rate)),
        sections.section("steps", "Steps", chart("steps", "no step was recorded"), sections.longest_steps(summary, steps)),
        sections.section("timeline", "Timeline", chart("timeline", "no step was recorded")),
        sections.section("storage", "Storage", sections.storage(summary), chart("latency", None), sections.slowest_reads(summary)),
        sections.section("complete", "How complete is this", sections.completeness(summary)),
        sections.section("reading", "How to read this", sections.glossary()),
    )
