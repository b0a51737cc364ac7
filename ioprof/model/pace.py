"""How fast a pipeline is: as it was measured, and as it is replayed."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.analysis.charge.steps import warmup
from ioprof.model.changed import filled
from ioprof.model.engine import Simulation
from ioprof.model.pipeline import OWN, Pipeline, Rank
from ioprof.model.plan import plan
from ioprof.model.refusals import Refusal, ReplayError

_AFTER_EPOCH: Final = [OWN.index("validation"), OWN.index("checkpoint")]


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
    begin_ns = min(rank.begin_ns for rank in recorded.ranks)
    begun_s = [(np.append(rank.begun_ns, rank.end_ns) - begin_ns) / 1e9 for rank in recorded.ranks]
    return _pace(recorded, begun_s)


def replayed(recorded: Pipeline, seed: int = 0) -> Pace:
    """What the simulation says of a pipeline."""
    times = Simulation(plan(filled(recorded, seed))).run()
    return _pace(recorded, [np.array([*each.begun_s, each.end_s]) for each in times])


def _pace(recorded: Pipeline, begun_s: list[NDArray[np.float64]]) -> Pace:
    """`begun_s`: when the actions of each rank began, and when the last one had ended."""
    steps_s, totals_s = list[float](), list[float]()
    for rank, each in zip(recorded.ranks, begun_s, strict=True):
        took_s = np.diff(each) * rank.program.weight
        totals_s.append(float(each[0] + took_s.sum()))
        steps_s.append(_step_s(rank, took_s))
    return Pace(float(np.mean(steps_s)), max(totals_s))


def _step_s(rank: Rank, took_s: NDArray[np.float64]) -> float:
    """`took_s`: of each action, with what follows it, as often as it stands for."""
    program = rank.program
    steps = np.cumsum(program.weight * program.is_step)
    count = round(float(steps[-1])) if len(steps) else 0
    if not count:  # of the beginning of a job: as many batches to validate on may come first
        raise ReplayError(Refusal.FEW_BATCHES, "0")
    first = int(np.searchsorted(steps, warmup(count) + 1 - 1e-9))
    before = steps[first] - program.weight[first]
    whole_s, num_steps = float(took_s[first:].sum()), float(steps[-1] - before)
    if rank.depth is not None and num_steps > 1:
        # at its end the loop waits for all that it had launched: no more of that step than what
        # follows it at the end of an epoch
        last = int(np.flatnonzero(program.is_step)[-1])
        whole_s += float(program.after_s[last][_AFTER_EPOCH].sum()) - float(took_s[last])
        num_steps -= 1
    return max(whole_s / num_steps, 1e-9)
