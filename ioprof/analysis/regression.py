"""Whether a job became slower or faster in the course of its runs.

Runs of a job differ by chance, so one run is compared with the variation of those before it, and
not with a fixed percentage. Each run and the two after it are tested against the level of the runs
before (Student's t of the logarithms of their times), with a probability of a false alarm of 1 %.
`benchmarks/history.py` measures how often a change is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from statistics import NormalDist, fmean
from typing import Final

from ioprof.analysis.student import quantile

FALSE_ALARMS: Final = (0.001, 0.002, 0.006)
"""Probability of a false alarm, in each direction, when the first run after a supposed change is
tested, the first two, or the first three. The test of three runs has the largest, since it has most
data. In a long history there is a false alarm at 1 % of the runs (`benchmarks/history.py`): their
sum, and those that follow because a false alarm has set a wrong level."""
FEWEST_RUNS: Final = 6
"""Of a history: the variation of fewer runs is not known well enough for any 3 %."""
FEWEST_OF_LEVEL: Final = 3
"""Runs of a level, where the variation is known from earlier ones."""
_MOST_RUNS: Final = 20
"""Of a level: older ones may be of another machine or dataset."""
LEAST_RATIO: Final = 0.01
"""Smaller changes are none: machines drift by as much within days."""


@dataclass(frozen=True)
class PastRun:
    """A run of a history."""

    number: int
    """In its store."""
    job: str
    name: str
    folder: str
    started: str
    status: str | None
    commit: str | None
    seconds: float | None
    """Per `unit`, of the whole job in steady state. Null: no step."""
    unit: str | None
    """`sample` or `step`."""
    bound_by: str | None


@dataclass(frozen=True)
class Level:
    """The runs between two changes."""

    mean_s: float
    """Geometric mean of their times."""
    variation: float
    """Standard deviation from run to run, relative."""
    runs: int
    freedom: int
    """Degrees of freedom of `variation`."""

    @property
    def detectable(self) -> float:
        """The relative change that is found within three runs in nine of ten cases."""
        error = self.variation * sqrt(1 / len(FALSE_ALARMS) + 1 / self.runs)
        needed = quantile(1 - FALSE_ALARMS[-1], self.freedom) + NormalDist().inv_cdf(0.9)
        return max(LEAST_RATIO, exp(needed * error) - 1)


@dataclass(frozen=True)
class LevelChange:
    """From which run on the job takes another time."""

    at: int
    """Place of the first run of the new level."""
    ratio: float
    """Time of the runs by which it was found over that of the level before: 1.03 is 3 % slower."""
    found_at: int
    """Place of the run with which it was found."""


def level_of(seconds: Sequence[float], earlier: Sequence[Sequence[float]]) -> Level | None:
    """The level of these runs, whose variation is also that of the runs of `earlier` levels. None:
    too few to know it.
    """
    groups = [[log(each) for each in group[-_MOST_RUNS:]] for group in (*earlier, seconds)]
    freedom = sum(len(group) - 1 for group in groups if group)
    if len(seconds) < FEWEST_OF_LEVEL or freedom < FEWEST_RUNS - 1:
        return None
    squares = sum((each - fmean(group)) ** 2 for group in groups if group for each in group)
    own = groups[-1]
    return Level(exp(fmean(own)), sqrt(squares / freedom), len(own), freedom)


def level_changes(seconds: Sequence[float]) -> tuple[LevelChange, ...]:
    """The changes in a history of runs, given as positive times of the same work, oldest first."""
    found: list[LevelChange] = []
    for last in range(len(seconds)):
        for number, probability in enumerate(FALSE_ALARMS, 1):
            first = last + 1 - number
            *earlier, own = levels(seconds[: max(first, 0)], found)
            level = level_of(own, earlier)
            if level is None:
                continue
            ratio = exp(fmean(log(each) for each in seconds[first : last + 1])) / level.mean_s
            if is_change(level, ratio, number, probability):
                found.append(LevelChange(first, ratio, last))
                break
    return tuple(found)


def levels(seconds: Sequence[float], changes: Sequence[LevelChange]) -> list[Sequence[float]]:
    """The runs, divided at the changes; the last level is that of the newest runs."""
    bounds = [0, *(change.at for change in changes), len(seconds)]
    return [seconds[start:end] for start, end in pairwise(bounds)]


def is_change(level: Level, ratio: float, number: int, probability: float) -> bool:
    """Whether the mean of `number` runs, which take `ratio` times as long as the level, is of
    another level; by chance it is with `probability`, in each direction.
    """
    error = level.variation * sqrt(1 / number + 1 / level.runs)
    most = quantile(1 - probability, level.freedom) * error
    return abs(log(ratio)) > max(most, log(1 + LEAST_RATIO))
