"""`ioprof record -- COMMAND`: any command under capture, unchanged."""

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument, Option

from ioprof.cli.console import messages, next_command
from ioprof.cli.parts import name_of_job
from ioprof.cli.passing import Passing, passed_on
from ioprof.cli.recording import Recording, recording_facts
from ioprof.cli.run_folder import check_output
from ioprof.errors import CommandError
from ioprof.process import signal_name
from ioprof.record import gpu, preload
from ioprof.report.text import summary_text

CONTEXT: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""All that follows the command's name is the command's."""
_NOT_FOUND: Final = 127
_SIGNALLED: Final = 128


def record(
    command: Annotated[list[str], Argument(help="The command and its arguments, best after --.")],
    out: Annotated[Path | None, Option(help="Run folder to make, the same for all tasks. [default: runs/TIME or runs/JOB]")] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier run in --out.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print no summary at the end.")] = False,
    gpu_window: Annotated[
        str, Option(help="When GPUs are recorded: 2s/30s is 2 s of every 30 s; or all, or off.")
    ] = gpu.DEFAULT_WINDOW,
) -> int:
    """Run a command, see what its training waited for, and return its exit code."""
    program = shutil.which(command[0])
    if program is None:
        raise CommandError(f"{command[0]}: no such program; give its path", exit_code=_NOT_FOUND)
    gpu.plan(gpu_window)
    folder = out or Path("runs") / (name_of_job(os.environ) or time.strftime("%Y%m%d-%H%M%S"))
    check_output(folder, force)
    with Recording(folder, force, recording_facts(command, folder, hooks=True), hooks=True) as recording:
        with passed_on() as passing, recording.watched():
            environment = {**recording.environment, preload.GPU_WINDOW_VARIABLE: gpu_window}
            outcome = _outcome(subprocess.Popen(command, env=environment), passing)
        recorded = recording.finish(**outcome)
    if recorded is not None and recording.part is None and not quiet:
        messages.print(summary_text(recorded.summary), markup=False)
        next_command("ioprof", "report", folder)
    return int(outcome["exit_code"])


def _outcome(child: "subprocess.Popen[bytes]", passing: Passing) -> dict[str, Any]:
    passing.to(child.pid)
    code = child.wait()
    status = "interrupted" if passing.interrupted and code else "failed" if code else "complete"
    what = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
    failures = [{"rank": None, "what": f"{shlex.quote(str(child.args[0]))} {what}"}] if status == "failed" else []  # type: ignore[index]
    return {"status": status, "failures": failures, "exit_code": code if code >= 0 else _SIGNALLED - code}
