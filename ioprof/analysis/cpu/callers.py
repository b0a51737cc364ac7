"""Functions of the job's own code, each with all that it calls.

A loop calls what takes the time of several causes; below it stands what could be left out as a
whole, such as a tokenizer of several functions none of which has most of the time.
"""

from collections import Counter
from functools import cache
from typing import Final

import polars as pl

from ioprof.analysis.cpu.code_lines import FEWEST_SAMPLES
from ioprof.analysis.cpu.frames import frames_of, without_inner

_ELSEWHERE: Final = 0.5
"""Part of a thread's samples of other causes from which on a function that is in them is the loop,
or part of it."""
_ONLY: Final = 0.9
"""Part of a function's samples from which on what it calls is named instead: it does little
else."""

_Path = tuple[tuple[str, str], ...]
"""Functions of the user's own code, by file and name, each called from the one before, outermost
first."""


@cache
def _path(stack: str) -> _Path:
    """A function that calls itself is there once."""
    own = [frame for frame in frames_of(stack) if not frame.is_library]
    return tuple(dict.fromkeys((frame.file, without_inner(frame.function)) for frame in own))


class Callers:
    """What the functions of stacks are called by.

    `samples` have the columns `cause` and `stack`: those of all causes of the threads in question.
    """

    def __init__(self, samples: pl.DataFrame) -> None:
        self._all: Counter[_Path] = Counter()
        self._of: dict[str, Counter[_Path]] = {}
        self._only: dict[tuple[str, _Path], _Path] = {}
        counts = samples.group_by("cause", "stack").len().sort("cause", "stack")
        for cause, stack, count in counts.with_columns(pl.col("stack").cast(pl.String)).iter_rows():
            path = _path(stack)
            of_cause = self._of.setdefault(cause, Counter())
            for end in range(1, len(path) + 1):
                self._all[path[:end]] += count
                of_cause[path[:end]] += count
        for cause, paths in self._of.items():
            for path, count in paths.items():
                if len(path) > 1 and count >= _ONLY * paths[path[:-1]]:
                    self._only[cause, path[:-1]] = path

    def group_of(self, cause: str, stack: str) -> str | None:
        """The function with which this time of a cause could be left out, as `function (file)`:
        the outermost one below the loop that calls it, or below the function that its thread runs;
        where that does little but call another one, the other one. None: it is that loop's own.
        """
        path, of_cause = _path(stack), self._of[cause]
        whole = self._elsewhere(of_cause, path[:1])
        start = 1
        while (
            whole >= FEWEST_SAMPLES
            and start < len(path)
            and self._elsewhere(of_cause, path[: start + 1]) >= _ELSEWHERE * whole
        ):
            start += 1
        group = path[: start + 1]
        while (inner := self._only.get((cause, group))) is not None:
            group = inner
        if len(path) <= start or path[: len(group)] != group:
            return None
        file, function = group[-1]
        return f"{function} ({file})"

    def _elsewhere(self, of_cause: Counter[_Path], path: _Path) -> int:
        return self._all[path] - of_cause[path]
