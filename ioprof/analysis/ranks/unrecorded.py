"""Ranks of the job of which nothing was recorded.

How long the others waited for them is known, and not why. So where exchanges with them took most of
the time there is no verdict, and nothing is advised for exchanges.
"""

import shlex
from pathlib import PurePath
from typing import Final

import polars as pl

from ioprof.analysis.answer.evidence import EXCHANGE, Evidence
from ioprof.analysis.answer.finding import finding
from ioprof.format.run_record import MissingRanks, NoGain, RunRecord, Verdict, WhyMissing
from ioprof.format.trace import Trace

LAUNCHERS: Final = ("srun", "mpirun", "mpiexec", "prun", "jsrun", "aprun", "ibrun", "pdsh")
"""Programs that start processes on other hosts."""


def missing_ranks(trace: Trace) -> MissingRanks | None:
    """The ranks of which nothing was recorded, and why; None: there are none.

    Whoever imports files of another profiler has chosen the ranks.
    """
    run = trace.run
    loops = trace.rows(pl.col("rank").is_not_null(), kinds=["step", "wait"])
    seen = set(loops["rank"].unique().to_list())
    missing = sorted(set(range(run.config.ranks or 0)) - seen)
    if not missing or not seen or run.capture.imported_from is not None:
        return None
    return MissingRanks(tuple(missing), run.config.ranks or 0, _why(run))


def _why(run: RunRecord) -> WhyMissing:
    parts = [run.part, *(part.part for part in run.parts)]
    numbers = {part.number for part in parts if part}
    if any(len(numbers) < (part.num_parts or 0) for part in parts if part):
        return WhyMissing.PART
    if not all(process.sees_spool is not False for process in run.capture.unseen_processes):
        return WhyMissing.HIDDEN
    return WhyMissing.LAUNCHER if launcher_of(run.command or "") else WhyMissing.UNKNOWN


def launcher_of(command: str) -> str | None:
    """The launcher of processes on other hosts that a command line begins with."""
    try:
        program = PurePath(next(iter(shlex.split(command)), "")).name
    except ValueError:  # an argument that was cut
        return None
    return program if program in LAUNCHERS else None


def verdict_without(
    evidence: Evidence, bound: str, missing: MissingRanks, shares: dict[str, float]
) -> Verdict | None:
    """The verdict where exchanges with ranks that are missing took most of the time; None: they did
    not.
    """
    if bound not in EXCHANGE:
        return None
    share = sum(shares.get(cause, 0.0) for cause in EXCHANGE)
    advice = finding("record_ranks", no_gain=NoGain.OF_RECORDING, missing=missing.why.value)
    answer = Verdict(None, "", (advice,))
    return answer.said("missing_ranks", share=share, emulated=evidence.run.is_emulated)
