"""The fault suite: the report of each job with a known fault names that fault.

All cases are replayed from recordings (`stored.py`). Some are recorded now, by the recorder of
today, on this machine: other ones each day, and twice as many where the recorder has changed since
the recordings were made. `make faults` records all.
"""

import os
from pathlib import Path
from typing import Final

import pytest
import stored
from faults import all_cases
from faults.case import Case, outcome, outcome_of
from quiet_machine import comparing_times, on_a_quiet_machine

ALL: Final = {f"{subject}: {case.name}": (subject, case) for subject, case in all_cases()}
SETTLED: Final = [
    pytest.param(*each, id=name)
    for name, each in ALL.items()
    if not (each[1].like or each[1].unsettled)
]
_PERIOD: Final = 7 if stored.recorder_has_changed() else 14
_DAY: Final = int(os.environ["IOPROF_TESTS_DAY"])


def test_cases_that_are_left_out_are_shown_by_others() -> None:
    """What a case is like is a case that is judged here."""
    names = {param.values[1].name for param in SETTLED}
    assert {case.like for _, case in ALL.values() if case.like} <= names


def test_recordings_are_of_the_format_of_today() -> None:
    """Otherwise `make recordings` makes them anew. Kinds and sources that were appended since mean
    nothing in them."""
    today, then = stored.formats(), stored.recorded_formats()
    appended = {
        name: value[: len(then[name])] if isinstance(value, list) else value
        for name, value in today.items()
    }
    assert appended == then


def test_every_case_has_a_recording() -> None:
    """And there are no others."""
    expected = {(param.values[0], stored.slug(param.values[1].name)) for param in SETTLED}
    recorded = {(subject, name) for subject in stored.subjects() for name in stored.names(subject)}
    assert set() == expected - recorded
    assert set() == recorded - {(subject, stored.slug(case.name)) for subject, case in ALL.values()}


@pytest.mark.parametrize(("subject", "case"), SETTLED)
def test_the_report_names_the_fault(subject: str, case: Case, tmp_path: Path) -> None:
    """Verdict, culprit in the first three lines, first advice; and little time without a name."""
    assert [] == outcome_of(
        *stored.replayed(subject, stored.slug(case.name), tmp_path / "spool")
    ).faults_of(case)


@pytest.mark.parametrize(("subject", "case"), SETTLED[_DAY % _PERIOD :: _PERIOD])
@on_a_quiet_machine
def test_the_report_of_a_job_of_now_names_the_fault(
    subject: str, case: Case, images: Path, tmp_path: Path
) -> None:
    """The same of a job that is recorded now."""
    wrong = outcome(case, images, tmp_path).faults_of(case)
    with comparing_times():
        assert [] == wrong
