"""Jobs with a known fault, and what the report of each must say: one module per subject, each with
a tuple `CASES`.

`case.py` says what a case is and runs it; `tests/test_fault_suite.py` runs all of them,
`benchmarks/faults.py` several times.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults.case import Case


def all_cases() -> "Iterator[tuple[str, Case]]":
    """Each case with its subject."""
    for module in pkgutil.iter_modules(__path__):
        for case in getattr(import_module(f"faults.{module.name}"), "CASES", ()):
            yield module.name, case
