"""Calls functions in every way that makes frames, says so, and stays there: sleeping, or calling
small functions all the time.

deep_stack.py sleep|call
"""

import functools
import sys
import time
from collections.abc import Iterator


def small(value: int) -> int:
    return value + 1  # small


def innermost() -> None:
    print("ready", flush=True)  # ready
    value = 0
    while True:
        if sys.argv[1] == "sleep":
            time.sleep(3600)  # sleep
        value = small(value)  # call small


def generator() -> Iterator[None]:
    yield innermost()  # generator


def größe() -> None:
    next(generator())  # next


class Callable:
    def __call__(self, _key: int) -> int:
        größe()  # from C
        return 0


def outermost() -> None:
    sorted([1], key=functools.partial(Callable()))  # sorted


outermost()  # module
