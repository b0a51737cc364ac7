"""Tests that compare times: what fails, and what is skipped while other programs compute."""

import os
from collections.abc import Callable

import pytest
from quiet_machine import MOST_OTHERS, WrongTimeError, comparing_times, on_a_quiet_machine

from ioprof.recording.host_facts import CpuMeter


def wrong_time() -> None:
    with comparing_times():
        raise AssertionError


def wrong_bytes() -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("test", "others", "expected"),
    [
        (wrong_time, 0.9 * MOST_OTHERS, WrongTimeError),
        (wrong_time, 1.1 * MOST_OTHERS, pytest.skip.Exception),
        (wrong_bytes, 0.0, AssertionError),
        (wrong_bytes, 9.0, AssertionError),
    ],
)
def test_wrong_times_count_on_a_quiet_machine_alone(
    test: Callable[[], None],
    others: float,
    expected: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All other assertions count always."""
    monkeypatch.setattr(CpuMeter, "others_ratio", lambda _: others / (os.cpu_count() or 1))
    with pytest.raises(expected):
        on_a_quiet_machine(test)()


def test_no_other_test_compares_times() -> None:
    with pytest.raises(RuntimeError, match="only a test on_a_quiet_machine"):
        wrong_time()


def test_the_marks_are_set() -> None:
    """No other test may run beside it."""
    assert {"system", "alone"} == {mark.name for mark in on_a_quiet_machine(wrong_time).pytestmark}  # type: ignore[attr-defined]
