"""What comes first in a verdict, and in its advice: a part of the job besides its steps that took
much of its time, by the ledger of the whole job; and that one rank loads for all.
"""

from dataclasses import dataclass
from typing import Final

from ioprof.analysis.answer.evidence import EXCHANGE, LEAST_NAMED_RATIO, Evidence
from ioprof.analysis.cpu.code_lines import FEWEST_SAMPLES, line_text
from ioprof.analysis.cpu.stacks import START
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import Advice, CodeShare, Ledger, NoGain, Phase, Verdict

LEAST_SHARE: Final = 0.25
"""Of the job's time, from which on a part of it is named before all else."""
LEAST_S: Final = 4.0
"""Shorter parts are not named: a job that is recorded for a try is short."""
LEAST_IMPORTS_S: Final = 60.0
"""The same for what every job does to start: imports of large libraries take seconds, and more on a
busy machine."""
MOST_OF_OTHERS: Final = 0.1
"""Share of a host's CPU time that other programs may take if its imports are judged."""


@dataclass(frozen=True)
class _Part:
    """How a part of the job is spoken of."""

    spent: str
    """As the end of a clause that begins with its time."""
    action: str
    """What to change."""
    least_s: float = LEAST_S


_PARTS: Final = {
    "start-up": _Part(
        "before its first step, in its own code (imports not counted)",
        "Do less before the first step, for example keep an index of the dataset in a file instead"
        " of making it in each run",
    ),
    "imports": _Part(
        "on importing modules",
        "Copy the Python environment to node-local storage, or import less",
        LEAST_IMPORTS_S,
    ),
    "interpreter": _Part(
        "on starting the Python interpreter",
        "Copy the Python environment to node-local storage",
        LEAST_IMPORTS_S,
    ),
    "launch": _Part(
        "before its ranks were started",
        "Look at what the launcher does before it starts the ranks",
        LEAST_IMPORTS_S,
    ),
    "process group": _Part(
        "on waiting for all processes (init_process_group)",
        "Look at which process starts last",
        LEAST_IMPORTS_S,
    ),
    "first batch": _Part(
        "on waiting for the first batch",
        "Make the first batch sooner: open the dataset and its index before the workers start, not"
        " in each of them",
        5.0,
    ),
    "restart": _Part(
        "on starting its ranks again, from the last step of an attempt to the first of the next",
        "Look at why the ranks failed",
    ),
    "between": _Part("between its steps", "Do less between steps"),
    "end": _Part("after its last step", "Do less after the last step"),
}
"""Those of `ledger.PHASES` that are not in the steps' own time, as validations, checkpoints and
waits at the start of an epoch are."""


def with_loading_rank(found: Verdict, evidence: Evidence) -> Verdict:
    """The verdict; where one rank loads for all and that is what they wait for, it says so
    first.
    """
    rank, ranks = evidence.run.config.loading_rank, evidence.run.config.ranks
    if rank is None or (ranks or 2) < 2 or found.bound_by not in (*LEAVES, *EXCHANGE):
        return found
    advice = Advice(
        "Let each rank load its own batches (accelerate: dispatch_batches=False, for an iterable"
        f" dataset with samples that are split over the ranks): rank {rank} loads and sends the"
        " batches of all ranks, and the others wait for it",
        no_gain=NoGain.NOT_MODELLED,
    )
    return found.replace(
        text=f"Rank {rank} loads the batches of all ranks. {found.text}",
        advice=(advice, *found.advice),
    )


def with_phase(verdict: Verdict, evidence: Evidence, ledger: Ledger) -> Verdict:
    """The verdict with the largest part of the job besides its steps first, if that took long."""
    others = max((host.others_cpu_ratio or 0.0 for host in evidence.run.hosts), default=0.0)
    phases = [
        phase
        for phase in ledger.phases
        if _is_long(phase, others) and phase.name != verdict.bound_by
    ]
    largest = max(phases, key=lambda phase: phase.seconds, default=None)
    if largest is None or not ledger.wall_s:
        return verdict
    part, line = (
        _PARTS[largest.name],
        _line(evidence, largest) if largest.name == "start-up" else None,
    )
    where = f", {line.seconds:,.1f} s at {line_text(line)} (by samples of stacks)" if line else ""
    modules = (
        ", ".join(f"{entry.name} {entry.seconds:,.1f} s" for entry in ledger.imports[:2])
        if largest.name == "imports"
        else ""
    )
    named = where or (f" ({modules})" if modules else "")
    spent = (
        f"The job spent {largest.seconds:,.1f} of its {ledger.wall_s:,.1f} s"
        f" ({largest.share or 0.0:.0%}) {part.spent}{named}."
    )
    at = f" (now: {line_text(line)})" if line else ""
    action = (
        f"{part.action}{at}: it took {largest.seconds:,.1f} s, {largest.share or 0.0:.0%} of the"
        " job, once per run"
    )
    advice = Advice(action, no_gain=NoGain.NOT_OF_STEPS)
    steps_s = sum(
        phase.seconds
        for phase in ledger.phases
        if phase.name in ("first batch", "steps", "epoch start")
    )
    lost_s = steps_s * (1 - (evidence.shares.get("compute") or 0.0))
    ordered = (advice, *verdict.advice) if largest.seconds >= lost_s else (*verdict.advice, advice)
    return verdict.replace(text=f"{spent} {verdict.text}", advice=ordered, phase=largest.name)


def _is_long(phase: Phase, others_ratio: float) -> bool:
    """Whether a part is named. Where other programs used the cores, how long imports take says
    nothing of the job.
    """
    part = _PARTS.get(phase.name)
    if part is None or (part.least_s >= LEAST_IMPORTS_S and others_ratio >= MOST_OF_OTHERS):
        return False
    return phase.seconds >= part.least_s and (phase.share or 0.0) >= LEAST_SHARE


def _line(evidence: Evidence, phase: Phase) -> CodeShare | None:
    """The line of the user's own code that most of the start-up was spent in."""
    own = [
        line
        for line in evidence.code
        if line.cause == START and line.is_own and line.samples >= FEWEST_SAMPLES
    ]
    largest = max(own, key=lambda line: line.seconds, default=None)
    return largest if largest and largest.seconds >= LEAST_NAMED_RATIO * phase.seconds else None
