"""One job's recording, from before the job starts to its run folder; what `ioprof run` and `ioprof record` have in common."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ioprof import clock
from ioprof.cli import facts
from ioprof.cli.console import say
from ioprof.cli.making import Recorded
from ioprof.cli.parts import own_part, part_folder
from ioprof.cli.unfinished import JOB, Unfinished, interrupted_recording
from ioprof.cli.watching import Watching, capture_facts
from ioprof.record import preload
from ioprof.record.kernel_clocks import clock_facts, wall_error_ns

__all__ = ["JOB", "Recording", "interrupted_recording", "own_command", "recording_facts"]


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
        "clocks": {"method": "one host, one monotonic clock", "uncertainty_ns": 0, **clock_facts()},
        "capture": capture_facts(hooks=hooks),
    }


class Recording:
    """A recording in its `with` block: a spool while the job runs, a run folder `out` after `finish`.

    Whatever goes wrong in the block is said with the place where the capture files lie. `run` are the facts of the run so far.
    Where a launcher started this command several times, each of them makes a part of the run, in a folder of its own beside `out`.
    """

    def __init__(self, out: Path, force: bool, run: dict[str, Any], *, hooks: bool) -> None:
        self.environment: dict[str, str] = {}
        """For the job's processes."""
        self.part = own_part(os.environ) if hooks else None
        """Which part of the run this is; None: all of it."""
        self._whole = out
        self._run = run if self.part is None else {**run, "part": self.part.facts()}
        self._unfinished = Unfinished(out if self.part is None else part_folder(out, self.part), force, self._run)
        self._hooks = hooks
        self._watching = Watching()
        self._meter, self._anchor = facts.CpuMeter(), clock.anchor()

    @property
    def spool(self) -> Path:
        """Where the job's processes leave what they record."""
        return self._unfinished.spool

    def __enter__(self) -> "Recording":
        self._unfinished.begin()
        self.environment = preload.environment(self.spool, os.environ, hooks=self._hooks)
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
        clocks = {**self._run["clocks"], "wall_error_ns": self._wall_error_ns()}
        recorded = self._unfinished.make({**self._run, **ended, "hosts": hosts, "clocks": clocks, "capture": capture})
        if self.spool.exists():
            say(f"could not be removed, and is not needed: {self.spool}")
        say(f"run folder: {self._unfinished.out}")
        if self.part is not None:
            whole = shlex.quote(str(self._whole))
            say(f"which is part {self.part.number + 1} of {self.part.of}; when all have ended: ioprof gather {whole}")
        return recorded

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._unfinished.give_up(error)

    def _wall_error_ns(self) -> int | None:
        """How far the wall clock may have been off, at the worst, and how far it was set meanwhile."""
        errors = (self._run["clocks"]["wall_error_ns"], wall_error_ns())
        moved_ns = abs(clock.anchor().offset_ns - self._anchor.offset_ns)
        return None if None in errors else max(errors) + moved_ns

    def _others(self, status: str) -> dict[str, Any]:
        if status == "complete":
            return {"others_cpu_ratio": self._meter.others_ratio()}
        reason = "processes of the job that were killed cannot be told from other programs"
        return {"others_cpu_ratio": None, "others_cpu_reason": reason}


def own_command() -> list[str]:
    """The command line of this process, as a person typed it."""
    return ["ioprof", *sys.argv[1:]]
