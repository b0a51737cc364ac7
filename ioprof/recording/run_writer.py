"""Writes the run folder: what the job recorded, the analysis, and the report."""

from collections.abc import Callable
from pathlib import Path

from ioprof.analysis.kept import ANALYSIS, keep_analysis
from ioprof.format.run_files import DERIVED, STEPS, SUMMARY, write_run
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.model.summary import with_gains
from ioprof.process import trim_heap
from ioprof.recording.run_folder import ANALYSIS_FILES, PAGE, RUN_FILES
from ioprof.recording.stored_run import removed_on_failure, store_run
from ioprof.report.page.html import write_html
from ioprof.report.run import Run

Completing = Callable[[RunRecord], RunRecord]
"""Adds facts to run.json that can be found once all is stored that was recorded."""
Answering = Callable[[Run], None]
"""Shows the answer of a run as soon as it is known, before the page is made."""


def make_run_folder(
    spool: Path,
    out: Path,
    record: RunRecord,
    known: bytes | None = None,
    complete: Completing | None = None,
    answer: Answering | None = None,
) -> Run:
    """Make the run folder `out` of the capture files in `spool`, which stay as they are.

    What was recorded is written first, and stays if the analysis fails or is killed: `Run.load`
    analyses it anew. `known` is what another process knows of the spans, which wrote it
    (`StoringProcess.store`).
    """
    trace = store_run(spool, out, record) if known is None else Trace.load_known(out, known)
    if complete is not None:
        trace = trace.with_facts(run=complete(trace.run))
        write_run(out, trace.run)
    trim_heap()  # some 20 MB, of strings and tables that were read from capture files
    run = with_gains(Run.of(trace, out), is_asked=False)
    with removed_on_failure(out, ANALYSIS_FILES):
        _write_analysis(run, out, answer)
        write_run(out, trace.run, DERIVED)
        if trace.is_stored:
            keep_analysis(out)
    return run


def write_run_folder(run: Run, out: Path) -> None:
    """Write all files of a run into the folder `out`, which is there; none of them stays if one
    cannot be written (`OSError`).
    """
    with removed_on_failure(out, RUN_FILES):
        _write_analysis(run, out)
        run.trace.save(out)  # run.json comes last: a folder that has it has all that was recorded
        write_run(out, run.trace.run, DERIVED)
        if run.trace.is_stored:
            keep_analysis(out)


def _write_analysis(run: Run, out: Path, answer: Answering | None = None) -> None:
    (out / ANALYSIS).unlink(missing_ok=True)
    run.steps.write_parquet(out / STEPS, compression="zstd")
    (out / SUMMARY).write_text(run.summary.to_json() + "\n", encoding="utf-8")
    if answer is not None:
        answer(run)
    write_html(run.trace, run.steps, run.summary, out / PAGE)
