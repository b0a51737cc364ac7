"""`ioprof gather`: the run folder of a job whose ioprof was killed."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.cli.console import next_command, say
from ioprof.cli.making import make_run_folder
from ioprof.cli.recording import interrupted_recording
from ioprof.cli.run_folder import check_output, create_output
from ioprof.cli.session import show

_UNKNOWN_END = {"rank": None, "what": "ioprof was killed before the job ended; how the job ended is not known"}


def gather(
    folder: Annotated[Path, Argument(help="The unfinished run folder, or the spool folder that it names.", show_default=False)],
    out: Annotated[Path | None, Option(help="Another run folder to make.", show_default=False)] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier run in --out.")] = False,
    json: Annotated[bool, Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
) -> int:
    """Complete a run whose ioprof was killed: all that its processes recorded is still there."""
    spool, run = interrupted_recording(folder)
    whole = Path(run.pop("out", folder))
    if out is not None:
        check_output(out, force)
        create_output(out, force)
        whole = out
    ended = {} if run.get("status") != "running" else {"status": "failed", "failures": [_UNKNOWN_END]}
    recorded = make_run_folder(spool, whole, {**run, **ended})
    say(f"run folder: {whole}")
    show(recorded, json)
    if not json:
        next_command("ioprof", "report", whole)
    return 0
