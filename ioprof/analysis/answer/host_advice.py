"""What to change where the ranks' own Python takes the time."""

from typing import Final

from ioprof.analysis.answer.details import LAUNCHES
from ioprof.analysis.answer.evidence import LEAST_NAMED_RATIO, Evidence
from ioprof.analysis.answer.own_advice import Lines, ms, of_detail, of_line
from ioprof.analysis.answer.queue_advice import whole_tensors
from ioprof.analysis.cpu.code_lines import awaits, line_text
from ioprof.analysis.reads.flushes import FLUSHES
from ioprof.format.run_record import Advice, CauseDetail, CodeShare, NoGain
from ioprof.format.schema import COMPILATION, CORE_WAIT

_LEAST_DELIVERY: Final = 0.05
"""Share of the steps' time that sending batches takes, from which on freeing what was sent takes
time of the loop too."""
_MOSTLY_FLUSH: Final = 0.5
"""Part of a line's time that is waiting for writes, from which on that is what to change: the line
is where they are made."""


def host_advice(evidence: Evidence) -> Lines:
    """What to change where the ranks' own Python takes the time between waiting, copying and
    computing.
    """
    spent = (
        f"a step spends {ms(evidence.seconds_per_step('host'))} in the ranks' own Python between"
        " waiting, copying and computing"
    )
    detail, line = evidence.largest_detail("host", LEAST_NAMED_RATIO), evidence.largest_line("host")
    if detail and detail.name == CORE_WAIT:
        yield Advice(
            f"Leave a core for the training loop: for {detail.share:.1%} of the steps' time it"
            " could run and had none, because other threads had them; use fewer workers or"
            " threads, or more cores",
            cause="host",
            no_gain=NoGain.NOT_MODELLED,
        )
        detail = None
    if detail and detail.name == LAUNCHES:
        detail = None
    if evidence.shares.get("delivery", 0.0) >= _LEAST_DELIVERY:
        yield from whole_tensors(evidence)
    known = _of_known(evidence, detail, line)
    if known is not None:
        yield known
    elif (waiting := evidence.waiting_line) and not (detail and detail.seconds > waiting.seconds):
        text = (
            f"Make what {line_text(waiting)} waits for faster, or ask for it earlier: the rank"
            f" waits there for another process or thread, in {waiting.library},"
            f" {evidence.part_of(waiting)}"
        )
        yield of_line(evidence, text, "host", waiting)
    elif line and not (detail and detail.seconds > line.seconds):
        takes = f"it takes {evidence.part_of(line)}{evidence.of_function(line)}"
        text = f"Do less at {line_text(line)}, or not in every step: {takes}; {spent}"
        yield of_line(evidence, text, "host", line)
        yield from _further(evidence, line)
    elif detail:
        text = (
            f"Do less in {detail.name}, or not in every step: it takes {detail.share:.1%} of the"
            f" steps' time; {spent}"
        )
        yield of_detail(evidence, text, "host", detail)
    elif further := list(_further(evidence, None)):
        yield from further
    else:
        yield Advice(
            f"Put ioprof.span around the parts of the training loop: {spent}",
            no_gain=NoGain.OF_RECORDING,
        )


def _of_known(
    evidence: Evidence, detail: CauseDetail | None, line: CodeShare | None
) -> Advice | None:
    """Where it is known what the loop waited for; `detail` and `line` are the largest parts of
    `host`.
    """
    if holder := evidence.lock_holder:
        name, waited = holder
        where = (
            f", at {line_text(line)},"
            if line and line.seconds >= LEAST_NAMED_RATIO * waited.seconds
            else ""
        )
        return Advice(
            f"Move what thread {name} does{where} to a process of its own, or let it do less: it"
            " computes in Python, and the training loop waited for the interpreter lock meanwhile,"
            f" at least {waited.share:.1%} of the steps' time",
            cause="host",
            predicted_speedup=1 / (1 - waited.share) if waited.share < 1 else None,
            is_bound=True,
            is_least=True,
        )
    is_flush = (
        detail is not None
        and detail.name == FLUSHES
        and not (line and detail.seconds < _MOSTLY_FLUSH * line.seconds)
    )
    if detail and is_flush and evidence.flushed:
        text = (
            "Wait less often until writes are on storage (commit or flush once for many steps, or"
            f" from another thread): fsync and calls like it took {detail.share:.1%} of the steps'"
            f" time, {evidence.flushed.text}{_at(line)}"
        )
        return of_detail(evidence, text, "host", detail)
    if detail and detail.name == COMPILATION:
        times = (
            f"in {len(evidence.compiled_in)} steps, the last of which is step"
            f" {max(evidence.compiled_in, default=0):,}"
        )
        text = (
            "Compile less (dynamic=True or torch._dynamo.mark_dynamic for sizes that vary; batches"
            " of few lengths; a cache of compiled code, by TORCHINDUCTOR_CACHE_DIR): torch.compile"
            f" took {detail.share:.1%} of the steps' time, {times}"
        )
        return of_detail(evidence, text, "host", detail)
    if launching := evidence.launching:
        where = f", most of them at {line_text(line)}" if line else ""
        text = (
            'Launch fewer kernels (CUDA graphs, as by torch.compile(mode="reduce-overhead");'
            " larger batches; an optimizer with fused=True): the device waited for launches for"
            f" {launching.share:.1%} of the time, {evidence.kernels}{where}"
        )
        return of_detail(evidence, text, "host", launching)
    return None


def _further(evidence: Evidence, named: CodeShare | None) -> Lines:
    """Functions besides that of a line, each with its own gain."""
    for line in evidence.further_functions("host", named):
        if not awaits(line):
            text = (
                f"Do less at {line_text(line)}, or not in every step: it takes"
                f" {evidence.part_of(line)}"
            )
            yield of_line(evidence, text, "host", line)


def _at(line: CodeShare | None) -> str:
    return f", at {line_text(line)}" if line else ""
