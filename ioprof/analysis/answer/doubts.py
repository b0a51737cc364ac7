"""When a verdict is unsure, and why: a sentence at its end has the reason."""

from collections.abc import Mapping
from typing import Any, Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.format.run_record import Doubt, Reason, Verdict

CLOSE_RATIO: Final = 0.9
"""Time of the second cause over that of the first, from which on it is not certain which of the two
is the greater."""
LEAST_UNNAMED_RATIO: Final = 0.5
"""Part of `host` or `loader` without a name from which on nothing is said of it with certainty."""
_MOSTLY_WITHOUT_CORE: Final = 0.5
"""Part of the time in which workers could run that they waited for a core, from which on batches
may be late for that alone."""
_LEAST_SHARE: Final = 0.02
"""Of the steps' time; smaller causes are not compared."""


def with_doubts(
    verdict: Verdict,
    evidence: Evidence,
    alternatives: Mapping[str, float],
    stages: Mapping[str, float],
) -> Verdict:
    """The verdict, with what speaks against it.

    `alternatives`: the shares of the steps' time that it was chosen from. `stages`: of the work for
    batches, if it is one of these.
    """
    bound = verdict.bound_by
    if bound is None or bound == "compute":
        return verdict
    if (second := _close_to_first(alternatives)) and alternatives[second] >= _LEAST_SHARE:
        verdict = with_doubt_of(verdict, Doubt.CLOSE, second=second, share=alternatives[second])
    if second := _close_to_first(stages):
        verdict = with_doubt_of(verdict, Doubt.CLOSE, second=second, than=bound)
    if (
        bound == "delivery"
        and evidence.cpu
        and (evidence.cpu.worker_run_delay_ratio or 0.0) >= _MOSTLY_WITHOUT_CORE
    ):
        return with_doubt_of(verdict, Doubt.CORES)
    if bound == "host" and evidence.waiting_line:
        return with_doubt_of(verdict, Doubt.UNNAMED, waits=True)
    if bound in ("host", "loader") and evidence.named_ratio(bound) < 1 - LEAST_UNNAMED_RATIO:
        unseen = evidence.charged[bound].reason_code is Reason.THREADS_MAY_BE_AWAITED
        return with_doubt_of(verdict, Doubt.THREADS if unseen else Doubt.UNNAMED)
    return verdict


def _close_to_first(values: Mapping[str, float]) -> str | None:
    """The name of the second greatest value, if that is close to the greatest."""
    ordered = sorted(values, key=lambda name: (-values[name], name))
    return (
        ordered[1]
        if len(ordered) > 1 and values[ordered[1]] >= CLOSE_RATIO * values[ordered[0]] > 0
        else None
    )


def with_doubt_of(verdict: Verdict, doubt: Doubt, **facts: Any) -> Verdict:
    """The verdict, unsure for one more reason."""
    return verdict.said(f"doubt_{doubt}", **facts).replace(doubts=(*verdict.doubts, doubt))
