"""What the ranks of a job left behind, as a list of what went wrong, the likely cause first."""

import json
import re
from pathlib import Path
from typing import Any, Final

from ioprof.process import signal_name
from ioprof.train.config import JobConfig

_KILLED, _OWN, _ECHO, _SILENT = range(4)
"""How likely a rank's end is the cause of the others': killed, an error of its own, peers lost, no word."""
_LOST_PEERS: Final = re.compile(r"Dist\w*Error: |\w*Error: .*(?:gloo|nccl|connection|socket)", re.IGNORECASE | re.DOTALL)
"""Errors that a gradient exchange raises when another rank has ended; ioprof's own errors begin with no class name."""


def failures(config: JobConfig, log: Path, *, interrupted: bool) -> tuple[dict[str, Any], ...]:
    """`{"rank", "what"}` of each rank that neither came to its end nor stopped when it was told to.

    Of an interrupted job only what the interruption does not explain: ranks that were starting leave no word, or are killed.
    """
    signals = _signals_in_log(log)
    graded = [_graded(_outcome(config.spool, rank), signals.get(rank)) for rank in range(config.ranks)]
    found = [(grade, rank, what) for rank, (grade, what) in enumerate(graded) if what not in ("done", "stopped")]
    if interrupted:
        found = [entry for entry in found if not _is_consequence(entry[0], entry[2])]
    return tuple({"rank": rank, "what": what} for _, rank, what in sorted(found))


def _graded(outcome: str | None, killed_by: str | None) -> tuple[int, str]:
    if outcome is not None:
        return (_ECHO if _LOST_PEERS.match(outcome) else _OWN), outcome
    return (_KILLED, f"was killed by {killed_by}") if killed_by else (_SILENT, "ended without saying why")


def _is_consequence(grade: int, what: str) -> bool:
    return grade in (_ECHO, _SILENT) or what in ("was killed by SIGTERM", "was killed by SIGKILL")


def _outcome(spool: Path, rank: int) -> str | None:
    try:
        return str(json.loads((spool / f"rank-{rank}.json").read_text())["outcome"])
    except (OSError, ValueError, KeyError):
        return None


def _signals_in_log(log: Path) -> dict[int, str]:
    """Ranks that torchrun saw killed, and by which signal, from the table it prints (`rank : 1 (...)`, `exitcode : -9 (...)`)."""
    text = log.read_text(errors="replace")
    found = re.findall(r"rank\s*:\s*(\d+) \(local_rank.*\n\s*exitcode\s*:\s*-(\d+)", text)
    return {int(rank): signal_name(int(number)) for rank, number in found}
