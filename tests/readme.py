"""The parts of README.md that a run made: rendered from what a demo left in tests/data/demo.

To renew them after a change of the report:  make demo && .venv/bin/python tests/readme.py demo
"""

import json
import re
import shutil
import sys
import textwrap
from io import StringIO
from pathlib import Path
from typing import Final

import polars as pl
from repository import ROOT
from rich.console import Console

from ioprof.analysis.result import Summary
from ioprof.cli.making import Recorded
from ioprof.report.picture import step_picture
from ioprof.report.text import comparison_text
from ioprof.trace import Trace

DATA: Final = ROOT / "tests" / "data" / "demo"
RUNS: Final = ("files", "lmdb", "lmdb-rgb256")
PICTURED: Final = "files"
WIDTH: Final = 100


def rendered() -> dict[str, str]:
    """The text of each marked part of the README."""
    return {"step": _step(), "table": _table(), "verdict": _verdict()}


def with_parts(text: str, parts: dict[str, str]) -> str:
    """README.md with these texts between its marks."""
    for name, part in parts.items():
        marked = re.compile(rf"(<!-- {name} -->\n```text\n).*?(```\n<!-- end {name} -->)", re.DOTALL)
        assert len(marked.findall(text)) == 1, f"README.md has not exactly one part {name}"
        text = marked.sub(lambda found, part=part: found[1] + part + "\n" + found[2], text)
    return text


def _summaries() -> list[Summary]:
    return [Recorded.of(Trace.load(DATA / name)).summary for name in RUNS]


def _step() -> str:
    recorded = Recorded.of(Trace.load(DATA / PICTURED))
    return step_picture(recorded.trace, recorded.steps, recorded.summary.steps.warmup, WIDTH)


def _verdict() -> str:
    lines = (f"{summary.run['name']}: {summary.verdict.text}" for summary in _summaries())
    return "\n".join(line for text in lines for line in textwrap.wrap(text, WIDTH))


def _table() -> str:
    console = Console(file=StringIO(), width=WIDTH, highlight=False, soft_wrap=True, color_system=None)
    console.print(comparison_text(_summaries()))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().rstrip()


def keep(demo: Path) -> None:
    """Keep the runs of a demo, without what differs between machines and is not shown, and renew the README."""
    shutil.rmtree(DATA, ignore_errors=True)
    for name in RUNS:
        trace = Trace.load(demo / "runs" / name)
        run = {**trace.run, "hosts": [{**host, "name": "host"} for host in trace.run["hosts"]], "environment": {}}
        run = json.loads(re.sub(r'"/[^"]*"', '"dataset"', json.dumps(run)))
        spans = trace.spans.with_columns(host=pl.lit("host").cast(pl.Categorical), file=pl.lit(None, pl.Int64))
        Trace(run, spans.sort("pid", "start_ns"), trace.files.clear()).save(DATA / name)
    readme = ROOT / "README.md"
    readme.write_text(with_parts(readme.read_text(), rendered()))


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
