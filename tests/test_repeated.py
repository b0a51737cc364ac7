"""Tests that compare times: what is made again, and what is not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from repeated import WrongTimeError, again_when_wrong, comparing_times


def attempts(outcomes: Iterator[bool], folder: Path, test: Callable[[bool], None]) -> list[str]:
    """The folders of the attempts of a test, to which an attempt gives its outcome."""
    names = []

    @again_when_wrong
    def made(tmp_path: Path) -> None:
        names.append(tmp_path.name)
        test(next(outcomes))

    made(tmp_path=folder)
    return names


def compare_times(holds: bool) -> None:
    with comparing_times():
        assert holds


def compare_bytes(holds: bool) -> None:
    assert holds


def test_what_holds_at_once_is_made_once(tmp_path: Path) -> None:
    assert ["first"] == attempts(iter([True]), tmp_path, compare_times)


def test_wrong_times_are_made_again_once(tmp_path: Path) -> None:
    """In another folder; the second attempt counts."""
    assert ["first", "again"] == attempts(iter([False, True]), tmp_path, compare_times)


def test_what_is_wrong_twice_fails(tmp_path: Path) -> None:
    with pytest.raises(WrongTimeError):
        attempts(iter([False, False, True]), tmp_path, compare_times)


def test_other_assertions_hold_at_once(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        attempts(iter([False, True]), tmp_path, compare_bytes)
    assert not (tmp_path / "again").exists()
