"""What to change in how a loop uses its loader: batches that it throws away, bytes that are read
and not used, workers that have nothing to make, workers that are started for one pass, and a call
for each sample where one for a batch would do.
"""

from typing import Final

from ioprof.analysis.answer.evidence import STARTS, Evidence
from ioprof.analysis.answer.finding import Found, finding, of_detail
from ioprof.analysis.answer.read_advice import (
    OF_READERS,
    READ_LESS,
    divided_data,
    less_of_readers,
    read_advice,
)
from ioprof.analysis.cpu.code_lines import line_text
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import Facts, Finding, JobChange, NoGain, PartCode

_MOSTLY_DISCARDED: Final = 0.5
"""Part of the waiting for batches that was for discarded ones before the first step, from which on
that is what to change first."""
_CALL_S: Final = 50e-6
"""Of a sample, up to which most of it is the calls themselves: a call of a dataset's method from
Python, and stacking what it returns, take 5 to 20 us."""
_FEWEST_CALLS: Final = 32
"""Samples of a batch, from which on one call instead of so many is worth a word."""
_FRAMES_PER_USED: Final = 2
"""Frames that are decoded for each that is used, from which on it is told: one in two may be what a
job wants, to halve the rate of a video."""
_LEAST_PADDING: Final = 0.05
"""Share of the steps' time in which padding is computed, from which on it is told: most changes
that are worth the work bring as much."""


def use_advice(evidence: Evidence) -> Found:
    """What to change in the use of the loader, whatever the bound."""
    use, workers = evidence.use, evidence.run.config.workers
    if use.discarded:
        early = use.before_first_step
        yield finding(
            "discard",
            cause="loader",
            change=None if early else JobChange(skip_discarded=True),
            no_gain=NoGain.NOT_OF_STEPS if early else None,
            discarded=use.discarded,
            batches=use.batches,
            samples=use.samples,
            waited_s=use.waited_s if early else None,
        )
    if workers and (idle := use.idle_workers(workers)):
        change = JobChange(workers=workers)
        yield finding("shards", cause="loader", change=change, idle=idle, workers=workers)
    yield from read_advice(evidence)
    yield from divided_data(evidence)
    yield from _made_by_loop(evidence)
    yield from _single_calls(evidence)
    yield from _padding(evidence)
    yield from _freed_memory(evidence)
    yield from _frames(evidence)


def _made_by_loop(evidence: Evidence) -> Found:
    """Of several loaders to train from one without workers, if it is waited for most: at most, its
    batches are there when they are wanted.
    """
    trained = [each for each in evidence.run.loaders if "train" in each.purposes]
    workers = max((each.workers or 0 for each in trained), default=0)
    slowest = next((each.name for each in evidence.loaders if each.purpose == "train"), None)
    of_loop = [each for each in trained if each.workers == 0 and each.dataset == slowest]
    if workers and of_loop:
        facts: Facts = {"made_at": of_loop[0].made_at, "dataset": slowest, "workers": workers}
        speeds = dict.fromkeys(OF_READERS)
        yield less_of_readers("loader_workers", evidence, speeds, **facts)


def keep_cache(found: list[Finding], evidence: Evidence) -> list[Finding]:
    """The findings, but to keep workers first for what is lost when they end: data that their
    dataset keeps.
    """
    kept, use = evidence.use.kept, evidence.use
    stay = evidence.run.config.persistent_workers and use.made_at is None
    if kept is None or use.passes < 2 or stay:
        return found
    change = JobChange(persistent_workers=True, reused=kept.reused, in_order=kept.in_order)
    facts: Facts = {"name": kept.name, "entries": kept.entries, "samples": kept.samples}
    mine = finding(
        "keep_cache", cause="loader", change=change, unseen=not kept.is_measured, **facts
    )
    others = [each for each in found if not (each.change and each.change.persistent_workers)]
    return [mine.replace(is_bound=not kept.is_measured), *others]


def comes_first(found: Finding, evidence: Evidence, bound: str) -> bool:
    """Whether a finding is before all others of which no gain is known: of less to read where reads
    are the bound, and one without a gain.
    """
    if found.code in READ_LESS:
        return found.cause == bound
    waited_s = sum(
        entry.seconds or 0.0 for cause, entry in evidence.charged.items() if cause in LEAVES
    )
    return found.no_gain is not None and evidence.use.waited_s >= _MOSTLY_DISCARDED * waited_s


def _single_calls(evidence: Evidence) -> Found:
    found = next((each for each in evidence.loaders if each.purpose == "train"), None)
    if found is None or not found.samples or not found.batches:
        return
    calls, sample_s = found.samples // found.batches, found.making_s / found.samples
    if calls >= _FEWEST_CALLS and 0 < sample_s <= _CALL_S:
        change = JobChange(speeds={"calls": float(calls)})
        facts: Facts = {"samples": calls, "sample_s": sample_s}
        yield finding("batched_index", cause="collate", change=change, **facts)


def _padding(evidence: Evidence) -> Found:
    """Padding that no sample of the batch needs, which one argument removes, and the rest."""
    computed, padding = evidence.shares.get("compute") or 0.0, evidence.padding_ratio or 0.0
    excess = min(evidence.excess_ratio or 0.0, padding, 0.99)
    if excess * computed >= _LEAST_PADDING:
        change = JobChange(speeds={"compute": 1 / (1 - excess)})
        yield finding("pad_to_longest", cause="compute", change=change, excess=excess)
    padding = (padding - excess) / (1 - excess)
    if padding * computed >= _LEAST_PADDING:
        change = JobChange(speeds={"compute": 1 / (1 - min(0.99, padding))})
        yield finding("padding", cause="compute", change=change, padding=padding)


def _freed_memory(evidence: Evidence) -> Found:
    """As many faults while the model computes as at other times; what they cost, up to twice."""
    if found := evidence.memory_faults:
        yield finding("keep_memory", cause="compute", faults=round(found.per_step)).replace(
            part=found.ratio, part_error=found.ratio
        )


def _frames(evidence: Evidence) -> Found:
    found = evidence.frames
    if found and found.used * _FRAMES_PER_USED <= found.decoded:
        change = JobChange(speeds={"decode": found.decoded / found.used})
        facts: Facts = {"decoded": found.decoded, "used": found.used, "library": found.library}
        yield finding("frames", cause="decode", change=change, **facts)


def starts(evidence: Evidence, cause: str) -> Found:
    """Where the starts of workers and of epochs take the time of a cause, `loader` or `host`."""
    details = [part for part in evidence.charged[cause].details if part.code in STARTS]
    share = sum(part.share for part in details)
    keeps = evidence.run.config.persistent_workers and evidence.use.made_at is None
    if keeps and cause == "loader":
        yield finding("epoch_start", share=share)
    elif evidence.use.passes == 1:
        for part in details:
            if part.code is PartCode.WORKER_START:
                workers = evidence.run.config.workers or None
                yield of_detail(evidence, "start_workers", cause, part, workers=workers)
    else:
        change, facts = JobChange(persistent_workers=True), Facts()
        if evidence.run.config.persistent_workers is None:  # a pool, which has no such option
            line = evidence.largest_line(cause)
            is_there = line and (cause == "loader" or line.is_of_others)
            at = line_text(line) if line and is_there else None
            facts = {"times": evidence.use.passes, "line": at}
        yield finding("persistent_workers", cause=cause, change=change, share=share, **facts)
