"""When more workers, or more batches ahead, would help: from the two ceilings, and from what
workers do to make a batch. What they send with a batch for nothing.
"""

from math import ceil
from typing import Any, Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.finding import Found, finding, not_modelled
from ioprof.format.run_record import Facts, Finding, JobChange

_MOST_RUNNING: Final = 0.5
"""Cores that a worker uses or waits for on average, up to which it is said to wait for something
else most of the time."""
_MOST_TIMES: Final = 4
"""As many workers as there are now, at most."""
_MOST_USED: Final = 0.85
"""Part of the cores that they may use."""
_MOST_SUPPLY: Final = 0.8
"""Time in which workers make a batch over that in which the loop takes one, up to which they would
keep up with a longer queue."""
_LEAST_VARIATION: Final = 0.1
"""Of a step, from which on the variation from batch to batch is a reason for a longer queue."""
_LARGE_IMBALANCE: Final = 0.15
"""Of a step, from which on unequal work of the workers is a reason to divide it anew."""
MOST_AHEAD: Final = 64
"""Batches per worker."""


def whole_tensors(evidence: Evidence) -> Found:
    """What to change where a batch has parts of larger tensors: a worker sends these whole, and the
    loop frees them.
    """
    if views := evidence.views:
        facts: Facts = {"part_bytes": views.part_bytes, "whole_bytes": views.whole_bytes}
        yield not_modelled("whole_tensors", "delivery", **facts)


def waiting_workers(evidence: Evidence, why: str, **facts: Any) -> Finding | None:
    """More workers where those that there are mostly wait, for anything but a core. None: they do
    not, or they keep up. `why`: one of `ioprof.report.texts.catalogue.actions.WHY`.
    """
    ceilings, cpu, workers = evidence.ceilings, evidence.cpu, evidence.run.config.workers
    running = cpu.worker_running_threads if cpu else None
    if ceilings is None or cpu is None or running is None or not workers or evidence.repeats_work:
        return None
    if running + (cpu.worker_waiting_threads or 0.0) > _MOST_RUNNING:
        return None
    if ceilings.is_serial or ceilings.supply_s <= ceilings.consumer_s or not evidence.are_busy():
        return None
    wanted = min(
        _MOST_TIMES * workers, ceil(workers * ceilings.supply_s / max(ceilings.consumer_s, 1e-9))
    )
    can_run = int(
        _MOST_USED * (cpu.cores or 1) / max(running, 0.01) / max(evidence.run.config.ranks or 1, 1)
    )
    number = min(wanted, can_run)
    if number <= workers:
        return None
    facts |= {"why": why, "workers": number, "now": workers, "worker_cores": running}
    return finding("workers", change=JobChange(workers=number), **facts)


def more_workers(evidence: Evidence, why: str, **facts: Any) -> Found:
    """More workers while there are free cores, one per rank left to the rank itself; but equal work
    for them first.
    """
    yield from _equal_work(evidence)
    config, cpus = evidence.run.config, evidence.run.cpus
    ranks, workers = config.ranks, config.workers
    if evidence.use.idle_workers(workers) or evidence.repeats_work:
        return
    if evidence.cpu and evidence.cpu.limits:  # which more of them would only share
        return
    if workers is None and config.loader is not None:
        yield finding("raise_workers", why=why, **facts)
    if workers is None or ranks is None or cpus is None:
        return
    free = cpus // max(ranks, 1) - 1
    if free > workers:
        facts |= {"why": why, "workers": free, "now": workers, "ranks": ranks, "cpus": cpus}
        found = finding("workers", change=JobChange(workers=free), **facts)
        yield _within_shards(evidence, found)
    elif waiting := waiting_workers(evidence, why, **facts):
        yield _within_shards(evidence, waiting)


def _equal_work(evidence: Evidence) -> Found:
    """Equal work for all workers, where the busiest of them is what the loop waits for."""
    found, more_s = evidence.ceilings, evidence.imbalance_s
    if (
        found is None
        or more_s < _LARGE_IMBALANCE * found.step_s
        or not evidence.workers_are_busy
        or evidence.takes_turns
        or evidence.use.idle_workers(evidence.run.config.workers)
    ):
        return
    facts: Facts = {"busiest_s": found.supply_s + more_s, "mean_s": found.supply_s}
    yield not_modelled("equal_work", workers=found.workers, **facts)


def lacks_shards(evidence: Evidence) -> bool:
    """Whether each shard is read by a worker of its own already, so that more workers would have
    nothing to read.
    """
    shards, workers = evidence.run.config.shards, evidence.run.config.workers
    return shards is not None and workers is not None and shards <= workers


def _within_shards(evidence: Evidence, found: Finding) -> Finding:
    """The finding to use so many workers, or as many as there are shards for, or to make more
    shards.
    """
    shards, wanted = evidence.run.config.shards, found.change.workers if found.change else None
    if shards is None or wanted is None or wanted <= shards:
        return found
    facts: Facts = {**found.facts, "shards": shards, "one_shard": shards <= 1}
    if lacks_shards(evidence):
        return not_modelled("more_shards", **facts)
    return finding("workers_of_shards", change=JobChange(workers=shards), **facts)


def deeper_queue(evidence: Evidence) -> Found:
    """More batches ahead, where the workers are fast enough on average and some batches take
    long.
    """
    found, config = evidence.ceilings, evidence.run.config
    if found is None or found.is_serial or not config.prefetch or not found.workers:
        return
    variation = next((part.seconds for part in found.residuals if part.name == "variation"), 0.0)
    largest = max((part.seconds for part in found.residuals), default=0.0)
    if found.supply_s > _MOST_SUPPLY * found.consumer_s or variation < max(
        largest, _LEAST_VARIATION * found.step_s
    ):
        return
    number = ceil(evidence.longest_batch_s / found.consumer_s / found.workers) + 1
    if config.prefetch < number <= MOST_AHEAD:
        yield finding(
            "prefetch",
            change=JobChange(prefetch=number),
            prefetch=number,
            now=config.prefetch,
            more_batches=(number - config.prefetch) * found.workers,
            supply_s=found.supply_s,
            consumer_s=found.consumer_s,
            longest_s=evidence.longest_batch_s,
        )
