"""The report as one HTML file that opens anywhere, offline: scripts and all data inside, no request
ever.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.files import write_atomically
from ioprof.format.run_record import Summary
from ioprof.format.schema import SUMMARY_SCHEMA
from ioprof.format.trace import Trace
from ioprof.report import views
from ioprof.report.learning import learning_section
from ioprof.report.page import sections
from ioprof.report.page.answer import answer, header
from ioprof.report.page.markup import Html, element, join
from ioprof.report.page.payload import Payload, payload
from ioprof.report.page.shell import (
    data_block,
    footer,
    page_styles,
    resource,
    script_text,
    whole_page,
)
from ioprof.report.page.step_section import step_section
from ioprof.report.page.storage_section import storage_section
from ioprof.report.page.timeline_section import timeline_section
from ioprof.report.page.worker_section import rank_section, worker_section
from ioprof.report.path_demand import ProbedPath
from ioprof.report.texts.code_lines import code_table
from ioprof.report.texts.headline import headline
from ioprof.report.texts.statements import Statement, statements, title
from ioprof.report.texts.storage_statements import run_statements

_SCRIPTS: Final = (
    "data",
    "format",
    "theme",
    "pyramid",
    "raster",
    "view",
    "stacks",
    "rows",
    "legend",
    "series",
    "timeline",
    "strip",
    "pick",
    "details",
    "summary",
    "search",
    "input",
    "tables",
    "main",
)
"""The modules of the page's script in order: each uses only those before it while it is loaded."""


def write_html(
    trace: Trace,
    steps: pl.DataFrame,
    summary: Summary,
    path: Path,
    wanted: tuple[int, int] | None = None,
    probed: ProbedPath | None = None,
    mtbf_s: float | None = None,
) -> None:
    """Write the report to `path`, whole or not at all; a file that is there is replaced.

    The page opens at the stretch `wanted` of the run, in nanoseconds, and has all its spans.
    `probed` stands beside the demand, and the best interval of checkpoints for a job that fails
    every `mtbf_s` seconds on average beside what they take.
    """
    write_atomically(path, page(trace, steps, summary, wanted, probed, mtbf_s))


def page(
    trace: Trace,
    steps: pl.DataFrame,
    summary: Summary,
    wanted: tuple[int, int] | None = None,
    probed: ProbedPath | None = None,
    mtbf_s: float | None = None,
) -> str:
    """The text of the page."""
    latencies, reading = views.Latencies(trace), views.ReadingTime()
    data = payload(trace, steps, summary, wanted, (latencies, reading))
    parts = (
        header(summary),
        _main(
            trace,
            steps,
            summary,
            data,
            run_statements(trace),
            storage_section(summary, latencies.bins(), reading.seconds, probed),
            mtbf_s,
        ),
        footer(SUMMARY_SCHEMA),
        data_block("facts", data.facts),
    )
    return whole_page(
        f"{title(summary)}: {headline(summary)}",
        parts,
        [_script()],
        page_styles(),
        (
            Html(f'<script type="text/plain" id="data-{name}">{text}</script>\n')
            for name, text in data.blocks.items()
        ),
    )


def _main(
    trace: Trace,
    steps: pl.DataFrame,
    summary: Summary,
    data: Payload,
    more: Sequence[Statement],
    storage: Html,
    mtbf_s: float | None,
) -> Html:
    facts = (
        join(element("dt", each.label), element("dd", each.text, sections.badge(each.basis)))
        for each in (*statements(summary), *more)
    )
    return element(
        "main",
        answer(summary),
        timeline_section(data.notes),
        sections.section(
            "causes",
            "Where the time went",
            sections.time_table(summary),
            code_table(summary),
            element(
                "details",
                element("summary", "All numbers in words"),
                element("dl", *facts, class_="facts"),
            ),
        ),
        sections.section("steps", "Steps", step_section(summary, steps)),
        *(
            [sections.section("learning", "Learning", learning_section(summary))]
            if summary.evaluations
            else []
        ),
        sections.section("storage", "Storage", storage),
        sections.section(
            "saves", "Checkpoints and start-up", sections.saves_section(summary, mtbf_s)
        ),
        sections.section("workers", "Workers", worker_section(trace)),
        sections.section("ranks", "Ranks", rank_section(summary, steps)),
        sections.section("complete", "How complete is this", sections.completeness(summary)),
        sections.section("reading", "How to read this", sections.glossary()),
    )


def _script() -> str:
    modules = "\n".join(resource(f"page/{name}.js") for name in _SCRIPTS)
    return script_text(f'"use strict";\n(() => {{\n{modules}}})();\n')
