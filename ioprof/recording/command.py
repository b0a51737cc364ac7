"""Records any command, unchanged, in all its processes."""

import errno
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ioprof import clock
from ioprof.errors import NOT_EXECUTABLE, NOT_FOUND, CommandError, IoprofError
from ioprof.format.run_record import Failure, FailureCode
from ioprof.instrument import gpu, preload
from ioprof.masking import masked_command
from ioprof.process import Fork, signal_name
from ioprof.recording.attempts import usable_run_folder
from ioprof.recording.gathering import gather_tasks
from ioprof.recording.keeping import check_keeping, parse_keep
from ioprof.recording.lifecycle import Recording, initial_record
from ioprof.recording.parts import is_launched, name_of_job, unrecorded_nodes
from ioprof.recording.run_folder import begin_job_log, check_output
from ioprof.recording.signal_forwarding import SignalForwarder, forwarded_signals
from ioprof.recording.signals_given import (
    children_waited_for,
    signals_as_given,
    signals_blocked,
    signals_ignored_by_caller,
)
from ioprof.recording.source_state import source_state
from ioprof.recording.unrecorded import as_script, begun
from ioprof.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from ioprof.report.run import Run

_SIGNALLED: Final = 128

MakeRun = Callable[["Callable[[Run], None] | None"], "Run"]
"""Makes the run folder. Its argument shows the answer as soon as that is known; None: nobody waits
for it."""


def default_run_folder(environment: Mapping[str, str]) -> Path:
    """`runs/JOB` where a launcher started several tasks, so that all have the same, else
    `runs/TIME`.
    """
    return Path("runs") / (name_of_job(environment) or time.strftime("%Y%m%d-%H%M%S"))


@dataclass
class EndedCommand:
    """A recorded command that has ended, before its run folder is made."""

    code: int
    """Its exit code, or the negative number of the signal that ended it."""
    spool: Path
    """Where the recording is."""
    out: Path
    """The run folder that it becomes."""
    forwarder: SignalForwarder
    """Forwards signals to the command, or to another process that is named to it."""
    restore_signals: Callable[[], None]
    """Gives signals to whom they went before the command was started."""
    make_run: "MakeRun"
    """Makes the run folder."""
    make_early: Callable[[], Fork | None]
    """Has a process that has loaded the libraries call `apart`; None: there is none."""


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
    """Run `command` with `environment`, forward signals to it, and make the run folder `out`, also
    if the command failed.

    Under a launcher or scheduler an `out` that exists is no reason not to start: the run goes to
    the next name (`attempts`).

    `in_series`: for a caller that goes on with further runs. What the command writes goes to the
    run folder's job.log, it has no input, and an interrupt that it ignored is raised as
    KeyboardInterrupt once the run folder is whole.

    The command's exit code is in run.json; 128 + N where signal N ended it. Raises `CommandError`,
    before the command starts, for a program that is not there (exit code 127), a bad `gpu_window`
    or `keep`, and an `out` that cannot be made or would be overwritten.
    """
    with recorded_command(
        command,
        out,
        environment,
        force=force,
        gpu_window=gpu_window,
        stacks=stacks,
        keep=keep,
        keep_arguments=keep_arguments,
        is_first=not in_series,
        reporter=reporter,
    ) as ended:
        ended.restore_signals()
        run = ended.make_run(None)
    if in_series and ended.forwarder.interrupted and run.trace.run.status == "complete":
        raise KeyboardInterrupt
    return run


@contextmanager
def recorded_command(
    command: Sequence[str],
    out: Path,
    environment: Mapping[str, str],
    *,
    is_first: bool = True,
    apart: Callable[[MakeRun], int] | None = None,
    force: bool = False,
    gpu_window: str = gpu.DEFAULT_WINDOW,
    stacks: bool = True,
    keep: str | None = None,
    keep_arguments: bool = False,
    reporter: Reporter = SILENT,
) -> Iterator[EndedCommand]:
    """Run and record a command to its end, for the block, which makes the run folder; see
    `record_command`.

    `is_first`: it is no further run of a series, as `record_command` makes them. `apart` makes the
    run in another process, whose exit code it returns.

    Whatever fails once the command has been started is raised by `EndedCommand.make_run`, so that
    the command's exit code is known.
    """
    _check_program(command, environment)
    gpu.plan(gpu_window)
    keep_ns = None if keep is None else parse_keep(keep)
    if is_first:
        out, message = usable_run_folder(out, environment, force=force)
        if message:
            reporter.say(message)
    with _no_reason_for_jobs(environment):
        check_output(out, force)
    if keep_ns is not None:
        check_keeping()
    if (nodes := unrecorded_nodes(command, environment)) and is_first:
        reporter.say(
            f"srun starts tasks on {nodes} nodes, and only what runs on this one is recorded; to"
            " record all of them type: srun ... ioprof record --out RUN -- COMMAND"
        )
    run = initial_record(command, out, environment, keep_arguments=keep_arguments)
    run = run.replace(source=source_state(command, environment))
    ignored = signals_ignored_by_caller()
    recording = Recording(
        out, force, run, environment, stacks=stacks, keep_ns=keep_ns, reporter=reporter
    )
    with children_waited_for(), ExitStack() as at_end, ExitStack() as signals:
        with _no_reason_for_jobs(environment):
            at_end.enter_context(recording)
        process, error = None, None

        def make_run(answer: "Callable[[Run], None] | None") -> "Run":
            with recording.kept():
                if error is not None:
                    raise error
                recorded = recording.finish(answer)
            return gather_tasks(recorded, out, recording.part, force, reporter)

        if apart is not None:
            at_end.callback(recording.load_early(partial(apart, make_run)))
        forwarder = signals.enter_context(forwarded_signals())
        try:
            with ExitStack() as samplers, _streams(None if is_first else recording.out) as streams:
                # a program that is not the job's: before page faults are recorded
                forwarder.start()
                # in their threads: Python handles a signal when the main thread does not wait
                with signals_blocked():
                    samplers.enter_context(recording.external_samplers())
                job_environment = {**recording.environment, preload.GPU_WINDOW_VARIABLE: gpu_window}
                forwarder.process_starts()
                process = _start(command, job_environment, ignored, streams)
                forwarder.forward_to(process)
                process.wait()
            _note_end(recording, command[0], process.returncode, process.pid, forwarder)
        except BaseException as failed:
            if process is None:
                raise
            process.wait()
            error = failed

        yield EndedCommand(
            process.returncode,
            recording.spool,
            recording.out,
            forwarder,
            signals.close,
            make_run,
            recording.make_early if error is None else lambda: None,
        )


@contextmanager
def _no_reason_for_jobs(environment: Mapping[str, str]) -> Iterator[None]:
    """A run folder that cannot be used ends the command of a user, who can name another; a job of a
    scheduler runs all the same.
    """
    try:
        yield
    except CommandError as error:
        if is_launched(environment):
            raise IoprofError(str(error)) from None
        raise


def _check_program(command: Sequence[str], environment: Mapping[str, str]) -> None:
    program, path, shown = command[0], environment.get("PATH"), masked_command(command)[0]
    if shutil.which(program, path=path) is not None:
        return
    how = _how_it_is_run(shown) if Path(program).is_file() else ""
    if shutil.which(program, os.F_OK, path) is not None or Path(program).is_dir():
        raise CommandError(
            f"{shown}: may not be executed; {how or 'see ls -l'}", exit_code=NOT_EXECUTABLE
        )
    if program.startswith("-"):
        how = (
            "options stand before the command, the run folder's is --out: ioprof record --out RUN"
            " -- COMMAND"
        )
    raise CommandError(f"{shown}: no such program; {how or 'give its path'}", exit_code=NOT_FOUND)


def _how_it_is_run(script: str) -> str:
    name = shlex.quote(script)
    if script.endswith(".py"):
        return f"for a script of Python: ioprof record -- python {name}"
    if "/" in script:
        return f"allow it with: chmod +x {name}"
    return f"for the file in this folder: ioprof record -- ./{name}"


def _start(
    command: Sequence[str],
    environment: Mapping[str, str],
    ignored: frozenset[int],
    streams: Mapping[str, Any],
) -> "subprocess.Popen[bytes]":
    """Start the command with what this process was given: descriptors, and signals that are
    ignored.

    A script that does not name its interpreter is run by the shell, as execvp(3) and shells do.
    """
    ignore_children = (
        partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
        if signal.SIGCHLD in ignored
        else None
    )
    how: dict[str, Any] = {
        "env": environment,
        "close_fds": False,
        "preexec_fn": ignore_children,
        **streams,
    }
    with signals_as_given(ignored) as is_done:
        how["restore_signals"] = not is_done
        try:
            return begun(subprocess.Popen(command, **how))
        except FileNotFoundError:
            raise CommandError(
                f"{command[0]}: the interpreter that its first line names is not there", NOT_FOUND
            ) from None
        except PermissionError as error:
            raise CommandError(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return begun(subprocess.Popen(as_script(command, environment), **how))


def _note_end(
    recording: Recording, program: str, code: int, pid: int, forwarder: SignalForwarder
) -> None:
    status = "interrupted" if forwarder.interrupted and code else "failed" if code else "complete"
    failures = [_failure(program, code)] if status == "failed" else []
    failures = [each.replace(pid=pid, time_ns=clock.monotonic_ns()) for each in failures]
    recording.end(
        status=status, failures=failures, exit_code=code if code >= 0 else _SIGNALLED - code
    )


@contextmanager
def _streams(out: Path | None) -> Iterator[dict[str, Any]]:
    """Standard streams of the command, as `Popen` takes them: those of this process, or the job.log
    of a run folder.
    """
    if out is None:
        yield {}
        return
    with begin_job_log(out).open("ab") as log:
        yield {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}


def _failure(program: str, code: int) -> Failure:
    name = shlex.quote(program)
    if code < 0:
        killed_by = signal_name(-code)
        return Failure(
            what=f"{name} was killed by {killed_by}", code=FailureCode.KILLED, signal=killed_by
        )
    return Failure(what=f"{name} exited with {code}", code=FailureCode.ERROR)
