"""How a finding is made: its code, and the facts that its words are about."""

from collections.abc import Iterator
from typing import Any

from ioprof.analysis.answer.evidence import Evidence
from ioprof.format.run_record import (
    CauseDetail,
    CodeShare,
    Finding,
    JobChange,
    NoGain,
    known,
)

Found = Iterator[Finding]
"""What to change. One without cause, change and reason makes the bound cost less by an amount that
is not known: of its gain only the most is predicted."""


def finding(
    code: str,
    *,
    cause: str | None = None,
    change: JobChange | None = None,
    no_gain: NoGain | None = None,
    **facts: Any,
) -> Finding:
    """Facts that are not known, null or false, are left out."""
    return Finding(code, facts=known(facts), cause=cause, change=change, no_gain=no_gain)


def not_modelled(code: str, cause: str | None = None, **facts: Any) -> Finding:
    """One whose gain no replay knows."""
    return finding(code, cause=cause, no_gain=NoGain.NOT_MODELLED, **facts)


def of_line(evidence: Evidence, code: str, cause: str, line: CodeShare, **facts: Any) -> Finding:
    """A line of code that takes less: no more of the cause than its function takes."""
    part, error = evidence.part_of_cause(cause, line)
    found = finding(code, cause=cause, **(evidence.line_facts(line) | facts))
    return found.replace(part=part, part_error=error, waits=evidence.waits_of(line))


def of_detail(
    evidence: Evidence, code: str, cause: str, detail: CauseDetail, **facts: Any
) -> Finding:
    """A named part of a cause that takes less: no more of the cause than that part."""
    seconds = evidence.charged[cause].seconds
    found = finding(code, cause=cause, **({"share": detail.share} | facts))
    return found.replace(part=min(1.0, detail.seconds / seconds) if seconds else None)
