"""What each cause costs a job: the recorded pipeline replayed with that cause at no cost (DESIGN 8,
law 3).

A wait sees only the last stages of what it waits for, and a stage may cost a job nothing because
another one is as slow. So what a cause costs is neither what was waited for nor the workers' time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ioprof.format.schema import CAUSES
from ioprof.model.accuracy import SHOWN, Kind
from ioprof.model.changed import resampled, shortened, with_factors
from ioprof.model.pace import Pace, measured, replayed
from ioprof.model.pipeline import OWN, STAGES, Pipeline
from ioprof.model.prediction import QUANTILES, Range

_MOST_ACTIONS: Final = 1_000
_RESAMPLES: Final = 6
_RESAMPLED_ACTIONS: Final = 200


@dataclass(frozen=True)
class Gain:
    """What the job would gain if a cause cost nothing."""

    cause: str
    seconds: float
    """Of the time from the first wait to the end of the last step."""
    share: float
    """Of a steady step's time, 0 to 1."""
    range: Range
    """Of `share`, as far as the variation of the steps and the error of the replay of the run
    itself say."""

    def range_up_to(self, most: float) -> Range:
        """The same, with the errors of earlier predictions: runs that were made without a cause
        differed as much from theirs.

        `most` is the part of the time in which the cause was waited for or worked on. The gain is
        no larger, and nothing becomes slower because a cause costs nothing.
        """
        error = SHOWN[Kind.STORAGE if self.cause == "storage" else Kind.STAGE].error
        low, high = 1 - (1 - self.share) * (1 + error), 1 - (1 - self.share) / (1 + error)
        return Range(
            min(self.range.low, self.share, max(low, 0.0)),
            max(self.range.high, self.share, min(high, most)),
        )


@dataclass(frozen=True)
class Gains:
    """What each cause costs, and how well the replay agrees with the run."""

    gains: tuple[Gain, ...]
    """Of all causes in the order of `ioprof.format.schema.CAUSES`."""
    baseline_error: float
    """See `Prediction.baseline_error`."""


class Replays:
    """A run to be replayed with changes, itself and drawn anew."""

    def __init__(self, recorded: Pipeline) -> None:
        self.recorded = shortened(recorded, _MOST_ACTIONS)
        self.base = replayed(self.recorded)
        short = shortened(recorded, _RESAMPLED_ACTIONS)
        self._drawn = [(seed, resampled(short, seed)) for seed in range(1, _RESAMPLES + 1)]
        self._bases_s = [replayed(each, seed).step_s for seed, each in self._drawn]

    def speedups(self, change: Callable[[Pipeline], Pipeline]) -> tuple[Pace, list[float]]:
        """The run with a change, and how many times as fast its steps are, those of the run itself
        first, then those drawn anew.
        """
        after = replayed(change(self.recorded))
        drawn = zip(self._drawn, self._bases_s, strict=True)
        others = [base_s / replayed(change(each), seed).step_s for (seed, each), base_s in drawn]
        return after, [self.base.step_s / after.step_s, *others]


def gains_of(recorded: Pipeline, replays: Replays | None = None) -> Gains:
    """What each cause costs. `replays`: those of the pipeline, if there are any."""
    replays = replays or Replays(recorded)
    before, without = measured(replays.recorded), replays.base
    error = without.step_s / before.step_s - 1
    found, has_time = list[Gain](), _causes_with_time(replays.recorded)
    for cause in CAUSES:
        if cause not in has_time:
            found.append(Gain(cause, 0.0, 0.0, Range(-abs(error), abs(error))))
            continue
        after, speedups = replays.speedups(partial(with_factors, factors={cause: 0.0}))
        shares = [1 - 1 / speedup for speedup in speedups]
        low, high = (float(value) for value in np.quantile(shares, QUANTILES))
        seconds = before.total_s * (1 - after.total_s / without.total_s)
        between = Range(min(low, shares[0]) - abs(error), max(high, shares[0]) + abs(error))
        found.append(Gain(cause, seconds, shares[0], between))
    return Gains(tuple(found), error)


def _causes_with_time(recorded: Pipeline) -> set[str]:
    """Causes of which something is replayed; what is free already gains nothing."""
    found = {"loader", "delivery", "straggler"}  # also lags, transits and start-up; who meets whom
    for rank in recorded.ranks:
        found |= {
            cause
            for cause, spent in zip(OWN, rank.program.after_s.sum(0), strict=True)
            if spent > 0
        }
        found |= {"compute"} if rank.program.device_s.any() else set()
        found |= {"exchange"} if rank.program.transfer_s.any() else set()
        for each in rank.iterations:
            found |= {"validation"} if each.is_validation else set()
            found |= {
                stage
                for stage, spent in zip(STAGES, each.tasks.stages_s.sum(0), strict=True)
                if spent > 0
            }
    return found
