"""A recording that is not a run folder yet.

The spool is on the host that records; it holds `JOB`, all that is known of the run so far. The run
folder, which may be on another file system, holds `MARKER`, which names the spool. So
`ioprof gather` can make the run folder if ioprof is killed. Both hold the same random token, since
a folder that comes from somebody else may name any path.
"""

import errno
import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ioprof.errors import NOT_EXECUTABLE, NOT_FOUND, CommandError, IoprofError
from ioprof.files import read_regular_file
from ioprof.format.dataset import write_json_atomically
from ioprof.format.run_record import RunRecord
from ioprof.recording.run_folder import (
    MARKER,
    check_output,
    create_output,
    make_output,
    output_exists,
)
from ioprof.recording.spool import (
    JOB,
    Origin,
    is_token,
    left_text,
    make_spool,
    misplaced,
    remove_spool,
    unproven,
)
from ioprof.recording.storing_process import StoringProcess

if TYPE_CHECKING:
    from ioprof.report.run import Run

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_UNUSED: Final = Origin("", -1, -1)


class PendingRun:
    """A spool, and the run folder `out` that is to be made of it; `run` is what is known of the run
    so far.
    """

    def __init__(self, out: Path, force: bool, run: RunRecord) -> None:
        self.spool = Path()
        self.out = out
        self.run = run
        """What is known of the run; written to the spool when the recording begins, and when it
        ends or fails."""
        self.left = ""
        """One line of what was not removed from the spool, since ioprof did not write it; empty:
        nothing is left."""
        self._force = force
        self._origin = _UNUSED
        self._is_open = False
        """Whether there is a spool whose place is to be told if something fails."""

    def begin(self) -> None:
        """Make the spool, and the run folder, which is this recording's from then on."""
        if (pid := _recorder_of(self.out)) is not None:  # --force does not replace it either
            raise CommandError(
                f"{self.out}: process {pid} records into it; wait for its end, or choose another"
                " --out"
            )
        if self._force:
            create_output(self.out, force=True)
        else:  # another host may be given the same folder, and write it first
            check_output(self.out, force=False)
            make_output(self.out)
        self.spool, self._origin = make_spool()
        try:
            self._write_job(os.getpid())
            _claim(self.out, self.spool, self._origin)
            if not self._force:
                self._check_still_empty()
        except BaseException:
            remove_spool(self.spool, self._origin)
            raise
        self._is_open = True

    def make(
        self,
        run: RunRecord,
        storing: StoringProcess | None = None,
        complete: Callable[[RunRecord], RunRecord] | None = None,
        answer: "Callable[[Run], None] | None" = None,
    ) -> "Run":
        """Make the run folder, with all that is known of the run in the end; the spool goes.

        `storing` stores what was recorded if it can; `complete` adds what is found out after that;
        `answer` shows the answer, before the page is made.
        """
        self.run = run
        with suppress(OSError):  # what was written at the start suffices
            self._write_job(os.getpid())
        known = None if storing is None else storing.store(self.spool, self.out, run)
        # its libraries take half a second: after the job
        from ioprof.recording.run_writer import (
            make_run_folder,
        )

        made = make_run_folder(self.spool, self.out, run, known, complete, answer)
        self._is_open = False
        self._remove()
        return made

    @contextmanager
    def kept(self) -> Iterator[None]:
        """If the block fails the recording stays, and the error says where it is and what to
        type.
        """
        try:
            yield
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error: BaseException) -> None:
        """Raise `error` as one for the user that names the folder of the capture files; an
        unexpected error gets a note instead.
        """
        if self._is_open and not self.spool.is_dir():
            self._is_open = False
            remove_marker(self.out, self._origin)
            what = (
                "the recording was removed while the job ran, as by a job that empties TMPDIR; set"
                " TMPDIR to another folder"
            )
            raise CommandError(f"{self.spool}: {what}", exit_code=1) from None
        if isinstance(error, KeyboardInterrupt):
            raise CommandError(
                f"interrupted before the run folder was complete{self._where_left()}", exit_code=130
            ) from None
        if isinstance(error, OSError):
            where = error.filename or (self._fullest() if error.errno in _FULL else self.spool)
            what = f"{where}: {error.strerror or error}"
            raise CommandError(
                f"{what}{self._where_left() or '; correct that and run again'}", exit_code=1
            ) from None
        if isinstance(error, IoprofError):
            no_program = error.exit_code if error.exit_code in (NOT_EXECUTABLE, NOT_FOUND) else 1
            raise CommandError(f"{error}{self._where_left()}", exit_code=no_program) from None
        error.add_note(f"ioprof: the job has ended{self._where_left()}")

    def _fullest(self) -> Path:
        """Which of the two folders that are written to has less room."""

        def room(folder: Path) -> int:
            with suppress(OSError):
                status = os.statvfs(folder)
                return status.f_bavail * status.f_frsize
            return 0

        return min(self.out, self.spool, key=room)

    def _where_left(self) -> str:
        """Where the recording is, as the end of a sentence, once; a spool without capture files is
        removed.
        """
        if not self._is_open:
            return ""
        self._is_open = False
        if any(self.spool.glob("*.ring")):
            with suppress(OSError):
                self._write_job(None)  # this process may go on, but it records no more
            known = [str(self.out)] if is_pending(self.out) else [str(self.spool), "--out", "RUN"]
            return (
                f" (the capture files stay in {self.spool}; make the run folder with: ioprof gather"
                f" {shlex.join(known)})"
            )
        self._remove()
        return ""

    def _remove(self) -> None:
        """Remove marker and spool, which are not needed any more."""
        remove_marker(self.out, self._origin)
        left = remove_spool(self.spool, self._origin)
        self.left = left_text(self.spool, left) if left else ""

    def _check_still_empty(self) -> None:
        """Withdraw the claim if another recording began and ended between `check_output` and the
        claim.
        """
        if any(path.name != MARKER for path in self.out.iterdir()):
            remove_marker(self.out, self._origin)
            raise output_exists(self.out)

    def _write_job(self, pid: int | None) -> None:
        launcher = None if pid is None else (pid, _start_of(pid))
        write_json_atomically(
            self.spool / JOB,
            _Job(self.run.to_dict(), launcher, self.out.resolve(), self._origin).to_dict(),
        )


@dataclass(frozen=True)
class _Marker:
    """The content of `MARKER`."""

    spool: Path
    """On the host that records."""
    host: str | None
    """Its name."""
    token: str | None
    """That of the spool; None: an earlier version of ioprof wrote this, or another program."""
    uid: int | None
    """Of the user who records."""

    @classmethod
    def read(cls, out: Path) -> Self:
        """That of a pending run folder; CommandError: it is damaged."""
        keys = _read(out / MARKER)
        host, token, uid = keys.get("host"), keys.get("token"), keys.get("uid")
        return cls(
            Path(str(keys.get("spool", ""))),
            None if host is None else str(host),
            token if is_token(token) else None,
            uid if type(uid) is int else None,
        )

    def to_json(self) -> str:
        """As it is written."""
        return json.dumps(
            {"spool": str(self.spool), "host": self.host, "token": self.token, "uid": self.uid}
        )

    def is_of(self, spool: Path, origin: Origin | None) -> bool:
        """Whether it is of the recording into this spool. Those of an earlier version have no
        token: then the path decides.
        """
        if origin is None:
            return self.token is None and self.spool.is_absolute() and _is_same(self.spool, spool)
        return (self.token, self.uid) == (origin.token, origin.uid)


@dataclass(frozen=True)
class _Job:
    """The content of `JOB`."""

    run_keys: dict[str, Any]
    """Those of run.json that are known."""
    launcher: tuple[int, int | None] | None
    """The process that records, and when it began, in ticks since boot, since process ids are
    reused. None: it records no more."""
    out: Path | None
    """The run folder that is to be made."""
    origin: Origin | None
    """Of the spool; None: an earlier version of ioprof made it, or another program."""

    @classmethod
    def read(cls, spool: Path) -> Self:
        """That of a spool; CommandError: it is damaged, or some other program's."""
        keys = _read(spool / JOB)
        if "launcher" not in keys:
            raise _nothing_to_gather(spool)
        launcher, out, origin = (
            keys.pop("launcher"),
            keys.pop("out", None),
            Origin.of(keys.pop("spool", None)),
        )
        is_known = (
            isinstance(launcher, list)
            and len(launcher) == 2
            and all(isinstance(each, int) for each in launcher)
        )
        return cls(keys, (launcher[0], launcher[1]) if is_known else None, _absolute(out), origin)

    def to_dict(self) -> dict[str, Any]:
        """As it is written."""
        own = {"launcher": self.launcher, "out": None if self.out is None else str(self.out)}
        return {
            **self.run_keys,
            **own,
            "spool": None if self.origin is None else self.origin.to_dict(),
        }

    def run(self) -> RunRecord:
        """What is known of the run."""
        return RunRecord.of(self.run_keys)

    def recorder(self) -> int | None:
        """The process that records, if it still runs and is not this one."""
        if self.launcher is None:
            return None
        pid, start = self.launcher
        return pid if pid != os.getpid() and start is not None and _start_of(pid) == start else None


@dataclass(frozen=True)
class InterruptedRecording:
    """A recording whose ioprof ended before its run folder was complete."""

    spool: Path
    run: RunRecord
    """What is known of the run."""
    out: Path | None
    """The run folder that was to be made."""
    pending: Path | None
    """The run folder that has the marker of this recording. None: it is not known."""
    origin: Origin | None
    """Of the spool, which may be removed. None: it is to stay as it is."""
    doubt: str | None
    """Why it is to stay, as a clause."""


def interrupted_recording(folder: Path) -> InterruptedRecording:
    """The recording whose run folder or spool `folder` is.

    Raises `CommandError` where there is nothing to gather, or where the recording is still going
    on.
    """
    spool, pending = folder, None
    if is_pending(folder):
        spool, pending = _named_spool(folder), folder
    elif not (folder / JOB).is_file():
        raise _nothing_to_gather(folder)
    job = _Job.read(spool)
    if pending is not None and not _Marker.read(pending).is_of(spool, job.origin):
        raise CommandError(
            f"{folder}: its {MARKER} names {spool}, which is of another recording;"
            f" {_by_spool(spool)}"
        )
    if (pid := job.recorder()) is not None:
        raise CommandError(f"{folder}: still being recorded by process {pid}; wait for its end")
    named = job.out if job.out is not None and _has_marker_of(job.out, spool, job.origin) else None
    doubt = unproven(spool, job.origin)
    if doubt is not None:
        doubt = f"{spool} is a folder which {doubt}"
    elif pending is not None and named is not None and not _is_same(pending, named):
        doubt = f"{pending} is a copy of {named}"
    return InterruptedRecording(
        spool, job.run(), job.out, pending or named, None if doubt else job.origin, doubt
    )


def _named_spool(folder: Path) -> Path:
    """The spool that the marker of a run folder names; CommandError where ioprof would not have put
    it.
    """
    marker = _Marker.read(folder)
    spool = marker.spool
    if not spool.is_dir():
        raise CommandError(
            f"{spool}: the capture files of {folder} are not on this host; if its ioprof is gone,"
            f" type on {marker.host or 'the host that made them'}: ioprof gather"
            f" {shlex.quote(str(folder))}"
        )
    reason = misplaced(spool) if spool.is_absolute() else "is no absolute path"
    if reason is not None:
        raise CommandError(
            f"{folder}: its {MARKER} names {spool}, which {reason}; {_by_spool(spool)}"
        )
    return spool


def _by_spool(spool: Path) -> str:
    return f"if its capture files are there: ioprof gather {shlex.quote(str(spool))} --out RUN"


def _nothing_to_gather(folder: Path) -> CommandError:
    return CommandError(
        f"{folder}: nothing to gather: neither an unfinished run folder nor a spool folder of"
        " ioprof"
    )


def _has_marker_of(out: Path, spool: Path, origin: Origin | None) -> bool:
    try:
        return is_pending(out) and _Marker.read(out).is_of(spool, origin)
    except (CommandError, OSError):
        return False


def _absolute(value: object) -> Path | None:
    return Path(value) if isinstance(value, str) and value.startswith("/") else None


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def remove_marker(out: Path, origin: Origin) -> None:
    """Remove the marker from a run folder, if it is of this recording."""
    with suppress(CommandError, OSError):
        if _Marker.read(out).is_of(out, origin):
            (out / MARKER).unlink()


def recorded_so_far(spool: Path) -> RunRecord:
    """What is known of the run whose spool this is; it may go on. `CommandError`: it cannot be
    read.
    """
    return _Job.read(spool).run()


def is_pending(folder: Path) -> bool:
    """Whether this is the run folder of a recording that is going on, or that was interrupted."""
    return (folder / MARKER).is_file()


def is_abandoned(folder: Path) -> bool:
    """Whether this is the run folder of a recording of this host whose ioprof has ended; of other
    hosts that is not known.
    """
    try:
        is_own = _Marker.read(folder).host == os.uname().nodename
    except CommandError:
        return False
    return is_own and _recorder_of(folder) is None


def pending_spool(folder: Path) -> Path:
    """The spool of the pending run folder; `CommandError` where its marker is damaged. It may be on
    another host.
    """
    return _Marker.read(folder).spool


def recorder_alive(spool: Path) -> bool:
    """Whether the ioprof that records into this spool lives on this host."""
    try:
        return _Job.read(spool).recorder() is not None
    except CommandError:
        return False


def _recorder_of(out: Path) -> int | None:
    """The process that records into this run folder, if it is on this host."""
    try:
        return _Job.read(pending_spool(out)).recorder()
    except CommandError:
        return None


def _claim(out: Path, spool: Path, origin: Origin) -> None:
    """Create the marker. Of several hosts that were given the same folder only one succeeds."""
    content = _Marker(spool, os.uname().nodename, origin.token, origin.uid).to_json() + "\n"
    try:
        descriptor = os.open(
            out / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
        )
    except FileExistsError:
        raise CommandError(
            f"{out}: another ioprof records into it; give each its own, such as --out"
            f" {out}.parts/NAME"
        ) from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(
            f"{path}: cannot be read ({error}); its run cannot be completed"
        ) from None
    if not isinstance(content, dict):
        raise CommandError(f"{path}: not a description of a run; its run cannot be completed")
    return content


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since boot (man proc_pid_stat, starttime); None: there is
    none, or it has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
