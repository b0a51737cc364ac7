"""What went wrong in the ranks of a job, the likely cause first."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof.files import read_json_object
from ioprof.format.run_record import Failure, FailureCode
from ioprof.train.config import JobConfig

_KILLED, _OWN, _LOST_PEERS, _NO_REASON = range(4)
"""How a rank ended, the likeliest cause of the others' end first: killed, its own error, lost its
peers, left no reason."""
_LOST_PEERS_ERROR: Final = re.compile(
    r"Dist\w*Error: |\w*Error: .*(?:gloo|nccl|connection|socket)", re.IGNORECASE | re.DOTALL
)
"""Errors that a gradient exchange raises when another rank has ended; ioprof's own errors begin
with no class name."""


def failures(
    config: JobConfig, signals: Mapping[int, str], *, interrupted: bool
) -> tuple[Failure, ...]:
    """The failure of each rank of this host that neither completed its steps nor stopped on
    request.

    `signals` has those that killed a rank.

    Of an interrupted job only what the interruption does not explain: ranks that were starting
    leave no reason, or are killed.
    """
    graded = [
        _grade(rank, _outcome(config.spool, rank), signals.get(rank)) for rank in config.own_ranks
    ]
    found = sorted(
        (entry for entry in graded if entry is not None),
        key=lambda entry: (entry[0], entry[1].rank or 0),
    )
    return tuple(
        failure for grade, failure in found if not (interrupted and _is_consequence(grade, failure))
    )


def _grade(rank: int, outcome: str | None, killed_by: str | None) -> tuple[int, Failure] | None:
    """How likely the rank's end caused the others', and its failure; None if it has not failed."""
    if outcome in ("done", "stopped"):
        return None
    if outcome is not None:  # the message of an exception, which may be torch's
        return (_LOST_PEERS if _LOST_PEERS_ERROR.match(outcome) else _OWN), Failure.from_text(
            rank, outcome
        )
    if killed_by:
        return _KILLED, Failure(
            rank=rank, what=f"was killed by {killed_by}", code=FailureCode.KILLED, signal=killed_by
        )
    return _NO_REASON, Failure(rank=rank, what="ended without saying why", code=FailureCode.SILENT)


def _is_consequence(grade: int, failure: Failure) -> bool:
    return grade in (_LOST_PEERS, _NO_REASON) or (
        grade == _KILLED and failure.signal in ("SIGTERM", "SIGKILL")
    )


def _outcome(spool: Path, rank: int) -> str | None:
    found = read_json_object(spool / f"rank-{rank}.json") or {}
    return str(found["outcome"]) if "outcome" in found else None
