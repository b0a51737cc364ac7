"""`ioprof run`: the built-in distributed training job, recorded."""

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Option

import ioprof
from ioprof.cli.console import exit_code, next_command, reporter, say, show_run
from ioprof.cli.options import takes_options
from ioprof.jobs.options import RunOptions
from ioprof.jobs.training_run import command_after
from ioprof.recording.run_folder import PAGE


@takes_options(RunOptions)
def run(
    given: dict[str, Any],
    json: Annotated[bool, Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Train with the built-in job and report what each step waited for."""
    recorded = ioprof.run(**given, command=["ioprof", *sys.argv[1:]], reporter=reporter)
    if recorded.trace.run.part is None:  # else the task of rank 0 prints the whole run
        show_run(recorded.analysed, json)
        say(f"the same with charts and a timeline: {(recorded.folder or Path()) / PAGE}")
        next_command(*command_after(recorded.analysed))
    return exit_code(recorded.analysed)
