"""What to change where ranks wait for each other."""

from typing import Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.own_advice import Lines

_UNEQUAL_STAGES: Final = 1.25
"""Time that a stage of a pipeline computes over the mean of the others, from which on the model
should be divided anew."""
_LARGE_BUBBLES: Final = 0.1
"""Share of the time of a pipeline of equal stages, from which on more microbatches are asked
for."""
_LARGE_BUBBLES_IN_TURN: Final = 0.25
"""Part of computing and waiting for messages that ranks waited, from which on they are said to
compute in turn."""
_MORE: Final = 4
"""Times as many microbatches, of which the bubbles are told."""
_ALIKE: Final = 0.8
"""Part of the time that others waited for a rank, from which on another rank that was waited for so
long is as late."""


def straggler_advice(evidence: Evidence) -> Lines:
    """What to change where ranks wait for one of them."""
    of_stages = tuple(_stages(evidence)) if evidence.run.config.parallel == "pipeline" else ()
    yield from of_stages
    waited_s = evidence.waited_for_s
    slowest = next(iter(waited_s), None)
    if slowest is None:
        return
    causes = evidence.steps.straggler_wait_s[slowest]
    most = max(causes, key=lambda cause: causes[cause])
    if of_stages and most == "compute":
        return
    second = next((rank for rank in waited_s if rank != slowest), None)
    by_messages = evidence.waits_for_messages
    if by_messages and most == "compute" and (in_turn := _in_turn(evidence)):
        yield in_turn
        return
    if second is not None and not by_messages and waited_s[second] >= _ALIKE * waited_s[slowest]:
        yield (
            f"Give all ranks as much work in each step: rank {slowest} was waited for"
            f" {waited_s[slowest]:.2f} s and rank {second} {waited_s[second]:.2f} s, so which one"
            " is late changes from step to step"
        )
        return
    before = "before it sends its messages" if by_messages else "before the exchange"
    yield (
        f"Look at what rank {slowest} does {before}: the others waited {waited_s[slowest]:.2f} s"
        f" for it, {causes[most]:.2f} s of that for its {most.replace('_', ' ')}"
    )


def _in_turn(evidence: Evidence) -> str | None:
    """Of ranks that send each other messages and compute as long as each other, but not at the same
    time; None: they are not so.

    Of S stages with M microbatches S - 1 of M + S - 1 turns are bubbles: what is b of the time is b
    / (b + k (1 - b)) of it with k M microbatches.
    """
    computed_s = sorted(row.compute_s for row in evidence.steps.per_rank if row.compute_s)
    waiting, computing = evidence.shares.get("straggler", 0.0), evidence.shares.get("compute", 0.0)
    if (
        len(computed_s) < 2
        or len(computed_s) < len(evidence.steps.per_rank)
        or not waiting + computing
    ):
        return None
    bubbles = waiting / (waiting + computing)
    if bubbles < _LARGE_BUBBLES_IN_TURN or computed_s[-1] > _UNEQUAL_STAGES * computed_s[0]:
        return None
    took = f"{computed_s[0]:.2f} s to {computed_s[-1]:.2f} s"
    return (
        f"Let the ranks compute at the same time: each computed for about as long ({took}), but"
        f" waited for the others' messages for {waiting:.1%} of the time, as stages of a pipeline"
        " do that pass on whole batches. Divide a batch into microbatches, of which a stage"
        f" computes one while the next stage has the one before: with {_MORE} times as many"
        f" messages waiting takes about {bubbles / (bubbles + _MORE * (1 - bubbles)):.0%}"
    )


def _stages(evidence: Evidence) -> Lines:
    """Of a pipeline: stages of unequal time, or few microbatches."""
    stages, parts = evidence.run.config.stages, evidence.run.config.microbatches
    computed_s = {row.rank: row.compute_s for row in evidence.steps.per_rank if row.compute_s}
    if not stages or not parts or len(computed_s) < stages:
        return
    longest = max(computed_s, key=lambda rank: computed_s[rank])
    others_s = (sum(computed_s.values()) - computed_s[longest]) / (len(computed_s) - 1)
    if computed_s[longest] > _UNEQUAL_STAGES * others_s:
        yield (
            f"Divide the model so that its stages take the same time: that of rank {longest}"
            f" computed for {computed_s[longest]:.2f} s, the others for {others_s:.2f} s (mean)"
        )
    elif (bubbles := (stages - 1) / (parts + stages - 1)) >= _LARGE_BUBBLES:
        more = max(4 * stages, 2 * parts)
        yield (
            f"Use more microbatches ({evidence.options.microbatches}): with {parts} and {stages}"
            f" stages of the same time bubbles take {bubbles:.1%}, with {more} they take"
            f" {(stages - 1) / (more + stages - 1):.1%}"
        )
