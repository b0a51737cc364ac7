"""The run folder of one attempt of a job: a scheduler may start the same script several times, with
the same `--out`.

A requeued, preempted or migrated job starts again from its script. Its run must not replace that of
the attempt before, and a folder that exists is no reason not to train. So under a launcher or
scheduler the next free name is taken, with a message.

Who says which attempt this is:

    Slurm              SLURM_RESTART_COUNT (man sbatch): how many times the job was restarted; not
                       set in the first attempt
    torchrun           TORCHELASTIC_RESTART_COUNT: how many times the group of workers was restarted
    LSF, Grid Engine   LSB_RESTART=Y, RESTARTED=1: that it is a later attempt, but not which, so
                       nothing follows from them
    PBS, HTCondor      no variable; qstat -f has run_count, and condor_q NumJobStarts

Where there is no such variable, the folders show it: an earlier attempt left a run, or this task's
part of one.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.recording.parts import Part, is_launched, own_part, parts_folder
from ioprof.recording.run_folder import check_output

_RESTART_COUNTS: Final = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
_MOST_NAMES: Final = 1000
"""Names that are tried in one folder; no scheduler restarts a job as often."""
_LEAST_ROOM_BYTES: Final = 1 << 20
"""Free space that a run folder needs at least; that of a job that reads nothing has 0.4 MB."""


def usable_run_folder(
    out: Path, environment: Mapping[str, str], *, force: bool = False, in_parts: bool = True
) -> tuple[Path, str | None]:
    """The run folder to make instead of `out`, and a message if it is another one.

    Without a launcher or scheduler it is `out`, and `check_output` may refuse it. All tasks of an
    attempt find the same: what they look at besides the environment, the whole run and their own
    part of it, appears after all tasks of the attempt have begun. With `in_parts` each of several
    tasks records a part of the run. Where nothing can be used it is `out` too.
    """
    if not is_launched(environment):
        return out, None
    part = own_part(environment) if in_parts else None
    wanted = _name_of_attempt(out, environment)
    found = next(filter(lambda folder: _is_free(folder, part, force), _candidates(wanted)), out)
    is_first = part is None or part.number == 0  # one of many tasks prints it
    return (
        found,
        f"{_reason(out, wanted, found)}; this attempt is recorded into {found}"
        if found != out and is_first
        else None,
    )


def _name_of_attempt(out: Path, environment: Mapping[str, str]) -> Path:
    """`runs/9-attempt2` for `runs/9`; `out` itself in the first attempt, or if its number is not
    known.
    """
    counts = [environment.get(name, "") for name in _RESTART_COUNTS]
    numbers = [
        str(int(count) + 1)
        for count in counts
        if count.isascii() and count.isdigit() and int(count)
    ]
    return _named(out, f"attempt{'.'.join(numbers)}") if numbers else out


def _candidates(wanted: Path) -> Iterator[Path]:
    """Folders by preference: where the user wants it, else in the working directory, else where
    temporary files are.
    """
    # of a name that tables cannot be written to
    name = os.fsencode(wanted.resolve().name or "run").decode(errors="replace")
    for first in (wanted, Path(name), Path(tempfile.gettempdir()) / name):
        if _has_room(first):
            yield first
            yield from (_named(first, str(number)) for number in range(2, _MOST_NAMES))


def _named(folder: Path, suffix: str) -> Path:
    whole = folder if folder.name not in ("", "..") else folder.resolve()
    return whole.with_name(f"{whole.name}-{suffix}")


def _is_free(folder: Path, part: Part | None, force: bool) -> bool:
    try:
        check_output(folder, force)
        return part is None or force or not _has_part(parts_folder(folder), part)
    except (CommandError, OSError):
        return False


def _has_part(parts: Path, part: Part) -> bool:
    """Whether an earlier attempt of this task left its part there; on another host maybe."""
    return parts.is_dir() and any(
        name.partition("-")[0] == str(part.number) for name in os.listdir(parts)
    )


def _has_room(folder: Path) -> bool:
    """Whether a folder can be made there, as far as the file system says."""
    try:
        place = next(
            each for each in (folder.resolve(), *folder.resolve().parents) if each.is_dir()
        )
        if not os.access(place, os.W_OK | os.X_OK):
            return False
        found = os.statvfs(place)
        return found.f_bavail * found.f_frsize >= _LEAST_ROOM_BYTES and (
            not found.f_files or found.f_favail > 0
        )
    except OSError:
        return False


def _reason(out: Path, wanted: Path, found: Path) -> str:
    """Why `out` is not used, as the beginning of a sentence."""
    if found == wanted:
        return f"{out}: the job was started again"
    if found.resolve().parent != wanted.resolve().parent:
        return f"{out}: no run folder can be made there"
    return f"{wanted}: exists" if os.path.lexists(wanted) else f"{parts_folder(wanted)}: exists"
