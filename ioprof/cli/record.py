"""`ioprof record -- COMMAND`: any command, recorded, unchanged."""

import os
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

import ioprof
from ioprof.cli.console import messages, next_command, reporter
from ioprof.instrument import gpu
from ioprof.process import return_freed_memory
from ioprof.recording.command import default_run_folder

CONTEXT: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""All that follows the command's name is the command's."""


def record(
    command: Annotated[list[str], Argument(help="The command and its arguments, best after --.")],
    out: Annotated[Path | None, Option(help="Run folder to make, the same for all tasks. [default: runs/TIME or runs/JOB]")] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier run in --out.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print no summary at the end.")] = False,
    gpu_window: Annotated[
        str,
        Option(help="When GPUs are recorded: 2s/30s is 2 s of every 30 s, or less often to cost at most 0.5 %; or all, or off."),
    ] = gpu.DEFAULT_WINDOW,
    keep: Annotated[
        str | None, Option(help="Keep the last 10m (or 30s, 2h) only, and the sums of all.", metavar="TIME", show_default=False)
    ] = None,
    stacks: Annotated[bool, Option("--stacks/--no-stacks", help="Sample the Python stacks of ranks and workers.")] = True,
    keep_arguments: Annotated[
        bool, Option("--keep-arguments", help="Keep secrets in the arguments: they are masked else.")
    ] = False,
) -> int:
    """Run any command, unchanged, report what its training waited for, and return its exit code."""
    environment = dict(os.environ)
    return_freed_memory(os.environ)
    folder = out or default_run_folder(environment)
    run = ioprof.record(
        command, out=folder, force=force, gpu_window=gpu_window, stacks=stacks, keep=keep, environment=environment,
        keep_arguments=keep_arguments, reporter=reporter,
    )  # fmt: skip
    if run.trace.run.part is None and not quiet:
        from ioprof.report.brief import brief_text  # after the job: it loads the libraries of the report

        messages.print(brief_text(run.analysed.summary, run.analysed.steps), markup=False)
        next_command("ioprof", "report", run.analysed.folder or folder)
    own = next((each.exit_code for each in run.trace.run.parts if each.part and each.part.number == 0), run.trace.run.exit_code)
    return own or 0
