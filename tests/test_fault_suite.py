"""The fault suite: the report of each job with a known fault names that fault.

A job whose report is wrong is made once more, and must then be right; `benchmarks/faults.py` makes each job three times, and
counts every wrong report. It also has the cases that are left out here:
those that show what another case shows in less time, and those whose report is not right in every run yet.
"""

from pathlib import Path

import pytest
from faults import all_cases
from faults.case import Case, outcome
from preload import needs_library
from repeated import again_when_wrong, comparing_times

pytestmark = needs_library

CASES = [pytest.param(case, id=f"{subject}: {case.name}") for subject, case in all_cases() if not (case.like or case.unsettled)]


def test_cases_that_are_left_out_are_shown_by_others() -> None:
    """What a case is like is a case that is made here."""
    made = {param.values[0].name for param in CASES}
    assert {case.like for _, case in all_cases() if case.like} <= made


@pytest.mark.parametrize("case", CASES)
@again_when_wrong
def test_the_report_names_the_fault(case: Case, images: Path, tmp_path: Path) -> None:
    """Verdict, culprit in the first three lines, first advice; and little time without a name."""
    wrong = outcome(case, images, tmp_path).faults_of(case)
    with comparing_times():
        assert [] == wrong
