"""Makes the run folder: what the job recorded, what the analysis says of it, and the report."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from ioprof.analysis.blame import charges
from ioprof.analysis.result import Summary
from ioprof.analysis.summary import summarise
from ioprof.report.html import write_html
from ioprof.spool import read_spool
from ioprof.trace import Trace

_FILES: Final = ("spans.parquet", "files.parquet", "counters.parquet", "steps.parquet", "summary.json", "report.html", "run.json")


@dataclass(frozen=True)
class Recorded:
    """A run, and what the analysis says of it."""

    trace: Trace
    steps: pl.DataFrame
    summary: Summary

    @classmethod
    def of(cls, trace: Trace) -> "Recorded":
        """The analysis of a trace."""
        charged = charges(trace)
        return cls(trace, charged.steps, summarise(trace, charged))


def gather(spool: Path, out: Path, run: dict[str, Any]) -> Recorded:
    """Turn the capture files in `spool` into the run folder `out`, then remove the spool."""
    recorded = Recorded.of(read_spool(spool, run))
    try:
        _write(recorded, out)
    except BaseException:
        for name in _FILES:
            (out / name).unlink(missing_ok=True)
        raise
    shutil.rmtree(spool)
    return recorded


def _write(recorded: Recorded, out: Path) -> None:
    recorded.steps.write_parquet(out / "steps.parquet", compression="zstd")
    (out / "summary.json").write_text(recorded.summary.to_json() + "\n", encoding="utf-8")
    write_html(recorded.trace, recorded.steps, recorded.summary, out / "report.html")
    recorded.trace.save(out)  # run.json comes last: a folder that has it is whole
