"""By what the loaders of a job are told apart, in this run and in another: the lines of code that
made each, and its number.

Names, lines and order are the same in every run of a program. A path is a digest of the lines of
all functions through which a loader was made; a loop makes several loaders by the same path, which
are numbered in each process.
"""

import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

MADE: Final = "_ioprof_made"
"""Attribute of a loader: its `Made` as plain values, since a loader may be pickled for a process
without ioprof."""
_PATH_BYTES: Final = 8
_CO_VARARGS: Final = 0x4
"""`inspect.CO_VARARGS`: every process of a job loads this module, and need not load that one."""
_CO_OPTIMIZED: Final = 0x1
"""`inspect.CO_OPTIMIZED`: a function, whose variables are in no dict."""
_REFERENCES: Final = 3
"""To a copy that nobody else has: the frame's, a variable, and the argument of
`sys.getrefcount`."""
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
_PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Made(NamedTuple):
    """Which loader it is."""

    path: str
    number: int
    """Among the loaders of that path in its process, from 0 on."""
    place: str
    """The innermost line of the job's own code that made it: `train.py:20`."""


class LoaderNumbers:
    """Counts the loaders that this process makes, by path."""

    def __init__(self) -> None:
        self._made = Counter[str]()

    def identify(self, loader: Any, frame: FrameType) -> Made:
        """Which loader it is that is being made in that frame; kept with the loader."""
        known: tuple[str, int, str] | None = vars(loader).get(MADE)
        if known is not None:
            return Made(*known)
        path, place = path_to(loader, frame)
        number = self._made[path]
        self._made[path] += 1
        vars(loader)[MADE] = (path, number, place)
        return Made(path, number, place)


def made(loader: Any) -> Made | None:
    """Which loader it is. None: it was made before this process was recorded."""
    known: tuple[str, int, str] | None = vars(loader).get(MADE)
    return None if known is None else Made(*known)


def path_to(loader: Any, frame: FrameType) -> tuple[str, str]:
    """The path by which a loader is made, its own constructors left out, and the innermost line of
    the job's own code.
    """
    from hashlib import blake2b  # only processes that make a loader need it

    frames = list[FrameType]()
    outer: FrameType | None = frame
    while outer is not None:
        if _is_given(outer, loader):
            frames.clear()
        else:
            frames.append(outer)
        outer = outer.f_back
    files = [each.f_code.co_filename for each in frames]
    lines = [f"{Path(file).name}:{each.f_lineno}" for file, each in zip(files, frames, strict=True)]
    names = [f"{line}:{each.f_code.co_name}" for line, each in zip(lines, frames, strict=True)]
    place = next(
        (line for line, file in zip(lines, files, strict=True) if is_of_job(file)),
        lines[0] if lines else "?",
    )
    return blake2b(
        "\n".join(names).encode(errors="replace"), digest_size=_PATH_BYTES
    ).hexdigest(), place


def _is_given(frame: FrameType, loader: Any) -> bool:
    """Whether a frame is of a function whose first argument the loader is: a constructor of it, or
    what wraps one.
    """
    code = frame.f_code
    if code.co_argcount:
        return _local(frame, code.co_varnames[0]) is loader
    if not code.co_flags & _CO_VARARGS:
        return False
    given = _local(frame, code.co_varnames[code.co_kwonlyargcount])
    return isinstance(given, tuple) and len(given) > 0 and given[0] is loader


def _local(frame: FrameType, name: str) -> Any:
    """A local variable of a function; nothing stays alive for that.

    Before Python 3.13 a copy of all variables stays with the frame until it ends, and what they
    refer to with it. That copy is emptied, unless the program has it too: `locals()` is the same
    object. Of a module they are no copy.
    """
    variables = frame.f_locals
    found = variables.get(name)
    if (
        type(variables) is dict
        and frame.f_code.co_flags & _CO_OPTIMIZED
        and sys.getrefcount(variables) <= _REFERENCES
    ):
        variables.clear()
    return found


def is_of_job(file: str) -> bool:
    """Whether a file is of the job's own code, and of no library."""
    return not file.startswith(("<frozen", _STANDARD_LIBRARY)) and not any(
        part in file for part in _PACKAGES
    )
