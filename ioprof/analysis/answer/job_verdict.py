"""What comes first in a verdict, and in its advice: a part of the job besides its steps that took
much of its time, by the ledger of the whole job; and that one rank loads for all.
"""

from typing import Final

from ioprof.analysis.answer.evidence import EXCHANGE, LEAST_NAMED_RATIO, Evidence
from ioprof.analysis.answer.finding import finding, not_modelled
from ioprof.analysis.answer.read_advice import shared_reads
from ioprof.analysis.cpu.code_lines import FEWEST_SAMPLES, line_text
from ioprof.analysis.cpu.stacks import START
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import CodeShare, Facts, Ledger, NoGain, Phase, Verdict

LEAST_SHARE: Final = 0.25
"""Of the job's time, from which on a part of it is named before all else."""
LEAST_S: Final = 4.0
"""Shorter parts are not named: a job that is recorded for a try is short."""
LEAST_IMPORTS_S: Final = 60.0
"""The same for what every job does to start: imports of large libraries take seconds, and more on a
busy machine."""
MOST_OF_OTHERS: Final = 0.1
"""Share of a host's CPU time that other programs may take if its imports are judged."""


_LEAST_S: Final = {
    "start-up": LEAST_S,
    "imports": LEAST_IMPORTS_S,
    "interpreter": LEAST_IMPORTS_S,
    "launch": LEAST_IMPORTS_S,
    "process group": LEAST_IMPORTS_S,
    "first batch": 5.0,
    "loading weights": LEAST_S,
    "restart": LEAST_S,
    "between": LEAST_S,
    "end": LEAST_S,
}
"""From which length on a part is named: those of `ledger.PHASES` that are not in the steps' own
time, as validations, checkpoints and waits at the start of an epoch are."""


def with_loading_rank(found: Verdict, evidence: Evidence) -> Verdict:
    """The verdict; where one rank loads for all and that is what they wait for, it says so
    first.
    """
    rank, ranks = evidence.run.config.loading_rank, evidence.run.config.ranks
    if rank is None or (ranks or 2) < 2 or found.bound_by not in (*LEAVES, *EXCHANGE):
        return found
    more = not_modelled("load_on_each_rank", rank=rank)
    found = found.said("loading_rank", first=True, rank=rank)
    return found.replace(findings=(more, *found.findings))


def with_phase(verdict: Verdict, evidence: Evidence, ledger: Ledger) -> Verdict:
    """The verdict with the largest part of the job besides its steps first, if that took long."""
    others = max((host.others_cpu_ratio or 0.0 for host in evidence.run.hosts), default=0.0)
    phases = [
        phase
        for phase in ledger.phases
        if _is_long(phase, others) and phase.name != verdict.bound_by
    ]
    largest = max(phases, key=lambda phase: phase.seconds, default=None)
    shared = tuple(shared_reads(evidence))
    if largest is None or not ledger.wall_s:
        return verdict.replace(findings=(*verdict.findings, *shared))
    line = _line(evidence, largest) if largest.name == "start-up" else None
    loads = largest.name == "loading weights"
    imports = ledger.imports[:2] if largest.name == "imports" else ()
    facts: Facts = {
        "phase": largest.name,
        "took_s": largest.seconds,
        "share": largest.share or 0.0,
        "line": line_text(line) if line else None,
        "line_s": line.seconds if line else None,
        "file": ledger.weights.file if loads and ledger.weights else None,
        "modules": [{"name": each.name, "seconds": each.seconds} for each in imports],
    }
    more = finding("phase", no_gain=NoGain.NOT_OF_STEPS, **facts)
    steps_s = sum(
        phase.seconds
        for phase in ledger.phases
        if phase.name in ("first batch", "steps", "epoch start")
    )
    lost_s = steps_s * (1 - (evidence.shares.get("compute") or 0.0))
    is_most = any(each.facts["took_s"] >= LEAST_NAMED_RATIO * largest.seconds for each in shared)
    mine, before = (*shared, more) if is_most else (more, *shared), verdict.findings
    ordered = (*mine, *before) if largest.seconds >= lost_s else (*before, *mine)
    verdict = verdict.said("phase", first=True, wall_s=ledger.wall_s, **facts)
    return verdict.replace(findings=ordered, phase=largest.name)


def _is_long(phase: Phase, others_ratio: float) -> bool:
    """Whether a part is named. Where other programs used the cores, how long imports take says
    nothing of the job.
    """
    least_s = _LEAST_S.get(phase.name)
    if least_s is None or (least_s >= LEAST_IMPORTS_S and others_ratio >= MOST_OF_OTHERS):
        return False
    return phase.seconds >= least_s and (phase.share or 0.0) >= LEAST_SHARE


def _line(evidence: Evidence, phase: Phase) -> CodeShare | None:
    """The line of the user's own code that most of the start-up was spent in; its time is the mean
    of the ranks, as that of the phase.
    """
    own = [
        line
        for line in evidence.code
        if line.cause == START and line.is_own and line.samples >= FEWEST_SAMPLES
    ]
    largest = max(own, key=lambda line: line.seconds, default=None)
    if largest is None:
        return None
    largest = largest.replace(seconds=largest.seconds / max(1, len(evidence.steps.per_rank)))
    return largest if largest.seconds >= LEAST_NAMED_RATIO * phase.seconds else None
