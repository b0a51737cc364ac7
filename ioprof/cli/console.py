"""The output of every command: results, messages, one-line errors, progress, and the next command
to type.
"""

import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

from rich.console import Console

from ioprof.errors import IoprofError
from ioprof.progress import shown_progress
from ioprof.reporter import Advance, Reporter


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


def _ignored_errors() -> AbstractContextManager[None]:
    """A line that cannot be written, since its reader or the terminal has gone, is no reason to end
    a job or to lose a run.
    """
    return suppress(OSError)


def _print_plain(line: str) -> None:
    with _ignored_errors():
        print(line, file=sys.stderr, flush=True)  # noqa: T201
