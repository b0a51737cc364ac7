"""How fast a pipeline is: as it was measured, and as it is replayed."""

from dataclasses import dataclass

import numpy as np

from ioprof.analysis.charge.steps import warmup
from ioprof.model.changed import filled
from ioprof.model.engine import RankTimes, Simulation
from ioprof.model.pipeline import Op, Pipeline, Rank
from ioprof.model.plan import plan
from ioprof.model.refusals import Refusal, ReplayError


@dataclass(frozen=True)
class Pace:
    """How fast a job is."""

    step_s: float
    """Time from one batch of training to the next: mean over the steady ones, and over ranks."""
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
    return Pace(
        _steady_step_s(recorded, times),
        max(rank.end_ns - begin_ns for rank in recorded.ranks) / 1e9,
    )


def replayed(recorded: Pipeline, seed: int = 0) -> Pace:
    """What the simulation says of a pipeline."""
    times = Simulation(plan(filled(recorded, seed))).run()
    return Pace(_steady_step_s(recorded, times), max(each.end_s for each in times))


def _steady_step_s(recorded: Pipeline, times: list[RankTimes]) -> float:
    return float(
        np.mean([_of_rank(rank, each) for rank, each in zip(recorded.ranks, times, strict=True)])
    )


def _of_rank(rank: Rank, times: RankTimes) -> float:
    takes = [
        ended
        for op, number, ended in zip(
            rank.program.ops, rank.program.iterations, times.ended_s, strict=True
        )
        if op is Op.TAKE and not rank.iterations[number].is_validation
    ]
    if not takes:  # of the beginning of a job: as many batches to validate on may come first
        raise ReplayError(Refusal.FEW_BATCHES, "0")
    steady = takes[warmup(len(takes)) :]
    return max((steady[-1] - steady[0]) / max(1, len(steady) - 1), 1e-9)
