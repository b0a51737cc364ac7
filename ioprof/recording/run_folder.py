"""The folder that a run is written to: whether it may be, and making it."""

import os
import re
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.files import make_folders, open_regular_file, read_json_object
from ioprof.format.schema import READ_RUN_SCHEMAS

JOB_LOG: Final = "job.log"
PAGE: Final = "report.html"
ANALYSIS_FILES: Final = ("steps.parquet", "summary.json", PAGE, "analysis.json")
"""What the analysis of a run writes; it can be made again of the others."""
RUN_FILES: Final = (
    "spans.parquet",
    "files.parquet",
    "counters.parquet",
    "stacks.parquet",
    "blocks.parquet",
    "run.json",
    *ANALYSIS_FILES,
)
"""What is written when the job has ended."""
MARKER: Final = "recording.json"
"""Names the spool; in the folder from before the job starts until the folder is complete."""
PARTS_SUFFIX: Final = ".parts"
"""Of the name of a folder with the parts of a run: the run's name comes before."""
_JOB_LOG_BEGIN: Final = b"ioprof run: output of the job\n"
"""The first line of a job.log. It identifies the folder of a run that was killed before run.json
was written."""
_HALF_WRITTEN: Final = re.compile(r"\.(.+)\.\d+\.tmp")
"""Temporary files of a process that was killed while it wrote."""


def check_output(out: Path, force: bool) -> None:
    """Refuse a folder that would be overwritten, or that cannot be made, before any work is
    done.
    """
    _check_name(out)
    try:
        _check_place(out, force)
    except OSError as error:  # too long a path, or too many links
        raise CommandError(
            f"{out}: cannot be made ({error.strerror}); choose another --out"
        ) from None


def _check_place(out: Path, force: bool) -> None:
    if out.is_symlink() and not out.exists():
        raise CommandError(f"{out}: is a broken link; choose another --out")
    if out.exists() and not out.is_dir():
        raise CommandError(f"{out}: is a file; give --out a folder")
    if out.is_dir() and any(out.iterdir()):
        _check_replaceable(out, force)
    place = next(folder for folder in (out.resolve(), *out.resolve().parents) if folder.exists())
    if not place.is_dir():
        raise CommandError(f"{out}: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise CommandError(f"{out}: {place} cannot be written to; choose another --out")


def output_exists(out: Path) -> CommandError:
    """The error for a folder that exists and that --force would replace."""
    return CommandError(f"{out}: exists; choose another --out, or replace it with --force")


def create_output(out: Path, force: bool) -> None:
    """Make the run folder, empty; an earlier run in it goes only with `force`.

    An existing folder is emptied, not replaced: it may be a link, a mount point or a working
    directory.
    """
    check_output(out, force)
    make_output(out)
    for path in filter(_is_own, list(out.iterdir())):
        path.unlink()


def make_output(out: Path) -> None:
    """Make a run folder, and the folder of parts that it is in, closed to others: arguments, paths
    and output of the job are there.

    A folder that is there keeps its mode, and folders above get the usual one.
    """
    closed = (out.parent, out) if out.parent.name.endswith(PARTS_SUFFIX) else (out,)
    make_folders(closed[0].parent)
    for folder in closed:
        folder.mkdir(mode=0o700, exist_ok=True)


def begin_job_log(out: Path) -> Path:
    """The run folder's job.log, with its first line."""
    try:
        (out / JOB_LOG).write_bytes(_JOB_LOG_BEGIN)
    except OSError:
        # with half a line the folder would not be recognised
        (out / JOB_LOG).unlink(missing_ok=True)
        raise
    return out / JOB_LOG


def _check_name(out: Path) -> None:
    try:
        os.fspath(out).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(out).decode(errors="backslashreplace")
        raise CommandError(
            f"{shown}: is not UTF-8, and tables cannot be written to such a path; choose another"
            " --out"
        ) from None


def _check_replaceable(out: Path, force: bool) -> None:
    if not _is_run(out):
        raise CommandError(
            f"{out}: exists and is not an ioprof run, so it is not replaced; choose another --out"
        )
    foreign = sorted(path.name for path in out.iterdir() if not _is_own(path))
    if foreign:
        raise CommandError(
            f"{out}: contains {foreign[0]}, which no run writes, so it is not replaced; move that"
            " file, or choose another --out"
        )
    if not force:
        raise output_exists(out)


def _is_own(path: Path) -> bool:
    half_written = _HALF_WRITTEN.fullmatch(path.name)
    name = half_written[1] if half_written else path.name
    return name in (*RUN_FILES, JOB_LOG, MARKER) and (path.is_file() or path.is_symlink())


def _is_run(out: Path) -> bool:
    """Whether ioprof wrote this folder: its run.json or, where ioprof was killed, its marker or its
    job.log says so.
    """
    if os.path.lexists(out / "run.json"):  # also a link that leads nowhere, which no run has
        return (read_json_object(out / "run.json") or {}).get("schema") in READ_RUN_SCHEMAS
    marker = read_json_object(out / MARKER) or {}
    return isinstance(marker.get("spool"), str) or _begins_as_job_log(out / JOB_LOG)


def _begins_as_job_log(path: Path) -> bool:
    try:
        with open_regular_file(path) as file:
            return file.read(len(_JOB_LOG_BEGIN)) == _JOB_LOG_BEGIN
    except OSError:
        return False
