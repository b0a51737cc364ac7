"""The output of every command: results, messages, one-line errors, progress, and the next command to type."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ioprof.reporter import Advance, Reporter


class _Messages(Console):
    def on_broken_pipe(self) -> None:
        """Print nothing more when the reader has gone; rich would close standard output, where results go, and exit."""
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
        messages.print("ioprof: " + " ".join(text.split()), markup=False, style="bold red" if messages.is_terminal else None)


def next_command(*words: object) -> None:
    """Print the command to type next."""
    say("next: " + shlex.join(str(word) for word in words))


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """A progress bar with rate and time left on a terminal, a plain line at each tenth elsewhere."""
    if not messages.is_terminal:
        yield _PlainProgress(what, total)
        return
    bar = _bar()
    task = bar.add_task(what, total=total, note="")
    with _ignored_errors():
        bar.start()
    try:
        yield _BarProgress(bar, task)
    finally:
        with _ignored_errors():
            bar.stop()


class _ConsoleReporter:
    def say(self, text: str) -> None:
        say(text)

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        return progress(what, total)


reporter: Final[Reporter] = _ConsoleReporter()
"""Messages and progress of a command's work: standard error."""


def _ignored_errors() -> AbstractContextManager[None]:
    """A line that cannot be written, since its reader or the terminal has gone, is no reason to end a job or to lose a run."""
    return suppress(OSError)


class _BarProgress:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def __call__(self, count: int, /) -> None:
        self._bar.advance(self._task, count)

    def note(self, text: str, /) -> None:
        self._bar.update(self._task, note=text)


class _PlainProgress:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done, self._note = what, max(total, 1), 0, ""

    def note(self, text: str, /) -> None:
        """Shown with the next line."""
        self._note = text

    def __call__(self, count: int, /) -> None:
        before = self._done * 10 // self._total
        self._done += count
        after = self._done * 10 // self._total
        if after > before:
            self._print(f"{self._what}: {self._done} of {self._total}{f', {self._note}' if self._note else ''}")

    def _print(self, line: str) -> None:
        with _ignored_errors():
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=messages,
    )


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "", justify="right")
