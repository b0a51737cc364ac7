"""When more workers, or more batches ahead, would help: from the two ceilings, and from what
workers do to make a batch. What they send with a batch for nothing.
"""

from collections.abc import Iterator
from math import ceil
from typing import Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.cpu.cpu_verdict import overrides_workers
from ioprof.format.run_record import Advice, JobChange, NoGain

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
_MOST_AHEAD: Final = 64
"""Batches per worker."""


def whole_tensors(evidence: Evidence) -> Iterator[Advice]:
    """What to change where a batch has parts of larger tensors: a worker sends these whole, and the
    loop frees them.
    """
    if evidence.views is not None:
        part, whole = (
            f"{num_bytes / 1e6:,.1f} MB"
            for num_bytes in (evidence.views.part_bytes, evidence.views.whole_bytes)
        )
        yield Advice(
            "Send a copy of what a sample takes from a larger tensor or memory map (.clone(), or"
            f" np.ascontiguousarray before torch.from_numpy): the tensors of a batch have {part},"
            f" and are parts of larger ones of {whole}, all of which a worker sends and the loop"
            " frees",
            cause="delivery",
            no_gain=NoGain.NOT_MODELLED,
        )


def waiting_workers(evidence: Evidence, why: str) -> Advice | None:
    """More workers where those that there are mostly wait, for anything but a core. None: they do
    not, or they keep up.
    """
    ceilings, cpu, workers = evidence.ceilings, evidence.cpu, evidence.run.config.workers
    running = cpu.worker_running_threads if cpu else None
    if ceilings is None or cpu is None or running is None or not workers or evidence.are_served:
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
    waits = (
        f"a worker uses {running:.2f} cores and waits for the rest of the time, so more of them"
        " need few cores"
    )
    text = f"Use {evidence.options.with_workers.format(number)} instead of {workers}: {waits}"
    return Advice(f"{text}; {why}" if why else text, change=JobChange(workers=number))


def more_workers(evidence: Evidence, why: str) -> Iterator[str | Advice]:
    """More workers while there are free cores, one per rank left to the rank itself; but equal work
    for them first.

    None where they wait for one process that answers all of them.
    """
    yield from _equal_work(evidence)
    if evidence.are_served or evidence.use.idle_workers(evidence.run.config.workers):
        return
    ranks, workers, cpus = evidence.run.config.ranks, evidence.run.config.workers, evidence.run.cpus
    if (
        workers is None
        and evidence.run.config.loader is not None
        and not overrides_workers(evidence.cpu)
    ):
        yield f"Raise {evidence.options.workers_name} while cores are idle: {why}"
    if workers is None or ranks is None or cpus is None or overrides_workers(evidence.cpu):
        return
    free = cpus // max(ranks, 1) - 1
    now = (
        f"{ranks} rank{'s' if ranks > 1 else ''} with {workers} worker{'s' if workers != 1 else ''}"
        " each"
    )
    options = evidence.options
    if free > workers:
        text = (
            f"Use {options.with_workers.format(free)} instead of {workers}: {cpus} cores serve"
            f" {now}, and {why}"
        )
        yield from _within_shards(evidence, Advice(text, change=JobChange(workers=free)), why)
    elif found := waiting_workers(evidence, why):
        yield from _within_shards(evidence, found, why)


def _equal_work(evidence: Evidence) -> Iterator[Advice]:
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
    busy = (
        f"the busiest of {found.workers} workers fetched for {(found.supply_s + more_s) * 1e3:,.1f}"
        " ms a step"
    )
    text = (
        "Give all workers as much work (shards of equal size, or many more than workers; samples"
        " that take equally long)"
    )
    yield Advice(f"{text}: {busy}, the mean is {found.supply_s * 1e3:,.1f} ms")


def lacks_shards(evidence: Evidence) -> bool:
    """Whether each shard is read by a worker of its own already, so that more workers would have
    nothing to read.
    """
    shards, workers = evidence.run.config.shards, evidence.run.config.workers
    return shards is not None and workers is not None and shards <= workers


def _within_shards(evidence: Evidence, found: Advice, why: str) -> Iterator[Advice]:
    """Advice to use so many workers, or as many as there are shards for, or to make more shards."""
    shards, options, wanted = (
        evidence.run.config.shards,
        evidence.options,
        found.change.workers if found.change else None,
    )
    if shards is None or wanted is None or wanted <= shards:
        yield found
        return
    divided = f"each of the {shards} shards of a rank" if shards > 1 else "the only shard of a rank"
    only = f"one worker reads {divided}, so that of more workers some would have nothing to read"
    if lacks_shards(evidence):
        yield Advice(
            f"Divide the data into more shards, and then use {options.with_workers.format(wanted)}:"
            f" {only}; {why}"
        )
        return
    text = (
        f"Use {options.with_workers.format(shards)} instead of {evidence.run.config.workers}, and"
        f" more with more shards: {only}"
    )
    yield Advice(f"{text}; {why}", change=JobChange(workers=shards))


def deeper_queue(evidence: Evidence) -> Iterator[Advice]:
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
    if not config.prefetch < number <= _MOST_AHEAD:
        return
    yield Advice(
        f"Prepare more batches ahead ({evidence.options.prefetch}{number} instead of"
        f" {config.prefetch} per worker): the workers make a batch in {found.supply_s * 1e3:,.1f}"
        f" ms on average and the loop takes {found.consumer_s * 1e3:,.1f} ms, but a batch took up"
        f" to {evidence.longest_batch_s * 1e3:,.0f} ms",
        change=JobChange(prefetch=number),
        costs=f"memory for {(number - config.prefetch) * found.workers} more batches per rank",
    )
