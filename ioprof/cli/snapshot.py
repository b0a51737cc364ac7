"""`ioprof snapshot`: a run folder of what is recorded so far, while the job goes on."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, reporter, show_run


def snapshot(
    run: Annotated[
        str,
        Argument(
            help="The run folder of a recording that goes on, or a process of the job.",
            metavar="RUN|PID",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, Option(help="Run folder to make. [default: RUN-TIME]", show_default=False)
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier run in --out.")] = False,
    json: Annotated[
        bool, Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
) -> int:
    """Make a run folder of a job that goes on: of its last minutes under `record --keep`, else of
    all so far.

    The job and its recording go on, and do not notice.
    """
    found = ioprof.snapshot(run, out=out, force=force, reporter=reporter)
    show_run(found.analysed, json)
    if not json:
        next_command("ioprof", "open", found.analysed.folder)
    return 0
