"""Writes the run folder: what the job recorded, the analysis, and the report."""

import errno
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from ioprof.analysis.kept import ANALYSIS, STEPS, SUMMARY, keep_analysis
from ioprof.analysis.run import Run
from ioprof.ingest import store_spool
from ioprof.process import trim_heap
from ioprof.recording.run_folder import ANALYSIS_FILES, MARKER, RUN_FILES
from ioprof.recording.used_storage import with_storage
from ioprof.replay.summary import with_gains
from ioprof.report.html import write_html
from ioprof.run_record import RunRecord
from ioprof.trace import SPANS


def make_run_folder(spool: Path, out: Path, record: RunRecord) -> Run:
    """Turn the capture files in `spool` into the run folder `out`, then remove the spool, as far as that can be done.

    What was recorded is written first, and stays if the analysis fails or is killed: `Run.load` analyses it anew.
    """
    with _removed_on_failure(out, RUN_FILES):
        trace = with_storage(store_spool(spool, record, out / SPANS))
        trace.save(out)
    trim_heap()  # some 20 MB, of strings and tables that were read from capture files
    run = with_gains(Run.of(trace, out), is_asked=False)
    with _removed_on_failure(out, ANALYSIS_FILES):
        _write_analysis(run, out)
        if trace.is_stored:
            keep_analysis(out)
    (out / MARKER).unlink(missing_ok=True)
    shutil.rmtree(spool, ignore_errors=True)
    return run


def write_run_folder(run: Run, out: Path) -> None:
    """Write all files of a run into the folder `out`, which is there; none of them stays if one cannot be written (`OSError`)."""
    with _removed_on_failure(out, RUN_FILES):
        _write_analysis(run, out)
        run.trace.save(out)  # run.json comes last: a folder that has it has all that was recorded
        if run.trace.is_stored:
            keep_analysis(out)


def _write_analysis(run: Run, out: Path) -> None:
    (out / ANALYSIS).unlink(missing_ok=True)
    run.steps.write_parquet(out / STEPS, compression="zstd")
    (out / SUMMARY).write_text(run.summary.to_json() + "\n", encoding="utf-8")
    write_html(run.trace, run.steps, run.summary, out / "report.html")


@contextmanager
def _removed_on_failure(out: Path, names: Iterable[str]) -> Iterator[None]:
    """Remove these files from the folder if the block fails."""
    try:
        yield
    except BaseException as error:
        for name in names:
            (out / name).unlink(missing_ok=True)
        if isinstance(error, pl.exceptions.PolarsError):  # polars' error for a disk that is full or gone
            raise OSError(errno.EIO, str(error).splitlines()[0], str(out)) from None
        raise
