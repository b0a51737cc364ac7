"""Makes the run folder: what the job recorded, what the analysis says of it, and the report."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl

from ioprof.analysis.blame import charges
from ioprof.analysis.result import Summary
from ioprof.analysis.summary import summarise
from ioprof.report.html import write_html
from ioprof.spool import read_spool
from ioprof.trace import Trace


def gather(spool: Path, out: Path, run: dict[str, Any]) -> tuple[Trace, pl.DataFrame, Summary]:
    """Turn the capture files in `spool` into the run folder `out`, then remove the spool."""
    trace = read_spool(spool, run)
    charged = charges(trace)
    steps, summary = charged.steps, summarise(trace, charged)
    steps.write_parquet(out / "steps.parquet", compression="zstd")
    (out / "summary.json").write_text(summary.to_json() + "\n", encoding="utf-8")
    write_html(trace, steps, summary, out / "report.html")
    trace.save(out)  # run.json comes last: a folder that has it is whole
    shutil.rmtree(spool)
    return trace, steps, summary
