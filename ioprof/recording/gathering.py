"""One run folder of the parts that several hosts recorded, or of a recording whose ioprof was
killed.
"""

import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ioprof.errors import CommandError, IoprofError
from ioprof.format.run_record import Failure, FailureCode
from ioprof.recording.keeping import may_repeat_drops, repeat_drops
from ioprof.recording.parts import Part, parts_folder, parts_in, whole_of
from ioprof.recording.pending_run import (
    InterruptedRecording,
    interrupted_recording,
    is_abandoned,
    is_pending,
    remove_marker,
)
from ioprof.recording.run_folder import MARKER, RUN_FILES, check_output, create_output
from ioprof.recording.spool import left_text, remove_spool
from ioprof.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from ioprof.format.trace import Trace
    from ioprof.report.run import Run

GATHER_TIMEOUT_S: Final = 30.0
"""How long the first task waits for the parts of the others after its own. Tasks of one training
end within seconds."""
_BEGUN_TIMEOUT_S: Final = 5.0
"""How long it waits for a task that has not begun to record; tasks of one training begin before the
first ends."""
_POLL_S: Final = 0.2
_MOST_NAMED: Final = 8  # parts, in a message
_UNKNOWN_END: Final = Failure(
    what="ioprof was killed before the job ended; how the job ended is not known",
    code=FailureCode.RECORDER_KILLED,
)


def gather(
    folders: Sequence[Path],
    out: Path | None = None,
    force: bool = False,
    reporter: Reporter = SILENT,
) -> "Run":
    """Make one run folder of a run that was recorded in parts, of single parts, or of one recording
    that was not finished.

    `out` is the run folder to make; by default it follows from the name of the parts' folder.
    Raises `CommandError` where there is nothing to gather, where a part is missing, and where `out`
    would be overwritten without `force`.
    """
    if len(folders) == 1 and is_pending(folders[0]):
        parts = []
    else:
        parts = (
            list(folders)
            if len(folders) > 1
            else parts_in(folders[0]) or parts_in(parts_folder(folders[0])) or _one_part(folders[0])
        )
    recorded = (
        _merge(folders, parts, out, force, reporter)
        if parts
        else _complete(folders[0], out, force, reporter)
    )
    reporter.say(f"run folder: {recorded.folder}")
    return recorded


def gather_tasks(
    recorded: "Run", out: Path, part: Part | None, force: bool, reporter: Reporter = SILENT
) -> "Run":
    """Of the first task of a launcher the run `out` of all tasks, once they have ended; of others
    their own part, `recorded`.

    A task whose part does not appear in time, because its host or its ioprof is gone, costs the
    others nothing: their parts stay.
    """
    if part is None or part.number != 0:
        return recorded
    begin_s = time.monotonic()
    while missing := set(range(part.of)) - _part_numbers(parts_folder(out), ended=True):
        has_begun = missing <= _part_numbers(parts_folder(out), ended=False)
        if (waited_s := time.monotonic() - begin_s) > (
            GATHER_TIMEOUT_S if has_begun else _BEGUN_TIMEOUT_S
        ):
            reporter.say(
                f"{waited_s:.0f} s after this part there {_are_missing(missing)}:"
                f" {_where_they_are(parts_folder(out), missing)}; when all are there: ioprof gather"
                f" {shlex.quote(str(out))}"
            )
            return recorded
        time.sleep(_POLL_S)
    try:
        return gather([out], force=force, reporter=reporter)
    except (
        IoprofError
    ) as error:  # the parts are whole, and the job's result is not to be lost with the merged run
        reporter.say(f"the parts were not gathered: {error}")
        return recorded


def _are_missing(numbers: set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:_MOST_NAMED]))
    more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    return f"{'are no parts' if len(numbers) > 1 else 'is no part'} {shown}{more}"


def _where_they_are(folder: Path, missing: set[int]) -> str:
    """On which hosts parts are that have begun, as far as is known, and what completes them
    there.
    """
    begun = {
        number: part
        for number, part in _part_folders(folder).items()
        if number in missing and is_pending(part)
    }
    if not begun:
        return "their tasks have not begun to record, or their hosts do not see this folder"
    number, part = min(begun.items())
    return (
        f"part {number} is recorded on {part.name.partition('-')[2]}; if its ioprof is gone, type"
        f" there: ioprof gather {shlex.quote(str(part))}"
    )


def _one_part(folder: Path) -> list[Path]:
    """The folder, if it is a part of a run that is gathered alone."""
    is_part = (folder / "run.json").is_file() and whole_of(folder.resolve().parent) is not None
    return [folder] if is_part else []


def _part_numbers(folder: Path, *, ended: bool) -> set[int]:
    """The numbers of the parts in the folder; with `ended` of those that are complete, or whose
    ioprof on this host is gone.
    """
    return {
        number
        for number, part in _part_folders(folder).items()
        if not ended or (part / "run.json").is_file() or is_abandoned(part)
    }


def _part_folders(folder: Path) -> dict[int, Path]:
    """The folders of parts by their numbers."""
    names = [
        name
        for name in (os.listdir(folder) if folder.is_dir() else [])
        if re.match(r"\d{1,7}-", name, re.ASCII)
    ]
    return {int(name.partition("-")[0]): folder / name for name in names}


def _complete(folder: Path, out: Path | None, force: bool, reporter: Reporter = SILENT) -> "Run":
    """The run folder of a recording that was not finished, from the capture files of its
    processes.
    """
    found = interrupted_recording(folder)
    from ioprof.recording.run_writer import make_run_folder

    whole = out or found.pending
    if whole is None:
        raise CommandError(
            f"{folder}: its run folder is not known; name one: {_gather_to_other(folder)}"
        )
    if found.spool.resolve() in (whole.resolve(), *whole.resolve().parents):
        raise CommandError(f"{whole}: is in the folder of the capture files; choose another --out")
    if out is not None:
        check_output(out, force)
    elif found.doubt is not None:
        _check_nothing_there(whole, found.doubt, folder)
    if found.origin is not None:
        repeat_drops(found.spool)
    elif may_repeat_drops(found.spool):
        raise CommandError(
            f"{found.doubt}: of its spans some were to be dropped (--keep); gather it with the"
            " ioprof that recorded it"
        )
    if out is not None:
        create_output(out, force)
    run = (
        found.run
        if found.run.status != "running"
        else found.run.replace(status="failed", failures=(_UNKNOWN_END,))
    )
    made = make_run_folder(found.spool, whole, run)
    for line in _remove_recording(found, whole):
        reporter.say(line)
    return made


def _gather_to_other(folder: Path) -> str:
    return f"ioprof gather {shlex.quote(str(folder))} --out RUN"


def _check_nothing_there(whole: Path, doubt: str, folder: Path) -> None:
    """CommandError if a run file is there already, which may be anybody's."""
    there = next((name for name in RUN_FILES if os.path.lexists(whole / name)), None)
    if there is not None:
        raise CommandError(
            f"{whole}: has {there}, which is not replaced, since {doubt};"
            f" {_gather_to_other(folder)}"
        )


def _remove_recording(found: InterruptedRecording, whole: Path) -> Iterator[str]:
    """Remove what is not needed once the run folder is there; yields a line for what stays."""
    if found.origin is None:
        marker = f" {shlex.quote(str(whole / MARKER))}" if found.pending == whole else ""
        yield (
            f"not removed, since {found.doubt}; if you do not need it: rm -r"
            f" {shlex.quote(str(found.spool))}{marker}"
        )
        return
    remove_marker(whole, found.origin)
    if left := remove_spool(found.spool, found.origin):
        yield left_text(found.spool, left)


def _merge(
    folders: Sequence[Path], parts: list[Path], out: Path | None, force: bool, reporter: Reporter
) -> "Run":
    """One run folder of all parts, which stay as they are."""
    from ioprof.ingest.merging import merge_parts, missing_parts
    from ioprof.model.summary import with_gains
    from ioprof.recording.run_writer import write_run_folder
    from ioprof.report.run import Run

    whole = out or (whole_of(parts[0].parent) if len(folders) == 1 else None)
    if whole is None:
        raise CommandError(
            f"{folders[0]}: where does the run go? name a folder: ioprof gather"
            f" {shlex.join(map(str, folders))} --out RUN"
        )
    check_output(whole, force)
    traces = [_load_part(folder, reporter) for folder in parts]
    are_all = len(folders) == 1 and parts != list(folders)
    if are_all and (missing := missing_parts(traces)):
        these = f"ioprof gather {shlex.join(map(str, parts))} --out {shlex.quote(str(whole))}"
        where = _where_they_are(parts[0].parent, set(missing))
        raise CommandError(
            f"{parts[0].parent}: there {_are_missing(set(missing))}: {where}; wait for them, or go"
            f" on without: {these}"
        )
    recorded = with_gains(Run.of(merge_parts(traces, whole.resolve().name), whole), is_asked=False)
    create_output(whole, force)
    write_run_folder(recorded, whole)
    if are_all:
        reporter.say(
            f"the parts are not needed any more: rm -r {shlex.quote(str(parts[0].parent))}"
        )
    return recorded


def _load_part(folder: Path, reporter: Reporter) -> "Trace":
    """A part; one of which not all that was recorded is there is completed first, if its spool is
    on this host.
    """
    from ioprof.format.trace import Trace

    # with that it has all that was recorded
    if is_pending(folder) and not (folder / "run.json").is_file():
        return _complete(folder, None, force=False, reporter=reporter).trace
    return Trace.load(folder)
