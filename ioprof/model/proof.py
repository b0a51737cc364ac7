"""What a change brought in runs that were made with it and without it, beside what was
predicted.
"""

import json
import math
from dataclasses import asdict, dataclass

import numpy as np

from ioprof.analysis.student import quantile
from ioprof.model.prediction import Range


@dataclass(frozen=True)
class Proof:
    """A prediction and what was measured."""

    action: str
    predicted: float | None
    """Speedup: samples per second with the change over those without. Null: see `reason`."""
    predicted_range: Range | None
    reason: str | None
    """Why nothing was predicted."""
    measured: float
    """The same, measured: the geometric mean of all pairs of runs."""
    measured_range: Range | None
    """Of the mean, with 95 % probability. Null: one pair does not show how much runs vary."""
    pairs: tuple[float, ...]
    """Of each pair of runs."""
    runs: tuple[str, ...]
    """Folders of each pair: the first without the change."""
    is_bound: bool = False
    """`predicted` is the most that it can bring."""
    command: tuple[str, ...] | None = None
    """Of a recorded script: what was run. Null: a job of `ioprof run`."""
    changed: str | None = None
    """Of a recorded script: what was changed in it, and in which of its loaders."""
    notes: tuple[str, ...] = ()
    """What else differed between the runs of a pair."""

    @property
    def error(self) -> float | None:
        """Of the prediction: 0.05 is 5 % too high. Null also where it is a bound."""
        return (
            None if self.predicted is None or self.is_bound else self.predicted / self.measured - 1
        )

    @property
    def agrees(self) -> bool | None:
        """Whether the two ranges have a value in common; of a bound, whether it was kept."""
        if self.predicted_range is None:
            return None
        if self.is_bound:
            return (
                self.measured_range.low if self.measured_range else self.measured
            ) <= self.predicted_range.high
        if self.measured_range is None:
            return self.predicted_range.low <= self.measured <= self.predicted_range.high
        return (
            self.predicted_range.low <= self.measured_range.high
            and self.measured_range.low <= self.predicted_range.high
        )

    def to_json(self) -> str:
        """All of it, with `error` and `agrees`."""
        return json.dumps(
            {**asdict(self), "error": self.error, "agrees": self.agrees}, indent=1, allow_nan=False
        )


def mean_ratio(ratios: tuple[float, ...]) -> tuple[float, Range | None]:
    """The geometric mean of ratios, and where the true one is with 95 % probability (Student's t on
    logarithms).
    """
    logs = np.log(np.array(ratios))
    mean = float(logs.mean())
    if len(logs) < 2:
        return math.exp(mean), None
    half = quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), Range(math.exp(mean - half), math.exp(mean + half))
