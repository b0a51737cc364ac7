"""Predictions and measurements of `what_if.py`, each the median of several runs, so that less of
the machine's noise is in them.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from what_if_runs import KeptRuns
from what_if_scenarios import Scenario, Variant

from ioprof.format.trace import Trace
from ioprof.model.accuracy import error_of_others
from ioprof.model.pace import measured
from ioprof.model.pipeline import Pipeline
from ioprof.model.recorded import pipeline

Factors = Callable[[Trace, Pipeline, Variant], tuple[float, float, float] | None]
"""Time of a step with a change over that without it, as predicted from a run: the value, the
lowest, the highest."""


@dataclass(frozen=True)
class MedianResult:
    """One change, as predicted from all first runs of its job, and as measured in all runs that
    were made with it.
    """

    scenario: str
    change: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    first_runs: tuple[float, ...]
    """Seconds of a step in the first runs."""
    changed_runs: tuple[float, ...]
    """The same in the changed runs."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether what was measured lies in the predicted range."""
        return self.low_s <= self.measured_s <= self.high_s


def folder_of_pair(number: int) -> str:
    """Where the runs of a change are, in the folder of its scenario."""
    return f"pair{number}"


def next_run(kept: Path, number: int) -> str:
    """The name of a further run with a change."""
    made = len(list((kept / folder_of_pair(number)).glob("changed*")))
    return f"{folder_of_pair(number)}/changed-{made + 1}"


def medians(
    scenario: Scenario, kept: Path, factors: Factors, text: Callable[[Variant], str]
) -> Iterator[MedianResult]:
    """All changes of a scenario. First runs that other programs disturbed predict nothing, and are
    left out.
    """
    runs = KeptRuns(kept)
    names = sorted(f"{path.parent.name}/{path.name}" for path in kept.glob("pair*/base*"))
    bases = [
        (trace, pipeline(trace)) for trace in (runs.record(scenario.job, name) for name in names)
    ]
    bases = [(trace, found) for trace, found in bases if not error_of_others(found)]
    base_s = tuple(measured(found).step_s for _, found in bases)
    for number, variant in enumerate(scenario.variants, 1):
        paths = sorted((kept / folder_of_pair(number)).glob("changed*"))
        changed_s = tuple(measured(pipeline(Trace.load(path))).step_s for path in paths)
        found = [factors(trace, recorded, variant) for trace, recorded in bases]
        times = [
            [seconds * each for each in values]
            for seconds, values in zip(base_s, found, strict=True)
            if values
        ]
        if times and changed_s:
            predicted_s, low_s, high_s = (
                statistics.median(column) for column in zip(*times, strict=True)
            )
            yield MedianResult(
                scenario.name,
                text(variant),
                predicted_s,
                low_s,
                high_s,
                statistics.median(changed_s),
                base_s,
                changed_s,
            )


def noise_of(runs_s: Sequence[float], count: int) -> list[float]:
    """The error if nothing is changed: the median of `count` runs that follow each other, over that
    of the others, less one.
    """
    if len(runs_s) <= count:
        return []
    around = [[*runs_s[first:], *runs_s[:first]] for first in range(len(runs_s))]
    return [
        statistics.median(each[:count]) / statistics.median(each[count:]) - 1 for each in around
    ]


def line(result: MedianResult) -> str:
    """A result in one line."""
    predicted_ms, low_ms, high_ms, measured_ms = (
        1e3 * seconds
        for seconds in (result.predicted_s, result.low_s, result.high_s, result.measured_s)
    )
    runs = ", ".join(f"{1e3 * seconds:.2f}" for seconds in result.changed_runs)
    return (
        f"  {result.change:34} predicted {predicted_ms:8.2f} ms ({low_ms:.2f} to {high_ms:.2f}, of"
        f" {len(result.first_runs)} runs), measured {measured_ms:8.2f} ms ({runs}), error"
        f" {result.error:+6.1%}"
    )


def spread(errors: Sequence[float]) -> str:
    """The median, the 95th percentile and the worst of errors."""
    ordered = sorted(map(abs, errors))
    most = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return (
        f"median {statistics.median(ordered):.1%}, 95 % within {most:.1%}, worst {ordered[-1]:.1%}"
    )


def say(found: Sequence[MedianResult]) -> None:
    """The errors of all changes, and beside them what comes of no change."""
    if not found:
        return
    print(
        f"{len(found)} changes, {sum(result.is_inside for result in found)} measured inside of the"
        " predicted range"
    )
    print(f"error: {spread([result.error for result in found])}")
    first = {result.scenario: result for result in reversed(found)}.values()
    noise = [
        each for result in first for each in noise_of(result.first_runs, len(result.changed_runs))
    ]
    if noise:
        print(f"the same job, {len(noise)} times: {spread(noise)}")
