"""The interval algebra compared with a bitmap: an array with one element per instant."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import strategies
from compiling import sanitized
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from repository import NATIVE, PROGRAMS

from ioprof import _intervals
from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    charge,
    clip,
    covered,
    end_to_end,
    intersect,
    pack,
    partition,
    pieces_within,
    split,
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
    assert [int(bitmap(a)[start:end].sum()) for start, end in windows.tolist()] == covered(
        windows, a
    ).tolist()


@given(SETS, SETS)
def test_pieces_within_keep_their_number(pieces: Intervals, a: Intervals) -> None:
    """Each piece is cut independently, even if pieces overlap."""
    place, found = pieces_within(pieces, union(a))
    for number, (start, end) in enumerate(pieces.tolist()):
        of_piece = bitmap(np.array([[start, end]])) & bitmap(a)
        assert of_piece.tolist() == bitmap(found[place == number]).tolist()


@given(SETS, st.lists(SETS, max_size=4))
def test_charge_gives_each_instant_to_the_first_class(
    windows: Intervals, classes: list[Intervals]
) -> None:
    """The rest goes to the last column, so that the rows add up to the windows."""
    shares = charge(windows, classes)
    first = [
        next((place for place, each in enumerate(classes) if bitmap(each)[at]), len(classes))
        for at in range(strategies.HORIZON)
    ]
    expected = [
        [first[start:end].count(place) for place in range(len(classes) + 1)]
        for start, end in windows.tolist()
    ]
    assert expected == shares.tolist()
    assert (windows[:, 1] - windows[:, 0]).tolist() == shares.sum(axis=1).tolist()


@pytest.mark.parametrize("nothing", [EMPTY, [], [[3, 3]], np.empty((0, 2))])
def test_nothing_is_a_set_too(nothing: Intervals) -> None:
    """Every function accepts empty sets in any form."""
    some = np.array([[1, 4]])
    assert (
        EMPTY.tolist()
        == union(nothing).tolist()
        == intersect(nothing, some).tolist()
        == subtract(nothing, some).tolist()
    )
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


@given(SETS, SETS)
def test_a_set_is_split_into_what_another_covers_and_the_rest(a: Intervals, b: Intervals) -> None:
    """Both parts are normal, and are the intersection and the difference of bitmaps."""
    covered_part, rest = split(union(a), union(b))
    assert_normal(covered_part)
    assert_normal(rest)
    assert bitmap(covered_part).tolist() == (bitmap(a) & bitmap(b)).tolist()
    assert bitmap(rest).tolist() == (bitmap(a) & ~bitmap(b)).tolist()


@given(SETS, st.lists(SETS, max_size=4))
def test_a_partition_is_normal_and_gives_each_instant_to_the_first_class(
    windows: Intervals, classes: list[Intervals]
) -> None:
    """Each class has what no earlier one has, and the last part is what none has."""
    left = bitmap(windows)
    *found, rest = partition(windows, classes)
    for each, part in zip(classes, found, strict=True):
        assert_normal(part)
        assert bitmap(part).tolist() == (left & bitmap(each)).tolist()
        left &= ~bitmap(each)
    assert bitmap(rest).tolist() == left.tolist()


@given(SETS, st.lists(st.integers(0, 4), min_size=1), st.integers(-9, 50), st.integers(1, 60))
def test_intervals_of_workers_are_placed_end_to_end(
    a: Intervals, drawn: list[int], origin: int, stride: int
) -> None:
    """Each is clipped to the time of its worker."""
    workers = np.resize(np.array(drawn, np.int64), len(a)) * 10
    placed = end_to_end(a, workers, np.array([0, 10, 20, 30, 40]), origin, stride)
    expected = [
        [worker // 10 * stride + min(max(edge - origin, 0), stride - 1) for edge in interval]
        for interval, worker in zip(a.tolist(), workers.tolist(), strict=True)
    ]
    assert expected == placed.tolist()


def test_nothing_is_written_to_any_memory_but_that_of_its_buffers() -> None:
    """A result that does not fit, or columns of unequal length, raise instead."""
    two, one = np.array([0, 10]), np.array([5])
    with pytest.raises(ValueError, match="too little room"):
        _intervals.unite(two, two + 5, one.copy(), one.copy())
    with pytest.raises(ValueError, match="too little room"):
        _intervals.split(two, two + 5, one, one + 1, *(one.copy() for _ in range(4)))
    with pytest.raises(ValueError, match="too little room"):
        _intervals.find_overlaps(two, two + 5, one - 5, one + 20, *(one.copy() for _ in range(3)))
    with pytest.raises(ValueError, match="equal length"):
        _intervals.count_overlaps(two, one, two, two)
    with pytest.raises(ValueError, match="too little room"):
        _intervals.covered_before(two, two + 5, two, two, one.copy())
    with pytest.raises(ValueError, match="equal length"):
        _intervals.covered_before(two, two + 5, one, two, two.copy())
    with pytest.raises(ValueError, match="too little room"):
        _intervals.place(one, two, two, two + 5, one.copy(), one.copy(), 0, 10)
    with pytest.raises(ValueError, match="equal length"):
        _intervals.place(one, one, two, two + 5, two.copy(), two.copy(), 0, 10)


@given(
    st.lists(st.integers(0, 10**6), max_size=300),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=50),
)
def test_many_pieces_in_any_order_are_found(
    edges: list[int], pieces: list[tuple[int, int]]
) -> None:
    """The search from the place of the piece before finds what a search of all finds."""
    ordered = np.unique(np.array(edges, np.int64))
    normal = pack(ordered[: len(ordered) // 2 * 2 : 2], ordered[1 : len(ordered) // 2 * 2 : 2])
    asked = np.array([(start, start + length) for start, length in pieces], np.int64).reshape(-1, 2)
    piece, parts = pieces_within(asked, normal)
    low = np.searchsorted(normal[:, 1], asked[:, 0], side="right")
    high = np.searchsorted(normal[:, 0], asked[:, 1], side="left")
    expected = [
        (number, place)
        for number in range(len(asked))
        for place in range(low[number], high[number])
    ]
    assert piece.tolist() == [number for number, _ in expected]
    assert parts[:, 0].tolist() == [
        max(asked[number, 0], normal[place, 0]) for number, place in expected
    ]


@pytest.mark.job(every=4)
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """No access outside of a buffer and no undefined behaviour, also of sets that are not normal
    and of too little room."""
    built, variables = sanitized("_intervals", [str(NATIVE / "intervals.c")], tmp_path)
    command = [sys.executable, str(PROGRAMS / "sanitized_intervals.py"), str(built), "500"]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert (0, "done\n") == (ended.returncode, ended.stdout), ended.stderr[-3000:]
