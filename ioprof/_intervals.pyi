"""Sets of time in linear passes in C (native/intervals.c). All arguments are contiguous arrays of
int64.
"""

from numpy import int64
from numpy.typing import NDArray

_Array = NDArray[int64]

def unite(starts: _Array, ends: _Array, out_starts: _Array, out_ends: _Array, /) -> int:
    """The union of a set: how many intervals were written, or -1 if the set is not sorted by
    starts.
    """

def split(
    starts: _Array, ends: _Array, part_starts: _Array, part_ends: _Array,
    covered_starts: _Array, covered_ends: _Array, rest_starts: _Array, rest_ends: _Array, /,
) -> tuple[int, int]:  # fmt: skip
    """What of a normal set another one covers, and the rest: the number of intervals of both."""

def count_overlaps(
    starts: _Array, ends: _Array, normal_starts: _Array, normal_ends: _Array, /
) -> int:
    """How many intervals `find_overlaps` finds."""

def find_overlaps(
    starts: _Array, ends: _Array, normal_starts: _Array, normal_ends: _Array,
    out_starts: _Array, out_ends: _Array, numbers: _Array, /,
) -> int:  # fmt: skip
    """What of each interval of a set lies in a normal set, and its place in the set; returns how
    many were written.
    """

def covered_before(
    normal_starts: _Array, normal_ends: _Array, before: _Array, instants: _Array, found: _Array, /
) -> None:
    """How much of a normal set lies before each instant; `before` is how much lies before each of
    its intervals.
    """

def place(
    known: _Array,
    workers: _Array,
    starts: _Array,
    ends: _Array,
    out_starts: _Array,
    out_ends: _Array,
    origin: int,
    stride: int,
    /,
) -> None:
    """Where intervals of workers lie on an axis that has the time of each known worker after that
    of the one before.
    """
