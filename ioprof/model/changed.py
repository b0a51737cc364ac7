"""A recorded pipeline under a change: each function returns another pipeline and leaves the first
as it is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ioprof.model.changes import CALLS, Change
from ioprof.model.other_costs import NONE, Grounds, with_batches_of, with_device
from ioprof.model.pipeline import (
    OWN,
    STAGES,
    CpuUse,
    Iteration,
    Op,
    Pipeline,
    Program,
    Rank,
    Seconds,
    Tasks,
)

PER_BATCH: Final = ("host", "exchange", "gc")
"""Causes of the loop's time that a batch of another size takes as long for; all others are
proportional to its size, but for the optimizer's part of `compute`."""
COLLATE_BY_LOOP: Final = 0.5
"""Of the time of `collate` in a worker. There it also makes shared memory for the batch (torch's
`default_collate`), which may be nearly all of its time or nothing of it: a run with workers does
not show that."""
_OF_SAMPLES: Final = tuple(stage for stage in STAGES if stage != "collate")
"""Stages whose result a dataset may keep; batches are collated anew."""
_WORKING: Final = tuple(stage for stage in STAGES if stage != "storage")
"""The stages in which a worker does not wait for storage."""
_WORK: Final = np.isin(STAGES, _WORKING)
_OF_CALLS: Final = np.isin(STAGES, ("loader", "collate"))
_SERIAL: Final = "serial"
"""Beside stages: what is done under the interpreter lock."""
_ALWAYS_BUSY: Final = 0.9
"""Of a worker's time without storage, from which on it did not sleep for other reasons."""
_MOST_WAKING: Final = 0.5
"""Of a worker's work: a longer time until it ran has other reasons than that it was woken."""
_ALMOST_NOTHING: Final = 1e-9
"""Factor of what a device computes if that costs nothing: its batches are copied to it
nevertheless."""
_BLOCK: Final = 8
"""Batches in a row that are drawn together, because neighbours have similar times."""
_RUN: Final = 24
"""Batches in a row that a sample of a job keeps together: more than queues usually hold."""


def changed(pipeline: Pipeline, change: Change, grounds: Grounds = NONE) -> Pipeline:
    """The pipeline under a change, with what it rests on besides the run. `Change()` changes
    nothing.
    """
    found = pipeline if grounds.like is None else with_batches_of(pipeline, grounds.like)
    found = found if grounds.device is None else with_device(found, grounds.device)
    found = _with_hidden_work(found) if _slows_device(change, grounds) else found
    found = with_factors(found, {cause: change.factor(cause) for cause in change.speeds})
    if change.skip_discarded:
        found = _without_discarded(found)
    if change.cache == "warm":
        found = _from_memory(found)
    if change.cache == "cold":
        found = _from_storage(found)
    if change.batch is not None and pipeline.batch_size:
        found = _with_batch(found, change.batch / pipeline.batch_size)
        found = replace(found, batch_size=change.batch)
    if change.workers is not None or change.prefetch is not None:
        found = _each_iteration(
            found, lambda each: _with_workers(each, change.workers, change.prefetch)
        )
    if change.workers is not None:
        pairs = zip(found.ranks, pipeline.ranks, strict=True)
        found = replace(
            found,
            ranks=tuple(
                _with_first_workers(
                    _with_spawning(new, old, pipeline.cores.get(old.host, 1.0)), old
                )
                for new, old in pairs
            ),
        )
    if change.persistent_workers:
        found = with_kept_data(with_kept_workers(found), change)
    if change.ranks is not None:
        found = _with_ranks(found, change.ranks)
    if change.cores is not None:
        found = replace(found, cores=dict.fromkeys(found.cores, float(change.cores)))
    return found


def _slows_device(change: Change, grounds: Grounds) -> bool:
    return change.factor("compute") > 1 or (
        grounds.device is not None and grounds.device.compute > 1
    )


def _with_hidden_work(pipeline: Pipeline) -> Pipeline:
    """Of ranks whose own time holds their waits for a device: one that waits a step later, so that
    work that is hidden counts.
    """
    ranks = [
        replace(rank, depth=1) if rank.depth is None and (rank.program.device_s > 0).any() else rank
        for rank in pipeline.ranks
    ]
    return replace(pipeline, ranks=tuple(ranks))


# -------------------------------------------------------------------------------------------- costs


def with_factors(
    pipeline: Pipeline, factors: Mapping[str, float], waits: float | None = None
) -> Pipeline:
    """Each cause takes so many times as long; 0: it costs nothing. `waits`: how much of what is
    saved is waiting, 0 to 1, which needs no core; None: as much as of that cause.
    """
    if not factors:
        return pipeline
    own = np.array([factors.get(cause, 1.0) for cause in OWN])
    ranks = [_scaled_rank(rank, own, factors, waits) for rank in pipeline.ranks]
    use, storage = pipeline.storage, factors.get("storage", 1.0)
    if storage > 0:
        use = replace(
            use,
            latency_s=use.latency_s * storage,
            bytes_per_s=use.bytes_per_s / storage,
            reader_bytes_per_s=use.reader_bytes_per_s / storage,
            burst_bytes=use.burst_bytes / storage,
        )
    found = replace(
        pipeline, ranks=tuple(ranks), storage=use, copy_s=pipeline.copy_s * factors.get("h2d", 1.0)
    )
    pairs, works = zip(pipeline.ranks, found.ranks, strict=True), pipeline.own_work
    found = replace(found, ranks=tuple(_with_use(*pair, works, waits) for pair in pairs))
    return found if storage > 0 else _without_wake_ups(found, pipeline)


def _with_use(old: Rank, new: Rank, works: NDArray[np.bool_], waits: float | None) -> Rank:
    """A rank that works less, with the part of what is left of its time in which it computes.
    `works`: the causes of which its loop's own work is; `waits`: as in `with_factors`.
    """
    made = [_made_s(rank, old.worker_cpu.is_measured) for rank in (old, new)]
    own_s = [rank.program.after_s[:, works].sum(0) for rank in (old, new)]
    names = [cause for cause, does in zip(OWN, works, strict=True) if does]
    by_loop = np.array([*_known(names, old.own_waits), *_known(_WORKING, old.stage_waits)])
    by_workers = np.array(_known(_WORKING, old.stage_waits))
    before_s, after_s = (np.concatenate([own, of[0]]) for own, of in zip(own_s, made, strict=True))
    return replace(
        new,
        loop_cpu=_left(old.loop_cpu, before_s, after_s, by_loop, waits),
        worker_cpu=_left(new.worker_cpu, made[0][1], made[1][1], by_workers, waits),
    )


def _known(names: Sequence[str], waits: Mapping[str, float]) -> list[float]:
    return [waits.get(name, np.nan) for name in names]


def _made_s(rank: Rank, has_workers: bool) -> tuple[Seconds, Seconds]:
    """Time of making batches by each stage but storage, of the loop itself and of its workers."""
    by_loop, by_workers = np.zeros(len(_WORKING)), np.zeros(len(_WORKING))
    for each in rank.iterations:
        found = by_workers if has_workers or each.workers else by_loop  # as in `plan`
        found += each.tasks.stages_s[:, _WORK].sum(0)
    return by_loop, by_workers


def _left(
    use: CpuUse, before_s: Seconds, after_s: Seconds, waits: Seconds, of_saved: float | None
) -> CpuUse:
    """What remains of the use of cores where some parts of the time are shorter. `waits`: how much
    of each part is waiting, nan: not known; `of_saved`: the same of what is saved.
    """
    saved_s, whole_s = before_s - after_s, float(before_s.sum())
    if not saved_s.any() or not after_s.any():
        return use
    waits = np.where(np.isnan(waits), 1 - use.busy_ratio, waits)
    ran_s, blocked_s = float((before_s * (1 - waits)).sum()), float((before_s * waits).sum())
    computed_s = use.busy_ratio * whole_s
    # what is more than the thread ran, others did for it while it was blocked
    of_running = min(1.0, computed_s / ran_s) if ran_s else 0.0
    of_blocked = min(1.0, max(0.0, computed_s - ran_s) / blocked_s) if blocked_s else 0.0
    waits = waits if of_saved is None else np.full(len(waits), of_saved)
    saved = float((saved_s * ((1 - waits) * of_running + waits * of_blocked)).sum())
    left = (computed_s - saved) / float(after_s.sum())
    return replace(use, busy_ratio=min(1.0, max(0.0, left)))


def _without_wake_ups(pipeline: Pipeline, reading: Pipeline) -> Pipeline:
    """Workers that slept only while they waited for storage are not woken where they do not wait
    for it, and not scattered over the cores. `reading`: the pipeline in which they do; of the time
    until they ran no more goes than those waits took.
    """

    def awake(rank: Rank, old: Rank) -> tuple[Rank, float]:
        use, none = rank.worker_cpu, np.zeros(len(STAGES))
        made_s = sum((each.tasks.stages_s.sum(0) for each in old.iterations), none)
        waited_s, worked_s = float(made_s[~_WORK].sum()), float(made_s[_WORK].sum())
        wakes = use.busy_ratio >= _ALWAYS_BUSY and 0 < use.wake_ratio <= _MOST_WAKING
        delay = use.wake_ratio if wakes else 1 - 1 / use.dilation
        part = min(1.0, waited_s / max(delay * worked_s, 1e-12))
        if not wakes:
            return rank, part
        kept = 1 - part * use.wake_ratio
        iterations = [
            replace(
                each,
                tasks=replace(
                    each.tasks,
                    stages_s=np.where(_WORK, each.tasks.stages_s * kept, each.tasks.stages_s),
                ),
            )
            for each in rank.iterations
        ]
        left = replace(use, wake_ratio=(1 - part) * use.wake_ratio / kept)
        return replace(rank, iterations=tuple(iterations), worker_cpu=left), part

    ranks, parts = zip(*map(awake, pipeline.ranks, reading.ranks), strict=True)
    scattered = pipeline.scattered
    if all(rank.worker_cpu.busy_ratio >= _ALWAYS_BUSY for rank in ranks):
        # the scheduler balances threads that go on computing
        left = 1 - min(parts)
        scattered = {host: value * left for host, value in scattered.items() if left}
    return replace(pipeline, ranks=ranks, scattered=scattered)


def _of_parts(
    each: Iteration,
    stage_waits: Mapping[str, float],
    factors: Mapping[str, float],
    waits: float | None,
) -> Mapping[str, float]:
    """The factors, with `serial` for what is done under the interpreter lock, where it is known how
    much of what is saved is waiting: that needs no lock, and what needs it takes part of the waits
    for it with it.
    """
    stage, before = each.serial_stage, factors.get(each.serial_stage, 1.0)
    if waits is None or not each.lock_wait_s or stage not in factors:
        return factors
    serial_s = float(each.tasks.serial_own_s.mean())
    rest_s = float(each.tasks.stages_s[:, STAGES.index(stage)].mean())
    slept_s = min(rest_s, stage_waits.get(stage, 0.0) * (rest_s + serial_s))
    ran_s, saved = rest_s - slept_s, 1 - before
    whole_s = rest_s + serial_s + each.lock_wait_s
    saved_s, waited_s = saved * (1 - waits) * whole_s, saved * waits * whole_s
    of_running = min(1.0, saved_s / max(ran_s + serial_s, 1e-12))
    of_sleep = (waited_s - of_running * each.lock_wait_s) / max(slept_s, 1e-12)
    left_s = slept_s * (1 - min(1.0, max(0.0, of_sleep))) + ran_s * (1 - of_running)
    return {**factors, stage: left_s / max(rest_s, 1e-12), _SERIAL: 1 - of_running}


def _of_serial(before: Iteration, after: Iteration) -> float:
    """What is left of the time that only one maker at a time could work."""
    was_s = float(before.tasks.serial_s.sum())
    return float(after.tasks.serial_s.sum()) / was_s if was_s else 1.0


def _scaled(each: Iteration, factors: Mapping[str, float]) -> Iteration:
    tasks = each.tasks
    by_stage = np.array([factors.get(stage, 1.0) for stage in STAGES])
    by_stage *= np.where(_OF_CALLS, factors.get(CALLS, 1.0), 1.0)
    serial = factors.get(_SERIAL, float(by_stage @ each.of_serial))
    stages = tasks.stages_s * by_stage
    work = float(stages.sum() / max(tasks.stages_s.sum(), 1e-12))
    delivery, loader = factors.get("delivery", 1.0), factors.get("loader", 1.0)
    has_storage = 1.0 if factors.get("storage", 1.0) > 0 else 0.0
    # whatever it spends the time on
    whole = factors.get("validation", 1.0) if each.is_validation else 1.0
    scaled = replace(
        tasks,
        stages_s=stages * whole,
        open_s=tasks.open_s * factors.get("storage", 1.0) * whole,
        reads=tasks.reads * has_storage * whole,
        read_bytes=tasks.read_bytes * has_storage * whole,
        reads_cpu_s=tasks.reads_cpu_s * has_storage * whole,
        reads_delay_s=tasks.reads_delay_s * has_storage * whole,
        lag_s=tasks.lag_s * loader * whole,
        transit_s=tasks.transit_s * delivery * whole,
        take_s=tasks.take_s * delivery * whole,
        held_s=tasks.held_s * work * whole,
        serial_s=tasks.serial_s * serial * whole,
        serial_own_s=tasks.serial_own_s * serial * whole,
        served_s=tasks.served_s * serial * whole,
    )
    return replace(
        each,
        tasks=scaled,
        startup_s=each.startup_s * loader * whole,
        first_s=each.first_s * by_stage * whole,
    )


def _scaled_rank(
    rank: Rank, own: Seconds, factors: Mapping[str, float], waits: float | None = None
) -> Rank:
    """`own`: factors of the loop's own causes; `waits`: as in `with_factors`."""
    iterations = tuple(
        _scaled(each, _of_parts(each, rank.stage_waits, factors, waits)) for each in rank.iterations
    )
    program, compute = rank.program, OWN.index("compute")
    after, hidden = program.after_s * own, program.hidden_s * own[OWN.index("host")]
    after[:, compute] = np.maximum(
        after[:, compute], np.minimum(hidden, program.after_s[:, compute])
    )
    # its makers keep the interpreter for less time
    left = np.array([*map(_of_serial, rank.iterations, iterations), 1.0])
    freed = 1 - left[np.array(program.iterations, np.int64)]
    kept = 1 - freed * program.lock_s / np.maximum(program.after_s.sum(1), 1e-12)
    after *= np.maximum(0.0, kept)[:, None]
    if rank.held_ratio and own[OWN.index("host")] == 1:
        before_s, held_s = program.after_s.sum(1), rank.held_ratio * program.after_s.sum(1)
        ratio = (after.sum(1) - held_s) / np.maximum(before_s - held_s, 1e-12)
        after[:, OWN.index("host")] += held_s * (np.clip(ratio, 0.0, 1.0) - 1)
    ratio = after.sum(1) / np.maximum(program.after_s.sum(1), 1e-12)
    alone = np.full(len(program), -1, np.int64)
    waits = factors.get("straggler", 1.0) > 0
    validates = np.array(
        [rank.iterations[number].is_validation for number in program.iterations], np.bool_
    )
    spent = (
        program.spent_s
        * factors.get("loader", 1.0)
        * np.where(validates, factors.get("validation", 1.0), 1.0)
    )
    scaled = replace(
        program,
        after_s=after,
        arrive_s=program.arrive_s * ratio,
        step=program.step if waits else alone,
        spent_s=spent,
        device_s=program.device_s * max(float(own[OWN.index("compute")]), _ALMOST_NOTHING),
        transfer_s=program.transfer_s * own[OWN.index("exchange")],
        device_step=program.device_step if waits else alone,
        optimizer_s=program.optimizer_s * own[OWN.index("compute")],
        hidden_s=hidden,
        again_s=program.again_s * own,
    )
    return replace(rank, program=scaled, iterations=iterations)


def _from_memory(pipeline: Pipeline) -> Pipeline:
    """Reads at the rate at which this run read from the page cache; at no cost where it read
    nothing from there.
    """
    storage, cache = STAGES.index("storage"), STAGES.index("page_cache")
    per_byte = pipeline.memory_s_per_byte

    def served(each: Iteration) -> Iteration:
        stages = each.tasks.stages_s.copy()
        stages[:, cache] += np.minimum(each.tasks.read_bytes * per_byte, stages[:, storage])
        none = np.zeros(len(each.tasks))
        stages[:, storage] = np.minimum(
            each.tasks.open_s * pipeline.warm_open_ratio, stages[:, storage]
        )
        tasks = replace(
            each.tasks,
            stages_s=stages,
            reads=none,
            read_bytes=none,
            reads_cpu_s=none,
            reads_delay_s=none,
        )
        return replace(each, tasks=tasks)

    found = _without_wake_ups(_each_iteration(pipeline, served), pipeline)
    own = np.array([0.0 if cause == "storage" else 1.0 for cause in OWN])
    return replace(found, ranks=tuple(_scaled_rank(rank, own, {}) for rank in found.ranks))


def _from_storage(pipeline: Pipeline) -> Pipeline:
    """What batches cost that came from the page cache is drawn from those that came from
    storage.
    """
    random = np.random.default_rng(0)
    storage, cache = STAGES.index("storage"), STAGES.index("page_cache")
    tasks = [each.tasks for rank in pipeline.ranks for each in rank.iterations]
    cold = np.concatenate([each.read_bytes > 0 for each in tasks])
    names = ("stages_s", "reads", "read_bytes", "reads_cpu_s", "reads_delay_s")
    stages, *others = (
        np.concatenate([getattr(each, name) for each in tasks])[cold] for name in names
    )

    def fetched(each: Iteration) -> Iteration:
        own = each.tasks
        like, is_warm = random.integers(0, len(stages), len(own)), own.read_bytes == 0
        new = own.stages_s.copy()
        for stage in (storage, cache):
            new[:, stage] = np.where(is_warm, stages[like, stage], new[:, stage])
        drawn = {
            name: np.where(is_warm, cold[like], getattr(own, name))
            for name, cold in zip(names[1:], others, strict=True)
        }
        return replace(each, tasks=replace(own, stages_s=new, **drawn))

    return _each_iteration(pipeline, fetched)


# ---------------------------------------------------------------------------------------- structure


def _with_ranks(pipeline: Pipeline, count: int) -> Pipeline:
    """As many ranks, each like one of the recorded ones, that meet once per step."""
    before = len(pipeline.ranks)
    share = (1 - 1 / count) / (1 - 1 / before) if before > 1 else 0.0
    factors = np.array([share if cause == "exchange" else 1.0 for cause in OWN])
    found = []
    for number in range(count):
        like = pipeline.ranks[number % before]
        rank = replace(_scaled_rank(like, factors, {}), rank=number)
        if before == 1 or count == 1:
            step = np.arange(len(rank.program)) if count > 1 else np.full(len(rank.program), -1)
            whole = rank.program.after_s.sum(1)
            arrive = whole if count > 1 else np.full(len(whole), np.nan)
            rank = replace(
                rank, program=replace(rank.program, step=step, device_step=step, arrive_s=arrive)
            )
        found.append(rank)
    return replace(pipeline, ranks=tuple(found))


def _each_iteration(pipeline: Pipeline, change: Any) -> Pipeline:
    ranks = [
        replace(rank, iterations=tuple(change(each) for each in rank.iterations))
        for rank in pipeline.ranks
    ]
    return replace(pipeline, ranks=tuple(ranks))


def _with_workers(each: Iteration, workers: int | None, prefetch: int | None) -> Iteration:
    """Iterations for validation keep their workers."""
    if each.is_validation:
        return each
    workers = each.workers if workers is None else workers
    startup, first_s = each.startup_s, each.first_s
    if workers != each.workers:
        number = np.arange(workers)
        apart = (startup[-1] - startup[0]) / (len(startup) - 1) if len(startup) > 1 else 0.0
        startup = startup[0] + number * apart if len(startup) else np.zeros(0)
    tasks = each.tasks if workers or not each.workers else _by_loop(each.tasks)
    ahead = each.prefetch
    if each.is_pool and workers > each.workers:  # its queue has as much room as before
        ahead = max(1, (each.workers * (each.prefetch - 1) + workers) // workers)
    return replace(
        each, workers=workers, prefetch=prefetch or ahead, startup_s=startup, tasks=tasks,
        starts_workers=each.starts_workers and workers > 0,
        first_s=first_s[np.arange(workers if len(first_s) else 0) % max(1, len(first_s))],
        makers=each.makers if workers == each.workers else (),
        # with batches ahead it no longer gives them when it wants them
        together=workers if each.together and not prefetch else 0,
    )  # fmt: skip


def _by_loop(tasks: Tasks) -> Tasks:
    """Tasks of workers as the loop does them: nothing is sent, and batches are not made in shared
    memory.
    """
    stages, none = tasks.stages_s.copy(), np.zeros(len(tasks))
    stages[:, STAGES.index("collate")] *= COLLATE_BY_LOOP
    return replace(tasks, stages_s=stages, lag_s=none, take_s=none, held_s=none)


def _with_spawning(rank: Rank, before: Rank, cores: float) -> Rank:
    """Workers are started one after the other, which takes as long for each as it did, and end at
    the same time, on `cores`.
    """
    pairs = [
        (new.workers, old.workers)
        for new, old in zip(rank.iterations, before.iterations, strict=True)
    ]
    starts = np.array([new / old if old else 1.0 for new, old in pairs])
    ends = np.array(
        [
            max(1.0, new / cores) / max(1.0, old / cores) if new and old else float(not old)
            for new, old in pairs
        ]
    )
    program = rank.program
    is_end, of_iteration = np.array([op is Op.END for op in program.ops]), list(program.iterations)
    factors = np.where(is_end, ends[of_iteration], starts[of_iteration])
    factors[0] = 1.0 if rank.starts_early else factors[0]
    return replace(rank, program=replace(program, spent_s=program.spent_s * factors))


def _with_first_workers(rank: Rank, before: Rank) -> Rank:
    """Workers of a loop that made its batches itself use the cores for them as it did."""
    if before.worker_cpu.is_measured or any(each.workers for each in before.iterations):
        return rank
    made_s, loop = _made_s(before, has_workers=False)[0], before.loop_cpu
    waits = np.array(_known(_WORKING, before.stage_waits))
    waits = np.where(np.isnan(waits), 1 - loop.busy_ratio, waits)
    busy = 1 - float((made_s * waits).sum() / made_s.sum()) if made_s.any() else loop.busy_ratio
    return replace(rank, worker_cpu=replace(loop, busy_ratio=busy, threads=1.0))


def without_lock(pipeline: Pipeline) -> Pipeline:
    """Workers do at the same time what they did while they held a lock that they share."""

    def at_once(each: Iteration) -> Iteration:
        if not each.has_lock:
            return each
        stages = each.tasks.stages_s.copy()
        stages += np.outer(each.tasks.serial_own_s, each.of_serial)
        none = np.zeros(len(each.tasks))
        tasks = replace(each.tasks, stages_s=stages, serial_s=none, serial_own_s=none)
        return replace(each, tasks=tasks, has_lock=False)

    return _each_iteration(pipeline, at_once)


def with_kept_workers(pipeline: Pipeline, *, of_validation: bool = False) -> Pipeline:
    """Workers stay from one iteration to the next: those that make batches to train on, or those to
    validate on.
    """
    return replace(
        pipeline, ranks=tuple(_with_kept_workers(rank, of_validation) for rank in pipeline.ranks)
    )


def _with_kept_workers(rank: Rank, of_validation: bool) -> Rank:
    """Only the first iteration of that purpose starts workers, and only the last one stops them.
    One with more workers is of another loader, and starts its own; one with fewer may have had no
    batch for some.
    """
    iterations, keeps, kept = list(rank.iterations), set[int](), list[Iteration]()
    last = dict[int, int]()  # of each group, its last iteration
    for number, each in enumerate(iterations):
        if each.is_validation != of_validation or not each.workers:
            continue
        first = next((one for one in kept if one.workers >= each.workers), None)
        last[first.group if first else each.group] = number
        if first is None:
            kept.append(each)
        else:
            lag = each.tasks.lag_s.copy()
            lag[: each.workers] = np.nan
            tasks, group = replace(each.tasks, lag_s=lag), first.group
            none = np.zeros(0)
            iterations[number] = replace(
                each,
                tasks=tasks,
                group=group,
                starts_workers=False,
                startup_s=none,
                first_s=each.first_s[:0],
            )
            keeps.add(number)
    program = rank.program
    ends = [
        op is Op.END
        and rank.iterations[number].is_validation == of_validation
        and number not in last.values()
        for op, number in zip(program.ops, program.iterations, strict=True)
    ]
    again = [
        op is Op.START and number in keeps
        for op, number in zip(program.ops, program.iterations, strict=True)
    ]
    spent = np.where(np.array(ends) | np.array(again), 0.0, program.spent_s)
    program = replace(program, spent_s=spent)
    if not of_validation:
        after_s = np.maximum(0.0, program.after_s - program.again_s)
        program = replace(program, after_s=after_s, again_s=np.zeros_like(after_s))
    return replace(rank, iterations=tuple(iterations), program=program)


def with_kept_data(pipeline: Pipeline, change: Change, first_epoch: int = 0) -> Pipeline:
    """Kept workers find what they made in earlier epochs: all of it, or where samples are shuffled
    what each of them made before at random. `first_epoch`: the epochs of the run are later ones.
    """

    def reusing(rank: Rank) -> Rank:
        iterations, epoch = list[Iteration](), first_epoch
        for each in rank.iterations:
            if each.is_validation or not each.workers:
                iterations.append(each)
                continue
            elsewhere = 0.0 if change.in_order else 1 - 1 / (each.workers * len(pipeline.ranks))
            left = 1 - change.reused * (1 - elsewhere**epoch)
            iterations.append(_scaled(each, dict.fromkeys(_OF_SAMPLES, left)))
            epoch += 1
        return replace(rank, iterations=tuple(iterations))

    if not change.reused:
        return pipeline
    return replace(pipeline, ranks=tuple(map(reusing, pipeline.ranks)))


def _with_batch(pipeline: Pipeline, ratio: float) -> Pipeline:
    """Batches of `ratio` times as many samples, made of the same samples in the same order."""
    return replace(pipeline, ranks=tuple(_rank_with_batch(rank, ratio) for rank in pipeline.ranks))


def _rank_with_batch(rank: Rank, ratio: float) -> Rank:
    iterations = tuple(
        each if each.is_validation else _regrouped_iteration(each, ratio)
        for each in rank.iterations
    )
    program, proportional = rank.program, np.array([cause not in PER_BATCH for cause in OWN])
    of_optimizer = program.optimizer_s[:, None] * np.array([cause == "compute" for cause in OWN])
    rows = list[int]()  # of each new action: the recorded one that it is like
    after, device, optimizer = list[Seconds](), list[float](), list[float]()
    place = 0
    taken = [0] * len(iterations)
    while place < len(program):
        number, end = program.iterations[place], place + 1
        if program.ops[place] is not Op.TAKE or rank.iterations[number].is_validation:
            rows.append(place)
            after.append(program.after_s[place])
            device.append(float(program.device_s[place]))
            optimizer.append(float(program.optimizer_s[place]))
            place = end
            continue
        while (
            end < len(program) and program.ops[end] is Op.TAKE and program.iterations[end] == number
        ):
            end += 1
        count = max(1, round((end - place) / ratio))
        count = (
            min(count, iterations[number].num_taken - taken[number])
            if end == len(program) or program.ops[end] is not Op.TAKE
            else count
        )
        taken[number] += count
        bounds = np.linspace(0, end - place, count + 1)
        once = _between(of_optimizer[place:end], bounds) / np.diff(bounds)[:, None]
        sums = _between(program.after_s[place:end] - of_optimizer[place:end], bounds)
        means = sums / np.diff(bounds)[:, None]
        after += list(np.where(proportional, sums, means) + once)
        optimizer += once.sum(1).tolist()
        device += _between(program.device_s[place:end, None], bounds)[:, 0].tolist()
        rows += [place + min(int(low), end - place - 1) for low in bounds[:-1]]
        place = end
    changed_program = Program(
        ops=tuple(program.ops[row] for row in rows),
        iterations=tuple(program.iterations[row] for row in rows),
        spent_s=program.spent_s[rows],
        after_s=np.array(after),
        arrive_s=program.arrive_s[rows]
        * np.array(after).sum(1)
        / np.maximum(program.after_s[rows].sum(1), 1e-12),
        step=_numbered(program.step[rows]),
        device_s=np.array(device),
        transfer_s=program.transfer_s[rows],
        device_step=_numbered(program.device_step[rows]),
        optimizer_s=np.array(optimizer),
        hidden_s=np.minimum(program.hidden_s[rows], np.array(after)[:, OWN.index("compute")]),
        is_step=program.is_step[rows],
        weight=program.weight[rows],
        lock_s=np.minimum(program.lock_s[rows], np.array(after).sum(1)),
        again_s=np.minimum(program.again_s[rows], np.array(after)),
    )
    return replace(rank, iterations=iterations, program=changed_program)


def _numbered(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Collectives counted from 0, as ranks with the same number of them match them."""
    return np.where(steps >= 0, np.cumsum(steps >= 0) - 1, -1)


def _regrouped_iteration(each: Iteration, ratio: float) -> Iteration:
    """The same samples in batches of another size."""
    tasks = each.tasks
    count = max(1, int(np.ceil(len(tasks) / ratio - 1e-9)))
    bounds = np.minimum(np.arange(count + 1) * ratio, len(tasks))
    like = np.minimum(bounds[:-1].astype(np.int64), len(tasks) - 1)
    drawn = tasks.at(like)
    of_samples = ("open_s", "reads", "read_bytes", "reads_cpu_s", "reads_delay_s")
    names = (*of_samples, "serial_s", "serial_own_s", "served_s")
    sums: dict[str, Seconds] = {
        name: _between(getattr(tasks, name)[:, None], bounds)[:, 0] for name in names
    }
    grown = replace(
        drawn,
        **sums,
        stages_s=_between(tasks.stages_s, bounds),
        transit_s=drawn.transit_s * ratio,
        held_s=drawn.held_s * ratio,
        transit_most_s=np.full(count, np.inf),
    )
    num_taken = (
        len(grown)
        if each.num_taken == len(tasks)
        else max(1, int(np.ceil(each.num_taken / ratio - 1e-9)))
    )
    return replace(each, tasks=grown, num_taken=min(num_taken, len(grown)))


def _between(rows: Seconds, bounds: Seconds) -> Seconds:
    """Sums of rows between places that may lie within a row."""
    sums = np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)])
    places = np.arange(len(sums))
    at = np.stack([np.interp(bounds, places, column) for column in sums.T], axis=1)
    found: Seconds = np.diff(at, axis=0)
    return found


# ------------------------------------------------------------------------------------------ drawing


def filled(pipeline: Pipeline, seed: int = 0) -> Pipeline:
    """What was not observed is drawn from what was; tasks that the loop would have had but that
    nobody made are drawn as well.
    """
    random = np.random.default_rng(seed)
    ranks = []
    for rank in pipeline.ranks:
        known, way = _observed(rank), _Way.of(rank.iterations)
        program, device = rank.program, rank.program.device_s
        seen = device[device > 0]
        drawn = random.choice(seen, len(device)) if len(seen) else np.zeros(len(device))
        program = replace(program, device_s=np.where(np.isnan(device), drawn, device))
        ranks.append(
            replace(
                rank,
                program=program,
                iterations=tuple(_filled(each, known, way, random) for each in rank.iterations),
            )
        )
    return replace(pipeline, ranks=tuple(ranks))


def _observed(rank: Rank) -> dict[str, Seconds]:
    """All observed values of a rank's tasks."""
    found = {}
    for name in ("lag_s", "transit_s", "take_s", "held_s"):
        values = np.concatenate([getattr(each.tasks, name) for each in rank.iterations])
        found[name] = values[~np.isnan(values)]
    return found


@dataclass(frozen=True)
class _Way:
    """How long batches were on their way to the loop, and held back. Exact where the loop waited
    for them; of others only that they were not late. Those that were waited for are the longest, so
    that others are not like them.
    """

    transit_s: Seconds
    held_s: Seconds
    """Of those that are known, the shortest way first."""
    shares: Seconds
    """Part of all batches that each stands for, by Kaplan and Meier's estimate for what is only
    known to be less; the rest took less than all of them, which is taken as no time."""

    @classmethod
    def of(cls, iterations: tuple[Iteration, ...]) -> "_Way":
        """From all batches of a rank that were taken. To send its first one a worker starts a
        thread: others take no longer, and how long is not known by it.
        """
        names = ("transit_s", "held_s", "transit_most_s")
        transit, held, most = (
            np.concatenate([np.zeros(0), *(getattr(each.tasks, name) for each in iterations)])
            for name in names
        )
        is_first = np.concatenate(
            [
                np.zeros(0, np.bool_),
                *(
                    np.arange(len(each.tasks)) < each.workers * each.starts_workers
                    for each in iterations
                ),
            ]
        )
        known = ~np.isnan(transit) & ~np.isnan(held)
        most = np.where(is_first & known, transit + held, most)
        exact = known & ~is_first
        limits = np.sort(most[~exact & np.isfinite(most)])
        order = np.argsort((transit + held)[exact], kind="stable")
        transit, held = transit[exact][order], held[exact][order]
        at_risk = np.arange(1, len(transit) + 1) + np.searchsorted(limits, transit + held, "right")
        stay = 1 - 1 / np.maximum(at_risk, 1)
        longer = np.concatenate((np.cumprod(stay[::-1])[::-1][1:], [1.0]))[: len(stay)]
        return cls(transit, held, longer * (1 - stay))

    def drawn(self, most_s: Seconds, random: np.random.Generator) -> tuple[Seconds, Seconds]:
        """Ways of batches that took at most so long."""
        none = np.zeros(len(most_s))
        if not len(self.shares):
            return none, none
        sums = np.concatenate(([0.0], np.cumsum(self.shares)))
        rest = max(0.0, 1 - float(sums[-1]))
        fitting = np.searchsorted(self.transit_s + self.held_s, most_s, side="right")
        at = random.random(len(most_s)) * (rest + sums[fitting]) - rest
        place = np.clip(np.searchsorted(sums, at, side="right") - 1, 0, len(self.shares) - 1)
        is_short = at < 0
        return (
            np.where(is_short, 0.0, self.transit_s[place]),
            np.where(is_short, 0.0, self.held_s[place]),
        )


def _filled(
    each: Iteration, known: dict[str, Seconds], way: _Way, random: np.random.Generator
) -> Iteration:
    tasks = each.tasks
    if not each.is_complete and len(tasks):  # the loop left: its workers would have gone on
        more = max(0, each.num_taken + max(1, each.workers) * each.prefetch - len(tasks))
        rows = np.concatenate([np.arange(len(tasks)), random.integers(0, len(tasks), more)])
        tasks = tasks.at(rows)
    new = {}
    for name, values in known.items():
        column = getattr(tasks, name)
        missing = np.isnan(column)
        drawn = random.choice(values, len(column)) if len(values) else np.zeros(len(column))
        new[name] = np.where(missing, drawn, column)
    transit, held = way.drawn(tasks.transit_most_s, random)
    new["transit_s"] = np.where(np.isnan(tasks.transit_s), transit, tasks.transit_s)
    new["held_s"] = np.where(np.isnan(tasks.held_s), held, tasks.held_s)
    return replace(each, tasks=replace(tasks, **new))


def shortened(pipeline: Pipeline, most: int) -> Pipeline:
    """A sample of the job, of at most about so many actions of each rank, whose `Program.weight`
    says how many each of them stands for.

    All that is between epochs is kept. Of the batches of an epoch the first and the last are, and
    evenly spaced runs of the others: a run of neighbours keeps the queues as they were. A job with
    too many epochs is cut after some of them.
    """
    longest = max(len(rank.program) for rank in pipeline.ranks)
    if longest <= most:
        return pipeline
    first = pipeline.ranks[0].program
    like = all(rank.program.ops == first.ops for rank in pipeline.ranks)
    if like and all(rank.program.iterations == first.iterations for rank in pipeline.ranks):
        rows, weight = _sampled_rows(first, most)
    else:  # collectives of ranks must stay together
        rows = np.arange(most)
        weight = np.ones(most)
    ranks = []
    for rank in pipeline.ranks:
        kept = rows[rows < len(rank.program)]
        ranks.append(_of_rows(rank, kept, weight[: len(kept)]))
    return replace(pipeline, ranks=tuple(ranks))


def _sampled_rows(program: Program, most: int) -> tuple[NDArray[np.int64], Seconds]:
    """The rows of a program that `shortened` keeps, and how many each stands for."""
    runs = _runs(program)
    sizes = np.array([len(run) for run in runs])
    between = len(program) - int(sizes.sum())
    needed = np.cumsum(np.minimum(sizes, 3 * _RUN)) + between
    count = max(1, int(np.searchsorted(needed, most, side="right")))
    cut = int(runs[count - 1][-1]) + 1 if count < len(runs) else len(program)
    of_rows = np.arange(cut)
    weight = np.ones(cut)
    chosen = np.ones(cut, bool)
    budget = most - (cut - int(sizes[:count].sum()))
    for run in runs[:count]:
        share = int(budget * len(run) / sizes[:count].sum()) // _RUN
        strata = max(1, share - 2)
        middle = run[_RUN:-_RUN]
        if len(middle) <= strata * _RUN:
            continue
        chosen[middle] = False
        for stratum in np.array_split(middle, strata):
            begin = (len(stratum) - _RUN) // 2
            kept = stratum[begin : begin + _RUN]
            chosen[kept] = True
            weight[kept] = len(stratum) / _RUN
    return of_rows[chosen], weight[chosen]


def _runs(program: Program) -> list[NDArray[np.int64]]:
    """The rows of batches that an iteration gave one after the other, without another action."""
    keys = [
        number if op is Op.TAKE else -1 - row
        for row, (op, number) in enumerate(zip(program.ops, program.iterations, strict=True))
    ]
    bounds = np.flatnonzero(np.diff(keys)) + 1
    return [run for run in np.split(np.arange(len(keys)), bounds) if keys[run[0]] >= 0]


def _of_rows(rank: Rank, rows: NDArray[np.int64], weight: Seconds) -> Rank:
    """A rank that does only these of its actions, with the batches that they take."""
    program = rank.program
    places = Counter[int]()  # of each action that takes a batch: which of its iteration
    place, last_take = np.zeros(len(program), np.int64), dict[int, int]()
    for row, (op, number) in enumerate(zip(program.ops, program.iterations, strict=True)):
        if op is Op.TAKE:
            place[row], last_take[number] = places[number], row
            places[number] += 1
    iterations = list(rank.iterations)
    takes = [row for row in rows if program.ops[row] is Op.TAKE]
    for number in {program.iterations[row] for row in takes}:
        each = rank.iterations[number]
        own = place[[row for row in takes if program.iterations[row] == number]]
        if len(own) == each.num_taken:
            continue
        is_whole = last_take[number] <= rows[-1]
        ahead = np.arange(each.num_taken, len(each.tasks)) if is_whole else _following(each, own)
        kept = np.concatenate((own, ahead))
        iterations[number] = replace(
            each,
            tasks=each.tasks.at(kept),
            num_taken=len(own),
            is_complete=each.is_complete and bool(is_whole),
            makers=tuple(each.makers[task] for task in kept if task < len(each.makers)),
        )
    until_ns = np.append(rank.begun_ns, rank.end_ns)
    took_ns = np.diff(until_ns)[rows]
    begun_ns = rank.begin_ns + np.cumsum(took_ns) - took_ns
    arrays: dict[str, Any] = {
        name: (tuple(values[row] for row in rows) if isinstance(values, tuple) else values[rows])
        for name, values in vars(program).items()
    }
    arrays["weight"] = arrays["weight"] * weight
    return replace(
        rank,
        iterations=tuple(iterations),
        program=Program(**arrays),
        begun_ns=begun_ns,
        taken_ns=begun_ns + (rank.taken_ns - rank.begun_ns)[rows],
        end_ns=int(begun_ns[-1] + took_ns[-1]),
    )


def _without_discarded(pipeline: Pipeline) -> Pipeline:
    """No batch is made with which no step is made."""

    def used(rank: Rank) -> Rank:
        program = rank.program
        trains = [
            op is Op.TAKE and not rank.iterations[number].is_validation
            for op, number in zip(program.ops, program.iterations, strict=True)
        ]
        rows = np.flatnonzero(~np.array(trains) | program.is_step)
        return _of_rows(rank, rows, np.ones(len(rows)))

    return replace(pipeline, ranks=tuple(used(rank) for rank in pipeline.ranks))


def _following(each: Iteration, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """The batches after the last that is taken: workers are ahead of the loop."""
    last = int(own[-1]) if len(own) else -1
    return np.arange(last + 1, min(len(each.tasks), last + 1 + each.workers * each.prefetch))


def resampled(pipeline: Pipeline, seed: int) -> Pipeline:
    """The same job with its batches drawn anew, in blocks of neighbours: what another run of it
    could have been.
    """
    random = np.random.default_rng([seed, 1])
    ranks = []
    for rank in pipeline.ranks:
        iterations = tuple(
            replace(each, tasks=each.tasks.at(_blocks(len(each.tasks), random)))
            for each in rank.iterations
        )
        program = rank.program
        takes = np.array([op is Op.TAKE for op in program.ops])
        rows = np.arange(len(program))
        # what follows the last batch of an epoch is no batch's
        takes[:-1] &= takes[1:]
        takes[-1] = False
        rows[takes] = rows[takes][_blocks(int(takes.sum()), random)]
        arrive = np.where(np.isnan(program.arrive_s), np.nan, program.arrive_s[rows])
        program = replace(
            program,
            after_s=program.after_s[rows],
            arrive_s=arrive,
            device_s=program.device_s[rows],
            transfer_s=program.transfer_s[rows],
            optimizer_s=program.optimizer_s[rows],
            hidden_s=program.hidden_s[rows],
            again_s=program.again_s[rows],
        )
        ranks.append(replace(rank, iterations=iterations, program=program))
    return replace(pipeline, ranks=tuple(ranks))


def _blocks(length: int, random: np.random.Generator) -> NDArray[np.int64]:
    """As many rows, in runs of `_BLOCK` that begin anywhere."""
    starts = random.integers(0, max(1, length), length // _BLOCK + 1)
    return ((starts[:, None] + np.arange(_BLOCK)).ravel()[:length]) % max(1, length)
