"""Quantiles of numbers that are read several times instead of held in memory."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ioprof.format.dataset import QUANTILE_SHARES

_DIGIT_BITS: Final = 11
_NUM_DIGITS: Final = 3
"""Of a number below 2^32, the first of them has 10 bits."""

Parts = Callable[[], Iterable[NDArray[Any]]]
"""Returns all numbers, in parts, from the start."""


def length_quantiles(parts: Parts, count: int, total: int) -> dict[str, int]:
    """The same as `dataset.quantiles_of` all of them; there are `count`, and `total` is their
    sum.
    """
    places = (count - 1) * (np.array(list(QUANTILE_SHARES.values())) / 100)
    below = np.floor(places).astype(np.int64)
    found = numbers_at(parts, [*below.tolist(), *np.minimum(below + 1, count - 1).tolist()])
    low, high = np.split(np.array(found, np.int64), 2)
    weight = places - below
    # As `numpy.percentile` computes it, to the last bit.
    values = np.where(weight < 0.5, low + (high - low) * weight, high - (high - low) * (1 - weight))
    return {
        **{
            name: round(value) for name, value in zip(QUANTILE_SHARES, values.tolist(), strict=True)
        },
        "mean": round(total / count),
    }


def numbers_at(parts: Parts, places: Sequence[int]) -> list[int]:
    """The numbers, below 2^32, that would be at these places if all were sorted.

    Each of three passes finds the next digit of them, by counting the digits of the numbers that
    begin like one of them.
    """
    begins, left = np.zeros(len(places), np.int64), np.array(places, np.int64)
    for shift in range((_NUM_DIGITS - 1) * _DIGIT_BITS, -1, -_DIGIT_BITS):
        known, rows = np.unique(begins, return_inverse=True)
        counts = np.zeros((len(known), 1 << _DIGIT_BITS), np.int64)
        for part in parts():
            heads = part.astype(np.int64) >> shift
            row = np.minimum(np.searchsorted(known, heads >> _DIGIT_BITS), len(known) - 1)
            is_known = known[row] == heads >> _DIGIT_BITS
            np.add.at(counts, (row[is_known], heads[is_known] & ((1 << _DIGIT_BITS) - 1)), 1)
        upto = counts.cumsum(axis=1)
        digits = [
            int(np.searchsorted(upto[row], place, side="right"))
            for row, place in zip(rows, left, strict=True)
        ]
        left -= upto[rows, digits] - counts[rows, digits]
        begins = begins << _DIGIT_BITS | digits
    found: list[int] = begins.tolist()
    return found
