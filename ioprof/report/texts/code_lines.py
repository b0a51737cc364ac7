"""The lines of Python behind the time that no span explains, in words and as a table."""

from collections.abc import Sequence
from typing import Final

from ioprof.format.run_record import CodeShare, Summary
from ioprof.report.page.markup import Html, element, join, table
from ioprof.report.texts.units import MISSING, clean, count, duration, percent

LINES_PER_CAUSE: Final = 5
"""In the terminal."""
_WHEN: Final = {"start": "before the first step", "workers": "while workers made batches"}
_FILE_LENGTH: Final = 60
_LEAST_SHARE: Final = 0.001
"""Of the steps' time; a line with less is not shown in the terminal."""
_LEAST_SHARE_OF_PAGE: Final = 0.005
"""A line with less is behind a fold in the page."""
_LEAST_START_S: Final = 0.5


def code_lines(summary: Summary) -> list[str]:
    """One sentence per line of the user's own code, up to five of each cause; empty where no stacks
    were sampled.
    """
    found: list[str] = []
    own = [
        entry for entry in summary.unexplained if entry.is_own and _is_shown(entry, _LEAST_SHARE)
    ]
    for cause in dict.fromkeys(entry.cause for entry in own):
        shown = [entry for entry in own if entry.cause == cause]
        found += map(_sentence, shown[:LINES_PER_CAUSE])
    return found


def code_table(summary: Summary) -> Html | None:
    """All lines of the user's own code, those of little time behind a fold, and what libraries did
    that no own code had called, behind another; None where no stacks were sampled.
    """
    own = [entry for entry in summary.unexplained if entry.is_own]
    of_libraries = [entry for entry in summary.unexplained if not entry.is_own]
    large = [entry for entry in own if _is_shown(entry, _LEAST_SHARE_OF_PAGE)] or own
    small = [entry for entry in own if entry not in large]
    folds = (
        (f"{count(len(small))} further lines", small),
        ("Libraries that none of your code had called", of_libraries),
    )
    parts = [
        _table(large, "Lines of your code, by samples of Python's stacks (derived)")
        if large
        else None,
        *(
            element("details", element("summary", name), _table(rows))
            for name, rows in folds
            if rows
        ),
    ]
    return join(*parts) if summary.unexplained else None


def _waiting(entry: CodeShare) -> str:
    if entry.is_of_others:
        return "in another thread"
    return MISSING if entry.waits is None else percent(entry.waits)


def _table(entries: Sequence[CodeShare], caption: str | None = None) -> Html:
    rows = [
        (
            _WHEN.get(entry.cause, entry.cause),
            _place(entry, 120),
            clean(entry.function, 60),
            clean(entry.library or "", 90),
            duration(entry.seconds),
            MISSING if entry.share is None else percent(entry.share),
            duration(entry.uncertainty_s),
            _waiting(entry),
            count(entry.samples),
        )
        for entry in entries
    ]
    headings = (
        "cause",
        "line of code",
        "function",
        "innermost library function",
        "time",
        "share of the steps' time",
        "±",
        "of it waiting",
        "samples",
    )
    if any(entry.library for entry in entries):
        return table(headings, rows, frozenset({4, 5, 6, 7, 8}), caption)
    return table(
        (*headings[:3], *headings[4:]),
        [(*row[:3], *row[4:]) for row in rows],
        frozenset({3, 4, 5, 6, 7}),
        caption,
    )


def _is_shown(entry: CodeShare, least_share: float) -> bool:
    return entry.seconds >= _LEAST_START_S if entry.share is None else entry.share >= least_share


def _sentence(entry: CodeShare) -> str:
    calling = f", which calls {clean(entry.library, 60)}" if entry.library else ""
    seconds = f"{duration(entry.seconds)} ± {duration(entry.uncertainty_s)}"
    share = "" if entry.share is None else f", {percent(entry.share)} of the steps' time"
    where = f"{_place(entry, _FILE_LENGTH)} in {clean(entry.function, 40)}{calling}"
    samples = f"{count(entry.samples)} sample{'' if entry.samples == 1 else 's'}"
    return f"{_WHEN.get(entry.cause, entry.cause)}: {where}: {seconds}{share} ({samples})"


def _place(entry: CodeShare, length: int) -> str:
    """`train.py:42`, with as much of the end of its path as fits."""
    parts = entry.file.split("/")
    file = parts.pop()
    while parts and len(file) + len(parts[-1]) < length:
        file = f"{parts.pop()}/{file}"
    return f"{clean(file, length)}:{entry.line}"
