"""The faults that `benchmarks/mutations.py` makes fit the code of today."""

import sys

from repository import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import mutations


def test_each_fault_can_be_made() -> None:
    """The text that it replaces occurs once in its file."""
    assert [] == mutations.problems()
