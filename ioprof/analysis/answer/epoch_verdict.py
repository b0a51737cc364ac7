"""What the first epoch means for the verdict: it reads from storage what the later ones find in
memory.

A long job consists of later epochs, so the bound is theirs; the first epoch is named beside it.
"""

from typing import Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.finding import not_modelled
from ioprof.analysis.answer.verdict import verdict
from ioprof.format.run_record import Facts, Trend, Verdict

_FEWEST_STEPS: Final = 8
"""Of the later epochs, of all ranks."""
_MOST_OWN: Final = 0.1
"""Share of the steps' time that the training process itself read and decoded, of which it is not
known in which epoch."""
_MOST_STILL: Final = 0.25
"""Share of the later epochs' time for storage, up to which they are told apart: some of their data
may have been evicted."""
_MOST_BYTES: Final = 0.25
"""Bytes from storage of a later epoch over those of the first, on average, up to which it is told
apart."""


def with_first_epoch(
    found: Verdict, evidence: Evidence, later: Evidence | None, trend: Trend | None
) -> Verdict:
    """The verdict; where only the first epoch waits for storage, that of the later ones, with a
    sentence on the first.
    """
    storage = evidence.charged.get("storage")
    if (
        later is None
        or trend is None
        or storage is None
        or not storage.seconds
        or sum(evidence.own.values()) > _MOST_OWN
    ):
        return found
    first, last = trend.epochs[0], trend.epochs[-1]
    later_steps = sum(row.steps for row in trend.epochs[1:])
    still = sum(row.bytes_from_storage for row in trend.epochs[1:]) / max(len(trend.epochs) - 1, 1)
    if later_steps < _FEWEST_STEPS or still > _MOST_BYTES * first.bytes_from_storage:
        return found
    late = later.charged["storage"]
    first_s, in_first_s = first.steps * first.step_s, storage.seconds - (late.seconds or 0.0)
    is_cold = in_first_s >= 0.5 * max(first_s, 1e-9) or found.bound_by == "storage"
    if not is_cold or (late.share or 0.0) > _MOST_STILL:
        return found
    steady = verdict(later)
    if steady.bound_by in (None, "storage"):
        return found
    advice = not_modelled("first_epoch", "storage", seconds=in_first_s)
    facts: Facts = {"seconds": in_first_s, "first_s": first.step_s, "later_s": last.step_s}
    steady = steady.said("first_epoch", first=True, **facts)
    return steady.replace(findings=(*steady.findings, advice), first_epoch="storage")
