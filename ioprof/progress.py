"""Progress of long work: a bar on a terminal, a line at each tenth elsewhere. The console is the
caller's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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

from ioprof.reporter import Advance


@contextmanager
def shown_progress(
    what: str, total: int, console: Console, print_line: Callable[[str], None]
) -> Iterator[Advance]:
    """Show progress from 0 to `total` units while the block runs: with rate and time left on a
    terminal, else by `print_line`.
    """
    if not console.is_terminal:
        yield _LineProgress(what, total, print_line)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
    task = bar.add_task(what, total=total, note="")
    # a bar that cannot be drawn, since the terminal has gone, is no reason to end the work
    with suppress(OSError):
        bar.start()
    try:
        yield _BarProgress(bar, task)
    finally:
        with suppress(OSError):
            bar.stop()


class _BarProgress:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def __call__(self, count: int, /) -> None:
        self._bar.advance(self._task, count)

    def note(self, text: str, /) -> None:
        self._bar.update(self._task, note=text)


class _LineProgress:
    def __init__(self, what: str, total: int, print_line: Callable[[str], None]) -> None:
        self._what, self._total, self._done, self._note, self._print_line = (
            what,
            max(total, 1),
            0,
            "",
            print_line,
        )

    def note(self, text: str, /) -> None:
        """Shown with the next line."""
        self._note = text

    def __call__(self, count: int, /) -> None:
        before = self._done * 10 // self._total
        self._done += count
        after = self._done * 10 // self._total
        if after > before:
            self._print_line(
                f"{self._what}: {self._done} of"
                f" {self._total}{f', {self._note}' if self._note else ''}"
            )


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "", justify="right")
