"""Converts times of a GPU's own timer to the clock of its host, from pairs of both that were read
one after the other.
"""

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ioprof.ingest.clocks.clock_offset import MOST_DRIFT_RATIO

_BLOCK_NS: Final = 30_000_000_000
"""Quartz changes its rate with temperature, by some 0.1 ppm in this time: 3 µs."""
_BINS: Final = 256
"""Of a block; only the least delay of each is looked at."""

_Array = npt.NDArray[np.int64]


def host_times(gpu_ns: _Array, pairs: tuple[_Array, _Array]) -> _Array:
    """Times of the GPU as times of the host. `pairs`: when something happened by the GPU, and when
    the host knew of it: later.

    In each block of 30 s, the line below all pairs is taken that is nearest to them. Its times are
    late by the least delay of the block, which is not known. Where there is no pair, that of the
    nearest block counts; at least one pair must be there.
    """
    known_gpu, known_host = pairs
    origin = int(known_gpu.min())
    block_of = (known_gpu - origin) // _BLOCK_NS
    blocks = np.unique(block_of)
    converted = np.empty(len(gpu_ns), np.int64)
    nearest = (
        blocks[np.abs(blocks[:, None] - ((gpu_ns - origin) // _BLOCK_NS)[None, :]).argmin(axis=0)]
        if len(gpu_ns)
        else gpu_ns
    )
    for block in blocks.tolist():
        chosen, wanted = block_of == block, nearest == block
        since = int(known_gpu[chosen].min())
        times, delays = known_gpu[chosen] - since, known_host[chosen] - known_gpu[chosen]
        least = int(delays.min())
        slope, offset = _line_below((times).astype(np.float64), (delays - least).astype(np.float64))
        drift = np.rint(offset + slope * (gpu_ns[wanted] - since)).astype(np.int64)
        converted[wanted] = gpu_ns[wanted] + least + drift
    return converted


def _line_below(times: npt.NDArray[Any], values: npt.NDArray[Any]) -> tuple[float, float]:
    """Slope and value at 0 of the line that is nowhere above the points and has the least sum of
    distances to them.

    It is the edge of their lower convex hull at their mean time.
    """
    least_times, least_values = _least_of_bins(times, values)
    hull: list[tuple[float, float]] = []
    for point in zip(least_times.tolist(), least_values.tolist(), strict=True):
        while len(hull) > 1 and _turns_right(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    mean = float(times.mean())
    slope = next(
        (
            (right[1] - left[1]) / (right[0] - left[0])
            for left, right in pairwise(hull)
            if left[0] <= mean <= right[0]
        ),
        0.0,
    )
    slope = min(max(slope, -MOST_DRIFT_RATIO), MOST_DRIFT_RATIO)
    return slope, float((least_values - slope * least_times).min())


def _least_of_bins(
    times: npt.NDArray[Any], values: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Of points in the same 256th of the time the one with the least value, in order of time."""
    width = max(float(times.max()), 1.0) / _BINS
    bins = np.minimum((times / width).astype(np.int64), _BINS - 1)
    order = np.lexsort((values, bins))
    _, first = np.unique(bins[order], return_index=True)
    least = order[first]
    return times[least], values[least]


def _turns_right(
    first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]
) -> bool:
    """Whether `middle` is on or above the line from `first` to `last`."""
    return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (
        middle[0] - first[0]
    )
