"""The pipeline of a recorded run. `ReplayError` says why a run cannot be replayed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.blame import exposed
from ioprof.analysis.charge.interpreter_lock import LockWaits, long_holds
from ioprof.analysis.charge.steps import steps
from ioprof.analysis.charge.training_process import in_main_thread
from ioprof.analysis.cpu.memory_faults import memory_faults
from ioprof.analysis.graph.starts import Starts, starts_by_rank
from ioprof.analysis.graph.wakers import Wakers, wakers_by_rank
from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    charge,
    covered,
    intersect,
    overlaps,
    pack,
    partition,
    pieces_within,
    subtract,
    total,
    union,
    union_all,
)
from ioprof.analysis.loader_use import discarded
from ioprof.analysis.loaders import batches, take_turns
from ioprof.analysis.ranks.stragglers import arrivals
from ioprof.analysis.reads.lineage import COLUMNS, KINDS, Axis, kept_back
from ioprof.analysis.selection import (
    COMPUTE,
    TIMES,
    WORK,
    by_rank,
    intervals,
    kind_in,
    on_stream,
    with_worker,
)
from ioprof.analysis.study import OPTIMIZER
from ioprof.format.run_record import PartCode, ProcessRecord
from ioprof.format.trace import Trace
from ioprof.model.asynchronous import copy_s, way, with_depth
from ioprof.model.choices import chosen_s, with_choices
from ioprof.model.cores.contention import with_others
from ioprof.model.cores.cpu_use import (
    Counted,
    Worked,
    counted,
    cpu_use,
    usable_cores,
    with_common_team,
    with_team,
)
from ioprof.model.cores.others import Others, others
from ioprof.model.iterations import Visit, Visits, visits
from ioprof.model.pipeline import (
    OWN,
    STAGES,
    WITHOUT_CORES,
    CpuUse,
    Iteration,
    Op,
    Pipeline,
    Program,
    Rank,
    Seconds,
    Tasks,
)
from ioprof.model.refusals import Refusal, ReplayError
from ioprof.model.serial import Serial, serial
from ioprof.model.storage_use import reads_of_batches, storage_use, warm_open_ratio
from ioprof.model.windows import without_windows

_DEFAULT_PREFETCH: Final = 2
"""Of torch's DataLoader."""
_LEAST_BATCHES: Final = 4
_LEAST_MEMORY_READS: Final = 20
_LEAST_KNOWN_RATIO: Final = 0.9
"""Batches whose making must have been recorded."""
_AROUND_BATCHES: Final = ("start", "end")
"""Names of waits for no batch that the model knows."""
_OWN_PART: Final = 0.6
"""Of the time from when a worker had made a batch until the loop had it: what the loop itself
spends on receiving it."""
_ALWAYS_LONGER: Final = 0.9
"""Part of the first tasks of workers that must take longer than most others."""
_BY_CHANCE: Final = 1 / 256
"""Probability that as many tasks, drawn from the others, all take as long, up to which first tasks
are known to take longer."""
_ALL_TOGETHER: Final = 0.9
"""Part of a pool's tasks that begin when the loop has used all of those given before."""
_NEVER_HELD: Final = 0.05
"""Part of the time that the workers of a pool may be idle although they have tasks; and of the
loop's own that may lie between takes of batches that were given together."""
_LEAST_TAKES: Final = 8
"""Takes of batches that were ready from which on they say what receiving a batch takes."""


def pipeline(trace: Trace) -> Pipeline:
    """The pipeline that a run recorded."""
    _check_run(trace)
    counts, of_main = counted(trace), counted(trace, of_main=True)
    arrived, reads = arrivals(trace), reads_of_batches(trace)
    own, wakers = exposed(trace, OWN, everywhere=True), wakers_by_rank(trace)
    ends = dict(steps(trace).group_by("rank").agg(pl.col("end_ns").max()).rows())
    lost = discarded(trace, batches(trace))
    ranks, alone = [], list[tuple[int, pl.DataFrame]]()
    for rank, spans in by_rank(
        trace, (*KINDS, "sampler", "compute"), ("host", *COLUMNS, "step", "bytes")
    ):
        if rank in own and rank in ends:
            of_rank = reads.filter(pl.col("rank") == rank)
            of_arrivals = arrived.filter(pl.col("rank") == rank)
            of_lost = lost.filter(pl.col("rank") == rank)
            found = _rank(
                trace,
                rank,
                spans,
                own[rank],
                of_arrivals,
                counts.get(spans["host"][0], {}),
                of_main.get(spans["host"][0], {}),
                of_rank,
                ends[rank],
                of_lost,
                wakers.get(rank),
            )
            ranks += [found] if found is not None else []
            alone += [(rank, spans)] if found is None else []
    if not ranks:
        starts = starts_by_rank(trace, wakers)
        ranks = [
            _without_loader(
                trace,
                rank,
                spans,
                own[rank],
                arrived,
                counts.get(spans["host"][0], {}),
                ends[rank],
                starts.get(rank),
            )
            for rank, spans in alone
        ]
    if not ranks:
        raise ReplayError(Refusal.NO_TIMES)
    ranks = with_common_team(_with_lock_waits(trace, ranks, own))
    per_byte, has_memory_reads = _memory_reads(trace)
    beside = others(trace, counts)
    cores = usable_cores(trace)
    whole = Pipeline(
        ranks=_with_common_collectives(ranks),
        cores=cores,
        storage=replace(
            storage_use(reads), served_s_per_read=_served_s_per_read(trace, reads, beside)
        ),
        batch_size=trace.run.config.batch_size,
        others={},
        memory_s_per_byte=per_byte,
        has_memory_reads=has_memory_reads,
        warm_open_ratio=warm_open_ratio(trace),
        on_device=_on_device(trace),
        takes_turns=take_turns(batches(trace)),
        knows_makers=not alone or not any(_are_made(spans) for _, spans in alone),
        copy_s=copy_s(trace),
        copy=way(trace, {rank: causes["h2d"] for rank, causes in own.items()}),
    )
    if (faulted := memory_faults(trace)) is not None:
        whole = replace(whole, faulted=faulted.ratio)
    # Others first use the cores that the job may not use.
    spare = {
        host.name or "": (host.online_cpus or 0) - cores[host.name or ""]
        for host in trace.run.hosts
    }
    used = {
        host: max(0.0, each.cores - max(0.0, spare.get(host, 0.0))) for host, each in beside.items()
    }
    whole = replace(
        whole,
        own_groups={host: each.own_groups for host, each in beside.items() if each.own_groups},
    )
    return with_depth(trace, with_others(without_windows(trace, whole, own), used))


def _with_lock_waits(
    trace: Trace, ranks: list[Rank], own: Mapping[int, Mapping[str, Intervals]]
) -> list[Rank]:
    """The ranks whose waits for the interpreter's lock are time of `host`, as they are charged: a
    faster device shortens none of them, but those of which there are fewer in a shorter time.
    """
    lock, host, held = LockWaits(trace), OWN.index("host"), long_holds(trace)
    for rank, causes in own.items():
        if lock.is_seen(rank):
            lock.add(rank, causes)

    def moved(rank: Rank) -> Rank:
        parts = lock.parts(rank.rank)
        waits = np.array([0.0 if cause == "host" else parts.get(cause, 0.0) for cause in OWN])
        after_s = rank.program.after_s * (1 - waits)
        after_s[:, host] += (rank.program.after_s * waits).sum(1)
        optimizer_s = rank.program.optimizer_s * (1 - waits[OWN.index("compute")])
        whole = union_all(list(own[rank.rank].values()))
        held_ns = total(overlaps(whole, held.get(rank.rank, EMPTY)))
        return replace(
            rank,
            program=replace(rank.program, after_s=after_s, optimizer_s=optimizer_s),
            held_ratio=held_ns / max(1, total(whole)),
        )

    return [moved(rank) for rank in ranks]


def _with_common_collectives(ranks: list[Rank]) -> tuple[Rank, ...]:
    """Only those collectives at which every rank arrived once hold ranks together in a replay."""
    counts = [Counter(rank.program.step.tolist()) for rank in ranks]
    common = (
        [step for step in counts[0] if step >= 0 and all(each[step] == 1 for each in counts)]
        if len(ranks) > 1
        else []
    )
    found = []
    for rank in ranks:
        keeps = np.isin(rank.program.step, common)
        program = replace(
            rank.program,
            step=np.where(keeps, rank.program.step, -1),
            arrive_s=np.where(keeps, rank.program.arrive_s, np.nan),
        )
        found.append(replace(rank, program=program))
    return tuple(found)


def _memory_reads(trace: Trace) -> tuple[float, bool]:
    """Seconds per byte of reads from the page cache, and whether there were enough of them."""
    reads = trace.spans.filter(
        WORK["page_cache"], pl.col("batch").is_not_null(), pl.col("bytes") > 0
    )
    if len(reads) < _LEAST_MEMORY_READS:
        return 0.0, False
    return (
        float((reads["end_ns"] - reads["start_ns"]).sum()) / 1e9 / float(reads["bytes"].sum()),
        True,
    )


def _served_s_per_read(trace: Trace, reads: pl.DataFrame, beside: Mapping[str, Others]) -> float:
    """CPU time of those that served the reads from storage, for each of these."""
    waits = trace.rows(kinds=["wait"])
    if waits.is_empty():
        return 0.0
    first, last = (int(each) for each in (waits["end_ns"].min(), waits["end_ns"].max()))  # type: ignore[arg-type]
    count = len(reads.filter(pl.col("end_ns") >= first, pl.col("end_ns") <= last))
    if not count:
        return 0.0
    # a read waits for what one thread does for it
    took_s = float((reads["end_ns"] - reads["start_ns"]).to_numpy().mean()) / 1e9
    return min(took_s, sum(each.serving for each in beside.values()) * (last - first) / 1e9 / count)


def _on_device(trace: Trace) -> bool:
    """Whether the model ran elsewhere than on the CPU."""
    name = trace.run.device_name
    return name != "cpu" if name else not trace.spans.filter(kind_in(COMPUTE), on_stream).is_empty()


def _check_run(trace: Trace) -> None:
    if trace.spans.filter(pl.col("kind") == "step").is_empty():
        raise ReplayError(Refusal.NO_STEP)
    if trace.run.config.loading_rank is not None:
        raise ReplayError(Refusal.ONE_RANK_LOADS)
    if (
        trace.run.config.parallel == "pipeline"
        or not trace.rows(pl.col("offset").is_not_null(), kinds=["comm"]).is_empty()
    ):
        raise ReplayError(Refusal.STAGES)


def _are_made(spans: pl.DataFrame) -> bool:
    """Whether a rank has batches to train on that somebody makes."""
    waits = spans.filter(pl.col("kind") == "wait")["name"].cast(pl.String)
    if waits.is_empty():
        return not spans.filter(pl.col("kind") == "fetch").is_empty()
    return not waits.is_in(["validate", *_AROUND_BATCHES]).fill_null(value=False).all()


def _rank(
    trace: Trace,
    rank: int,
    spans: pl.DataFrame,
    causes: Mapping[str, Intervals],
    arrived: pl.DataFrame,
    counts: Mapping[int, Counted],
    of_main: Mapping[int, Counted],
    reads: pl.DataFrame,
    until_ns: int,
    lost: pl.DataFrame,
    wakers: Wakers | None,
) -> Rank | None:
    spans = with_worker(spans)
    waits = spans.filter(pl.col("kind") == "wait", in_main_thread(spans)).sort("start_ns", "end_ns")
    if waits.is_empty() or not _are_made(spans):
        return None
    fetches, steps = _fetches(spans), spans.filter(pl.col("kind") == "step")
    seen = visits(waits, fetches)
    num_takes = sum(op is Op.TAKE for op in seen.ops)
    if num_takes < _LEAST_BATCHES or seen.num_known < _LEAST_KNOWN_RATIO * num_takes:
        return None
    # of a pool each batch must have been seen when the loop took it
    if any(each.is_pool for each in seen.visits) and num_takes < _LEAST_KNOWN_RATIO * len(steps):
        return None
    # such as a wait for a compilation in another thread: time of the loop
    if seen.num_known < num_takes:
        is_around = pl.col("name").cast(pl.String).is_in(_AROUND_BATCHES).fill_null(value=False)
        waits = waits.filter(
            pl.col("batch").is_in(fetches["batch"].implode()).fill_null(value=False) | is_around
        )
        seen = visits(waits, fetches)
    of_host = pl.col("host").cast(pl.String).eq_missing(pl.lit(waits["host"][0], pl.String))
    blocks = trace.blocks.filter(of_host)
    loop = int(waits["tid"][0] or 0)
    one_at_a_time = serial(blocks, spans, fetches, loop)
    answering = {
        pid: part for pid, part in one_at_a_time.answering.items() if pid != waits["pid"][0]
    }
    served_s = _served_s(fetches, counts, answering)
    by_loop = [visit for visit in seen.visits if not visit.num_workers]
    rows = np.concatenate([np.zeros(0, np.int64), *(visit.fetch_rows for visit in by_loop)])
    collections = _of_workers(causes["gc"], fetches[rows]["worker"].unique())
    helped = _helped(spans, fetches, loop, wakers)
    fetches, collected_s, stage_waits = _with_stages(
        pl.concat([spans, helped]), fetches, reads, one_at_a_time, collections, blocks
    )
    collects_s = np.zeros(len(waits))
    for visit in by_loop:
        collects_s[visit.wait_rows] = collected_s[visit.fetch_rows[visit.taken_rows]]
    prefetch = trace.run.config.prefetch or _DEFAULT_PREFETCH
    sent, held_s, chose_s = _sent(spans), _held_s(spans, waits, wakers), chosen_s(waits, spans)
    # A loop that has workers chooses the next samples once it has a batch: that is time of its own.
    taking = [
        op is Op.TAKE and seen.visits[visit].num_workers > 0
        for op, visit in zip(seen.ops, seen.of_visit, strict=True)
    ]
    chooses_s = np.where(taking, chose_s, 0.0)
    waits = waits.with_columns(end_ns=pl.col("end_ns") - (chooses_s * 1e9).astype(np.int64))
    iterations = _first_apart(
        tuple(
            _with_serial(
                _iteration(visit, waits, fetches, sent, held_s, chose_s, prefetch),
                one_at_a_time,
                served_s,
            )
            for visit in seen.visits
        )
    )
    program, end_ns = _program(
        seen.ops, seen.of_visit, waits, until_ns, causes, arrived, _optimizer(spans), chooses_s,
        collects_s, one_at_a_time.loop_waits,
    )  # fmt: skip
    program = with_choices(replace(program, is_step=_is_step(seen, waits, lost)), waits, spans)
    begin_ns, taken_ns = int(waits["start_ns"][0]), waits["end_ns"].to_numpy().astype(np.int64)
    begun_ns = waits["start_ns"].to_numpy().astype(np.int64)
    starts_early = seen.ops[0] is Op.TAKE and seen.visits[0].num_workers > 0
    if starts_early:
        early_ns = min(begin_ns, seen.visits[0].begin_ns)
        program, taken_ns = (
            _with_start(program, (begin_ns - early_ns) / 1e9),
            np.concatenate(([begin_ns], taken_ns)),
        )
        begun_ns = np.concatenate(([early_ns], begun_ns))
        begin_ns = early_ns
    waiting = [
        intervals(waits),
        *(causes[cause] for cause in WITHOUT_CORES),
        *([causes["compute"]] if _on_device(trace) else []),
    ]
    busy_loop = subtract(
        pack(waits["start_ns"].to_numpy()[:1], np.array([end_ns])), union_all(waiting)
    )
    busy_loop = union_all([busy_loop, _receiving(seen.visits, iterations, waits)])
    consumer, processes = int(waits["pid"][0] or 0), _processes(trace, waits["host"][0])
    began = _began_ns(processes)
    made = fetches.with_columns(began_ns=_begun_ns(seen.visits, iterations, fetches)).filter(
        ~pl.col("worker").is_in(waits["worker"].unique().implode())
    )
    of_loop = {**counts, **of_main} if consumer in made["pid"] else counts
    pids = fetches["pid"].to_list()
    once_s = {
        pids[row]: more_s
        for visit, each in zip(seen.visits, iterations, strict=True)
        for row, more_s in zip(visit.fetch_rows.tolist(), each.first_s.sum(1), strict=False)
    }
    pool = _pool(processes, made["pid"].unique().to_list())
    # a worker that computes in one thread does so in its main one; another one sends its batches
    of_makers = {**counts, **of_main} if pool == 1 else dict(counts)
    if of_loop is not counts and consumer in counts and consumer in of_loop:
        # what the threads of its process make, they do beside the loop
        of_makers[consumer] = counts[consumer].without(of_loop[consumer])
    use = cpu_use(
        [Worked(of_loop.get(consumer), busy_loop, began.get(consumer, 0))],
        _pool(processes, [consumer]),
    )
    workers = cpu_use(_workers(began, spans, made, of_makers, once_s, one_at_a_time.waits), pool)
    return Rank(
        rank=rank,
        host=str(steps["host"][0]),
        iterations=(
            tuple(_without_cpu_of_reads(each, workers) for each in iterations)
            if workers.is_measured
            else iterations
        ),
        program=program,
        # threads of a worker have shares of the cores by the same rule, and theirs is not known
        loop_cpu=use if _on_device(trace) or workers.threads > 1 else with_team(use, program),
        worker_cpu=workers,
        begin_ns=begin_ns,
        begun_ns=begun_ns,
        taken_ns=taken_ns,
        end_ns=end_ns,
        starts_early=starts_early,
        stage_waits=stage_waits,
        own_waits=_own_waits(blocks, loop, causes),
    )


def _is_step(seen: Visits, waits: pl.DataFrame, lost: pl.DataFrame) -> NDArray[np.bool_]:
    """`Program.is_step`. `lost`: the batches with which nothing was done."""
    is_lost = waits["batch"].is_in(lost["batch"].implode()).fill_null(value=False).to_list()
    return np.array(
        [
            op is Op.TAKE and not seen.visits[visit].is_validation and not was_lost
            for op, visit, was_lost in zip(seen.ops, seen.of_visit, is_lost, strict=True)
        ]
    )


def _without_loader(
    trace: Trace,
    rank: int,
    spans: pl.DataFrame,
    causes: Mapping[str, Intervals],
    arrived: pl.DataFrame,
    counts: Mapping[int, Counted],
    until_ns: int,
    starts: Starts | None,
) -> Rank:
    """A rank of which the replay knows its own thread alone: each step takes a batch that costs
    nothing. What it waits for, whoever makes it, is time of its own, as long as it was. `starts`:
    of those who make its batches.
    """
    own_steps = spans.filter(pl.col("kind") == "step").sort("start_ns")
    begins = own_steps.select(start_ns="start_ns", end_ns="start_ns")
    if len(begins) < _LEAST_BATCHES:
        raise ReplayError(Refusal.FEW_STEPS, str(len(begins)))
    inside = union(intervals(own_steps))
    ops, none = (Op.TAKE,) * len(begins), np.zeros(0)
    arrived = arrived.filter(pl.col("rank") == rank)
    program, end_ns = _program(
        ops,
        (0,) * len(begins),
        begins,
        until_ns,
        causes,
        arrived,
        _optimizer(spans),
        np.zeros(len(begins)),
        np.zeros(len(begins)),
        np.empty((0, 2), np.int64),
    )
    if starts is not None:
        times = begins["start_ns"].to_numpy()
        windows = pack(times, np.append(times[1:], max(end_ns, int(times[-1]))))
        again_s = [covered(windows, overlaps(causes[cause], starts.again)) / 1e9 for cause in OWN]
        program = replace(program, again_s=np.stack(again_s, axis=1))
    waiting = [
        *(causes[cause] for cause in WITHOUT_CORES),
        *([causes["compute"]] if _on_device(trace) else []),
    ]
    busy = subtract(inside, union_all(waiting))
    loop, processes = int(own_steps["pid"][0] or 0), _processes(trace, own_steps["host"][0])
    every_step = Iteration(
        workers=0,
        prefetch=_DEFAULT_PREFETCH,
        tasks=Tasks.without_cost(len(begins)),
        num_taken=len(begins),
        is_complete=True,
        group=0,
        starts_workers=False,
        startup_s=none,
        has_loader=False,
    )
    return Rank(
        rank=rank,
        host=str(own_steps["host"][0]),
        iterations=(every_step,),
        program=program,
        loop_cpu=cpu_use(
            [Worked(counts.get(loop), busy, _began_ns(processes).get(loop, 0))],
            _pool(processes, [loop]),
        ),
        worker_cpu=CpuUse(),
        begin_ns=int(begins["start_ns"][0]),
        begun_ns=begins["start_ns"].to_numpy().astype(np.int64),
        taken_ns=begins["end_ns"].to_numpy().astype(np.int64),
        end_ns=end_ns,
    )


def _with_start(program: Program, spent_s: float) -> Program:
    """The program with a START of its first iteration before all else."""
    none = np.zeros((1, len(OWN)))
    return Program(
        ops=(Op.START, *program.ops),
        iterations=(program.iterations[0], *program.iterations),
        spent_s=np.concatenate(([spent_s], program.spent_s)),
        after_s=np.concatenate((none, program.after_s)),
        arrive_s=np.concatenate(([np.nan], program.arrive_s)),
        step=np.concatenate(([-1], program.step)),
        device_s=np.concatenate(([0.0], program.device_s)),
        transfer_s=np.concatenate(([0.0], program.transfer_s)),
        device_step=np.concatenate(([-1], program.device_step)),
        optimizer_s=np.concatenate(([0.0], program.optimizer_s)),
        hidden_s=np.concatenate(([0.0], program.hidden_s)),
        is_step=np.concatenate(([False], program.is_step)),
        weight=np.concatenate(([1.0], program.weight)),
        lock_s=np.concatenate(([0.0], program.lock_s)),
        again_s=np.concatenate((none, program.again_s)),
    )


def _processes(trace: Trace, host: str | None) -> list[ProcessRecord]:
    """Those of a host: on another one they may have the same ids."""
    return [each for each in trace.run.processes if host is None or each.host in (host, None)]


def _began_ns(processes: list[ProcessRecord]) -> dict[int, int]:
    return {
        each.pid: each.first_ns
        for each in processes
        if each.pid is not None and each.first_ns is not None
    }


def _pool(processes: list[ProcessRecord], pids: list[int]) -> int | None:
    """Threads of the largest pool of these processes. None: not recorded."""
    pools = [size for each in processes if each.pid in pids for size in each.thread_pools.values()]
    return max(pools, default=None)


def _without_cpu_of_reads(each: Iteration, cpu: CpuUse) -> Iteration:
    """The iteration with what workers did during reads apart from the waits for storage."""
    storage, tasks = STAGES.index("storage"), each.tasks
    stages = tasks.stages_s.copy()
    ran, waited = (
        stages[:, storage] * ratio for ratio in (cpu.reads_cpu_ratio, cpu.reads_delay_ratio)
    )
    stages[:, storage] -= ran + waited
    return replace(
        each, tasks=replace(tasks, stages_s=stages, reads_cpu_s=ran, reads_delay_s=waited)
    )


def _workers(
    began: Mapping[int, int],
    spans: pl.DataFrame,
    fetches: pl.DataFrame,
    counts: Mapping[int, Counted],
    once_s: Mapping[int, float],
    serial_waits: pl.DataFrame,
) -> list[Worked]:
    """For `cpu_use`: the worker processes, and when they made batches without waiting for storage.
    `fetches`: with `began_ns`.

    `began`: when each process did, as far as is known; `once_s`: what its first batch took beyond
    a usual one.
    """
    found = []
    for (pid,), of_process in fetches.partition_by("pid", as_dict=True).items():
        worked, reading = list[Intervals](), list[Intervals]()
        for (worker,), part in of_process.partition_by("worker", as_dict=True).items():
            own = pl.col("worker") == worker
            making = union(pack(part["began_ns"].to_numpy(), part["end_ns"].to_numpy()))
            reads = intersect(making, union(intervals(spans.filter(WORK["storage"], own))))
            waits = union(intervals(serial_waits.filter(own)))
            reading.append(reads)
            worked.append(subtract(subtract(making, reads), waits))
        first_ns = int(of_process["start_ns"].to_numpy().min())
        number = int(str(pid))
        found.append(
            Worked(
                counts.get(number),
                np.concatenate(worked),
                min(first_ns, began.get(number, first_ns)),
                np.concatenate(reading),
                once_s.get(number, 0.0),
            )
        )
    return found


def _begun_ns(
    visits: tuple[Visit, ...], iterations: tuple[Iteration, ...], fetches: pl.DataFrame
) -> pl.Series:
    """Of each batch that was made: when its worker had the task and began to take it, if it was not
    busy or new.
    """
    begun = fetches["start_ns"].to_numpy().astype(np.int64).copy()
    for visit, each in zip(visits, iterations, strict=True):
        begun[visit.fetch_rows] -= (np.nan_to_num(each.tasks.lag_s) * 1e9).astype(np.int64)
    return pl.Series(begun)


def _receiving(
    visits: tuple[Visit, ...], iterations: tuple[Iteration, ...], waits: pl.DataFrame
) -> Intervals:
    """When the loop received batches of workers, which ends its waits for them."""
    begins, ends, found = (
        waits["start_ns"].to_numpy(),
        waits["end_ns"].to_numpy(),
        [np.empty((0, 2), np.int64)],
    )
    for visit, each in zip(visits, iterations, strict=True):
        if visit.num_workers:
            took_ns = (np.nan_to_num(each.tasks.take_s[visit.taken_rows]) * 1e9).astype(np.int64)
            end = ends[visit.wait_rows]
            found.append(pack(np.maximum(begins[visit.wait_rows], end - took_ns), end))
    return union(np.concatenate(found))


def _fetches(spans: pl.DataFrame) -> pl.DataFrame:
    """One row per batch that was made, in the order of their numbers: `batch`, `worker`, `pid`,
    `tid`, `start_ns`, `end_ns`.

    Where two workers claim one batch, the one that was ready first delivered it.
    """
    made = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null())
    each = made.group_by("batch", "worker", "pid").agg(
        pl.col("tid").first(), pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    return each.sort("end_ns", "worker").unique("batch", keep="first").sort("batch")


def _helped(
    spans: pl.DataFrame, fetches: pl.DataFrame, consumer: int, wakers: Wakers | None
) -> pl.DataFrame:
    """What other threads did for those that make batches while these were blocked, as spans of
    theirs: an event loop, or a pool that nobody else uses. A read of theirs counts although they
    were blocked in it until another process answered.
    """
    found, makers = [spans.clear()], fetches.drop_nulls("tid")
    if wakers is None:
        return found[0]
    own = {consumer, *makers["tid"].to_list()}
    done = spans.filter(pl.any_horizontal(*WORK.values()), ~pl.col("tid").is_in([*own]))
    if done.is_empty():
        return found[0]
    for (tid, worker), part in makers.partition_by("tid", "worker", as_dict=True).items():
        working = wakers.working(int(tid), union(intervals(part)), or_waited=True)
        for helper, times in working.items():
            rows = done.filter(pl.col("tid") == helper) if helper not in own else done.clear()
            place, pieces = pieces_within(intervals(rows), times)
            found.append(
                rows[place].with_columns(
                    start_ns=pl.Series(pieces[:, 0]),
                    end_ns=pl.Series(pieces[:, 1]),
                    worker=pl.lit(worker, spans.schema["worker"]),
                )
            )
    return pl.concat(found)


def _with_stages(
    spans: pl.DataFrame,
    fetches: pl.DataFrame,
    reads: pl.DataFrame,
    one_at_a_time: Serial,
    collections: pl.DataFrame,
    blocks: pl.DataFrame,
) -> tuple[pl.DataFrame, Seconds, dict[str, float]]:
    """The fetches with a column per stage (seconds), and `reads` and `read_bytes` of storage; how
    long garbage was collected in each of them; and `Rank.stage_waits`. Waits for what one at a time
    does, and these `collections` by the loop itself, which come wherever it is, are in no stage.
    """
    axis = Axis.of(fetches)
    there = spans.select(*TIMES, "source", "worker").filter(axis.has_worker)
    of_causes = [axis.place(there.filter(of_cause)) for of_cause in WORK.values()]
    waiting = axis.place(one_at_a_time.waits)
    collecting = axis.place(collections)
    spent = charge(axis.place(fetches), [waiting, collecting, *of_causes])[:, 1:]
    collected_s, spent = spent[:, 0] / 1e9, spent[:, 1:]
    is_open = pl.col("kind") == "open"
    opened = charge(axis.place(fetches), [axis.place(there.filter(is_open))])[:, 0] / 1e9
    amounts = reads.group_by("batch").agg(
        reads=pl.len().cast(pl.Float64),
        read_bytes=pl.col("bytes").fill_null(0).sum().cast(pl.Float64),
    )
    found = fetches.with_columns(
        pl.Series(stage, spent[:, place] / 1e9) for place, stage in enumerate((*WORK, "loader"))
    )
    found = found.with_columns(open_s=pl.Series(opened))
    blocked = blocks.join(fetches.select("tid", "worker").unique("tid"), on="tid")
    within = overlaps(axis.place(blocked), union(axis.place(fetches)))
    _, _, *waits = partition(within, [waiting, collecting, *of_causes])
    whole_ns = dict(zip((*WORK, "loader"), spent.sum(0).tolist(), strict=True))
    blocked_ns = zip(whole_ns, map(total, waits), strict=True)
    stage_waits = {stage: ns / whole_ns[stage] for stage, ns in blocked_ns if whole_ns[stage]}
    return (
        found.join(amounts, on="batch", how="left", maintain_order="left").with_columns(
            pl.col("reads", "read_bytes").fill_null(0.0)
        ),
        collected_s,
        {} if blocks.is_empty() else stage_waits,
    )


def _own_waits(
    blocks: pl.DataFrame, loop: int, causes: Mapping[str, Intervals]
) -> dict[str, float]:
    """`Rank.own_waits`, of the thread that takes the batches."""
    own = union(intervals(blocks.filter(pl.col("tid") == loop)))
    whole = {cause: times for cause, times in causes.items() if len(times)}
    waits = {cause: total(overlaps(times, own)) / total(times) for cause, times in whole.items()}
    return {} if blocks.is_empty() else waits


def _of_workers(times: Intervals, workers: pl.Series) -> pl.DataFrame:
    """These times as spans of each of these workers."""
    rows = {"start_ns": times[:, 0], "end_ns": times[:, 1]}
    return pl.DataFrame(rows, schema=dict.fromkeys(rows, pl.Int64)).join(
        workers.to_frame("worker"), how="cross"
    )


def _held_s(spans: pl.DataFrame, waits: pl.DataFrame, wakers: Wakers | None) -> Seconds:
    """Of each wait: how long a worker's next batch kept the batch from being sent."""
    found: Seconds = covered(intervals(waits), kept_back(spans, wakers)) / 1e9
    return found


def _sent(spans: pl.DataFrame) -> pl.DataFrame:
    """When the loop had chosen the samples of a batch and sent the task: `batch`, `sent_ns`."""
    chosen = spans.filter(pl.col("kind") == "sampler", pl.col("batch").is_not_null())
    return chosen.group_by("batch").agg(sent_ns=pl.col("end_ns").max())


def _iteration(
    visit: Visit,
    waits: pl.DataFrame,
    fetches: pl.DataFrame,
    sent: pl.DataFrame,
    held_s: Seconds,
    chose_s: Seconds,
    prefetch: int,
) -> Iteration:
    """An iteration from the rows of its waits and fetches. Of each wait: `held_s`, `Tasks.held_s`,
    and `chose_s`, `chosen_s`.
    """
    rows, is_own = fetches[visit.fetch_rows], visit.num_workers == 0
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    known = (
        rows.join(sent, on="batch", how="left", maintain_order="left")["sent_ns"]
        .to_numpy()
        .astype(np.float64)
    )
    asked, got = (
        _padded(waits["start_ns"].to_numpy(), visit, len(rows)),
        _padded(waits["end_ns"].to_numpy(), visit, len(rows)),
    )
    ahead = visit.num_workers * prefetch
    fallback = np.full(len(rows), np.nan)
    fallback[:ahead] = visit.started_ns
    fallback[ahead:] = got[: max(0, len(rows) - ahead)]
    known = np.where(np.isnan(known), fallback, known)
    workers = rows["worker"].to_numpy()
    together, ready = 0, ends.copy()
    if visit.is_pool:
        together, ahead = _ahead(starts, ends, workers, asked, got)
        prefetch = max(1, -(-ahead // visit.num_workers))
    for row in range(0, len(rows) if together else 0, together or 1):
        ready[row] = ends[row : row + together].max()
        known[row : row + together] = asked[row]
    before = np.full(len(rows), np.nan)
    first = []
    for worker in np.unique(workers):
        of_worker = np.flatnonzero(workers == worker)
        before[of_worker[1:]] = ends[of_worker[:-1]]
        first.append(of_worker[0])
    lag = np.maximum(0.0, starts - np.fmax(before, known)) / 1e9
    first = sorted(first)
    number = {workers[row]: place for place, row in enumerate(first)}
    makers = tuple(number[worker] for worker in workers)
    startup = (starts[first[: visit.num_workers]] - visit.begin_ns) / 1e9
    lag[first] = 0.0 if visit.starts_workers else lag[first]  # it is part of the start-up
    return Iteration(
        workers=visit.num_workers,
        prefetch=prefetch,
        tasks=_tasks(
            rows,
            lag,
            asked,
            got,
            _padded(chose_s if is_own else held_s, visit, len(rows)),
            ready,
            is_own,
        ),
        num_taken=len(visit.wait_rows),
        is_complete=visit.is_complete or visit.is_pool,
        group=visit.group,
        starts_workers=visit.starts_workers,
        startup_s=np.maximum(0.0, startup),
        is_validation=visit.is_validation,
        is_pool=visit.is_pool,
        together=together,
        makers=(
            ()
            if visit.is_pool
            or makers == tuple(place % max(1, len(first)) for place in range(len(makers)))
            else makers
        ),
    )


def _ahead(
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    workers: NDArray[np.int64],
    asked: Seconds,
    got: Seconds,
) -> tuple[int, int]:
    """Of a pool: how many tasks the loop gives to it at a time, and how many may be ahead of it.

    A task that began long after its worker had ended one had to wait until the loop gave it. Where
    that never happens, all were given in the beginning.
    """
    number = np.arange(len(starts))
    taken = np.searchsorted(np.sort(got[~np.isnan(got)]), starts, side="right")
    depth = int(np.max(number - taken)) + 1
    firsts = np.arange(0, len(starts), depth)
    wants, has = np.fmin.reduceat(asked, firsts), np.fmax.reduceat(got, firsts)
    alone_s = wants[1:] - has[:-1]
    between_s = has - wants - np.add.reduceat(np.nan_to_num(got - asked), firsts)
    # it has waited for all when it takes the first, or does nothing before it takes the last
    waits_for_all = ~(got[::depth] < np.maximum.reduceat(ends, firsts))
    waits_for_all |= between_s <= _NEVER_HELD * (alone_s.mean() if len(alone_s) else 0.0)
    # it gives them when it has used those before, shortly before it waits
    given = np.append(wants[0], has[:-1] + alone_s / 2)
    until = np.append(given[1:], np.inf)
    begin_together = (starts >= given[number // depth]) & (starts < until[number // depth])
    if min(np.mean(begin_together), np.mean(waits_for_all)) >= _ALL_TOGETHER:
        return depth, depth
    idle_ns = 0
    for worker in np.unique(workers):
        of_worker = np.flatnonzero(workers == worker)
        of_worker = of_worker[np.argsort(starts[of_worker])]
        idle_ns += int(np.maximum(0, starts[of_worker[1:]] - ends[of_worker[:-1]]).sum())
    whole_ns = len(np.unique(workers)) * (int(ends.max()) - int(starts.min()))
    return 0, len(starts) if idle_ns <= _NEVER_HELD * whole_ns else depth


def _served_s(
    fetches: pl.DataFrame, counts: Mapping[int, Counted], answering: Mapping[int, float]
) -> float:
    """For each batch, what these processes computed from the first one to the last, each by its
    part.
    """
    if fetches.is_empty():
        return 0.0
    times = [fetches["start_ns"].to_numpy().min(), fetches["end_ns"].to_numpy().max()]
    used_s = [
        part * float(np.ptp(np.interp(times, each.times_ns, each.cpu_s)))
        for pid, part in answering.items()
        if (each := counts.get(pid))
    ]
    return sum(used_s) / len(fetches)


def _with_serial(each: Iteration, one_at_a_time: Serial, served_s: float) -> Iteration:
    """The iteration with what one worker at a time does of each task taken out of its stages, and
    with what other processes compute for a task.
    """
    if not each.workers:
        return each
    served = np.full(len(each.tasks), served_s)
    each = replace(each, tasks=replace(each.tasks, served_s=served))
    if not one_at_a_time.batch_s:
        return each
    stages, place = each.tasks.stages_s.copy(), STAGES.index(one_at_a_time.stage)
    taken = np.zeros_like(stages)
    taken[:, place] = np.minimum(stages[:, place], one_at_a_time.batch_s)
    if one_at_a_time.lock_wait_s or one_at_a_time.is_lock:  # held within reads and decoding, too
        others = np.where(np.arange(len(STAGES)) == STAGES.index("storage"), 0.0, stages - taken)
        more_s, whole_s = one_at_a_time.batch_s - taken.sum(1), others.sum(1)
        taken += others * np.minimum(1.0, more_s / np.maximum(whole_s, 1e-12))[:, None]
    serial_s = np.full(len(each.tasks), one_at_a_time.batch_s)
    own_s = taken.sum(1)
    tasks = replace(each.tasks, stages_s=stages - taken, serial_s=serial_s, serial_own_s=own_s)
    return replace(
        each,
        tasks=tasks,
        serial_parts=tuple((taken.sum(0) / own_s.sum()).tolist()) if own_s.any() else (),
        serial_stage=one_at_a_time.stage,
        has_lock=one_at_a_time.is_lock,
        lock_wait_s=one_at_a_time.lock_wait_s,
    )


def _first_apart(iterations: tuple[Iteration, ...]) -> tuple[Iteration, ...]:
    """The iterations without what the first task of each worker took beyond a usual one; and that,
    as `first_s`.

    They stay as they are where first tasks do not always take longer, or may do so by chance, since
    few workers were started.
    """
    work = np.array([stage not in ("storage", "page_cache") for stage in STAGES])
    starting = [
        each for each in iterations if each.starts_workers and len(each.tasks) > each.workers
    ]
    took = [each.tasks.stages_s[:, work].sum(1) for each in starting]
    first = np.concatenate(
        [np.zeros(0), *(part[: each.workers] for each, part in zip(starting, took, strict=True))]
    )
    others = np.concatenate(
        [np.zeros(0), *(part[each.workers :] for each, part in zip(starting, took, strict=True))]
    )
    if not len(first):
        return iterations
    as_long = 1 + np.count_nonzero(others >= np.quantile(first, 1 - _ALWAYS_LONGER))
    if (as_long / (1 + len(others))) ** len(first) > _BY_CHANCE:
        return iterations
    usual = float(np.median(others))

    def apart(each: Iteration) -> Iteration:
        if not each.starts_workers or len(each.tasks) <= each.workers:
            return each
        stages, rows = each.tasks.stages_s.copy(), slice(0, each.workers)
        whole = stages[rows][:, work].sum(1)
        part = np.maximum(0.0, whole - usual) / np.maximum(whole, 1e-12)
        more = stages[rows] * np.where(work, part[:, None], 0.0)
        stages[rows] -= more
        return replace(each, tasks=replace(each.tasks, stages_s=stages), first_s=more)

    return tuple(map(apart, iterations))


def _padded(times: NDArray[np.int64] | Seconds, visit: Visit, length: int) -> Seconds:
    """Values of the waits for each fetch; NaN for those that the loop did not take."""
    found = np.full(length, np.nan)
    found[visit.taken_rows] = times[visit.wait_rows]
    return found


def _tasks(
    rows: pl.DataFrame,
    lag: Seconds,
    asked: Seconds,
    got: Seconds,
    held: Seconds,
    ready: NDArray[np.int64],
    is_own: bool,
) -> Tasks:
    """`held`: see `Tasks.held_s`; where the loop makes its batches itself, what choosing their
    samples took.
    """
    took = (got - asked) / 1e9
    stages, none = rows.select(STAGES).to_numpy(writable=True), np.zeros(len(rows))
    chosen, held = (np.nan_to_num(held), none) if is_own else (none, held)
    waited = (ready > asked) | (held > 0)
    held = np.where(waited, held, np.nan)
    late = (got - ready) / 1e9 - np.nan_to_num(held)
    if is_own:
        own = np.maximum(0.0, took - (ready - rows["start_ns"].to_numpy()) / 1e9)
        chosen = np.minimum(chosen, np.nan_to_num(own))
        transit, most, take = none, none, own - chosen
        stages[:, STAGES.index("loader")] += chosen
    else:
        # A batch that was ready before one that comes earlier may have been received while the loop
        # waited for that one.
        in_turn = ready > np.maximum.accumulate(
            np.concatenate(([np.iinfo(np.int64).min], ready[:-1]))
        )
        was_ready = (asked - ready > 0) & ~np.isnan(took) & ~waited
        typical = _receiving_s(took[was_ready & in_turn], late[waited & ~np.isnan(late)])
        take = np.where(waited | np.isnan(took), np.nan, took)
        take = np.where(was_ready & ~in_turn, np.maximum(took, typical), take)
        transit = np.where(waited, np.maximum(0.0, late - typical), np.nan)
        most = np.where(waited | np.isnan(asked), np.inf, (asked - ready) / 1e9)
        take = np.where(np.isnan(take) & waited, np.minimum(np.maximum(late, 0.0), typical), take)
    reads, read_bytes, open_s = (
        rows[name].to_numpy() for name in ("reads", "read_bytes", "open_s")
    )
    return Tasks(
        stages,
        reads,
        read_bytes,
        open_s,
        none,
        none,
        lag,
        transit,
        most,
        take,
        none if is_own else held,
        none,
        none,
        none,
    )


def _receiving_s(took: Seconds, late: Seconds) -> float:
    """What the loop itself spends on receiving a batch.

    `took`: its takes of batches that were ready, and had not been received before. `late`: from the
    end of the worker's fetch until the loop had a batch for which it waited.
    """
    whole = float(np.median(late)) if len(late) else np.inf
    if len(took) < _LEAST_TAKES:
        return _OWN_PART * whole if len(late) else float(np.median(took)) if len(took) else 0.0
    return min(whole, float(np.median(took)))


def _optimizer(spans: pl.DataFrame) -> Intervals:
    """When the optimizer of a loop on the CPU computed."""
    is_own = (pl.col("kind") == "compute") & pl.col("name").cast(pl.String).is_in(
        [OPTIMIZER, PartCode.GRADIENTS.value]
    )
    return intervals(spans.filter(is_own, in_main_thread(spans)))


def _program(
    ops: tuple[Op, ...], of_visit: tuple[int, ...], waits: pl.DataFrame, until_ns: int,
    causes: Mapping[str, Intervals], arrived: pl.DataFrame, optimizer: Intervals,
    chooses_s: Seconds, collects_s: Seconds, lock_waits: Intervals,
) -> tuple[Program, int]:  # fmt: skip
    """What the loop did, and when the last of it had ended. `chooses_s`: what it spent on samples
    after each of its waits, `collects_s` within it on garbage collection, `lock_waits` when it
    waited for its makers to leave the interpreter.
    """
    begins, ends = waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy()
    last = max(until_ns, int(ends[-1]))
    until = np.concatenate((begins[1:], [last]))
    windows = pack(ends, np.maximum(ends, until))
    # what was charged while it chose is not charged again
    whole_ends = ends + (chooses_s * 1e9).astype(np.int64)
    outside = pack(whole_ends, np.maximum(whole_ends, until))
    after = np.stack([covered(outside, causes[cause]) for cause in OWN], axis=1).astype(np.float64)
    after[:, OWN.index("loader")] += chooses_s * 1e9
    after[:, OWN.index("host")] += (windows[:, 1] - windows[:, 0]) - after.sum(1)
    after[:, OWN.index("gc")] += collects_s * 1e9
    spent = np.where(np.array([op is Op.TAKE for op in ops]), 0, ends - begins) / 1e9
    arrive, step = np.full(len(ops), np.nan), np.full(len(ops), -1, np.int64)
    own = arrived.sort("own_ns")
    place = np.searchsorted(windows[:, 0], own["own_ns"].to_numpy(), side="right") - 1
    for row, at, number in zip(
        place, own["own_ns"].to_numpy(), own["step"].to_numpy(), strict=True
    ):
        if row >= 0 and at < windows[row, 1]:  # the last collective of the window holds
            arrive[row], step[row] = (at - windows[row, 0]) / 1e9, number
    after[:, OWN.index("straggler")] = 0.0
    none, alone = np.zeros(len(ops)), np.full(len(ops), -1, np.int64)
    of_optimizer = covered(windows, intersect(causes["compute"], optimizer)) / 1e9
    return (
        Program(
            ops,
            of_visit,
            spent,
            after / 1e9,
            arrive,
            step,
            none,
            none,
            alone,
            of_optimizer,
            none,
            np.ones(len(ops), np.bool_),
            np.ones(len(ops)),
            covered(windows, union(lock_waits)) / 1e9,
            np.zeros((len(ops), len(OWN))),
        ),
        last,
    )
