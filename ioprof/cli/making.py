"""Makes the run folder: what the job recorded, what the analysis says of it, and the report."""

import errno
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ioprof.analysis.blame import charges
from ioprof.analysis.result import Summary
from ioprof.analysis.summary import summarise
from ioprof.cli.run_folder import MARKER, RUN_FILES
from ioprof.cli.used_storage import with_storage
from ioprof.report.html import write_html
from ioprof.spool import read_spool
from ioprof.trace import Trace


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


def make_run_folder(spool: Path, out: Path, run: dict[str, Any]) -> Recorded:
    """Turn the capture files in `spool` into the run folder `out`, then remove the spool, as far as that can be done."""
    recorded = Recorded.of(with_storage(read_spool(spool, run)))
    write_run_folder(recorded, out)
    (out / MARKER).unlink(missing_ok=True)
    shutil.rmtree(spool, ignore_errors=True)
    return recorded


def write_run_folder(recorded: Recorded, out: Path) -> None:
    """Write all files of a run into the folder `out`, which is there; none of them stays if one cannot be written (`OSError`)."""
    try:
        recorded.steps.write_parquet(out / "steps.parquet", compression="zstd")
        (out / "summary.json").write_text(recorded.summary.to_json() + "\n", encoding="utf-8")
        write_html(recorded.trace, recorded.steps, recorded.summary, out / "report.html")
        recorded.trace.save(out)  # run.json comes last: a folder that has it is whole
    except BaseException as error:
        for name in RUN_FILES:
            (out / name).unlink(missing_ok=True)
        if isinstance(error, pl.exceptions.PolarsError):  # its word for a disk that is full, or gone
            raise OSError(errno.EIO, str(error).splitlines()[0], str(out)) from None
        raise
