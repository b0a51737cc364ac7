"""`ioprof gather`: one run folder of what several hosts recorded, or of what an ioprof that was
killed left behind.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.cli.console import next_command, reporter, show_run
from ioprof.recording import gathering


def gather(
    folders: Annotated[
        list[Path],
        Argument(
            help="The run that was recorded in parts, the parts one by one, or an unfinished run.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, Option(help="Run folder to make.", show_default=False)] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier run in --out.")] = False,
    json: Annotated[
        bool, Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
) -> int:
    """Make one run of the parts that several hosts recorded, or complete a run whose ioprof was
    killed.
    """
    run = gathering.gather(folders, out, force, reporter)
    show_run(run, json)
    if not json:
        next_command("ioprof", "open", run.folder)
    return 0
