"""A job on a system: how long its epochs take, what bounds them, and between which ends that lies.

The range has all values of the system and the job at their worse ends, and at their better ones. It
is wide where values are assumed. What the model itself gets wrong is no part of it: that is what
`ioprof.model.simulator.validation` shows.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import ceil, isfinite
from typing import Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.model.simulator.cache import hits
from ioprof.model.simulator.engine import ALL, NODE, Load, Shared, Simulated, run
from ioprof.model.simulator.exchange_time import exchange_s, exposed_s
from ioprof.model.simulator.jobs import MEASURED, NOTHING, Job
from ioprof.model.simulator.system import Numbers, System
from ioprof.model.simulator.validation import comparisons

ENDS: Final = ("value", "worse", "better")
MOST_STEPS: Final = 1000
"""Of an epoch that are simulated; the others are as long as the second half of these."""
SHARED, STAGED = "shared", "staged"
"""Where a job reads: from the shared storage, or from the disk of its node."""
COMPUTE: Final = "compute"
"""The accelerators, among the resources of `Epoch.busy`."""


@dataclass(frozen=True)
class Estimate:
    """A predicted number with its range."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Epoch:
    """An epoch, and what a step of it is made of: mean seconds over ranks and steps."""

    seconds: Estimate
    first_step_s: Estimate
    """Until the first step has ended: the workers begin with nothing."""
    step_s: Estimate
    """Of the later ones."""
    samples_per_s: Estimate
    """Of all ranks, with the start of the epoch."""
    use: Estimate
    """Of the accelerators: the share of the time without the first step in which they compute, as
    MLPerf Storage has it."""
    compute_s: float
    wait_s: float
    """For data."""
    straggler_s: float
    """For the slowest rank."""
    other_s: float
    """Exchange that computation does not hide, and what a step takes besides."""
    hit_ratio: float
    """Of the reads, from the page cache."""
    bound_by: str
    """What is used the largest part of the time."""
    busy: dict[str, float]
    """Share of the time in which each resource is needed."""
    needed_s: dict[str, float]
    """How long each resource is needed for a step."""


@dataclass(frozen=True)
class Simulation:
    """What a job does on a system."""

    system: str
    job: str
    job_basis: str
    job_source: str
    ranks: int
    nodes: int
    reads_from: str
    exchange: str
    link: str
    exchange_s: float
    """Exchange of a step that computation does not hide."""
    whole_exchange_s: float
    """The same with what computation hides."""
    copy_s: float
    """Copying a batch to the device, beside the computation of the one before."""
    steps_per_epoch: int
    simulated_steps: int
    dataset_bytes: float
    memory_bytes: float
    """Of all nodes."""
    first: Epoch
    later: Epoch
    """The mean of those of `epochs` after the first, or the second one."""
    staging_s: Estimate | None
    """Copying the dataset to the nodes' disks; None: it is not staged."""
    epochs: int
    total_s: Estimate
    """Of that many epochs, with staging."""
    unknown: tuple[str, ...]
    """Values of the system that are not known and set no limit."""
    assumed: tuple[str, ...]
    """Values of the system and the job without a source."""
    limits: tuple[str, ...]
    """What is known to be missing."""
    seed: int
    basis: str = "predicted"
    """Of all numbers but the description of the system and the job."""

    def beside_compute(self, epoch: Epoch) -> dict[str, float]:
        """What of a step is not computation, in seconds: the resource that is used most, `copies`,
        `exchange`, `slowest rank` and `loop`. Where a resource is used more than the accelerators,
        the slowest rank is the one that it served last.
        """
        used = {name: share for name, share in epoch.busy.items() if name != COMPUTE}
        resource = max(used, key=lambda name: used[name], default="data")
        is_full = used.get(resource, 0.0) > epoch.busy[COMPUTE]
        copies_s = min(max(0.0, self.copy_s - epoch.compute_s), epoch.other_s)
        exchange_s = min(self.exchange_s, epoch.other_s - copies_s)
        return {
            resource: epoch.wait_s + epoch.straggler_s * is_full,
            "copies": copies_s,
            "exchange": exchange_s,
            "slowest rank": epoch.straggler_s * (not is_full),
            "loop": epoch.other_s - copies_s - exchange_s,
        }

    def most_beside_compute(self, epoch: Epoch) -> tuple[str, float]:
        """What takes most of a step beside the computation, and its share of the step."""
        parts = self.beside_compute(epoch)
        most = max(parts, key=lambda name: parts[name])
        return most, parts[most] / (epoch.compute_s + sum(parts.values()))

    def whole_s(self, epoch: Epoch) -> dict[str, float]:
        """How long of a step each resource, the copies and the exchange are at work, with what
        computation hides.
        """
        return epoch.needed_s | {"copies": self.copy_s, "exchange": self.whole_exchange_s}

    def needs_bytes_per_s(self, epoch: Epoch) -> float:
        """What all ranks must be given so that no accelerator waits."""
        return self.dataset_bytes / self.steps_per_epoch / epoch.compute_s

    def to_json(self) -> str:
        """The simulation as JSON, with the errors of the simulator beside it."""
        found = asdict(self)
        found["validation"] = [asdict(each) for each in comparisons()]
        return json.dumps(found, indent=1, allow_nan=False)


@dataclass(frozen=True)
class Setting:
    """How a job runs on a system."""

    ranks: int
    nodes: int
    ranks_per_node: int
    reads_from: str = SHARED
    exchange: str = "ring"
    link: str = "verbs"


def setting(
    system: System,
    ranks: int,
    *,
    nodes: int | None = None,
    reads_from: str = SHARED,
    exchange: str = "ring",
    link: str = "verbs",
) -> Setting:
    """The setting of so many ranks; CommandError for what the system does not have."""
    numbers = system.at("value")
    if ranks < 1:
        raise CommandError(f"--ranks {ranks}: give 1 or more")
    used = nodes or ceil(ranks / numbers.nodes_accelerators)
    if used > numbers.nodes_count or used > ranks:
        most = min(numbers.nodes_count, ranks)
        raise CommandError(f"--ranks {ranks}: that needs {used} nodes; {system.name} has {most:g}")
    if reads_from == STAGED and not numbers.disk_bytes_per_s:
        raise CommandError(f"--stage: the nodes of {system.name} have no disk")
    if link not in ("verbs", "tcp") or (link == "tcp" and not numbers.network_tcp_bytes_per_s):
        raise CommandError(
            f"--link {link}: {system.name} has verbs"
            f"{' and tcp' if numbers.network_tcp_bytes_per_s else ''}"
        )
    return Setting(ranks, used, ceil(ranks / used), reads_from, exchange, link)


def simulate(
    system: System,
    job: Job,
    found: Setting,
    *,
    epochs: int = 1,
    steps: int = MOST_STEPS,
    seed: int = 0,
    as_recorded: bool = False,
) -> Simulation:
    """Simulate the first epoch, with nothing in memory, and a later one, at all ends of the ranges.

    `as_recorded`: the page cache has what it had in the run. The same arguments give the same
    result.
    """
    per_epoch = max(1, job.samples // (job.batch * found.ranks))
    simulated = min(per_epoch, max(1, steps))
    shuffles = "node" if found.reads_from == STAGED else job.shuffles
    cold, warm, staging = {}, {}, {}
    memory = {end: system.at(end).nodes_memory_bytes for end in ENDS}
    for end in ENDS:
        kept = hits(job.dataset_bytes, memory[end], found.nodes, shuffles, epochs)
        cold[end] = _epoch(
            system, job, found, end, job.hit_ratio * as_recorded, simulated, per_epoch, seed
        )
        again = replace(job, once_s=NOTHING, once_per_rank_s=NOTHING)
        warm[end] = _epoch(
            system, again, found, end, getattr(kept, end), simulated, per_epoch, seed
        )
        if found.reads_from == STAGED:
            staging[end] = staging_s(system.at(end), job, found, end)
    totals = {
        end: staging.get(end, 0.0) + cold[end].seconds + (epochs - 1) * warm[end].seconds
        for end in ENDS
    }
    return Simulation(
        system=system.name,
        job=job.name,
        job_basis=job.basis,
        job_source=job.source,
        ranks=found.ranks,
        nodes=found.nodes,
        reads_from=found.reads_from,
        exchange=found.exchange,
        link=found.link,
        exchange_s=_exchange_s(system.at("value"), job, found),
        whole_exchange_s=exchange_s(
            found.exchange,
            found.ranks,
            found.ranks_per_node,
            system.at("value").links(found.link),
            job.gradient_bytes,
        ),
        copy_s=job.copy_s,
        steps_per_epoch=per_epoch,
        simulated_steps=simulated,
        dataset_bytes=job.dataset_bytes,
        memory_bytes=memory["value"] * found.nodes,
        first=_joined(cold),
        later=_joined(warm),
        staging_s=estimate(staging) if staging else None,
        epochs=epochs,
        total_s=estimate(totals),
        unknown=system.unknown,
        assumed=(*system.assumed, *job.assumed),
        limits=system.limits,
        seed=seed,
    )


def held(system: System, job: Job, nodes: int, limit: float | None = None) -> int:
    """The most ranks on so many nodes whose accelerators are used for at least `limit` of the time
    (default: that of the job), at the values of the system; 0: not even one per node.
    """
    wanted = job.use_limit if limit is None else limit

    def holds(ranks: int) -> bool:
        found = Setting(ranks, nodes, ceil(ranks / nodes))
        made = _epoch(system, job, found, "value", 0.0, _HELD_STEPS, _HELD_STEPS, 0)
        return made.use >= wanted

    if not holds(nodes):
        return 0
    low, high = nodes, 2 * nodes
    while high < _MOST_RANKS and holds(high):
        low, high = high, 2 * high
    while high - low > max(1, low // _HELD_PARTS):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


_HELD_STEPS: Final = 400
_HELD_PARTS: Final = 200
"""The number is exact to a part of so many."""
_MOST_RANKS: Final = 1 << 16


def staging_s(numbers: Numbers, job: Job, found: Setting, end: str = "value") -> float:
    """Copying the data to the disks of the nodes: all of them to each node whose disk has room for
    that, else a part to each, by many readers at once.
    """
    fits = job.dataset_bytes <= numbers.disk_capacity_bytes
    each = job.dataset_bytes if fits else job.dataset_bytes / found.nodes
    files = job.samples * job.files_per_sample * (found.nodes if fits else 1)
    return job.staging_start_s.at(end, is_cost=True) + max(
        each * found.nodes / numbers.storage_bytes_per_s,
        each / numbers.nodes_client_bytes_per_s,
        each / numbers.disk_write_bytes_per_s if numbers.disk_write_bytes_per_s else 0.0,
        files / numbers.storage_metadata_per_s,
    )


@dataclass(frozen=True)
class _End:
    """An epoch at one end of the ranges."""

    seconds: float
    first_step_s: float
    step_s: float
    samples_per_s: float
    use: float
    simulated: Simulated
    hit_ratio: float
    busy: dict[str, float]


def _epoch(
    system: System,
    job: Job,
    found: Setting,
    end: str,
    hit_ratio: float,
    steps: int,
    per_epoch: int,
    seed: int,
) -> _End:
    load = make_load(system, job, found, end, hit_ratio)
    made = run(load, steps, seed)
    took = made.steps_s
    steady = took[len(took) // 2 :] if len(took) > 1 else took
    seconds = float(made.end_s[-1]) + (per_epoch - steps) * float(steady.mean())
    seconds += job.once_s.at(end, is_cost=True)
    seconds += job.once_per_rank_s.at(end, is_cost=True) * found.ranks
    later_s, computed_s = float(took[1:].sum()), float(made.compute_s[1:].sum())
    span = float(made.end_s[-1])
    busy = {name: each / span for name, each in made.busy_s.items()}
    return _End(
        seconds,
        float(took[0]),
        later_s / (steps - 1) if steps > 1 else float(took[0]),
        per_epoch * found.ranks * job.batch / seconds,
        computed_s / later_s if later_s else float(made.compute_s[0] / took[0]),
        made,
        hit_ratio,
        busy | {COMPUTE: float(made.compute_s.sum()) / span},
    )


def make_load(system: System, job: Job, found: Setting, end: str, hit_ratio: float) -> Load:
    """What the engine needs, at one end of the ranges."""
    numbers = system.at(end)
    read = 1 - hit_ratio
    stored = job.batch * job.sample_bytes * read
    cpu_s = job.cpu_s.at(end, is_cost=True) * job.batch
    shared = dict[str, Shared]()
    if found.reads_from == STAGED:
        shared["disk"] = Shared(numbers.disk_bytes_per_s, NODE, stored, True)
        latency_s, stream = numbers.disk_latency_s * job.reads_per_sample, numbers.disk_bytes_per_s
    else:
        rate = numbers.storage_bytes_per_s
        if job.is_one_file:
            rate *= min(1.0, numbers.storage_stripes / numbers.storage_servers)
        shared["storage"] = Shared(rate, ALL, stored, True)
        shared["client"] = Shared(numbers.nodes_client_bytes_per_s, NODE, stored, True)
        opened = job.batch * job.files_per_sample * read
        shared["metadata"] = Shared(numbers.storage_metadata_per_s, ALL, opened, False)
        latency_s = (
            numbers.storage_open_s * job.files_per_sample
            + numbers.storage_latency_s * job.reads_per_sample
        )
        stream = numbers.storage_stream_bytes_per_s
    loader = system.loader_per_s(job.name, end)
    if loader is None:
        shared["cores"] = Shared(numbers.nodes_cores, NODE, cpu_s, False)
    else:
        shared["loader"] = Shared(loader, NODE, job.batch, False)
    threads = job.threads or numbers.nodes_cores
    alone_s = cpu_s + job.batch * latency_s * read + stored / stream
    slower = 1 + job.compute_error * {"value": 0, "worse": 1, "better": -1}[end]
    published = system.overheads.get(job.name)
    overhead = (
        job.overhead_s.at(end, is_cost=True) * contention(job, found, numbers.nodes_cores)
        if published is None
        else published.at(end, is_cost=True)
    )
    return Load(
        ranks=found.ranks,
        ranks_per_node=found.ranks_per_node,
        workers=job.workers,
        prefetch=job.prefetch,
        shared={
            name: each for name, each in shared.items() if isfinite(each.rate) and each.amount > 0
        },
        alone_s=alone_s / threads + job.fixed_s,
        size_cv=job.size_cv / float(np.sqrt(job.batch)),
        compute_s=job.compute_s * slower,
        overhead_s=job.overhead_draws * overhead,
        after_s=_exchange_s(numbers, job, found)
        + max(0.0, job.copy_s - float(job.compute_s.mean()) * slower),
    )


TURNS: Final = 0.6
"""How much longer a step is on the host for each process per core beyond the first. Fitted to rows
of MLPerf Storage v1.0 with A100, unet3d, 2 to 8 processes per core: WEKA, HPE E1000, Micron's 9400
and 9550 and IEI show 0.4 to 1.1. Below 1: a thread that slept runs before those that compute."""


def contention(job: Job, found: Setting, cores: float) -> float:
    """How many times longer a step is on the host than alone on one core: after the barrier all
    ranks of a node take their batches at once.

    Threads that make a batch together also share this work, so that it takes the node's cores as
    long as all its ranks need, and a rank as many cores as the batch has samples. Elsewhere the
    main thread of a rank does it, with which processes take turns that are more than the cores.
    """
    if job.basis == MEASURED:  # with what competed in the run
        return 1.0
    if job.threads == 0:
        return max(1 / min(job.batch, cores), found.ranks_per_node / cores)
    processes = found.ranks_per_node * (job.workers + 1)
    return 1.0 + TURNS * max(0.0, processes / cores - 1.0)


def _exchange_s(numbers: Numbers, job: Job, found: Setting) -> float:
    return exposed_s(
        found.exchange,
        found.ranks,
        found.ranks_per_node,
        numbers.links(found.link),
        job.gradient_bytes,
        float(job.compute_s.mean()),
    )


def estimate(ends: dict[str, float]) -> Estimate:
    """The value with the least and the largest of its ends."""
    return Estimate(ends["value"], min(ends.values()), max(ends.values()))


def _joined(ends: dict[str, _End]) -> Epoch:
    def of(get: Callable[[_End], float]) -> Estimate:
        return estimate({end: get(each) for end, each in ends.items()})

    usual = ends["value"]
    made = usual.simulated
    later = slice(1, None) if len(made.end_s) > 1 else slice(None)
    return Epoch(
        seconds=of(lambda each: each.seconds),
        first_step_s=of(lambda each: each.first_step_s),
        step_s=of(lambda each: each.step_s),
        samples_per_s=of(lambda each: each.samples_per_s),
        use=of(lambda each: each.use),
        compute_s=float(made.compute_s[later].mean()),
        wait_s=float(made.wait_s[later].mean()),
        straggler_s=float(made.straggler_s[later].mean()),
        other_s=float(made.other_s[later].mean()),
        hit_ratio=usual.hit_ratio,
        bound_by=max(usual.busy, key=lambda name: usual.busy[name]),
        busy=usual.busy,
        needed_s={name: seconds / len(made.end_s) for name, seconds in made.busy_s.items()},
    )
