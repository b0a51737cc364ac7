"""`nearest.py`: which tests `make quick` runs first."""

from pathlib import Path

from nearest import MOST_FILES, nearest_tests


def test_the_test_of_a_file_comes_first_then_those_near_it() -> None:
    """By its name, and by the imports between them."""
    found = nearest_tests([Path("ioprof/analysis/charge/blame.py")])
    assert Path("tests/test_blame.py") == found[0]
    assert Path("tests/test_ceilings.py") in found
    assert len(found) == len(set(found)) <= MOST_FILES


def test_a_source_of_c_leads_to_tests_too() -> None:
    """A file that is no Python counts as imported by the files that contain its name."""
    assert Path("tests/test_intervals.py") in nearest_tests([Path("ioprof/native/intervals.c")])


def test_with_nothing_changed_there_are_tests() -> None:
    assert MOST_FILES == len(nearest_tests([]))
