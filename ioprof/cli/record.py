"""`ioprof record -- COMMAND`: any command, recorded, unchanged."""

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument, Option

from ioprof.cli.console import error_line, guarded, messages, next_command, reporter
from ioprof.errors import IoprofError
from ioprof.instrument import gpu
from ioprof.instrument.variables import DEBUG_VARIABLE
from ioprof.process import Fork, return_freed_memory, signal_name, started_environment
from ioprof.recording.command import EndedCommand, MakeRun, default_run_folder, recorded_command
from ioprof.recording.signal_forwarding import inherited_descriptors
from ioprof.recording.unrecorded import has_begun, run_unrecorded
from ioprof.store import refuse_file

if TYPE_CHECKING:
    from ioprof.report.run import Run

CONTEXT: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""All that follows the command's name is the command's."""


def record(
    command: Annotated[list[str], Argument(help="The command and its arguments, best after --.")],
    out: Annotated[
        Path | None,
        Option(help="Run folder to make, the same for all tasks. [default: runs/TIME or runs/JOB]"),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier run in --out.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print no summary at the end.")] = False,
    gpu_window: Annotated[
        str,
        Option(
            help=(
                "When GPUs are recorded: 2s/30s is 2 s of every 30 s, or less often to cost at most"
                " 0.5 %; or all, or off."
            )
        ),
    ] = gpu.DEFAULT_WINDOW,
    keep: Annotated[
        str | None,
        Option(
            help="Keep spans of the last 10m (or 30s, 2h) only, and totals of the whole job.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    stacks: Annotated[
        bool, Option("--stacks/--no-stacks", help="Sample the Python stacks of ranks and workers.")
    ] = True,
    keep_arguments: Annotated[
        bool, Option("--keep-arguments", help="Do not mask secrets in the stored arguments.")
    ] = False,
    store: Annotated[
        Path | None,
        Option(
            help="Also add the run to the store in this folder, see ioprof history.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Run any command, unchanged, report what its training waited for, and return its exit code."""
    environment = started_environment()
    return_freed_memory(os.environ)
    folder = out or default_run_folder(environment)
    if store is not None:
        refuse_file(store)
    code: int | None = None
    try:
        with recorded_command(
            command,
            folder,
            environment,
            apart=lambda make_run: _make(make_run, folder, quiet, store),
            force=force,
            gpu_window=gpu_window,
            stacks=stacks,
            keep=keep,
            keep_arguments=keep_arguments,
            reporter=reporter,
        ) as ended:
            code = ended.code
            _close(inherited_descriptors())
            _make_apart(ended, folder, quiet, store)
    except (IoprofError, OSError, MemoryError) as error:
        is_refused = isinstance(error, IoprofError) and error.exit_code != IoprofError.exit_code
        if not has_begun() and not is_refused:
            run_unrecorded(command, environment, str(error) or type(error).__name__)
        if code is None:
            raise
        error_line(f"the run folder is not complete: {error}")
    return code


def _make_apart(ended: EndedCommand, folder: Path, quiet: bool, store: Path | None) -> None:
    """Make the run folder in a process of its own, and print its summary.

    What fails there, or a kill of that process (for its memory, for example), does not change the
    command's exit code.
    """
    try:
        process = ended.make_early() or Fork(lambda: _make(ended.make_run, folder, quiet, store))
    except OSError:  # no process, or no memory for one
        _make(ended.make_run, folder, quiet, store)
        return
    ended.forwarder.forward_to(process)
    if (code := process.wait()) < 0:
        how = f"make the run folder with: ioprof gather {shlex.quote(str(ended.out))}"
        by = signal_name(-code)
        error_line(
            f"the run folder is not complete: {by} ended its making (the capture files stay in"
            f" {ended.spool}; {how})"
        )


def _make(make_run: MakeRun, folder: Path, quiet: bool, store: Path | None) -> int:
    try:
        return guarded(lambda: _show(make_run, folder, quiet, store))
    except BaseException as error:  # also one of polars, which is no Exception
        if DEBUG_VARIABLE in os.environ:
            raise
        notes = " ".join(getattr(error, "__notes__", ()))
        error_line(f"the run folder is not complete: {type(error).__name__}: {error} {notes}")
        return 1


def _show(make_run: MakeRun, folder: Path, quiet: bool, store: Path | None) -> int:
    run = make_run(None if quiet else _print_answer)
    if run.trace.run.part is None and store is not None:
        from ioprof.store.runs import Store

        Store(store, make=True).add(run)
    if run.trace.run.part is None and not quiet:
        if run.trace.run.parts:
            _print_answer(run)
        next_command("ioprof", "open", run.folder or folder)
    return 0


def _print_answer(run: "Run") -> None:
    # after the job: it loads the libraries of the report
    from ioprof.report.texts.brief import (
        brief_text,
    )

    messages.print(brief_text(run.summary, run.steps), markup=False)


def _close(descriptors: list[int]) -> None:
    """Close what the caller gave to the command: a pipe's reader, or who waits for a lock, waits
    for the command alone.
    """
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
