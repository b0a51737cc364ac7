"""Spans in bins of time, in C (native/bins.c). All arguments are contiguous arrays."""

from numpy import float64, int64, uint8
from numpy.typing import NDArray

_Integers = NDArray[int64]
_Floats = NDArray[float64]
_Bytes = NDArray[uint8]

def add_spans(
    starts: _Integers, ends: _Integers, moved: _Integers, processes: _Integers, kinds: _Bytes, sources: _Bytes,  # noqa: E501
    known_processes: _Integers, pairs: _Integers, least_ns: _Integers, classes: _Integers, sources_of_class: _Integers,  # noqa: E501
    busy_ns: _Floats, longest: _Bytes, durations: _Floats, source_bytes: _Floats,
    num_kinds: int, num_sources: int, bin_ns: float, end_ns: int, /,
) -> None:  # fmt: skip
    """Add spans to what was open in each bin. `pairs` has the pair of each process, kind and
    source, and last those of all other processes; none is below 0. `least_ns` are the least
    durations of the codes from 2 on; `classes` are those of the pairs.
    """
