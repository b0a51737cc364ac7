"""Sets of time as int64 arrays of shape (n, 2): half-open intervals [start, end) in nanoseconds.

Every function takes intervals in any order, overlapping or empty, and returns a *normal* set:
sorted, disjoint, no two touching, none empty. All are vectorised: O(n log n) for unsorted input,
O(n) for a normal one.

`charge` is the heart of the analysis. It shares windows out among classes by priority. The measure
of the union of the first c classes inside a window, less that of the first c - 1, is what class c
gets, so the shares add up to the window by construction, in integers.

Union, difference and overlaps are linear passes in C (native/intervals.c), which run beside threads
that hold the interpreter.

Also tried: one sweep over all boundaries of all classes, with a counter per class and a sum per
(window, class). For 2 million intervals in 5 classes and 10,000 windows, on one core: `charge` took
0.07 s with intervals in order and 0.24 s in random order, at a peak of 97 MB; the sweep 0.22 s,
0.65 s and 263 MB, because every boundary is sorted at once and then carried through each class.
Spans of one thread lie in a record nearly in order, and a stable sort of such runs is near linear.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ioprof import _intervals

Intervals = NDArray[np.int64]
"""Shape (n, 2), nanoseconds."""

EMPTY: Final[Intervals] = np.empty((0, 2), np.int64)


def pack(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Intervals:
    """Intervals from their starts and ends; each column lies in one piece of memory, which makes
    searching it fast.
    """
    packed = np.empty((2, len(starts)), np.int64)
    packed[0], packed[1] = starts, ends
    return packed.T


def union(intervals: ArrayLike) -> Intervals:
    """The normal set of the instants that any interval covers; those that touch become one."""
    starts, ends = _columns(intervals)
    found = _room(len(starts))
    number = _intervals.unite(np.ascontiguousarray(starts), np.ascontiguousarray(ends), *found)
    if number < 0:
        order = np.argsort(starts, kind="stable")
        number = _intervals.unite(starts[order], ends[order], *found)
    return _written(found, number)


def union_all(sets: Sequence[ArrayLike]) -> Intervals:
    """The instants that any of the sets covers."""
    return (
        union(np.concatenate([np.asarray(each, np.int64).reshape(-1, 2) for each in sets]))
        if sets
        else EMPTY
    )


def intersect(a: ArrayLike, b: ArrayLike) -> Intervals:
    """The instants that both cover."""
    return union(overlaps(union(a), union(b)))


def overlaps(pieces: Intervals, normal: Intervals) -> Intervals:
    """What of each piece lies in the normal set: not merged, so the result is as little normal as
    the pieces were.
    """
    return pieces_within(pieces, normal)[1]


def pieces_within(pieces: Intervals, normal: Intervals) -> tuple[NDArray[np.int64], Intervals]:
    """The same, and for each interval of the result the number of the piece that it is part of."""
    starts, ends = pieces[:, 0], pieces[:, 1]
    sets = [
        np.ascontiguousarray(column, np.int64)
        for column in (starts, ends, normal[:, 0], normal[:, 1])
    ]
    number = _intervals.count_overlaps(*sets)
    places, room = np.empty(number, np.int64), _room(number)
    _intervals.find_overlaps(*[*sets, *room, places])
    return places, room.T


def subtract(a: ArrayLike, b: ArrayLike) -> Intervals:
    """The instants that `a` covers and `b` does not."""
    return split(union(a), union(b))[1]


def split(whole: Intervals, part: Intervals) -> tuple[Intervals, Intervals]:
    """What of one normal set another one covers, and the rest of it."""
    covered, rest = _room(len(whole) + len(part)), _room(len(whole) + len(part))
    sets = [
        np.ascontiguousarray(column, np.int64)
        for each in (whole, part)
        for column in (each[:, 0], each[:, 1])
    ]
    num_covered, num_left = _intervals.split(*sets, *covered, *rest)
    return _written(covered, num_covered), _written(rest, num_left)


def clip(intervals: ArrayLike, start: int, end: int) -> Intervals:
    """The instants at or after `start` and before `end`."""
    return union(np.clip(np.asarray(intervals, np.int64).reshape(-1, 2), start, max(start, end)))


def end_to_end(
    intervals: Intervals,
    workers: NDArray[np.int64],
    known: NDArray[np.int64],
    origin: int,
    stride: int,
) -> Intervals:
    """Where intervals of these workers lie on an axis that has the time of each `known` worker,
    which are sorted, after that of the one before: `stride` nanoseconds from `origin` on, to which
    they are clipped.
    """
    starts, ends = intervals[:, 0], intervals[:, 1]
    found = _room(len(intervals))
    known, workers, starts, ends = (
        np.ascontiguousarray(each, np.int64) for each in (known, workers, starts, ends)
    )
    _intervals.place(known, workers, starts, ends, found[0], found[1], origin, stride)
    return found.T


def total(intervals: ArrayLike) -> int:
    """Nanoseconds covered; an instant covered twice counts once."""
    normal = union(intervals)
    return int((normal[:, 1] - normal[:, 0]).sum())


def covered(windows: ArrayLike, intervals: ArrayLike) -> NDArray[np.int64]:
    """For each window, in the order given, how many of its nanoseconds the intervals cover. Windows
    may overlap.
    """
    starts, ends = _columns(windows)
    normal = union(intervals)
    return _covered_before(np.maximum(starts, ends), normal) - _covered_before(starts, normal)


def is_within(times: NDArray[np.int64], normal: Intervals) -> NDArray[np.bool_]:
    """Which of these times are within a normal set."""
    place = np.searchsorted(normal[:, 0], times, side="right") - 1
    return (place >= 0) & (times < np.append(normal[:, 1], 0)[place])


def charge(windows: ArrayLike, classes: Sequence[ArrayLike]) -> NDArray[np.int64]:
    """Nanoseconds of each window (row) that go to each class (column); the last column is what no
    class covers.

    An instant goes to the first class that covers it. Rows sum to the windows' lengths exactly.
    """
    starts, ends = _columns(windows)
    lengths = np.maximum(ends - starts, 0)
    reached = np.zeros((len(starts), len(classes) + 2), np.int64)
    reached[:, -1] = lengths
    so_far = EMPTY
    for place, each in enumerate(classes, start=1):
        extra = union(each)
        so_far = union_all([so_far, extra]) if len(extra) else so_far
        reached[:, place] = covered(windows, so_far)
    return np.diff(reached, axis=1)


def partition(windows: ArrayLike, classes: Sequence[ArrayLike]) -> list[Intervals]:
    """For each class the instants in any window that no earlier class covers, and last those that
    no class covers.
    """
    found, left = [], union(windows)
    for each in classes:
        extra = union(each)
        if not len(extra):
            found.append(EMPTY)
            continue
        charged, left = split(left, extra)
        found.append(charged)
    return [*found, left]


def _room(most: int) -> NDArray[np.int64]:
    """Starts and ends of so many intervals, to be written."""
    return np.empty((2, most), np.int64)


def _written(room: NDArray[np.int64], number: int) -> Intervals:
    """The first intervals in it; copied where most of the memory would be kept for nothing."""
    return (
        room[:, :number].T
        if 2 * number > room.shape[1]
        else pack(room[0, :number], room[1, :number])
    )


def _columns(intervals: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    array = np.asarray(intervals, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _covered_before(instants: NDArray[np.int64], normal: Intervals) -> NDArray[np.int64]:
    lengths = normal[:, 1] - normal[:, 0]
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    found = np.empty(len(instants), np.int64)
    columns = [
        np.ascontiguousarray(each, np.int64)
        for each in (normal[:, 0], normal[:, 1], before[:-1], instants)
    ]
    _intervals.covered_before(*[*columns, found])
    return found
