"""Spans in bins of time, in C (native/bins.c). All arguments are contiguous arrays."""

from numpy import float64, int64, uint8
from numpy.typing import NDArray

_Integers = NDArray[int64]
_Floats = NDArray[float64]
_Bytes = NDArray[uint8]

def add_spans(
    starts: _Integers, ends: _Integers, pairs: _Integers, codes: _Bytes, moved: _Integers, classes: _Integers, sources: _Integers,
    busy_ns: _Floats, longest: _Bytes, durations: _Floats, source_bytes: _Floats, bin_ns: float, /,
) -> None:  # fmt: skip
    """Add spans to what was open in each bin; none with a pair below 0. `classes` and `sources` are those of the pairs."""
