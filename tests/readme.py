"""Renders the parts of README.md and of docs/guide.md that show runs, from the demo runs in
tests/data/shown.

To update them after a change of the report:  make demo && .venv/bin/python tests/readme.py demo
"""

import re
import shutil
import sys
import textwrap
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Final

import polars as pl
from repository import ROOT
from rich.console import Console, RenderableType

from ioprof.format.run_record import RunRecord, Summary
from ioprof.format.trace import Trace
from ioprof.model.summary import with_gains
from ioprof.report.run import Run
from ioprof.report.texts.brief import answers, brief_text
from ioprof.report.texts.picture import step_picture
from ioprof.report.texts.text import comparison_text

DATA: Final = ROOT / "tests" / "data" / "shown"
RUNS: Final = ("files", "lmdb", "lmdb-rgb256")
PICTURED: Final = "files"
WIDTH: Final = 100


DOCUMENTS: Final = ("README.md", "docs/guide.md")


def rendered(document: str) -> dict[str, str]:
    """The text of each marked part of a document."""
    if document == "README.md":
        return {"answers": _answers(), "report": _report()}
    return {"step": _step(), "table": _table(), "verdict": _verdict()}


def with_parts(text: str, parts: dict[str, str]) -> str:
    """A document with these texts between its markers."""
    for name, part in parts.items():
        marked = re.compile(
            rf"(<!-- {name} -->\n```text\n).*?(```\n<!-- end {name} -->)", re.DOTALL
        )
        assert len(marked.findall(text)) == 1, f"there is not exactly one part {name}"
        text = marked.sub(lambda found, part=part: found[1] + part + "\n" + found[2], text)
    return text


def _answers() -> str:
    return "\n".join(answers(_summaries()))


def _report() -> str:
    run = _run(PICTURED)
    return _printed(brief_text(run.summary, run.steps))


@cache
def _run(name: str) -> Run:
    return with_gains(Run.load(DATA / name))


def _summaries() -> list[Summary]:
    return [_run(name).summary for name in RUNS]


def _step() -> str:
    recorded = _run(PICTURED)
    return step_picture(recorded.trace, recorded.steps, recorded.summary.steps.warmup, WIDTH)


def _verdict() -> str:
    lines = (f"{summary.run.name}: {summary.verdict.text}" for summary in _summaries())
    return "\n".join(line for text in lines for line in textwrap.wrap(text, WIDTH))


def _table() -> str:
    return _printed(comparison_text(_summaries()))


def _printed(renderable: RenderableType) -> str:
    console = Console(
        file=StringIO(), width=WIDTH, highlight=False, soft_wrap=True, color_system=None
    )
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().rstrip()


def keep(demo: Path) -> None:
    """Store the runs of a demo, without values that depend on the machine and are not shown, and
    update the README."""
    shutil.rmtree(DATA, ignore_errors=True)
    for name in RUNS:
        trace = Trace.load(demo / "runs" / name)
        hosts = tuple(host.replace(name="host") for host in trace.run.hosts)
        run = RunRecord.from_json(
            re.sub(
                r'"/[^"]*"', '"dataset"', trace.run.replace(hosts=hosts, environment={}).to_json()
            )
        )
        host = pl.lit("host").cast(pl.Categorical)
        spans = trace.spans.with_columns(host=host, file=pl.lit(None, pl.Int64))
        kept = Trace(
            run,
            spans.sort("pid", "start_ns"),
            trace.files.clear(),
            trace.counters.with_columns(host=host),
            blocks=trace.blocks.with_columns(host=host),
        )
        kept.save(DATA / name)
    write()


def write() -> None:
    """Bring the documents up to date."""
    for document in DOCUMENTS:
        path = ROOT / document
        path.write_text(with_parts(path.read_text(), rendered(document)))


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
