"""What to change in how a loop uses its loader: batches that it throws away, workers that have
nothing to make, workers that are started for one pass, and a call for each sample where one for a
batch would do.
"""

from collections.abc import Iterator
from typing import Final

from ioprof.analysis.answer.details import WORKER_START
from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.own_advice import of_detail
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import Advice, JobChange, NoGain

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


def use_advice(evidence: Evidence) -> Iterator[Advice]:
    """What to change in the use of the loader, whatever the bound."""
    yield from _discarded(evidence)
    yield from _idle_workers(evidence)
    yield from _single_calls(evidence)
    yield from _padding(evidence)
    yield from _frames(evidence)


def keep_cache(advice: list[Advice], evidence: Evidence) -> list[Advice]:
    """The advice, but to keep workers first for what is lost when they end: data that their dataset
    keeps.
    """
    kept, use = evidence.use.kept, evidence.use
    if kept is None or use.passes < 2 or evidence.run.config.persistent_workers:
        return advice
    text = (
        f"{evidence.options.keep_workers}: the dataset keeps data in its workers ({kept.name},"
        f" {kept.entries:,} entries for {kept.samples:,} samples), which is lost when they end with"
        " each epoch; a job of more epochs gains more"
    )
    if not kept.is_measured:
        text += "; how much a kept entry saves was not seen, since no worker used one"
    change = JobChange(persistent_workers=True, reused=kept.reused, in_order=kept.in_order)
    others = [each for each in advice if not (each.change and each.change.persistent_workers)]
    found = Advice(text, cause="loader", change=change, is_bound=not kept.is_measured)
    return [found, *others]


def comes_first(advice: Advice, evidence: Evidence) -> bool:
    """Whether an advice without a gain is before all others."""
    waited_s = sum(
        entry.seconds or 0.0 for cause, entry in evidence.charged.items() if cause in LEAVES
    )
    return advice.no_gain is not None and evidence.use.waited_s >= _MOSTLY_DISCARDED * waited_s


def _discarded(evidence: Evidence) -> Iterator[Advice]:
    use = evidence.use
    if not use.discarded:
        return
    samples = f" ({use.samples:,} samples)" if use.samples else ""
    text = (
        "Skip batches before they are loaded (in the sampler, or by the state of a"
        f" StatefulDataLoader) instead of in the loop: with {use.discarded:,} of {use.batches:,}"
        f" batches{samples} nothing was done"
    )
    if use.before_first_step:
        text += f", all before the first step; ranks waited {use.waited_s:,.1f} s for them"
        yield Advice(text, cause="loader", no_gain=NoGain.NOT_OF_STEPS)
    else:
        yield Advice(text, cause="loader", change=JobChange(skip_discarded=True))


def _idle_workers(evidence: Evidence) -> Iterator[Advice]:
    workers = evidence.run.config.workers
    idle = evidence.use.idle_workers(workers)
    if workers and idle:
        yield Advice(
            f"Divide the data into {workers} shards or more, one for each worker"
            f" (get_worker_info): {idle} of {workers} workers made no batch, and more of them would"
            " make none either",
            cause="loader",
            change=JobChange(workers=workers),
        )


def _single_calls(evidence: Evidence) -> Iterator[Advice]:
    found = next((each for each in evidence.loaders if each.purpose == "train"), None)
    if found is None or not found.samples or not found.batches:
        return
    calls, sample_s = found.samples // found.batches, found.making_s / found.samples
    if calls < _FEWEST_CALLS or not 0 < sample_s <= _CALL_S:
        return
    yield Advice(
        "Index once for a batch instead of once for each sample (a __getitems__ of the dataset, or"
        " sampler=BatchSampler(...) with batch_size=None): a batch is made of"
        f" {calls:,} samples of {sample_s * 1e6:,.1f} us, which are mostly the calls and their"
        " collating",
        cause="collate",
        change=JobChange(speeds={"loader": float(calls), "collate": float(calls)}),
    )


def _padding(evidence: Evidence) -> Iterator[Advice]:
    computed, padding = evidence.shares.get("compute") or 0.0, evidence.padding_ratio or 0.0
    if padding * computed >= _LEAST_PADDING:
        yield Advice(
            "Put samples of like length into a batch (a sampler that groups by length), or pack"
            f" several into one row: {padding:.0%} of the positions that are computed are padding",
            cause="compute",
            change=JobChange(speeds={"compute": 1 / (1 - min(0.99, padding))}),
        )


def _frames(evidence: Evidence) -> Iterator[Advice]:
    found = evidence.frames
    if found and found.used * _FRAMES_PER_USED <= found.decoded:
        yield Advice(
            "Decode fewer frames for each that is used (seek to the key frame before it, shorter"
            f" clips, more key frames, or frames stored as images): of {found.decoded:,} that"
            f" {found.library} decoded {found.used:,} were used",
            cause="decode",
            change=JobChange(speeds={"decode": found.decoded / found.used}),
        )


def start_once(evidence: Evidence) -> Iterator[Advice]:
    """Where workers are started once in a job, and that takes long."""
    details = evidence.charged["loader"].details
    started = next((each for each in details if each.name == WORKER_START), None)
    if started is None:
        return
    workers = evidence.run.config.workers
    of_workers = f" of its {workers} workers" if workers else ""
    yield of_detail(
        evidence,
        "Start the workers in less time (multiprocessing_context='fork', or 'forkserver' with"
        " set_forkserver_preload; fewer imports in the main module, less in worker_init_fn): the"
        f" loader is iterated once, and the only start{of_workers} took {started.share:.1%} of the"
        " steps' time",
        "loader",
        started,
    )
