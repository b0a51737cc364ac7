"""What to change where the ranks' own Python takes the time."""

from typing import Final

from ioprof.analysis.answer.evidence import LEAST_NAMED_RATIO, Evidence
from ioprof.analysis.answer.finding import Found, finding, not_modelled, of_detail, of_line
from ioprof.analysis.answer.queue_advice import whole_tensors
from ioprof.analysis.answer.use_advice import starts
from ioprof.analysis.cpu.code_lines import awaits, line_text
from ioprof.format.run_record import CauseDetail, CodeShare, Facts, Finding, NoGain, PartCode

_LEAST_DELIVERY: Final = 0.05
"""Share of the steps' time that sending batches takes, from which on freeing what was sent takes
time of the loop too."""
_MOSTLY_FLUSH: Final = 0.5
"""Part of a line's time that is waiting for writes, from which on that is what to change: the line
is where they are made."""


def host_advice(evidence: Evidence) -> Found:
    """What to change where the ranks' own Python takes the time between waiting, copying and
    computing. Nothing where the threads that make batches held the interpreter's lock meanwhile:
    what they do is what to change.
    """
    if evidence.lock_holder and evidence.makers_are_threads:
        return
    processes = evidence.waits_for_processes
    spent: Facts = {"step_s": evidence.seconds_per_step("host"), "processes": processes}
    detail, line = evidence.largest_detail("host", LEAST_NAMED_RATIO), evidence.largest_line("host")
    if detail and detail.code is PartCode.CORE_WAIT:
        yield not_modelled("core_for_loop", "host", share=detail.share)
    if detail and detail.code is PartCode.WORKER_START:
        yield from starts(evidence, "host")
        yield from _further(evidence, line)
        return
    if detail and detail.code in (PartCode.CORE_WAIT, PartCode.LAUNCHES):
        detail = None
    if evidence.shares.get("delivery", 0.0) >= _LEAST_DELIVERY:
        yield from whole_tensors(evidence)
    known = _of_known(evidence, detail, line)
    if known is not None:
        yield known
    elif (waiting := evidence.waiting_line) and not (detail and detail.seconds > waiting.seconds):
        yield of_line(evidence, "waiting_line", "host", waiting, library=waiting.library)
    elif line and not (detail and detail.seconds > line.seconds):
        yield of_line(evidence, "line", "host", line, **spent)
        yield from _further(evidence, line)
    elif detail:
        yield of_detail(evidence, "span", "host", detail, span=detail.name, **spent)
    elif further := list(_further(evidence, None)):
        yield from further
    else:
        yield finding("add_spans", no_gain=NoGain.OF_RECORDING, **spent)


def _of_known(
    evidence: Evidence, detail: CauseDetail | None, line: CodeShare | None
) -> Finding | None:
    """Where it is known what the loop waited for; `detail` and `line` are the largest parts of
    `host`.
    """
    at = line_text(line) if line else None
    if waited := evidence.lock_holder:
        is_named = line and line.seconds >= LEAST_NAMED_RATIO * waited.seconds
        facts: Facts = {
            "thread": waited.subject,
            "share": waited.share,
            "line": at if is_named else None,
        }
        return finding("lock", cause="host", **facts).replace(
            gain=1 / (1 - waited.share) if waited.share < 1 else None,
            basis="derived",
            is_bound=True,
            is_least=True,
        )
    is_mostly = detail and not (line and detail.seconds < _MOSTLY_FLUSH * line.seconds)
    if detail and detail.code is PartCode.FLUSHES and is_mostly and (flushed := evidence.flushed):
        facts = {"calls": flushed.per_step, "call_s": flushed.seconds / flushed.number}
        return of_detail(
            evidence, "flush_less", "host", detail, line=at, file=flushed.file, **facts
        )
    if detail and detail.code is PartCode.COMPILATION:
        steps = evidence.compiled_in
        facts = {"steps": len(steps), "last_step": max(steps, default=0)}
        return of_detail(evidence, "compile_less", "host", detail, **facts)
    if launching := evidence.launching:
        kernels = evidence.kernels
        return of_detail(evidence, "launch_less", "host", launching, line=at, **kernels)
    return None


def _further(evidence: Evidence, named: CodeShare | None) -> Found:
    """Functions besides that of a line, each with its own gain."""
    for line in evidence.further_functions("host", named):
        if not awaits(line):
            yield of_line(evidence, "further_line", "host", line)
