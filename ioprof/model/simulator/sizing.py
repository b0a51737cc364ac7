"""What a job needs of a system: derived from what it computes and reads, whatever the system is.

Each number is what all ranks need together so that no accelerator ever waits. Staging pays from the
epoch on in which what it saved is more than what it took.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf
from typing import Final

from ioprof.format.trace import Trace
from ioprof.model.simulator.asked import SizeAsked, check_measured
from ioprof.model.simulator.cache import CACHE_RATIO
from ioprof.model.simulator.jobs import (
    LAYOUTS,
    Job,
    described,
    recorded,
    scaled,
    with_workers,
    workload_devices,
)
from ioprof.model.simulator.simulation import Estimate
from ioprof.model.simulator.values import Value

STORAGE_RATES: Final = (1e9, 2e9, 5e9, 10e9, 20e9, 50e9, 100e9, 200e9, 500e9, 1e12)
"""Of a shared storage, in bytes per second, for which the use of the accelerators is given."""


@dataclass(frozen=True)
class Need:
    """What one layout needs."""

    layout: str
    dataset_bytes: float
    bytes_per_s: Estimate
    """From storage, while nothing is in memory."""
    reads_per_s: Estimate
    opens_per_s: Estimate
    """Metadata operations: files that are opened."""
    cores: Estimate
    """That decode and collate all the time."""
    memory_bytes: float
    """Of all nodes together, that holds the dataset beside the job, if each node reads the same
    records in each epoch."""
    batches_bytes: float
    """Of batches that are made ahead, in all ranks."""
    bends_at_bytes_per_s: float
    """The rate of storage below which the accelerators wait: the value of `bytes_per_s`."""
    use: tuple[tuple[float, float], ...]
    """Storage rate, and the use of the accelerators that it allows at most."""
    staging_s: float | None
    """Copying the dataset once through storage of the given rate; None: no rate was given."""
    staging_pays_from_epoch: int | None
    """With storage of that rate, and disks that never bound; None: never, or no rate was given."""


@dataclass(frozen=True)
class NextDevice:
    """Another accelerator with the same job."""

    device: str
    samples_per_s: float
    """Of all ranks."""
    bytes_per_s: float
    basis: str
    """Of its rate: published or derived."""


@dataclass(frozen=True)
class Size:
    """What a job needs."""

    job: str
    job_source: str
    job_basis: str
    ranks: int
    samples_per_s: Estimate
    """Of all ranks, if none ever waits."""
    epoch_s: Estimate
    epochs: int
    total_s: Estimate
    needs: tuple[Need, ...]
    next_devices: tuple[NextDevice, ...]
    energy_kwh: Estimate | None
    price: Estimate | None
    assumed: tuple[str, ...]
    device: str = ""
    """Of the ranks; empty: that of a run."""
    basis: str = "derived"

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)


@dataclass(frozen=True)
class Rates:
    """What a site pays, and what its storage delivers."""

    storage_bytes_per_s: float | None = None
    watts: float | None = None
    """Of a rank with its share of a node."""
    price_per_hour: float | None = None
    """Of a rank."""


def size(
    job: Job, ranks: int, *, epochs: int = 1, rates: Rates = Rates(), layouts: Sequence[Job] = ()
) -> Size:
    """What the job needs with so many ranks. `layouts` are the same job with its data in other
    layouts.
    """
    speed = _speed(job, ranks)
    epoch = _over(job.samples, speed)
    total = _times(epoch, epochs)
    hours = _times(total, ranks / 3600)
    return Size(
        job=job.name,
        job_source=job.source,
        job_basis=job.basis,
        ranks=ranks,
        samples_per_s=speed,
        epoch_s=epoch,
        epochs=epochs,
        total_s=total,
        needs=tuple(_need(each, ranks, rates) for each in (layouts or (job,))),
        next_devices=(),
        energy_kwh=_times(hours, rates.watts / 1000) if rates.watts else None,
        price=_times(hours, rates.price_per_hour) if rates.price_per_hour else None,
        assumed=job.assumed,
    )


def asked_size(model: str, asked: SizeAsked, like: Trace | None) -> Size:
    """The same of a model on a device, in each layout, and what the next devices would need; or of
    the job of a run.
    """
    rate = asked.storage_rate
    rates = Rates(rate * 1e9 if rate else None, asked.watts, asked.price_per_hour)
    if like is not None:
        check_measured(asked)
        job = scaled(recorded(like)[0], asked.scale)
        job = replace(with_workers(job, asked.workers, asked.prefetch), name="as recorded")
        return size(job, asked.ranks, epochs=asked.epochs, rates=rates)
    published = workload_devices(model)
    usual = _DEVICE if not published or _DEVICE in published else published[-1]
    device = (asked.device or usual).removeprefix("emulated:")
    layouts = (
        {_AS_PUBLISHED: asked}
        if published
        else {layout: replace(asked, layout=layout) for layout in LAYOUTS}
    )
    jobs = {
        layout: replace(each.described(model, device), name=layout)
        for layout, each in layouts.items()
    }
    job = jobs[_AS_PUBLISHED if published else asked.layout]
    found = size(job, asked.ranks, epochs=asked.epochs, rates=rates, layouts=tuple(jobs.values()))
    following = _next(model, device, asked.ranks, job)
    return replace(found, job=f"{model} on {device}", device=device, next_devices=following)


_DEVICE: Final = "h100"
_AS_PUBLISHED: Final = "as published"
"""Layout of a workload."""
_ORDER: Final = ("p100", "v100", "a100", "h100", "h200")
"""Devices whose rates are comparable, the slowest first."""


def _next(model: str, device: str, ranks: int, job: Job) -> tuple[NextDevice, ...]:
    place = _ORDER.index(device) if device in _ORDER else len(_ORDER)
    found, known = [], workload_devices(model) or _ORDER
    for name in _ORDER[place + 1 :]:
        if name not in known:
            continue
        other = described(model, name, batch=job.batch)
        speed = _speed(other, ranks).value
        basis = "derived" if other.compute_error else "published"
        found.append(NextDevice(name, speed, speed * job.sample_bytes, basis))
    return tuple(found)


def _speed(job: Job, ranks: int) -> Estimate:
    """Samples per second of all ranks. A step takes its computation, and what else is known."""

    def of(slower: float, overhead_s: float) -> float:
        step_s = float(job.compute_s.mean()) * slower + overhead_s
        return ranks * job.batch / step_s

    error, more = job.compute_error, job.overhead_s
    return Estimate(of(1.0, 0.0), of(1 + error, more.high), of(1 / (1 + error), 0.0))


def _need(job: Job, ranks: int, rates: Rates) -> Need:
    speed = _speed(job, ranks)
    wanted = _times(speed, job.sample_bytes)
    rate = rates.storage_bytes_per_s
    staging_s = job.dataset_bytes / rate if rate else None
    return Need(
        layout=job.name,
        dataset_bytes=job.dataset_bytes,
        bytes_per_s=wanted,
        reads_per_s=_times(speed, job.reads_per_sample),
        opens_per_s=_times(speed, job.files_per_sample),
        cores=_cores(speed, job.cpu_s),
        memory_bytes=job.dataset_bytes / CACHE_RATIO[1],
        batches_bytes=ranks * job.batch * job.sample_bytes * max(1, job.workers) * job.prefetch,
        bends_at_bytes_per_s=wanted.value,
        use=tuple((each, min(1.0, each / wanted.value)) for each in STORAGE_RATES),
        staging_s=staging_s,
        staging_pays_from_epoch=_pays_from(job, speed.value, rate),
    )


def _pays_from(job: Job, samples_per_s: float, rate: float | None) -> int | None:
    """Staging takes one pass through the storage; each epoch from the disk saves what an epoch that
    reads the storage takes longer.
    """
    if not rate:
        return None
    copy_s = job.dataset_bytes / rate
    saved_s = max(0.0, copy_s - job.samples / samples_per_s)
    needed = copy_s / saved_s if saved_s else inf
    return None if needed == inf else ceil(needed)


def _cores(speed: Estimate, cpu_s: Value) -> Estimate:
    return Estimate(speed.value * cpu_s.value, speed.low * cpu_s.low, speed.high * cpu_s.high)


def _times(found: Estimate, factor: float) -> Estimate:
    return Estimate(found.value * factor, found.low * factor, found.high * factor)


def _over(amount: float, found: Estimate) -> Estimate:
    return Estimate(amount / found.value, amount / found.high, amount / found.low)
