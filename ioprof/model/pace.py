"""How fast a pipeline is: as it was measured, and as it is replayed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ioprof.analysis.charge.steps import warmup
from ioprof.model.changed import filled
from ioprof.model.engine import RankTimes, Simulation
from ioprof.model.pipeline import Pipeline, Program
from ioprof.model.plan import plan
from ioprof.model.refusals import Refusal, ReplayError


@dataclass(frozen=True)
class Pace:
    """How fast a job is."""

    step_s: float
    """Time of a step without the start of the job: mean over ranks, and over all steps from the
    first steady one to the end of the loop, with what is between epochs and after the last."""
    total_s: float
    """From the first wait for a batch to the end of the last step, of the slowest rank."""


def measured(recorded: Pipeline) -> Pace:
    """What was recorded."""
    times = [
        RankTimes(
            ((rank.taken_ns - rank.begin_ns) / 1e9).tolist(), (rank.end_ns - rank.begin_ns) / 1e9
        )
        for rank in recorded.ranks
    ]
    begin_ns = min(rank.begin_ns for rank in recorded.ranks)
    later_s = [(rank.begin_ns - begin_ns) / 1e9 for rank in recorded.ranks]
    return _pace(recorded, times, later_s)


def replayed(recorded: Pipeline, seed: int = 0) -> Pace:
    """What the simulation says of a pipeline."""
    times = Simulation(plan(filled(recorded, seed))).run()
    return _pace(recorded, times, [0.0] * len(times))


def _pace(recorded: Pipeline, times: list[RankTimes], later_s: list[float]) -> Pace:
    """`later_s`: of each rank, how much later than the first one it began."""
    steps_s, totals_s = list[float](), list[float]()
    for rank, each, later in zip(recorded.ranks, times, later_s, strict=True):
        weight = rank.program.weight
        # from an action to the next one: what an action stands for, the next one does too, but for
        # what is between epochs
        took_s = np.diff(np.array([*each.ended_s, each.end_s]))
        took_s *= np.minimum(weight, np.append(weight[1:], 1.0))
        totals_s.append(later + each.ended_s[0] + float(took_s.sum()))
        steps_s.append(_step_s(rank.program, took_s))
    return Pace(float(np.mean(steps_s)), max(totals_s))


def _step_s(program: Program, took_s: NDArray[np.float64]) -> float:
    """`took_s`: of each action, from its end to that of the next one, as often as it stands for."""
    steps = np.cumsum(program.weight * program.is_step)
    count = round(float(steps[-1])) if len(steps) else 0
    if not count:  # of the beginning of a job: as many batches to validate on may come first
        raise ReplayError(Refusal.FEW_BATCHES, "0")
    first = int(np.searchsorted(steps, warmup(count) + 1 - 1e-9))
    before = steps[first] - program.weight[first]
    return max(float(took_s[first:].sum()) / float(steps[-1] - before), 1e-9)
