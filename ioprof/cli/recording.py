"""One job's recording, from before the job starts to its run folder; what `ioprof run` and `ioprof record` have in common."""

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ioprof import clock
from ioprof.cli import facts
from ioprof.cli.console import say
from ioprof.cli.making import Recorded, make_run_folder
from ioprof.cli.run_folder import MARKER, create_output
from ioprof.cli.watching import Watching, capture_facts
from ioprof.dataset import write_json_atomically
from ioprof.errors import CommandError, IoprofError
from ioprof.record import preload

JOB: Final = "job.json"
"""In the spool: what is known of the run, for `ioprof gather` in case ioprof itself is killed."""


def recording_facts(command: list[str], out: Path, *, hooks: bool) -> dict[str, Any]:
    """What is known of any run before it begins."""
    return {
        "name": out.resolve().name,
        "status": "running",
        "failures": [],
        "command": shlex.join(command),
        "started": clock.wall_text(clock.anchor().wall_ns),
        "hosts": [facts.host_facts()],
        "versions": facts.versions(),
        "environment": facts.environment(),
        "clocks": {"method": "one host, one monotonic clock", "uncertainty_ns": 0},
        "capture": capture_facts(hooks=hooks),
    }


class Recording:
    """A recording in its `with` block: a spool while the job runs, a run folder `out` after `finish`.

    Whatever goes wrong in the block is said with the place where the capture files lie. `run` are the facts of the run so far.
    """

    def __init__(self, out: Path, force: bool, run: dict[str, Any], *, hooks: bool) -> None:
        self.spool = Path()
        self.environment: dict[str, str] = {}
        """For the job's processes."""
        self._out, self._force, self._run, self._hooks = out, force, run, hooks
        self._watching = Watching()
        self._meter = facts.CpuMeter()

    def __enter__(self) -> "Recording":
        create_output(self._out, self._force)
        self.spool = Path(tempfile.mkdtemp(prefix="ioprof-"))
        self.environment = preload.environment(self.spool, os.environ, hooks=self._hooks)
        write_json_atomically(self.spool / JOB, {**self._run, "launcher_pid": os.getpid(), "out": str(self._out.resolve())})
        write_json_atomically(self._out / MARKER, {"spool": str(self.spool), "host": os.uname().nodename})
        return self

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record page faults and samples of what this thread starts in the block."""
        with self._watching.block(self.spool):
            yield

    def finish(self, *, status: str, failures: list[dict[str, Any]], exit_code: int | None = None) -> Recorded:
        """Make the run folder; the spool goes."""
        ended = {"status": status, "failures": failures, "exit_code": exit_code}
        hosts = [{**host, **self._others(status)} for host in self._run["hosts"]]
        capture = {**self._run["capture"], **self._watching.facts()}
        recorded = make_run_folder(self.spool, self._out, {**self._run, **ended, "hosts": hosts, "capture": capture})
        if self.spool.exists():
            say(f"could not be removed, and is not needed: {self.spool}")
        say(f"run folder: {self._out}")
        return recorded

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise CommandError(f"interrupted before the run folder was whole{self._kept()}", exit_code=130) from None
        if isinstance(error, OSError):
            what = f"{error.filename or self.spool}: {error.strerror or error}"
            raise CommandError(f"{what}; mend that and run again{self._kept()}", exit_code=1) from None
        if isinstance(error, IoprofError):
            raise CommandError(f"{error}{self._kept()}", exit_code=1) from None
        if error is not None:  # a defect of ioprof's: shown with its traceback
            error.add_note(f"ioprof: the job has ended{self._kept()}")

    def _kept(self) -> str:
        """Where the recording lies, as the end of a sentence; a spool without one is removed."""
        if any(self.spool.glob("*.ring")):
            return (
                f" (the capture files stay in {self.spool}; make the run folder with: ioprof gather {shlex.quote(str(self._out))})"
            )
        shutil.rmtree(self.spool, ignore_errors=True)
        (self._out / MARKER).unlink(missing_ok=True)
        return ""

    def _others(self, status: str) -> dict[str, Any]:
        if status == "complete":
            return {"others_cpu_ratio": self._meter.others_ratio()}
        reason = "processes of the job that were killed cannot be told from other programs"
        return {"others_cpu_ratio": None, "others_cpu_reason": reason}


def interrupted_recording(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Spool and facts of a run whose ioprof ended before its run folder was whole; `folder` is the run folder or the spool.

    Raises `CommandError` where there is nothing to gather, or where it is going on still.
    """
    spool = folder
    if (folder / MARKER).is_file():
        spool = Path(str(_read(folder / MARKER).get("spool", "")))
    elif not (folder / JOB).is_file():
        raise CommandError(f"{folder}: nothing to gather: neither an unfinished run folder nor a spool folder of ioprof")
    if not spool.is_dir():
        host = _read(folder / MARKER).get("host", "?")
        raise CommandError(f"{spool}: the capture files of {folder} are not there; gather on the host that made them: {host}")
    run = _read(spool / JOB)
    launcher = run.pop("launcher_pid", None)
    if isinstance(launcher, int) and _is_ioprof(launcher):
        raise CommandError(f"{folder}: still being recorded by process {launcher}; wait for its end")
    return spool, run


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: cannot be read ({error}); its run cannot be completed") from None
    if not isinstance(content, dict):
        raise CommandError(f"{path}: not a description of a run; its run cannot be completed")
    return content


def _is_ioprof(pid: int) -> bool:
    try:
        return b"ioprof" in Path(f"/proc/{pid}/cmdline").read_bytes() and pid != os.getpid()
    except OSError:
        return False


def own_command() -> list[str]:
    """The command line of this process, as a person typed it."""
    return ["ioprof", *sys.argv[1:]]
