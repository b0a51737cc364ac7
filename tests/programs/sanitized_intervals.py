"""Calls ioprof._intervals, built with sanitizers, with sets that are in order, in none, or of the
least and greatest numbers.

python sanitized_intervals.py INTERVALS_SO CASES

Results of normal sets are compared with those of the installed library. Buffers for results are too
small, as large as needed, or larger.
"""

import random
import sys
from typing import Any

import numpy as np
from extension import check_cases

from ioprof.analysis import intervals

EXTREMES = (-(2**63), 2**63 - 1, 0, 1, -1, 5)


def random_set(chance: random.Random) -> intervals.Intervals:
    numbers = EXTREMES if chance.random() < 0.2 else range(-50, 50)
    pairs = [(chance.choice(numbers), chance.choice(numbers)) for _ in range(chance.randrange(30))]
    return np.array(sorted(pairs) if chance.random() < 0.5 else pairs, np.int64).reshape(-1, 2)


def called(
    function: Any, num_results: int, needed: int, chance: random.Random, *sets: intervals.Intervals
) -> Any:
    """The result, or None where the buffers are too small."""
    columns = [np.ascontiguousarray(each[:, side]) for each in sets for side in (0, 1)]
    room = max(0, needed + chance.randint(-2, 2))
    try:
        return function(*columns, *(np.empty(room, np.int64) for _ in range(num_results)))
    except ValueError:
        assert room < needed
        return None


def check_case(native: Any, chance: random.Random) -> None:
    first, second = random_set(chance), random_set(chance)
    whole, part = intervals.union(first), intervals.union(second)
    parts = len(intervals.intersect(whole, part)), len(intervals.subtract(whole, part))
    assert called(native.unite, 2, len(first), chance, first) in (None, -1, len(whole))
    for one, other in ((whole, part), (first, part), (first, second), (whole, second)):
        found = called(native.split, 4, len(one) + len(other), chance, one, other)
        assert one is not whole or other is not part or found in (None, parts)
        needed = native.count_overlaps(
            *(np.ascontiguousarray(each[:, side]) for each in (one, other) for side in (0, 1))
        )
        assert called(native.find_overlaps, 3, needed, chance, one, other) in (None, needed)
    for one, other in ((first, whole), (whole, second)):
        expected = intervals._covered_before(one[:, 0], other)
        lengths = other[:, 1] - other[:, 0]
        columns = (
            np.ascontiguousarray(each)
            for each in (other[:, 0], other[:, 1], np.cumsum(lengths) - lengths, one[:, 0])
        )
        found = np.empty(len(one), np.int64)
        native.covered_before(*columns, found)
        assert other is not whole or found.tolist() == expected.tolist()
    workers, stride = second[: len(first), 0], chance.choice((1, 7, 2**63 - 1))
    rows = first[: len(workers)]
    room = [np.empty(len(rows), np.int64) for _ in range(2)]
    columns = (
        np.ascontiguousarray(each) for each in (np.unique(workers), workers, rows[:, 0], rows[:, 1])
    )
    native.place(*columns, *room, chance.choice(EXTREMES), stride)
    try:
        native.unite(
            first[:, 0].tobytes(), first[:, 1].tobytes()[:-3], bytearray(800), bytearray(800)
        )
    except ValueError:
        pass
    else:
        assert not len(first)


check_cases(check_case, "_intervals", *sys.argv[1:])
