"""Stacks of Python frames: which of them are the job's own code."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

_LIBRARY: Final = re.compile(
    r"^<(?!stdin>|ipython)|/lib(?:64)?/python3[^/]*/|/(?:site|dist)-packages/|/torchinductor_[^/]*/"
)
"""Files of the standard library, of installed packages, and code that has no file."""
_PACKAGE: Final = re.compile(r"^.*/(?:site|dist)-packages/[^/:]+/")
_MODEL_CALL: Final = re.compile(r"/torch/nn/modules/module\.py$")
_COMMAND: Final = re.compile(r"/(?:bin|Scripts)/[^/.]+$")
"""The file of a command that an installed package has, such as `/usr/bin/yolo`."""
_CHILD: Final = re.compile(r"/multiprocessing/process\.py:\d+:(?:BaseProcess\.)?_bootstrap$")
"""The frame below which a forked child runs; those above it are what its parent did when it started
the child."""
_INNER: Final = re.compile(r"((\.<locals>)?\.<(listcomp|setcomp|dictcomp|genexpr|lambda)>)+$")
"""The end of the qualified name of what Python before 3.12 runs as a function of its own."""


@dataclass(frozen=True)
class Place:
    """Where in the code a stack is."""

    file: str
    line: int
    function: str
    is_own: bool
    """Whether it is the user's code; false: the stack has none."""
    library: str | None
    """The innermost function of a library that was called from there, as `function (file)`."""


class Frame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    function: str
    is_library: bool
    """Whether it is not of the user's own code."""


def frames_of(stack: str) -> list[Frame]:
    """The frames of a stack of `schema.STACK_COLUMNS`, outermost first, without those of ioprof,
    and without what its parent did when it started a forked child. Where a command of an installed
    package runs, and no other code of the user's, that package is the user's code.
    """
    lines = stack.split("\n")
    first = max((number for number, frame in enumerate(lines) if _CHILD.search(frame)), default=0)
    frames = [_split(frame) for frame in lines]
    own = [
        number
        for number, frame in enumerate(frames)
        if not (frame.is_library or frame.file.startswith("<ioprof>"))
    ]
    if own and all(_COMMAND.search(frames[number].file) for number in own):
        packages = (_PACKAGE.match(frame.file) for frame in frames[own[0] :])
        package = next((found[0] for found in packages if found), "\n")
        frames = [
            frame._replace(is_library=frame.is_library and not frame.file.startswith(package))
            for frame in frames
        ]
    frames = frames[first:]
    return [frame for frame in frames if not frame.file.startswith("<ioprof>")] or frames[-1:]


@cache
def place_of(stack: str, calls_model: bool = False) -> Place:
    """The innermost frame of the user's own code in a stack, or its innermost frame; the stack is
    one of `schema.STACK_COLUMNS`. With `calls_model` the frame that calls a model, where the user's
    own code does that.
    """
    frames = frames_of(stack)
    inner = frames[-1]
    call = next((n for n, frame in enumerate(frames) if _MODEL_CALL.search(frame.file)), 0)
    if calls_model and call and not frames[call - 1].is_library:
        return Place(*frames[call - 1][:3], True, None)
    for frame in reversed(frames):
        if not frame.is_library:
            called = f"{inner.function} ({module_path(inner.file)})" if inner.is_library else None
            return Place(*frame[:3], True, called)
    return Place(*inner[:3], False, None)


@cache
def _split(frame: str) -> Frame:
    file, line, function = frame.rsplit(":", 2)
    return Frame(file, int(line), function, bool(_LIBRARY.search(file)))


def module_path(file: str) -> str:
    """`torch/nn/functional.py` of a file in a folder of packages."""
    return re.sub(r"^.*/(?:(?:site|dist)-packages|lib(?:64)?/python3[^/]*)/", "", file)


def without_inner(function: str) -> str:
    """The name of a function; a comprehension is part of the function that it is in."""
    return _INNER.sub("", function)
