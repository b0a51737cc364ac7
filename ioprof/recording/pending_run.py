"""A recording that is not a run folder yet.

The spool is on the host that records; it holds `JOB`, all that is known of the run so far. The run folder, which may be on another
file system, holds `MARKER`, which names the spool. So `ioprof gather` can make the run folder if ioprof is killed.
"""

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ioprof.dataset import write_json_atomically
from ioprof.errors import NOT_EXECUTABLE, NOT_FOUND, CommandError, IoprofError
from ioprof.recording.run_folder import MARKER, check_output, create_output, make_output, output_exists
from ioprof.recording.storing_process import StoringProcess
from ioprof.run_record import RunRecord

if TYPE_CHECKING:
    from ioprof.analysis.run import Run

JOB: Final = "job.json"
"""In the spool: what is known of the run, and who records it."""


class PendingRun:
    """A spool, and the run folder `out` that is to be made of it; `run` is what is known of the run so far."""

    def __init__(self, out: Path, force: bool, run: RunRecord) -> None:
        self.spool = Path()
        self.out = out
        self.run = run
        """What is known of the run; written to the spool when the recording begins, and when it ends or fails."""
        self._force = force
        self._began = False

    def begin(self) -> None:
        """Make the spool, and the run folder, which is this recording's from then on."""
        if (pid := _recorder_of(self.out)) is not None:  # --force does not replace it either
            raise CommandError(f"{self.out}: process {pid} records into it; wait for its end, or choose another --out")
        if self._force:
            create_output(self.out, force=True)
        else:  # another host may be given the same folder, and write it first
            check_output(self.out, force=False)
            make_output(self.out)
        self.spool = Path(tempfile.mkdtemp(prefix="ioprof-"))
        try:
            self._write_job(os.getpid())
            _claim(self.out, self.spool)
            if not self._force:
                _check_still_empty(self.out)
        except BaseException:
            shutil.rmtree(self.spool, ignore_errors=True)
            raise
        self._began = True

    def make(
        self, run: RunRecord, storing: StoringProcess | None = None, complete: Callable[[RunRecord], RunRecord] | None = None
    ) -> "Run":
        """Make the run folder, with all that is known of the run in the end; the spool goes.

        `storing` stores what was recorded if it can; `complete` adds what is found out after that.
        """
        self.run = run
        with suppress(OSError):  # what was written at the start suffices
            self._write_job(os.getpid())
        known = None if storing is None else storing.store(self.spool, self.out, run)
        from ioprof.recording.run_writer import make_run_folder  # its libraries take half a second: after the job

        return make_run_folder(self.spool, self.out, run, known, complete)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """If the block fails the recording stays, and the error says where it is and what to type."""
        try:
            yield
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error: BaseException) -> None:
        """Raise `error` as one for the user that names the folder of the capture files; an unexpected error gets a note instead."""
        if isinstance(error, KeyboardInterrupt):
            raise CommandError(f"interrupted before the run folder was complete{self._where_left()}", exit_code=130) from None
        if isinstance(error, OSError):
            what = f"{error.filename or self.spool}: {error.strerror or error}"
            raise CommandError(f"{what}; correct that and run again{self._where_left()}", exit_code=1) from None
        if isinstance(error, IoprofError):
            no_program = error.exit_code if error.exit_code in (NOT_EXECUTABLE, NOT_FOUND) else 1
            raise CommandError(f"{error}{self._where_left()}", exit_code=no_program) from None
        error.add_note(f"ioprof: the job has ended{self._where_left()}")

    def _where_left(self) -> str:
        """Where the recording is, as the end of a sentence; a spool without capture files is removed."""
        if not self._began:
            return ""
        if any(self.spool.glob("*.ring")):
            with suppress(OSError):
                self._write_job(None)  # this process may go on, but it records no more
            how = f"make the run folder with: ioprof gather {shlex.quote(str(self.out))}"
            return f" (the capture files stay in {self.spool}; {how})"
        shutil.rmtree(self.spool, ignore_errors=True)
        (self.out / MARKER).unlink(missing_ok=True)
        return ""

    def _write_job(self, pid: int | None) -> None:
        launcher = None if pid is None else (pid, _start_of(pid))
        write_json_atomically(self.spool / JOB, _Job(self.run.to_dict(), launcher, self.out.resolve()).to_dict())


@dataclass(frozen=True)
class _Marker:
    """The content of `MARKER`."""

    spool: Path
    """On the host that records."""
    host: str | None
    """Its name."""

    @classmethod
    def read(cls, out: Path) -> Self:
        """That of a pending run folder; CommandError: it is damaged."""
        keys = _read(out / MARKER)
        host = keys.get("host")
        return cls(Path(str(keys.get("spool", ""))), None if host is None else str(host))

    def to_json(self) -> str:
        """As it is written."""
        return json.dumps({"spool": str(self.spool), "host": self.host})


@dataclass(frozen=True)
class _Job:
    """The content of `JOB`."""

    run_keys: dict[str, Any]
    """Those of run.json that are known."""
    launcher: tuple[int, int | None] | None
    """The process that records, and when it began, in ticks since boot, since process ids are reused. None: it records no more."""
    out: Path | None
    """The run folder that is to be made."""

    @classmethod
    def read(cls, spool: Path) -> Self:
        """That of a spool; CommandError: it is damaged."""
        keys = _read(spool / JOB)
        launcher, out = keys.pop("launcher", None), keys.pop("out", None)
        is_known = isinstance(launcher, list) and len(launcher) == 2 and all(isinstance(each, int) for each in launcher)
        return cls(keys, (launcher[0], launcher[1]) if is_known else None, None if out is None else Path(str(out)))

    def to_dict(self) -> dict[str, Any]:
        """As it is written."""
        return {**self.run_keys, "launcher": self.launcher, "out": None if self.out is None else str(self.out)}

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


def interrupted_recording(folder: Path) -> InterruptedRecording:
    """The recording whose run folder or spool `folder` is.

    Raises `CommandError` where there is nothing to gather, or where the recording is still going on.
    """
    spool = folder
    if is_pending(folder):
        spool = pending_spool(folder)
    elif not (folder / JOB).is_file():
        raise CommandError(f"{folder}: nothing to gather: neither an unfinished run folder nor a spool folder of ioprof")
    if not spool.is_dir():
        host = _Marker.read(folder).host or "?"
        raise CommandError(f"{spool}: the capture files of {folder} are not there; gather on the host that made them: {host}")
    job = _Job.read(spool)
    if (pid := job.recorder()) is not None:
        raise CommandError(f"{folder}: still being recorded by process {pid}; wait for its end")
    return InterruptedRecording(spool, job.run(), job.out)


def recorded_so_far(spool: Path) -> RunRecord:
    """What is known of the run whose spool this is; it may go on. `CommandError`: it cannot be read."""
    return _Job.read(spool).run()


def is_pending(folder: Path) -> bool:
    """Whether this is the run folder of a recording that is going on, or that was interrupted."""
    return (folder / MARKER).is_file()


def is_abandoned(folder: Path) -> bool:
    """Whether this is the run folder of a recording of this host whose ioprof has ended; of other hosts that is not known."""
    try:
        is_own = _Marker.read(folder).host == os.uname().nodename
    except CommandError:
        return False
    return is_own and _recorder_of(folder) is None


def pending_spool(folder: Path) -> Path:
    """The spool of the pending run folder; `CommandError` where its marker is damaged. It may be on another host."""
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


def _claim(out: Path, spool: Path) -> None:
    """Create the marker. Of several hosts that were given the same folder only one succeeds."""
    content = _Marker(spool, os.uname().nodename).to_json() + "\n"
    try:
        descriptor = os.open(out / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise CommandError(f"{out}: another ioprof records into it; give each its own, such as --out {out}.parts/NAME") from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)


def _check_still_empty(out: Path) -> None:
    """Withdraw the claim if another recording began and ended between `check_output` and the claim."""
    if any(path.name != MARKER for path in out.iterdir()):
        (out / MARKER).unlink()
        raise output_exists(out)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"{path}: cannot be read ({error}); its run cannot be completed") from None
    if not isinstance(content, dict):
        raise CommandError(f"{path}: not a description of a run; its run cannot be completed")
    return content


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since boot (man proc_pid_stat, starttime); None: there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
