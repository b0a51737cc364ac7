"""How often a job should save, by what a checkpoint costs and how often the job fails.

With failures at random (exponential), a checkpoint that costs C, a restart of R and a mean time
between failures of M, a job that saves after each W of training makes W of progress in

    M exp(R / M) (exp((W + C) / M) - 1)

on average: what was trained since the last checkpoint is lost with each failure. The best W is that
of Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006); to first order it is the sqrt(2 C M) of Young (1974).
"""

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt

from ioprof.analysis.ledger import TO_FIRST_STEP
from ioprof.format.run_record import Summary

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class SaveInterval:
    """The best interval of a run, and what is lost with it and with that of now."""

    mtbf_s: float
    """Mean time between failures of the whole job, that was given."""
    cost_s: float
    """Of one checkpoint: what it stops the training for, and slows it."""
    restart_s: float
    """From the start of the command to the first step."""
    seconds: float
    """Of training between two checkpoints."""
    steps: int | None
    """The same in steps. None: there are none."""
    lost_ratio: float
    """Share of the time that saving, restarts and lost work then take."""
    now_ratio: float | None
    """The same with the interval of this run. None: it wrote one checkpoint, or each of them took
    as long as the time from one to the next."""


def best_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Training between two checkpoints, by Daly."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_s


def lost_ratio(interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of the time, 0 to 1, that is no progress."""
    exponent = (interval_s + cost_s) / mtbf_s
    if exponent > _LARGEST_EXPONENT or restart_s / mtbf_s > _LARGEST_EXPONENT:
        return 1.0
    taken_s = mtbf_s * exp(restart_s / mtbf_s) * expm1(exponent)
    return 1 - interval_s / taken_s if taken_s < inf else 1.0


def save_interval(summary: Summary, mtbf_s: float) -> SaveInterval | None:
    """What is best for a run; None: it wrote no checkpoint, or none that took time."""
    found = summary.saves
    if found is None or not found.cost_s:
        return None
    restart_s = sum(phase.seconds for phase in summary.ledger.phases if phase.name in TO_FIRST_STEP)
    best_s = best_interval_s(found.cost_s, mtbf_s)
    between_s = max(0.0, found.every_s - found.cost_s) if found.every_s else 0.0
    step_s = (
        between_s / found.every_steps if between_s and found.every_steps else summary.steps.p50_s
    )
    return SaveInterval(
        mtbf_s,
        found.cost_s,
        restart_s,
        best_s,
        max(1, round(best_s / step_s)) if step_s else None,
        lost_ratio(best_s, found.cost_s, restart_s, mtbf_s),
        lost_ratio(between_s, found.cost_s, restart_s, mtbf_s) if between_s else None,
    )
