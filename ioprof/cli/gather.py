"""`ioprof gather`: one run folder of what several hosts recorded, or of what an ioprof that was killed left behind."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from ioprof.cli.console import next_command, say
from ioprof.cli.making import Recorded, make_run_folder, write_run_folder
from ioprof.cli.parts import parts_folder, parts_in, whole_of
from ioprof.cli.run_folder import check_output, create_output
from ioprof.cli.session import show
from ioprof.cli.unfinished import interrupted_recording, is_unfinished
from ioprof.errors import CommandError
from ioprof.spool.parts import merge_parts, missing_parts
from ioprof.trace import Trace

_UNKNOWN_END: Final = {"rank": None, "what": "ioprof was killed before the job ended; how the job ended is not known"}


def gather(
    folders: Annotated[
        list[Path],
        Argument(help="The run that was recorded in parts, the parts one by one, or an unfinished run.", show_default=False),
    ],
    out: Annotated[Path | None, Option(help="Run folder to make.", show_default=False)] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier run in --out.")] = False,
    json: Annotated[bool, Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
) -> int:
    """Make one run of the parts that several hosts recorded, or complete a run whose ioprof was killed."""
    parts = _parts(folders)
    whole, recorded = _together(folders, parts, out, force) if parts else _completed(folders[0], out, force)
    say(f"run folder: {whole}")
    show(recorded, json)
    if not json:
        next_command("ioprof", "report", whole)
    return 0


def _parts(folders: Sequence[Path]) -> list[Path]:
    """The folders of the parts; none where it is an unfinished run that was named."""
    if len(folders) > 1:
        return list(folders)
    folder = folders[0]
    if is_unfinished(folder):
        return []
    return parts_in(folder) or parts_in(parts_folder(folder))


def _completed(folder: Path, out: Path | None, force: bool) -> tuple[Path, Recorded]:
    """The run folder of a recording that nobody finished: all that its processes recorded is still there."""
    spool, run = interrupted_recording(folder)
    place = Path(str(run.pop("out", folder)))
    whole = out or (folder if is_unfinished(folder) else place)  # the folder may be known by another path here
    if out is not None:
        check_output(out, force)
        create_output(out, force)
    ended = {} if run.get("status") != "running" else {"status": "failed", "failures": [_UNKNOWN_END]}
    return whole, make_run_folder(spool, whole, {**run, **ended})


def _together(folders: Sequence[Path], parts: list[Path], out: Path | None, force: bool) -> tuple[Path, Recorded]:
    """One run folder of all parts, which stay as they are."""
    whole = out or _whole(folders, parts)
    check_output(whole, force)
    traces = [_part(folder) for folder in parts]
    if len(folders) == 1 and (missing := missing_parts(traces)):
        numbers = ", ".join(map(str, missing))
        these = f"ioprof gather {shlex.join(map(str, parts))} --out {shlex.quote(str(whole))}"
        raise CommandError(
            f"{parts[0].parent}: part {numbers} of the job is not there (yet); wait for it, or go on without: {these}"
        )
    recorded = Recorded.of(merge_parts(traces, whole.resolve().name))
    create_output(whole, force)
    write_run_folder(recorded, whole)
    if len(folders) == 1:
        say(f"the parts are not needed any more: rm -r {shlex.quote(str(parts[0].parent))}")
    return whole, recorded


def _whole(folders: Sequence[Path], parts: list[Path]) -> Path:
    """Where the run goes that the parts are of."""
    whole = whole_of(parts[0].parent) if len(folders) == 1 else None
    if whole is None:
        raise CommandError(
            f"{folders[0]}: where does the run go? name a folder: ioprof gather {shlex.join(map(str, folders))} --out RUN"
        )
    return whole


def _part(folder: Path) -> Trace:
    """A part; one that was not finished is, if its spool is on this host."""
    if is_unfinished(folder):
        return _completed(folder, None, force=False)[1].trace
    return Trace.load(folder)
