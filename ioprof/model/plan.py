"""A pipeline as segments of work for the simulation.

Measured time becomes work as follows. Time on storage is a wait of its own length or, where readers
held each other up, bytes through a rate that all share. Of all other time of a worker or loop, the
part in which it could run is work on cores, shortened by the time in which it waited for one
(`CpuUse`); the rest it slept.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from ioprof.model.engine import (
    BESIDE,
    CORES,
    DELAY,
    LOCKED,
    SERIAL,
    STORAGE,
    LoaderPlan,
    Plan,
    RankPlan,
    Resource,
    Segment,
)
from ioprof.model.pipeline import (
    OWN,
    STAGES,
    WITHOUT_CORES,
    CpuUse,
    Iteration,
    Pipeline,
    Rank,
    Seconds,
    StorageUse,
    Tasks,
)

_SLICES: Final = 4
"""Parts of a task whose reads and computation alternate, as they do for each sample."""
_GOLDEN: Final = 0.6180339887498949
"""Multiples of it are spread evenly between whole numbers (Knuth, The Art of Computer Programming
3, 6.4)."""
_STORAGE: Final = STAGES.index("storage")
_NOTHING: Final[tuple[Segment, ...]] = ()


def plan(pipeline: Pipeline) -> Plan:
    """What to simulate; of a pipeline whose unobserved values are drawn (`changed.filled`)."""
    hosts = list(dict.fromkeys(rank.host for rank in pipeline.ranks))
    resources = [
        Resource(
            pipeline.cores.get(host, 1.0),
            1.0,
            pipeline.others.get(host, 0.0),
            own_groups=pipeline.own_groups.get(host, 0.0),
            scattered=pipeline.scattered.get(host, 0.0),
            team=max(rank.loop_cpu.team for rank in pipeline.ranks if rank.host == host),
        )
        for host in hosts
    ]
    use = pipeline.storage
    if not pipeline.shares_cores:
        resources = [replace(each, team=0.0) for each in resources]
        pipeline = replace(
            pipeline,
            ranks=tuple(
                replace(each, loop_cpu=CpuUse(), worker_cpu=CpuUse()) for each in pipeline.ranks
            ),
        )
    shares = {
        host: _may_compete(pipeline, host, resource)
        for host, resource in zip(hosts, resources, strict=True)
    }
    ranks = [
        _rank(rank, hosts.index(rank.host), pipeline, shares[rank.host]) for rank in pipeline.ranks
    ]
    return Plan(
        ranks, resources, Resource(use.bytes_per_s, use.reader_bytes_per_s, burst=use.burst_bytes)
    )


def _may_compete(pipeline: Pipeline, host: str, cores: Resource) -> bool:
    """Whether threads could ever wait for a core there; else work on cores is time."""
    threads = cores.background
    for rank in pipeline.ranks:
        if rank.host == host:
            most = max((each.workers for each in rank.iterations), default=0) + sum(
                each.workers for each in rank.iterations if each.is_validation
            )
            uses = ((_loop_cpu(rank, pipeline), 1), (rank.worker_cpu, most))
            threads += sum(use.threads * count for use, count in uses if use.is_measured)
    return threads > (1.0 if cores.scattered else cores.capacity)


def _rank(rank: Rank, host: int, pipeline: Pipeline, shares: bool) -> RankPlan:
    program = rank.program
    if rank.depth is not None:
        return _rank_with_device(rank, host, pipeline, shares)
    cpu = _loop_cpu(rank, pipeline)
    loaders = [_loader(each, rank, cpu, pipeline.storage, shares) for each in rank.iterations]
    works = pipeline.own_work
    arrived = np.where(np.isnan(program.arrive_s), math.inf, program.arrive_s)
    before, after = [], []
    for row, whole_s in enumerate(program.after_s.sum(1)):
        part = min(1.0, arrived[row] / whole_s) if whole_s > 0 and program.step[row] >= 0 else 1.0
        cores_s, waits_s = program.after_s[row][works].sum(), program.after_s[row][~works].sum()
        first, second = part * whole_s, (1 - part) * whole_s
        # Waits such as the exchange come after the arrival at the collective, as far as there is
        # time after it.
        late = min(waits_s, second)
        before.append(_loop_segments(first - (waits_s - late), waits_s - late, cpu, shares))
        after.append(_loop_segments(second - late, late, cpu, shares))
        assert abs(first + second - cores_s - waits_s) < 1e-6
    return RankPlan(
        host=host,
        loaders=loaders,
        ops=[int(op) for op in program.ops],
        loader_of=program.iterations,
        spent=[_delay(seconds) for seconds in program.spent_s.tolist()],
        before=before,
        barrier=[int(step) for step in program.step],
        after=after,
    )


def _rank_with_device(rank: Rank, host: int, pipeline: Pipeline, shares: bool) -> RankPlan:
    """A loop that launches what a device computes, and waits for it some steps later."""
    program = rank.program
    works = np.array([cause not in (*WITHOUT_CORES, "compute") for cause in OWN])
    waits = np.array([cause in ("storage", "checkpoint") for cause in OWN])
    none: list[tuple[Segment, ...]] = [_NOTHING] * len(program)
    return RankPlan(
        host=host,
        loaders=[
            _loader(each, rank, rank.loop_cpu, pipeline.storage, shares) for each in rank.iterations
        ],
        ops=[int(op) for op in program.ops],
        loader_of=program.iterations,
        spent=[_delay(seconds) for seconds in program.spent_s.tolist()],
        before=[
            _loop_segments(float(row[works].sum()), float(row[waits].sum()), rank.loop_cpu, shares)
            for row in program.after_s
        ],
        barrier=[int(step) for step in program.device_step],
        after=none,
        device_s=_with_copies(program.device_s, pipeline).tolist(),
        transfer_s=program.transfer_s.tolist(),
        meanwhile=[
            _loop_segments(seconds, 0.0, rank.loop_cpu, shares)
            for seconds in program.hidden_s.tolist()
        ],
        depth=rank.depth or 0,
        # a copy from pageable memory is ordered among the work of its stream, and the call returns
        # when it is done ("API synchronization behavior" in CUDA's manual)
        waits_to_copy=pipeline.copy == "pageable",
    )


def _with_copies(device_s: Seconds, pipeline: Pipeline) -> Seconds:
    """What the device does for each batch: a copy on a stream of its own holds it up only if that
    is the longer of the two.
    """
    found: Seconds = (
        np.maximum(device_s, pipeline.copy_s)
        if pipeline.copy == "overlapped"
        else device_s + pipeline.copy_s
    )
    return np.where(device_s > 0, found, device_s)


def _loop_cpu(rank: Rank, pipeline: Pipeline) -> CpuUse:
    """That of the loop. Where it was not sampled for long enough, a model on the CPU is taken to
    compute on one core.
    """
    if rank.loop_cpu.is_measured or pipeline.on_device or not pipeline.shares_cores:
        return rank.loop_cpu
    spent_s = rank.program.after_s.sum(0)
    works_s = sum(
        spent
        for cause, spent in zip(OWN, spent_s.tolist(), strict=True)
        if cause not in WITHOUT_CORES
    )
    computes_s = float(spent_s[OWN.index("compute")])
    return (
        CpuUse(busy_ratio=computes_s / works_s, cpu_s=computes_s)
        if computes_s > 0
        else rank.loop_cpu
    )


def _loop_segments(work_s: float, wait_s: float, cpu: CpuUse, shares: bool) -> tuple[Segment, ...]:
    if not shares or not cpu.is_measured:
        return _delay(work_s * (_waiting_ratio(cpu) + cpu.cores_ratio) + wait_s)
    return _delay(work_s * _waiting_ratio(cpu) + wait_s) + _cores(work_s * cpu.cores_ratio, cpu)


def _waiting_ratio(cpu: CpuUse) -> float:
    """Share of the time that was neither computation nor competition: sleep, and the time until a
    woken thread ran.
    """
    return 1 - cpu.busy_ratio + cpu.busy_ratio * cpu.wake_ratio


def _delay(seconds: float) -> tuple[Segment, ...]:
    return (Segment(DELAY, float(seconds)),) if seconds > 0 else _NOTHING


def _cores(seconds: float, cpu: CpuUse) -> tuple[Segment, ...]:
    return (Segment(CORES, float(seconds), cpu.threads),) if seconds > 0 else _NOTHING


def _loader(
    each: Iteration, rank: Rank, loop_cpu: CpuUse, storage: StorageUse, shares: bool
) -> LoaderPlan:
    tasks = each.tasks
    # What was measured in workers is shortened by their delay, also where the loop does it in the
    # changed job.
    cpu = rank.worker_cpu if rank.worker_cpu.is_measured or each.workers else rank.loop_cpu
    # whoever holds the interpreter lock computes
    one_at_a_time = LOCKED if each.lock_wait_s and shares and cpu.is_measured else SERIAL
    segments = _task_segments(tasks, cpu, storage, one_at_a_time, shares)
    lag_s = tasks.lag_s
    if shares and cpu.is_measured:  # taking a task is work as making its batch is
        segments = [
            (*_cores(each_s * cpu.cores_ratio, cpu), *work)
            for each_s, work in zip(lag_s.tolist(), segments, strict=True)
        ]
        lag_s = lag_s * _waiting_ratio(cpu)
    transit_s, contended_s = tasks.transit_s + tasks.held_s, np.zeros(0)
    if each.workers and shares and cpu.is_measured:  # threads that send wait for cores, too
        transit_s = tasks.transit_s * _waiting_ratio(cpu) + tasks.held_s
        contended_s = tasks.transit_s * cpu.cores_ratio
    if each.starts_workers:
        for number, more_s in enumerate(each.first_s[: len(segments)].sum(1).tolist()):
            more = _cores(more_s, cpu) if shares and cpu.is_measured else _delay(more_s)
            segments[number] = (*more, *segments[number])
    return LoaderPlan(
        workers=each.workers,
        prefetch=each.prefetch,
        tasks=segments,
        lag_s=lag_s.tolist(),
        transit_s=transit_s.tolist(),
        contended_s=contended_s.tolist(),
        take=[_loop_segments(seconds, 0.0, loop_cpu, shares) for seconds in tasks.take_s.tolist()],
        num_tasks=len(tasks),
        startup_s=each.startup_s.tolist() if each.starts_workers else (),
        group=each.group,
        makers=each.makers,
        is_pool=each.is_pool,
        together=each.together,
    )


def _task_segments(
    tasks: Tasks, cpu: CpuUse, storage: StorageUse, one_at_a_time: int, shares: bool
) -> list[tuple[Segment, ...]]:
    """What a worker does for each task; `one_at_a_time`: the resource that `serial_s` is of."""
    stages_s = tasks.stages_s
    others_s = stages_s.sum(1) - stages_s[:, _STORAGE]
    sleep_s, work_s = others_s * _waiting_ratio(cpu), others_s * cpu.cores_ratio + tasks.reads_cpu_s
    if storage.is_rate_bound:
        wait_s, size = np.minimum(tasks.open_s, stages_s[:, _STORAGE]), tasks.read_bytes
    else:
        wait_s, size = stages_s[:, _STORAGE], np.zeros(len(tasks))
    wait_s = wait_s + sleep_s
    if not shares or not cpu.is_measured:
        wait_s, work_s = wait_s + work_s + tasks.reads_delay_s, np.zeros(len(work_s))
    served_s = (tasks.reads * storage.served_s_per_read + tasks.served_s) * shares
    found = []
    rows = zip(
        *(each.tolist() for each in (wait_s, work_s, size, served_s, tasks.serial_s)), strict=True
    )
    for number, (wait, work, of_bytes, served, serial) in enumerate(rows):
        slices = _SLICES if (wait > 0) + (work > 0) + (of_bytes > 0) + (serial > 0) > 1 else 1
        one: list[Segment] = []
        if wait > 0:
            one.append(Segment(DELAY, wait / slices))
        if of_bytes > 0:
            one.append(Segment(STORAGE, of_bytes / slices))
        if work > 0:
            one.append(Segment(CORES, work / slices, cpu.threads))
        if serial > 0:
            one.append(Segment(one_at_a_time, serial / slices))
        if served > 0:
            one.append(Segment(BESIDE, served / slices))
        segments = one * slices
        if wait > 0 and work > 0:
            # The last part of the first wait comes at the end, another part in each task: workers
            # do not compute in step.
            early = wait / slices * (number * _GOLDEN % 1)
            segments = [Segment(DELAY, early), *segments[1:], Segment(DELAY, wait / slices - early)]
        found.append(tuple(segments))
    return found
