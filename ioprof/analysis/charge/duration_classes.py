"""Classes of durations, from which quantiles are found without all durations in memory."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

_PER_DOUBLING: Final = 24
"""Classes are 3 % wide: the middle of a class is within 1.5 % of what lies in it."""
NUM_CLASSES: Final = 64 * _PER_DOUBLING
UNTIMED: Final = 0
"""The class of 0 and 1 ns. No call is that fast: what is in it was not timed."""


def duration_class(nanoseconds: pl.Expr) -> pl.Expr:
    """The class of a duration."""
    return (nanoseconds.clip(1).log(2) * _PER_DOUBLING).floor().cast(pl.Int32)


def _least_ns() -> NDArray[np.int64]:
    """The least duration of each class; of one that has none, that of the next."""
    near = np.floor(2.0 ** (np.arange(63 * _PER_DOUBLING) / _PER_DOUBLING)).astype(np.int64)
    candidates = np.unique(np.maximum(near[:, None] + np.arange(-2, 3), 1))
    classes = pl.select(duration_class(pl.lit(pl.Series(candidates)))).to_series().to_numpy()
    reached = np.searchsorted(np.maximum.accumulate(classes), np.arange(NUM_CLASSES), side="left")
    return np.append(candidates, np.iinfo(np.int64).max)[reached]


LEAST_NS: Final = _least_ns()
"""By class. `np.searchsorted(LEAST_NS, took_ns, side="right") - 1` is the class of a duration from
1 ns on; of one of more than 6 days it may be that of a duration which differs by 1 ns."""


def quantiles_ns(
    classes: NDArray[np.int64], counts: NDArray[np.int64], ratios: Sequence[float]
) -> tuple[float, ...]:
    """The middle of the class in which each quantile lies; of classes in ascending order, with how
    many durations each has.
    """
    cumulated = np.cumsum(counts)
    wanted = [round(ratio * (int(cumulated[-1]) - 1)) for ratio in ratios]
    places = np.searchsorted(cumulated, wanted, side="right")
    return tuple((2.0 ** ((classes[places] + 0.5) / _PER_DOUBLING)).tolist())
