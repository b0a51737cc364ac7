"""A recording that is not a run folder yet: what its spool says of the run, and what its run folder says of the spool.

The spool is on the host that records; it holds `JOB`, all that is known of the run so far. The run folder, which may be on another
file system, holds `MARKER`, which says where the spool is. So whatever happens to ioprof, `ioprof gather` can finish its work.
"""

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ioprof.cli.making import Recorded, make_run_folder
from ioprof.cli.run_folder import MARKER, check_output, create_output, output_exists
from ioprof.dataset import write_json_atomically
from ioprof.errors import CommandError, IoprofError

JOB: Final = "job.json"
"""In the spool: what is known of the run, and who records it."""


class Unfinished:
    """A spool, and the run folder `out` that is to be made of it; `run` are the facts of the run so far."""

    def __init__(self, out: Path, force: bool, run: dict[str, Any]) -> None:
        self.spool = Path()
        self.out = out
        self._force, self._run = force, run
        self._began = False

    def begin(self) -> None:
        """Make the spool, and the run folder, which is this recording's from then on."""
        if (pid := _recorder_of(self.out)) is not None:  # not even --force takes its folder away
            raise CommandError(f"{self.out}: process {pid} records into it; wait for its end, or choose another --out")
        if self._force:
            create_output(self.out, force=True)
        else:  # what lies there by the time it is made is another host's, who was given the same folder
            check_output(self.out, force=False)
            self.out.mkdir(parents=True, exist_ok=True)
        self.spool = Path(tempfile.mkdtemp(prefix="ioprof-"))
        try:
            self._note(os.getpid())
            _claim(self.out, self.spool)
            if not self._force:
                _check_still_empty(self.out)
        except BaseException:
            shutil.rmtree(self.spool, ignore_errors=True)
            raise
        self._began = True

    def make(self, run: dict[str, Any]) -> Recorded:
        """Make the run folder, with all that is known of the run in the end; the spool goes."""
        self._run = run
        with suppress(OSError):  # what was noted at the start is enough to go on with
            self._note(os.getpid())
        return make_run_folder(self.spool, self.out, run)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever goes wrong in the block, the recording stays, and the error says where and what to type."""
        try:
            yield
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error: BaseException) -> None:
        """Raise what `error` means to the user, with the place where the capture files lie; a defect of ioprof's gets a note."""
        if isinstance(error, KeyboardInterrupt):
            raise CommandError(f"interrupted before the run folder was whole{self._left()}", exit_code=130) from None
        if isinstance(error, OSError):
            what = f"{error.filename or self.spool}: {error.strerror or error}"
            raise CommandError(f"{what}; mend that and run again{self._left()}", exit_code=1) from None
        if isinstance(error, IoprofError):
            raise CommandError(f"{error}{self._left()}", exit_code=1) from None
        error.add_note(f"ioprof: the job has ended{self._left()}")

    def _left(self) -> str:
        """Where the recording lies, as the end of a sentence; a spool without one is removed."""
        if not self._began:
            return ""
        if any(self.spool.glob("*.ring")):
            with suppress(OSError):
                self._note(None)  # this process may live on, but it records no more
            how = f"make the run folder with: ioprof gather {shlex.quote(str(self.out))}"
            return f" (the capture files stay in {self.spool}; {how})"
        shutil.rmtree(self.spool, ignore_errors=True)
        (self.out / MARKER).unlink(missing_ok=True)
        return ""

    def _note(self, pid: int | None) -> None:
        launcher = None if pid is None else [pid, _start_of(pid)]
        write_json_atomically(self.spool / JOB, {**self._run, "launcher": launcher, "out": str(self.out.resolve())})


def interrupted_recording(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Spool and facts of a run whose ioprof ended before its run folder was whole; `folder` is the run folder or the spool.

    Raises `CommandError` where there is nothing to gather, or where it is going on still.
    """
    spool = folder
    if is_unfinished(folder):
        spool = Path(str(_read(folder / MARKER).get("spool", "")))
    elif not (folder / JOB).is_file():
        raise CommandError(f"{folder}: nothing to gather: neither an unfinished run folder nor a spool folder of ioprof")
    if not spool.is_dir():
        host = _read(folder / MARKER).get("host", "?")
        raise CommandError(f"{spool}: the capture files of {folder} are not there; gather on the host that made them: {host}")
    run = _read(spool / JOB)
    if (pid := _living(run.pop("launcher", None))) is not None:
        raise CommandError(f"{folder}: still being recorded by process {pid}; wait for its end")
    return spool, run


def is_unfinished(folder: Path) -> bool:
    """Whether this is the run folder of a recording that is going on, or was not finished."""
    return (folder / MARKER).is_file()


def _recorder_of(out: Path) -> int | None:
    """The process that records into this run folder, as far as can be told on this host."""
    try:
        return _living(_read(Path(str(_read(out / MARKER).get("spool", ""))) / JOB).get("launcher"))
    except CommandError:
        return None


def _claim(out: Path, spool: Path) -> None:
    """Leave the marker. Hosts that were given one folder meet here: it can be made once."""
    content = json.dumps({"spool": str(spool), "host": os.uname().nodename}) + "\n"
    try:
        descriptor = os.open(out / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise CommandError(f"{out}: another ioprof records into it; give each its own, such as --out {out}.parts/NAME") from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)


def _check_still_empty(out: Path) -> None:
    """Take the claim back where another recording came and ended between `check_output` and the claim."""
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


def _living(launcher: Any) -> int | None:
    """The process that records, if it is still there and is not this one; a number alone may have been given to another since."""
    if not isinstance(launcher, list) or len(launcher) != 2 or not isinstance(launcher[0], int):
        return None
    pid, start = launcher
    return pid if pid != os.getpid() and start is not None and _start_of(pid) == start else None


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since boot (man proc_pid_stat, starttime); None: there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
