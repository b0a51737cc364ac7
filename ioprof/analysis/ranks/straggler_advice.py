"""What to change where ranks wait for each other."""

from collections.abc import Mapping
from typing import Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.finding import Found, finding
from ioprof.analysis.ranks.stragglers import late_ranks
from ioprof.format.run_record import Facts, Finding

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
_LARGER: Final = 1.2
"""Times as many bytes as the batches of the other ranks have, from which on it is told."""
_ALIKE: Final = 0.8
"""Part of the time that others waited for a rank, from which on another rank that was waited for so
long is as late."""


def straggler_advice(evidence: Evidence) -> Found:
    """What to change where ranks wait for one of them."""
    of_stages = tuple(_stages(evidence)) if evidence.run.config.parallel == "pipeline" else ()
    yield from of_stages
    late = late_ranks(evidence.steps.straggler_wait_s)
    if not late:
        return
    slowest = late[0]
    if of_stages and slowest.by == "compute":
        return
    by_messages = evidence.waits_for_messages
    if by_messages and slowest.by == "compute" and (in_turn := _in_turn(evidence)):
        yield in_turn
        return
    facts: Facts = {"rank": slowest.rank, "waited_s": slowest.waited_s}
    if len(late) > 1 and not by_messages and late[1].waited_s >= _ALIKE * slowest.waited_s:
        yield finding("equal_ranks", second=late[1].rank, second_s=late[1].waited_s, **facts)
        return
    yield finding(
        "late_rank",
        messages=by_messages,
        late_by=slowest.by,
        late_s=slowest.by_s,
        larger=_times_larger(slowest.rank, evidence.batch_bytes),
        **facts,
    )


def _times_larger(rank: str, batch_bytes: Mapping[int, float]) -> float | None:
    """How many times as large the batches of a rank are as those of the others; None: they are not
    larger.
    """
    others = [size for other, size in batch_bytes.items() if str(other) != rank]
    own = batch_bytes.get(int(rank), 0.0) if rank.isdigit() else 0.0
    ratio = own / max(sum(others) / len(others), 1.0) if others else 0.0
    return ratio if ratio >= _LARGER else None


def _in_turn(evidence: Evidence) -> Finding | None:
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
    after = bubbles / (bubbles + _MORE * (1 - bubbles))
    facts: Facts = {
        "least_s": computed_s[0],
        "most_s": computed_s[-1],
        "times": _MORE,
        "after": after,
    }
    return finding("ranks_in_turn", share=waiting, **facts)


def _stages(evidence: Evidence) -> Found:
    """Of a pipeline: stages of unequal time, or few microbatches."""
    stages, parts = evidence.run.config.stages, evidence.run.config.microbatches
    computed_s = {row.rank: row.compute_s for row in evidence.steps.per_rank if row.compute_s}
    if not stages or not parts or len(computed_s) < stages:
        return
    longest = max(computed_s, key=lambda rank: computed_s[rank])
    others_s = (sum(computed_s.values()) - computed_s[longest]) / (len(computed_s) - 1)
    if computed_s[longest] > _UNEQUAL_STAGES * others_s:
        yield finding("equal_stages", rank=longest, took_s=computed_s[longest], mean_s=others_s)
    elif (bubbles := (stages - 1) / (parts + stages - 1)) >= _LARGE_BUBBLES:
        more = max(4 * stages, 2 * parts)
        after = (stages - 1) / (more + stages - 1)
        facts: Facts = {"bubbles": bubbles, "more": more, "after": after}
        yield finding("microbatches", parts=parts, stages=stages, **facts)
