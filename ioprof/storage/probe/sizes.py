"""Random record lengths with the distribution given by a dataset's manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ioprof.storage.probe.outcomes import Numbers

_SHARES: Final = {
    "min": 0.0,
    "p5": 0.05,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p95": 0.95,
    "p99": 0.99,
    "max": 1.0,
}
_STEPS: Final = 512
_STEEPEST: Final = 4096.0
MAX_RECORD_BYTES: Final = 1 << 30

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RecordSizes:
    """A distribution of record lengths: log-linear between known quantiles; the last part is
    steeper, so that the mean is right.
    """

    shares: tuple[float, ...]
    """Rising from 0 to 1."""
    values: tuple[float, ...]
    """Bytes at these shares, at least 1."""
    steepness: float = 1.0
    """Of the last part, from a to b bytes: a record at the fraction u has a · (b / a) ** (u **
    steepness) bytes."""

    @classmethod
    def fixed(cls, num_bytes: int) -> "RecordSizes":
        """All records have the same length."""
        return cls((0.0, 1.0), (num_bytes, num_bytes))

    @classmethod
    def of_quantiles(cls, quantiles: Mapping[str, int]) -> "RecordSizes":
        """From a manifest's `record_bytes_quantiles`; values that decrease are raised to the
        previous one.
        """
        values = np.maximum.accumulate(
            np.clip([quantiles[name] for name in _SHARES], 1, MAX_RECORD_BYTES)
        )
        return _with_mean(cls(tuple(_SHARES.values()), tuple(values.tolist())), quantiles["mean"])

    def draw(self, number: int, random: np.random.Generator) -> Numbers:
        """Lengths in bytes of `number` random records."""
        lengths: Numbers = np.rint(self._at(random.random(number))).astype(np.int64)
        return lengths

    @property
    def mean(self) -> float:
        """Mean length in bytes."""
        middles = (np.arange(_STEPS) + 0.5) / _STEPS
        parts = zip(self.shares, self.shares[1:], strict=False)
        return float(
            sum(
                (end - start) * self._at(start + (end - start) * middles).mean()
                for start, end in parts
            )
        )

    def _at(self, shares: Shares) -> Shares:
        part = np.clip(np.searchsorted(self.shares, shares, "right") - 1, 0, len(self.shares) - 2)
        edges, values = np.array(self.shares), np.array(self.values)
        within = (shares - edges[part]) / (edges[part + 1] - edges[part])
        steepness = np.where(part == len(edges) - 2, self.steepness, 1.0)
        found: Shares = values[part] * (values[part + 1] / values[part]) ** (within**steepness)
        return found


def _with_mean(sizes: RecordSizes, mean: int) -> RecordSizes:
    """The distribution with the steepness that gives this mean: ImageNet's largest image is 40
    times the 99th percentile.
    """
    # the steeper, the fewer large records, the smaller the mean
    low, high = (
        1 / _STEEPEST,
        _STEEPEST,
    )
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high) if replace(sizes, steepness=middle).mean > mean else (low, middle)
        )
    return replace(sizes, steepness=low)
