"""Loads a library of ioprof that was built apart from it, such as with sanitizers, and checks
it."""

import importlib.machinery
import importlib.util
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def loaded(name: str, path: str) -> ModuleType:
    """The extension module `name` in the file `path`. Raises ImportError if it cannot be loaded."""
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def check_cases(
    check_case: Callable[[Any, random.Random], None], name: str, path: str, cases: str
) -> None:
    """Check the extension module `name` in the file `path` with so many cases; "done" is printed if
    none of them failed.

    The number of each case is on stderr, so that the one that ended the process is known.
    """
    native = loaded(name, path)
    for number in range(int(cases)):
        print(number, file=sys.stderr)
        check_case(native, random.Random(number))
    print("done")
