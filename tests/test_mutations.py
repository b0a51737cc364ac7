"""The faults that `benchmarks/mutations.py` makes fit the code of today."""

import sys
from pathlib import Path

from repository import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import mutations


def test_each_fault_can_be_made() -> None:
    """The text that it replaces occurs once in its file."""
    assert [] == mutations.problems()


def test_the_table_counts_the_faults_that_all_tests_were_run_on(tmp_path: Path) -> None:
    """One whose tests were stopped is neither found nor missed; a table is kept, and added to."""
    first, second, third = (each[:2] for each in mutations.MUTATIONS[:3])
    table = tmp_path / "table.md"
    mutations.write_table(table, [mutations.Outcome(*first, "tests/test_a.py::test_b", 3.0)])
    stopped = mutations.Outcome(*second, None, 9.0, is_stopped=True)
    bad = mutations.Outcome(*third, None, 1.0, "it cannot be built")
    mutations.write_table(table, [stopped, bad])
    text = table.read_text()
    left = len(mutations.MUTATIONS) - 3
    assert "1 of 1 faults" in text
    assert f"Of 1 the tests were stopped; {left} were not tried." in text
    mutations.write_table(table, [])
    assert text == table.read_text()
