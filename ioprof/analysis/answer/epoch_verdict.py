"""What the first epoch means for the verdict: it reads from storage what the later ones find in
memory, or makes what workers keep for the later ones.

A long job consists of later epochs, so the bound is theirs; the first epoch is named beside it.
"""

from typing import Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.finding import not_modelled
from ioprof.analysis.answer.verdict import verdict
from ioprof.analysis.loader_use import Kept
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
_LEAST_FASTER: Final = 0.75
"""Step of the later epochs over that of the first, up to which kept data makes them different."""


def with_first_epoch(
    found: Verdict, evidence: Evidence, later: Evidence | None, trend: Trend | None
) -> Verdict:
    """The verdict; where only the first epoch waits for storage, that of the later ones, with a
    sentence on the first.
    """
    kept = evidence.use.kept
    if later is not None and trend is not None and kept is not None:
        steady = _of_filled(kept, found, evidence, later, trend)
        if steady is not None:
            return steady
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


def _of_filled(
    kept: Kept, found: Verdict, evidence: Evidence, later: Evidence, trend: Trend
) -> Verdict | None:
    """The same where workers that are kept filled a cache in the first epoch; None: they did not,
    or it makes no difference.
    """
    first, rows = trend.epochs[0], trend.epochs[1:]
    steps = sum(row.steps for row in rows)
    later_s = sum(row.steps * row.step_s for row in rows) / max(steps, 1)
    is_filled = evidence.run.config.persistent_workers and steps >= _FEWEST_STEPS
    if not is_filled or later_s > _LEAST_FASTER * first.step_s:
        return None
    steady = verdict(later)
    if steady.bound_by in (None, found.bound_by):
        return None
    facts: Facts = {"name": kept.name, "first_s": first.step_s, "later_s": later_s}
    return steady.said("filled", first=True, **facts).replace(first_epoch=found.bound_by)
