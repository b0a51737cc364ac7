"""The output of every command: results, messages, one-line errors, progress, what is printed of a
run, and the next command to type.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from ioprof.errors import IoprofError
from ioprof.format.run_record import Failure
from ioprof.progress import shown_progress
from ioprof.recording.run_folder import JOB_LOG
from ioprof.reporter import Advance, Reporter

if TYPE_CHECKING:
    from ioprof.report.run import Run

_EXIT_CODES: Final = {"complete": 0, "interrupted": 130, "failed": 1}


class _Messages(Console):
    def on_broken_pipe(self) -> None:
        """Print nothing more when the reader has gone; rich would close standard output, where
        results go, and exit.
        """
        self.quiet = True


output = Console(highlight=False, soft_wrap=True)
"""Results go here: standard output."""
messages = _Messages(stderr=True, highlight=False, soft_wrap=True)
"""Everything that is not a result goes here: standard error."""


def say(text: str) -> None:
    """Print a line to standard error; never a result."""
    with _ignored_errors():
        messages.print(text, markup=False)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of a result as they are."""
    for line in lines:
        output.print(line, markup=False)


def error_line(text: str) -> None:
    """The one line that says what went wrong and what to type."""
    with _ignored_errors():
        messages.print(
            "ioprof: " + " ".join(text.split()),
            markup=False,
            style="bold red" if messages.is_terminal else None,
        )


def guarded(function: Callable[[], int]) -> int:
    """What `function` returns, or the exit code of an error that it raised, with one line that says
    what went wrong.
    """
    try:
        return function()
    except IoprofError as error:
        error_line(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        error_line("interrupted")
        return 130
    except BrokenPipeError:
        return 1
    except OSError as error:
        error_line(f"{error.filename or 'input/output'}: {error.strerror or error}")
        return 1


def next_command(*words: object) -> None:
    """Print the command to type next."""
    say("next: " + shlex.join(str(word) for word in words))


def progress(what: str, total: int) -> AbstractContextManager[Advance]:
    """A progress bar with rate and time left on a terminal, a plain line at each tenth
    elsewhere.
    """
    return shown_progress(what, total, messages, _print_plain)


class _ConsoleReporter:
    def say(self, text: str) -> None:
        say(text)

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        return progress(what, total)


reporter: Final[Reporter] = _ConsoleReporter()
"""Messages and progress of a command's work: standard error."""


def show_run(
    run: "Run",
    json: bool,
    full: bool = False,
    price: float | None = None,
    mtbf_s: float | None = None,
) -> None:
    """Print what fits on one screen, or with `full` the whole summary and the picture of a step, or
    the summary as JSON. `price`: of a GPU-hour. `mtbf_s`: between failures of the job.
    """
    if json:
        output.file.write(run.summary.to_json() + "\n")
        return
    # A job is started before the libraries of its report are loaded.
    from ioprof.report.texts.brief import brief_text
    from ioprof.report.texts.gpu_time_statements import gpu_time_statements
    from ioprof.report.texts.picture import step_picture
    from ioprof.report.texts.storage_statements import run_statements
    from ioprof.report.texts.text import WIDTH, summary_text

    if not full:
        output.print(brief_text(run.summary, run.steps, price, run.trace, mtbf_s))
        return
    more = (*run_statements(run.trace), *gpu_time_statements(run.summary, price))
    output.print(summary_text(run.summary, more, mtbf_s))
    is_known = output.is_terminal or "COLUMNS" in os.environ
    width = min(WIDTH, output.width) if is_known else WIDTH
    picture = step_picture(run.trace, run.steps, run.summary.steps.warmup, width)
    output.print(f"\n{picture}", markup=False)


def exit_code(run: "Run") -> int:
    """0, 1 or 130 by the run's status; prints one line that says what went wrong, if anything
    did.
    """
    status, failures = run.trace.run.status or "failed", run.trace.run.failures
    if status == "interrupted":
        error_line("interrupted; the report covers the steps that were made")
    elif status == "failed":
        first = failures[0] if failures else Failure(what="the launcher failed")
        who = "" if first.rank is None else f"rank {first.rank} "
        error_line(
            f"the job failed: {who}{first.what} (its output: {(run.folder or Path()) / JOB_LOG})"
        )
    return _EXIT_CODES[status]


def _ignored_errors() -> AbstractContextManager[None]:
    """A line that cannot be written, since its reader or the terminal has gone, is no reason to end
    a job or to lose a run.
    """
    return suppress(OSError)


def _print_plain(line: str) -> None:
    with _ignored_errors():
        print(line, file=sys.stderr, flush=True)  # noqa: T201
