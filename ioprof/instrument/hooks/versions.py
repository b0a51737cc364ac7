"""What a hook needs of a library's internals. A library in which it is missing is left alone, and
the report says so.
"""

from typing import Any


class UnknownVersionError(Exception):
    """A library has changed where a hook would observe it."""


def require(owner: Any, *names: str) -> None:
    """Raise `UnknownVersionError` if a module or a class lacks one of these attributes."""
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        raise UnknownVersionError(
            f"{getattr(owner, '__name__', owner)} has no {', '.join(missing)}"
        )


def require_names(function: Any, *names: str) -> None:
    """Raise `UnknownVersionError` if the code of a function neither uses one of these attributes
    nor has a variable of that name.

    What an `__init__` sets cannot be asked for in the class. A function that is not written in
    Python is not examined.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    missing = [
        name
        for name in names
        if code is not None and name not in (*code.co_names, *code.co_varnames)
    ]
    if missing:
        raise UnknownVersionError(f"{function.__qualname__} has no {', '.join(missing)}")
