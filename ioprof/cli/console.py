"""What every command uses to speak: output, one-line errors, progress, and the next command to type."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Messages(Console):
    def on_broken_pipe(self) -> None:
        """Be quiet when the reader has gone; rich would close standard output, where results go, and exit."""
        self.quiet = True


output = Console(highlight=False, soft_wrap=True)
"""Results go here: standard output."""
messages = _Messages(stderr=True, highlight=False, soft_wrap=True)
"""Everything that is not a result goes here: standard error."""


def say(text: str) -> None:
    """A line for the person who waits; never a result."""
    with _unheard():
        messages.print(text, markup=False)


def error_line(text: str) -> None:
    """The one line that says what went wrong and what to type."""
    with _unheard():
        messages.print("ioprof: " + " ".join(text.split()), markup=False, style="bold red" if messages.is_terminal else None)


def next_command(*words: object) -> None:
    """Say what to type next."""
    say("next: " + shlex.join(str(word) for word in words))


class Advance(Protocol):
    """Call it with how many more are done."""

    def __call__(self, count: int = 1, /) -> None: ...


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """A progress bar with rate and time left on a terminal, a plain line at each tenth elsewhere."""
    if not messages.is_terminal:
        yield _PlainProgress(what, total)
        return
    bar = _bar()
    task = bar.add_task(what, total=total)
    with _unheard():
        bar.start()
    try:
        yield lambda count=1: bar.advance(task, count)
    finally:
        with _unheard():
            bar.stop()


def _unheard() -> AbstractContextManager[None]:
    """Where a line cannot be written, its reader or the terminal has gone: no reason to end a job or to lose a run."""
    return suppress(OSError)


class _PlainProgress:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, max(total, 1), 0

    def __call__(self, count: int = 1, /) -> None:
        before = self._done * 10 // self._total
        self._done += count
        after = self._done * 10 // self._total
        if after > before:
            with _unheard():
                print(f"{self._what}: {self._done} of {self._total}", file=sys.stderr, flush=True)  # noqa: T201


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=messages,
    )


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "", justify="right")
