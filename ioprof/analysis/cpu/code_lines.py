"""Lines of the job's own code, by samples of stacks: what they are called, and what their functions
took.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from pathlib import PurePosixPath
from typing import Final

from ioprof.analysis.cpu.frames import without_inner
from ioprof.format.run_record import CodeShare

FEWEST_SAMPLES: Final = 4
"""Samples of a line of code below which it is not named in the verdict."""
_WAITING: Final = {
    "multiprocessing/connection.py": ("_recv", "_send", "_read", "wait", "_poll"),
    "multiprocessing/popen_fork.py": ("poll",),
    "threading.py": ("wait", "_wait_for_tstate_lock", "join"),
    "queue.py": ("get", "put"),
    "selectors.py": ("select",),
    "socket.py": ("readinto", "accept"),
    "ssl.py": ("read", "recv", "recv_into"),
    "subprocess.py": ("_wait", "_try_wait", "_communicate"),
}
"""Functions of the standard library that wait for another process or thread, by file."""
_COMPUTING: Final = ("torch/nn/functional.py", "torch/functional.py")
"""Files of functions of tensors, such as losses; torch/_tensor.py is none: a loop of Python over a
tensor is there too."""
_MOST_OF_GROUP: Final = 0.5
"""Part of the time of a function and of what it calls from which on the one of them that has it is
named instead."""


def shortened(name: str, longest: int = 44) -> str:
    """A path without its first folders."""
    parts = PurePosixPath(name.lstrip("/")).parts
    while len(parts) > 1 and len("/".join(parts)) > longest:
        parts = parts[1:]
    slash = "/" if name.endswith("/") else ""
    return name if len(name) <= longest or "/" not in name else f"…/{'/'.join(parts)}{slash}"


def line_text(line: CodeShare) -> str:
    """A line of code: `train.py:42 in main`; a function of several lines: `train.py in main`, and
    ` with its callees` where it is the sum over these too.
    """
    place = f":{line.line}" if line.line else ""
    callees = " with its callees" if is_group(line) else ""
    return f"{shortened(line.file, 30)}{place} in {function_of(line)[1]}{callees}"


def awaits(line: CodeShare) -> bool:
    """Whether a line calls what waits for another process or thread, by the innermost function that
    most of its samples are in.
    """
    function, _, file = (line.library or "").partition(" (")
    return function.rpartition(".")[2] in _WAITING.get(file.rstrip(")"), ())


def computes(line: CodeShare) -> bool:
    """Whether a line calls one of torch's functions of tensors, by the innermost function that most
    of its samples are in.
    """
    return (line.library or "").partition(" (")[2].rstrip(")") in _COMPUTING


def function_of(line: CodeShare) -> tuple[str, str]:
    """The file and the function of a line; a comprehension is part of the function that it is
    in.
    """
    return line.file, without_inner(line.function)


def _of_both(a: CodeShare, of_a: float | None, b: CodeShare, of_b: float | None) -> float | None:
    if of_a is None or of_b is None:
        return None
    return (of_a * a.samples + of_b * b.samples) / (a.samples + b.samples)


def functions(lines: Iterable[CodeShare]) -> list[CodeShare]:
    """The sums over the lines of each function of several, as a line 0."""
    return [
        found.replace(function=function_of(found)[1], group=None)
        for found in _sums(lines, function_of)
    ]


def groups(lines: Iterable[CodeShare]) -> list[CodeShare]:
    """The sums over the lines of each function and of what it calls, as a line 0 with a group,
    where none of its functions has most of the time.
    """
    found = []
    for whole in _sums((line for line in lines if line.group), lambda line: line.group or ""):
        inner = [line for line in lines if line.group == whole.group]
        largest_s = max(each.seconds for each in (*inner, *functions(inner)))
        if largest_s < _MOST_OF_GROUP * whole.seconds:
            function, _, file = (whole.group or "").removesuffix(")").partition(" (")
            found.append(whole.replace(file=file, function=function))
    return found


def same_code(line: CodeShare, lines: Iterable[CodeShare]) -> list[CodeShare]:
    """Those of the same function; of a group, those in it."""
    if is_group(line):
        return [other for other in lines if other.group == line.group]
    return [other for other in lines if function_of(other) == function_of(line)]


def is_group(line: CodeShare) -> bool:
    """Whether it is the sum over a function and what it calls."""
    return not line.line and line.group is not None


def _sums(lines: Iterable[CodeShare], key: Callable[[CodeShare], Hashable]) -> list[CodeShare]:
    found: dict[Hashable, CodeShare] = {}
    for line in lines:
        if before := found.get(key(line)):
            share = (
                None if line.share is None or before.share is None else before.share + line.share
            )
            found[key(line)] = before.replace(
                line=0,
                library=None,
                share=share,
                seconds=before.seconds + line.seconds,
                samples=before.samples + line.samples,
                waits=_of_both(before, before.waits, line, line.waits),
                others=_of_both(before, before.others, line, line.others),
                asks=_of_both(before, before.asks, line, line.asks),
                uncertainty_s=math.hypot(before.uncertainty_s, line.uncertainty_s),
            )
        else:
            found[key(line)] = line
    return [line for line in found.values() if not line.line]
