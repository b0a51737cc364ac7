"""What `run`, `report` and `gather` print of a run, and how a job's end becomes an exit code."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ioprof.cli.console import error_line, output
from ioprof.format.run_record import Failure
from ioprof.recording.run_folder import JOB_LOG

if TYPE_CHECKING:
    from ioprof.analysis.run import Run

_EXIT_CODES: Final = {"complete": 0, "interrupted": 130, "failed": 1}


def show_run(run: "Run", json: bool, full: bool = False) -> None:
    """Print what fits on one screen, or with `full` the whole summary and the picture of a step, or
    the summary as JSON.
    """
    if json:
        output.file.write(run.summary.to_json() + "\n")
        return
    # A job is started before the libraries of its report are loaded.
    from ioprof.report.texts.brief import brief_text
    from ioprof.report.texts.picture import step_picture
    from ioprof.report.texts.storage_statements import run_statements
    from ioprof.report.texts.text import WIDTH, summary_text

    if not full:
        output.print(brief_text(run.summary, run.steps, run.trace))
        return
    output.print(summary_text(run.summary, run_statements(run.trace)))
    is_known = output.is_terminal or "COLUMNS" in os.environ
    width = min(WIDTH, output.width) if is_known else WIDTH
    picture = step_picture(run.trace, run.steps, run.summary.steps.warmup, width)
    output.print(f"\n{picture}", markup=False)


def exit_code(run: "Run") -> int:
    """0, 1 or 130 by the run's status; prints one line that says what went wrong, if anything
    did.
    """
    status, failures = run.trace.run.status or "failed", run.trace.run.failures
    if status == "interrupted":
        error_line("interrupted; the report covers the steps that were made")
    elif status == "failed":
        first = failures[0] if failures else Failure(what="the launcher failed")
        who = "" if first.rank is None else f"rank {first.rank} "
        error_line(
            f"the job failed: {who}{first.what} (its output: {(run.folder or Path()) / JOB_LOG})"
        )
    return _EXIT_CODES[status]
