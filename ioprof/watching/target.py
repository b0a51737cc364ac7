"""What `ioprof watch` is to follow: the spools of a run folder, or of the job that a process
belongs to.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ioprof.errors import CommandError
from ioprof.files import read_json_object
from ioprof.ingest.dropping import file_header
from ioprof.instrument.variables import SPOOL_VARIABLE
from ioprof.recording.parts import parts_folder
from ioprof.recording.pending_run import is_pending, pending_spool, recorder_alive
from ioprof.recording.spool import JOB

_MOST_PROCESSES = 10_000
_MOST_NAMED = 4


@dataclass(frozen=True)
class Target:
    """A recording on this host that goes on, or was interrupted."""

    spool: Path
    out: Path | None
    """Its run folder. None: not known."""

    @property
    def is_recorded(self) -> bool:
        """Whether the ioprof that records it lives."""
        return recorder_alive(self.spool)

    def has_living(self, pids: Iterable[int]) -> bool:
        """Whether one of these processes lives and belongs to the job."""
        return any(_spool_of(pid) == self.spool for pid in pids)


def targets(run_or_pid: str) -> list[Target]:
    """The recordings of a run folder, or of the job that a process belongs to or has started.
    `CommandError`: there is none.
    """
    folder = Path(run_or_pid)
    if run_or_pid.isdecimal() and not folder.exists():
        return [_of_process(int(run_or_pid))]
    parts = parts_folder(folder)
    folders = [folder, *sorted(parts.iterdir())] if parts.is_dir() else [folder]
    found = [
        Target(spool, each)
        for each in folders
        if is_pending(each) and (spool := pending_spool(each)).is_dir()
    ]
    if found:
        return found
    if (folder / "run.json").is_file():
        raise CommandError(f"{folder}: the run has ended; see it with: ioprof report {folder}")
    if is_pending(folder):
        raise CommandError(
            f"{folder}: its capture files are not on this host; watch it on the host that"
            " records it"
        )
    if (folder / JOB).is_file():
        return [Target(folder, _out_of(folder))]
    raise CommandError(
        f"{folder}: nothing is recorded there; start a job with: ioprof record --out {folder} --"
        " COMMAND"
    )


def only_target(run_or_pid: str) -> Target:
    """The one recording of a run folder or process that goes on. `CommandError`: there is none, or
    there are several.
    """
    found = targets(run_or_pid)
    if len(found) > 1:
        these = ", ".join(str(each.out or each.spool) for each in found[:_MOST_NAMED])
        raise CommandError(
            f"{run_or_pid}: is recorded in {len(found)} parts on this host; name one of them:"
            f" {these}"
        )
    (target,) = found
    if not target.is_recorded and not target.has_living(_recording_pids(target.spool)):
        where = target.out or target.spool
        raise CommandError(
            f"{where}: the job and its ioprof have ended; make the run folder with: ioprof gather"
            f" {where}"
        )
    return target


def _recording_pids(spool: Path) -> set[int]:
    headers = (file_header(path) for path in spool.glob("*.ring"))
    return {int(header["pid"]) for header in headers if header is not None and not header["closed"]}


def _of_process(pid: int) -> Target:
    if not Path(f"/proc/{pid}").exists():
        raise CommandError(f"{pid}: no such process")
    spools = {_spool_of(each): None for each in _family(pid)}  # in the order of the family
    found = [spool for spool in spools if spool is not None and spool.is_dir()]
    if len(found) > 1:
        these = ", ".join(str(_out_of(spool) or spool) for spool in found[:_MOST_NAMED])
        raise CommandError(
            f"process {pid}: has started {len(found)} recorded jobs; name one of them: {these}"
        )
    if found:
        return Target(found[0], _out_of(found[0]))
    raise CommandError(
        f"process {pid}: is not recorded by ioprof; start the job with: ioprof record -- COMMAND"
    )


def _family(pid: int) -> Iterator[int]:
    """The process and all that it has started."""
    waiting, seen = [pid], 0
    while waiting and seen < _MOST_PROCESSES:
        yield (own := waiting.pop(0))
        seen += 1
        for path in Path(f"/proc/{own}/task").glob("*/children"):
            try:
                waiting += [int(child) for child in path.read_text().split()]
            except (OSError, ValueError):
                continue


def _spool_of(pid: int) -> Path | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    name = os.fsencode(SPOOL_VARIABLE) + b"="
    return next(
        (Path(os.fsdecode(each[len(name) :])) for each in variables if each.startswith(name)), None
    )


def _out_of(spool: Path) -> Path | None:
    out = (read_json_object(spool / JOB) or {}).get("out")
    return Path(out) if isinstance(out, str) else None
