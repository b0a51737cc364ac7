"""`whatif`: what a change of a recorded run would bring, with the error of the replay and a
range.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from ioprof.format.trace import Trace
from ioprof.model.accuracy import (
    are_compared,
    changes_competition,
    error_of,
    further_error,
    kinds,
)
from ioprof.model.assumptions import Assumption, assumptions, check_change, loses_workers
from ioprof.model.changed import COLLATE_BY_LOOP, changed, resampled, shortened, with_factors
from ioprof.model.changes import Change
from ioprof.model.other_costs import NONE, Grounds, grounds
from ioprof.model.pace import Pace, measured, replayed
from ioprof.model.pipeline import Pipeline
from ioprof.model.recorded import pipeline

RESAMPLES: Final = 20
"""Replays of runs that are drawn anew, for the range."""
MOST_ACTIONS: Final = 400
"""Of those replays."""
QUANTILES: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Range:
    """Where a value lies with 95 % probability, as far as the variation of the run's own steps and
    the baseline's error say.
    """

    low: float
    high: float


@dataclass(frozen=True)
class Recording:
    """One of several recordings of a job, and what is predicted from it alone."""

    step_s: float
    """A steady step, as measured."""
    speedup: float
    """With the change, as predicted."""


@dataclass(frozen=True)
class Prediction:
    """What a change would bring."""

    change: Change
    measured: Pace
    """The recorded run."""
    baseline: Pace
    """The recorded run, replayed without any change."""
    baseline_error: float
    """Of the replayed step against the measured one: 0.02 is 2 % too long."""
    predicted: Pace
    """With the change: the measured values times the ratio of the replays with and without it."""
    speedup: float
    """Samples per second with the change over those without."""
    speedup_range: Range
    """Also as wide as `kind_error` and `further_error`."""
    kind_error: float
    """How far predictions of this kind were from runs that were made with the change
    (`accuracy.SHOWN`)."""
    is_compared: bool
    """Whether there were such runs; else `kind_error` is assumed."""
    further_error: float
    """What makes this prediction less sure adds so much, such as other programs on the cores."""
    samples_per_s: float | None
    """With the change, steady, of all ranks. Null: the batch size is not known."""
    measured_samples_per_s: float | None
    assumptions: tuple[Assumption, ...]
    recordings: tuple[Recording, ...] = ()
    """Of a prediction from several recordings, see `recordings.of_recordings`; else empty."""

    def to_json(self) -> str:
        """The prediction as JSON; `assumptions` are sentences, a factor at no cost is null."""
        found = asdict(self)
        found["change"] = {
            **found["change"],
            "speeds": {
                cause: speed if np.isfinite(speed) else None
                for cause, speed in self.change.speeds.items()
            },
        }
        found["assumptions"] = [{"code": each.code, "text": each.text} for each in self.assumptions]
        return json.dumps(found, indent=1, allow_nan=False)


def whatif(trace: Trace, change: Change, like: Trace | None = None) -> Prediction:
    """What a recorded run would be like with a change, with batches as in the run `like` if that is
    given.

    `ReplayError` says why a run cannot be replayed.
    """
    recorded = pipeline(trace)
    check_change(recorded, change)
    found = grounds(
        trace.run, recorded, change, None if like is None else (like.run, pipeline(like))
    )
    return predict(recorded, change, found)


def predict(recorded: Pipeline, change: Change, found: Grounds = NONE) -> Prediction:
    """The same of a pipeline."""
    recorded = as_replayed(recorded, change)
    before, without, new = measured(recorded), replayed(recorded), changed(recorded, change, found)
    after = replayed(new)
    error = without.step_s / before.step_s - 1
    predicted = Pace(
        before.step_s * after.step_s / without.step_s,
        before.total_s * after.total_s / without.total_s,
    )
    larger = (
        (new.batch_size or 1) / (recorded.batch_size or 1) * len(new.ranks) / len(recorded.ranks)
    )
    speedup = larger * without.step_s / after.step_s
    ratios = [speedup, *_ratios(recorded, change, found, larger)]
    low, high = (float(each) for each in np.quantile(ratios, QUANTILES))
    if loses_workers(recorded, change):  # what collating takes without shared memory is not known
        extremes = [with_factors(new, {"collate": factor}) for factor in (0.0, 1 / COLLATE_BY_LOOP)]
        ends = [larger * without.step_s / replayed(each).step_s for each in extremes]
        low, high = min(low, *ends), max(high, *ends)
    found_kinds = kinds(change, recorded)
    further = further_error(recorded, new, after.total_s, found_kinds)
    kind_error = error_of(found_kinds)
    wide = (1 + abs(error)) * (1 + kind_error + further)
    samples = (
        recorded.batch_size * len(recorded.ranks) / before.step_s if recorded.batch_size else None
    )
    return Prediction(
        change=change,
        measured=before,
        baseline=without,
        baseline_error=error,
        predicted=predicted,
        speedup=speedup,
        speedup_range=Range(min(low, speedup) / wide, max(high, speedup) * wide),
        kind_error=kind_error,
        is_compared=are_compared(found_kinds),
        further_error=further,
        samples_per_s=samples * speedup if samples else None,
        measured_samples_per_s=samples,
        assumptions=assumptions(recorded, change, found),
    )


def as_replayed(recorded: Pipeline, change: Change) -> Pipeline:
    """The run as it is replayed for a change: where who gets a core changes, times as measured say
    nothing of that.
    """
    return replace(recorded, shares_cores=recorded.shares_cores or changes_competition(change))


def _ratios(recorded: Pipeline, change: Change, found: Grounds, larger: float) -> list[float]:
    """Speedups in runs whose batches are drawn anew."""
    ratios = []
    short = shortened(recorded, MOST_ACTIONS)
    for seed in range(1, RESAMPLES + 1):
        drawn = resampled(short, seed)
        like = None if found.like is None else resampled(found.like, seed)
        new = changed(drawn, change, replace(found, like=like))
        ratios.append(larger * replayed(drawn, seed).step_s / replayed(new, seed).step_s)
    return ratios
