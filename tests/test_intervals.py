"""The interval algebra compared with a bitmap: an array with one element per instant."""

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    charge,
    clip,
    covered,
    intersect,
    pack,
    pieces_within,
    subtract,
    total,
    union,
    union_all,
)

SETS = strategies.intervals()


def bitmap(intervals: Intervals) -> NDArray[np.bool_]:
    cells = np.zeros(strategies.HORIZON, bool)
    for start, end in intervals.tolist():
        cells[start:end] = True
    return cells


def assert_normal(intervals: Intervals) -> None:
    assert intervals.dtype == np.int64
    assert intervals.ndim == 2
    assert (intervals[:, 0] < intervals[:, 1]).all()
    assert (intervals[1:, 0] > intervals[:-1, 1]).all()


@given(SETS)
def test_union_is_normal_and_covers_the_same(a: Intervals) -> None:
    """Whether intervals are sorted, disjoint, non-adjacent and non-empty."""
    assert_normal(union(a))
    assert bitmap(a).tolist() == bitmap(union(a)).tolist()


@given(SETS)
def test_a_normal_set_is_its_own_union(a: Intervals) -> None:
    """Normalising twice changes nothing."""
    assert union(a).tolist() == union(union(a)).tolist()


@given(SETS, SETS)
def test_set_operations_are_those_of_bitmaps(a: Intervals, b: Intervals) -> None:
    """Intersection, difference and union, element by element."""
    for found, expected in (
        (intersect(a, b), bitmap(a) & bitmap(b)),
        (subtract(a, b), bitmap(a) & ~bitmap(b)),
        (union_all([a, b]), bitmap(a) | bitmap(b)),
    ):
        assert_normal(found)
        assert expected.tolist() == bitmap(found).tolist()


@given(SETS, st.integers(-5, 45), st.integers(-5, 45))
def test_clip_keeps_what_lies_between(a: Intervals, start: int, end: int) -> None:
    """Nothing remains before the start or from the end on."""
    cells = bitmap(a)
    cells[: max(start, 0)] = False
    cells[max(end, 0) :] = False
    found = clip(a, start, end)
    assert_normal(found)
    assert cells.tolist() == bitmap(found).tolist()


@given(SETS)
def test_total_counts_an_instant_once(a: Intervals) -> None:
    """Overlaps count once."""
    assert int(bitmap(a).sum()) == total(a)


@given(SETS, SETS)
def test_covered_counts_within_each_window(windows: Intervals, a: Intervals) -> None:
    """Windows may overlap, and keep their order."""
    assert [int(bitmap(a)[start:end].sum()) for start, end in windows.tolist()] == covered(windows, a).tolist()


@given(SETS, SETS)
def test_pieces_within_keep_their_number(pieces: Intervals, a: Intervals) -> None:
    """Each piece is cut independently, even if pieces overlap."""
    place, found = pieces_within(pieces, union(a))
    for number, (start, end) in enumerate(pieces.tolist()):
        of_piece = bitmap(np.array([[start, end]])) & bitmap(a)
        assert of_piece.tolist() == bitmap(found[place == number]).tolist()


@given(SETS, st.lists(SETS, max_size=4))
def test_charge_gives_each_instant_to_the_first_class(windows: Intervals, classes: list[Intervals]) -> None:
    """The rest goes to the last column, so that the rows add up to the windows."""
    shares = charge(windows, classes)
    first = [
        next((place for place, each in enumerate(classes) if bitmap(each)[at]), len(classes)) for at in range(strategies.HORIZON)
    ]
    expected = [[first[start:end].count(place) for place in range(len(classes) + 1)] for start, end in windows.tolist()]
    assert expected == shares.tolist()
    assert (windows[:, 1] - windows[:, 0]).tolist() == shares.sum(axis=1).tolist()


@pytest.mark.parametrize("nothing", [EMPTY, [], [[3, 3]], np.empty((0, 2))])
def test_nothing_is_a_set_too(nothing: Intervals) -> None:
    """Every function accepts empty sets in any form."""
    some = np.array([[1, 4]])
    assert EMPTY.tolist() == union(nothing).tolist() == intersect(nothing, some).tolist() == subtract(nothing, some).tolist()
    assert [[1, 4]] == subtract(some, nothing).tolist() == union_all([nothing, some]).tolist()
    assert 0 == total(nothing)
    assert [0] == covered(some, nothing).tolist()
    assert [[0, 3]] == charge(some, [nothing]).tolist()
    assert (0, 2) == charge(EMPTY, [some]).shape
    assert EMPTY.tolist() == union_all([]).tolist()


def test_times_beyond_a_double_stay_exact() -> None:
    """Nanoseconds since boot exceed 2**53 after 104 days; no step may use a float."""
    base = 2**60
    a = pack(np.array([base + 1]), np.array([base + 4]))
    assert [[base + 1, base + 4]] == union(a).tolist()
    assert [[2, 1]] == charge([[base + 2, base + 5]], [a]).tolist()
