"""Records any command, unchanged, in all its processes."""

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ioprof.errors import CommandError
from ioprof.instrument import gpu, preload, recorder
from ioprof.masking import masked_command
from ioprof.process import signal_name
from ioprof.recording.attempts import usable_run_folder
from ioprof.recording.gathering import gather_tasks
from ioprof.recording.keeping import check_keeping, parse_keep
from ioprof.recording.lifecycle import Recording, initial_record
from ioprof.recording.parts import name_of_job
from ioprof.recording.run_folder import begin_job_log, check_output
from ioprof.recording.signal_forwarding import SignalForwarder, forwarded_signals
from ioprof.reporter import SILENT, Reporter
from ioprof.run_record import Failure, FailureCode

if TYPE_CHECKING:
    from ioprof.analysis.run import Run

_NOT_FOUND: Final = 127
_SIGNALLED: Final = 128


def default_run_folder(environment: Mapping[str, str]) -> Path:
    """`runs/JOB` where a launcher started several tasks, so that all have the same, else `runs/TIME`."""
    return Path("runs") / (name_of_job(environment) or time.strftime("%Y%m%d-%H%M%S"))


def record_command(
    command: Sequence[str],
    out: Path,
    environment: Mapping[str, str],
    *,
    force: bool = False,
    gpu_window: str = gpu.DEFAULT_WINDOW,
    stacks: bool = True,
    keep: str | None = None,
    keep_arguments: bool = False,
    in_series: bool = False,
    reporter: Reporter = SILENT,
) -> "Run":
    """Run `command` with `environment`, forward signals to it, and make the run folder `out`, also if the command failed.

    Under a launcher or scheduler an `out` that exists is no reason not to start: the run goes to the next name (`attempts`).

    `in_series`: for a caller that goes on with further runs. What the command writes goes to the run folder's job.log, it has no
    input, and an interrupt that it ignored is raised as KeyboardInterrupt once the run folder is whole.

    The command's exit code is in run.json; 128 + N where signal N ended it. Raises `CommandError`, before the command starts, for a
    program that is not there (exit code 127), a bad `gpu_window` or `keep`, and an `out` that cannot be made or would be
    overwritten.
    """
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise CommandError(f"{masked_command(command)[0]}: no such program; give its path", exit_code=_NOT_FOUND)
    gpu.plan(gpu_window)
    keep_ns = None if keep is None else parse_keep(keep)
    if not in_series:
        out, message = usable_run_folder(out, environment, force=force)
        if message:
            reporter.say(message)
    check_output(out, force)
    if keep_ns is not None:
        check_keeping(recorder.uses_native())
    run = initial_record(command, out, environment, keep_arguments=keep_arguments)
    with Recording(out, force, run, environment, stacks=stacks, keep_ns=keep_ns, reporter=reporter) as recording:
        with forwarded_signals() as forwarder, recording.external_samplers():
            job_environment = {**recording.environment, preload.GPU_WINDOW_VARIABLE: gpu_window}
            with _streams(recording.out if in_series else None) as streams:
                code = _wait(subprocess.Popen(command, env=job_environment, **streams), forwarder)
        status = "interrupted" if forwarder.interrupted and code else "failed" if code else "complete"
        failures = [_failure(command[0], code)] if status == "failed" else []
        recorded = recording.finish(status=status, failures=failures, exit_code=code if code >= 0 else _SIGNALLED - code)
    if in_series and forwarder.interrupted and status == "complete":
        raise KeyboardInterrupt
    return gather_tasks(recorded, out, recording.part, force, reporter)


@contextmanager
def _streams(out: Path | None) -> Iterator[dict[str, Any]]:
    """Standard streams of the command, as `Popen` takes them: those of this process, or the job.log of a run folder."""
    if out is None:
        yield {}
        return
    with begin_job_log(out).open("ab") as log:
        yield {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}


def _failure(program: str, code: int) -> Failure:
    name = shlex.quote(program)
    if code < 0:
        signal = signal_name(-code)
        return Failure(what=f"{name} was killed by {signal}", code=FailureCode.KILLED, signal=signal)
    return Failure(what=f"{name} exited with {code}", code=FailureCode.ERROR)


def _wait(child: "subprocess.Popen[bytes]", forwarder: SignalForwarder) -> int:
    """Wait for the command; returns its exit code, or the negative number of the signal that ended it."""
    forwarder.forward_to(child.pid)
    return child.wait()
