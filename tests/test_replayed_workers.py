"""What the replay says of workers that are started, end, receive and send, and of others that use
the cores."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from simulated_loader import Job, seconds, simulate
from timeline import TICK_NS, block, timeline, with_blocks

from ioprof.format.run_record import JobKind
from ioprof.format.trace import Trace
from ioprof.model.advice import ranked
from ioprof.model.changed import (
    changed,
    filled,
    with_factors,
    with_kept_workers,
)
from ioprof.model.changes import Change
from ioprof.model.cores.cpu_use import Counted, Worked, cpu_use, with_common_team, with_team
from ioprof.model.engine import (
    CORES,
    LOCKED,
    LoaderPlan,
    Plan,
    RankPlan,
    Resource,
    Segment,
    Simulation,
    _Shared,
    _Teams,
)
from ioprof.model.equal_ranks import with_equal_ranks, with_mixed_ranks
from ioprof.model.pace import replayed
from ioprof.model.pipeline import STAGES, CpuUse, Op, Pipeline, Rank
from ioprof.model.plan import plan
from ioprof.model.prediction import whatif
from ioprof.model.recorded import pipeline

MS = 1_000_000
EPOCHS, BATCHES = 5, 10
FIRST, USUAL = {"decode": 30 * MS}, {"decode": 10 * MS}


def epochs_job(workers: int = 2) -> Job:
    """Epochs of which the first batch of each new worker takes three times as long as another
    one."""
    epoch = (FIRST,) * workers + (USUAL,) * (BATCHES - workers)
    own = ({"compute": 1 * MS},) * (EPOCHS * BATCHES)
    return Job(workers, 2, epoch * EPOCHS, own, start=4 * MS, end=2 * MS, batches_per_epoch=BATCHES)


def taken_s(recorded: Pipeline) -> list[float]:
    """When the replayed loop had each batch."""
    times = Simulation(plan(filled(recorded))).run()[0]
    takes = [
        ended
        for op, ended in zip(recorded.ranks[0].program.ops, times.ended_s, strict=True)
        if op is Op.TAKE
    ]
    return (np.array(takes) + recorded.ranks[0].begin_ns / 1e9).tolist()


def spent_s(rank: Rank, op: Op) -> float:
    """Of the first such action."""
    return float(rank.program.spent_s[rank.program.ops.index(op)])


def test_kept_workers_do_once_what_new_ones_do_first() -> None:
    """What the first batch of a process takes beyond others is not repeated in the next epoch."""
    job = epochs_job()
    recorded = pipeline(simulate(job).trace)
    np.testing.assert_allclose(taken_s(recorded), seconds(simulate(job).got), atol=1e-7)
    stages = (FIRST,) * job.workers + (USUAL,) * (EPOCHS * BATCHES - job.workers)
    truth = simulate(replace(job, stages=stages, persistent=True, end=0))
    np.testing.assert_allclose(
        taken_s(changed(recorded, Change(persistent_workers=True))), seconds(truth.got), atol=1e-7
    )


def test_what_a_dataset_keeps_is_made_once_by_kept_workers() -> None:
    """And what it does not keep again in each epoch."""
    job = replace(epochs_job(), stages=(USUAL,) * EPOCHS * BATCHES)
    again = {"decode": USUAL["decode"] // 5}
    stages = (USUAL,) * BATCHES + (again,) * (EPOCHS - 1) * BATCHES
    truth = simulate(replace(job, stages=stages, persistent=True, end=0))
    change = Change(persistent_workers=True, reused=0.8, in_order=True)
    found = taken_s(changed(pipeline(simulate(job).trace), change))
    np.testing.assert_allclose(found, seconds(truth.got), atol=1e-7)


def test_kept_workers_are_those_of_one_loader() -> None:
    """A loader with another number of workers has its own: the others begin with its first
    iteration, and are kept from there."""
    recorded = pipeline(simulate(epochs_job()).trace)
    [rank] = recorded.ranks
    first = replace(
        rank.iterations[0],
        workers=1,
        makers=(),
        startup_s=rank.iterations[0].startup_s[:1],
        first_s=rank.iterations[0].first_s[:0],
    )
    of_two = replace(recorded, ranks=(replace(rank, iterations=(first, *rank.iterations[1:])),))
    [kept] = with_kept_workers(of_two).ranks
    assert [True, True, False, False, False] == [each.starts_workers for each in kept.iterations]
    assert [first.group, *[rank.iterations[1].group] * 4] == [
        each.group for each in kept.iterations
    ]
    assert EPOCHS * BATCHES == len(taken_s(with_kept_workers(of_two)))


def test_each_other_worker_has_a_first_batch() -> None:
    """Of four workers instead of two, four begin with such a batch, and of larger batches it takes
    no more."""
    recorded = pipeline(simulate(epochs_job()).trace)
    [more], [larger] = (
        changed(recorded, change).ranks for change in (Change(workers=4), Change(batch=16))
    )
    for each in more.iterations:
        np.testing.assert_allclose(each.first_s.sum(1), 0.02)
    for each in larger.iterations:
        np.testing.assert_allclose(each.first_s.sum(1), 0.02)
        np.testing.assert_allclose(each.tasks.stages_s.sum(1), 0.02)


def test_workers_start_in_turn_and_end_together() -> None:
    """Each start takes the loop as long; ends overlap as far as there are cores."""
    recorded = pipeline(simulate(epochs_job()).trace)
    on_two = replace(recorded, cores=dict.fromkeys(recorded.cores, 2.0))
    found = {number: changed(on_two, Change(workers=number)).ranks[0] for number in (0, 1, 2, 4)}
    assert {number: spent_s(rank, Op.START) for number, rank in found.items()} == pytest.approx(
        {0: 0, 1: 0.002, 2: 0.004, 4: 0.008}
    )
    assert {number: spent_s(rank, Op.END) for number, rank in found.items()} == pytest.approx(
        {0: 0, 1: 0.002, 2: 0.002, 4: 0.004}
    )


def test_without_workers_the_range_has_all_that_collating_may_take() -> None:
    """A run with workers does not show what collating takes without shared memory: between nothing
    and all of its time."""
    stages = ({"decode": 10 * MS, "collate": 10 * MS},) * 40
    trace = simulate(Job(1, 2, stages, ({"compute": 5 * MS},) * 40)).trace
    change = Change(workers=0)
    found, recorded = whatif(trace, change), pipeline(trace)
    half = changed(recorded, change)
    none, whole = (
        replayed(recorded).step_s / replayed(with_factors(half, {"collate": factor})).step_s
        for factor in (0.0, 2.0)
    )
    assert found.speedup_range.low <= whole < found.speedup < none <= found.speedup_range.high
    assert "collate_by_loop" in {each.code for each in found.assumptions}


def test_what_waits_frees_no_core_and_what_computes_does() -> None:
    """Of two workers on one core, each of which waits for half of its time."""
    half = CpuUse(busy_ratio=0.5, cpu_s=1.0)
    stages = ({"decode": 10 * MS},) * 40
    recorded = pipeline(simulate(Job(2, 2, stages, ({"compute": MS // 10},) * 40)).trace)
    ranks = (replace(recorded.ranks[0], worker_cpu=half, loop_cpu=CpuUse(0.0, cpu_s=1.0)),)
    one = replace(recorded, ranks=ranks, cores={"node1": 1.0}, shares_cores=True)
    left = {waits: with_factors(one, {"decode": 0.5}, waits) for waits in (None, 0.0, 0.5, 1.0)}
    assert {None: 0.5, 0.0: 0.0, 0.5: 0.5, 1.0: 1.0} == {
        waits: found.ranks[0].worker_cpu.busy_ratio for waits, found in left.items()
    }
    steps = {waits: replayed(found).step_s for waits, found in left.items()}
    assert steps[None] == steps[0.5]
    assert steps[0.0] == pytest.approx(0.0025, rel=0.1)  # two that wait at the same time
    assert steps[1.0] == pytest.approx(0.005, rel=0.1)  # and two that share the core


def test_each_stage_waits_as_much_as_its_threads_were_blocked_in_it() -> None:
    """So that a worker that waits in one stage and computes in the other is left with either."""
    stages = ({"decode": 10 * MS, "transform": 10 * MS},) * 40
    trace = simulate(Job(2, 2, stages, ({"host": MS},) * 40)).trace
    rows = trace.spans.filter(kind="transform").rows(named=True)
    facts = {"host": "node1", "object": "sleep", "id": None, "timed_out": True}
    names = ("pid", "tid", "start_ns", "end_ns")
    blocks = [{**facts, **{name: row[name] for name in names}} for row in rows]
    loop = trace.spans.filter(kind="step").row(0, named=True)
    blocks.append({**blocks[0], **{name: loop[name] for name in names}})
    recorded = pipeline(with_blocks(trace, *blocks))
    rank = recorded.ranks[0]
    assert (0.0, 1.0) == (rank.stage_waits["decode"], rank.stage_waits["transform"])
    assert rank.own_waits["host"] == pytest.approx(1 / 40, abs=0.01)
    half = replace(rank, worker_cpu=CpuUse(0.5, cpu_s=1.0), loop_cpu=CpuUse(0.5, cpu_s=1.0))
    known = replace(recorded, ranks=(half,))

    def busy(**factors: float) -> tuple[float, float]:
        found = with_factors(known, factors).ranks[0]
        return found.worker_cpu.busy_ratio, found.loop_cpu.busy_ratio

    assert busy(transform=0.0) == pytest.approx((1.0, 0.5))
    assert busy(decode=0.0) == pytest.approx((0.0, 0.5))
    assert busy(transform=0.5) == pytest.approx((2 / 3, 0.5))
    assert busy(transform=2.0) == pytest.approx((1 / 3, 0.5))
    assert busy(compute=0.0) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("workers", "cores", "others", "expected"),
    [
        (4, 2.0, 0.25, 8 / 1.75),  # it wants less than a fair part, and has it
        (1, 2.0, 0.5, 8.0),  # there are cores for both
        (4, 2.0, 1.0, 8 / 1.6),  # one of five that always compute
        (1, 1.0, 1.5, 24.0),  # two threads, of which each wants more than a third of a core
    ],
)
def test_others_have_what_they_want_up_to_a_fair_part(
    workers: int, cores: float, others: float, expected: float
) -> None:
    """Threads that sleep most of the time get all of the little that they want, however many
    compute."""
    none: list[tuple[Segment, ...]] = [()] * 9
    loader = LoaderPlan(
        workers,
        2,
        [(Segment(CORES, 1.0),)] * 8,
        [0.0] * 8,
        [0.0] * 8,
        [()] * 8,
        8,
        [0.0] * workers,
        0,
    )
    rank = RankPlan(
        0, [loader], [int(Op.START), *[int(Op.TAKE)] * 8], [0] * 9, none, none, [-1] * 9, none
    )
    assert Simulation(Plan([rank], [Resource(cores, 1.0, others)], Resource(1.0))).run()[
        0
    ].end_s == pytest.approx(expected)


def test_what_starts_a_worker_is_not_its_work() -> None:
    """CPU time of a forked process until its first batch, and what that one took beyond a usual
    one, is no part of the others'."""
    busy = np.array([[10 * MS, 110 * MS], [120 * MS, 320 * MS]])
    counts = Counted(np.array([320 * MS]), np.array([0.01 + 0.04 + 0.13]), np.array([0.0]))
    found = cpu_use([Worked(counts, busy, 0, once_s=0.04)], 1)
    assert found.cpu_s == pytest.approx(0.13)
    assert found.busy_ratio == pytest.approx(0.13 / 0.26)


@pytest.mark.parametrize("dilation", [1.0, 1.5, 4.0])
def test_starting_a_worker_is_stretched_as_its_work_is(dilation: float) -> None:
    """Beside other threads it waits for a core from the start on: what was measured of the start is
    not all computation."""
    ran_s, longer = 0.18, round(dilation * MS)
    busy = np.array([[10 * longer, 180 * longer]])
    counts = Counted(
        np.array([180 * longer]), np.array([ran_s]), np.array([(dilation - 1) * ran_s])
    )
    found = cpu_use([Worked(counts, busy, 0, once_s=0.04 * dilation)], 1)
    assert found.dilation == pytest.approx(dilation)
    assert found.cpu_s == pytest.approx(ran_s - 0.01 - 0.04)


def test_threads_of_one_process_that_make_batches_are_busy_each() -> None:
    """Two that compute for three quarters of the same second used 1.5 s of CPU time in 2 s."""
    busy = np.array([[0, 1000 * MS], [0, 1000 * MS]])
    counts = Counted(np.array([0, 1000 * MS]), np.array([0.0, 1.5]), np.array([0.0, 0.0]))
    found = cpu_use([Worked(counts, busy, -1000 * MS)], 1)
    assert (0.75, 1.0) == pytest.approx((found.busy_ratio, found.dilation))


@pytest.mark.parametrize(("cores", "took_s"), [(8.0, 4.0), (2.0, 4.0), (1.0, 7.0)])
def test_what_holds_a_lock_computes_too(cores: float, took_s: float) -> None:
    """Two workers, each with 2 s under a lock, and a loop that computes for 3 s at the same time:
    one after the other they take 4 s, and with one core what all compute."""
    loader = LoaderPlan(
        2, 1, [(Segment(LOCKED, 2.0),)] * 2, [0.0] * 2, [0.0] * 2, [()] * 2, 2, [0.0] * 2, 0
    )
    ops = [int(Op.START), int(Op.TAKE), int(Op.TAKE)]
    before = [(Segment(CORES, 3.0),), (), ()]
    rank = RankPlan(0, [loader], ops, [0] * 3, [()] * 3, before, [-1] * 3, [()] * 3)
    plan = Plan([rank], [Resource(cores, 1.0)], Resource(1.0))
    assert took_s == pytest.approx(Simulation(plan).run()[0].end_s)


def test_a_pool_that_gets_the_next_batch_early_works_beside_the_loop() -> None:
    """Each task is given when its batch is wanted, and waited for; with two ahead it is made
    meanwhile, and that is told."""
    job = Job(1, 1, ({"decode": 10 * MS},) * 60, ({"compute": 10 * MS},) * 60, pool=1, threads=True)
    recorded = pipeline(simulate(job).trace)
    assert [1] == [each.together for each in recorded.ranks[0].iterations]
    before, after = (
        replayed(filled(changed(recorded, change))).step_s
        for change in (Change(), Change(prefetch=2))
    )
    assert (0.02, 0.01) == pytest.approx((before, after), rel=0.02)
    told = ranked((), recorded, 0.0, JobKind.OTHER)
    assert [2] == [each.facts["prefetch"] for each in told if each.facts.get("when_wanted")]


def test_more_threads_of_a_pool_have_no_longer_queue() -> None:
    """Those of a job's own threads wait in a queue of its own, whose length stays as it was."""
    job = Job(2, 2, ({"decode": 10 * MS},) * 40, ({"compute": 2 * MS},) * 40, pool=6, threads=True)
    recorded = pipeline(simulate(job).trace)
    for is_pool, ahead in ((True, 1), (False, 3)):
        (rank,) = recorded.ranks
        (each,) = rank.iterations
        pool = replace(each, is_pool=is_pool, workers=2, prefetch=3)
        more = changed(
            replace(recorded, ranks=(replace(rank, iterations=(pool,)),)), Change(workers=8)
        )
        (found,) = more.ranks[0].iterations
        assert (8, ahead) == (found.workers, found.prefetch)


def test_receiving_a_batch_takes_time_also_where_the_loop_waited_for_another_one() -> None:
    """Of two workers the second one is ready first: its batches are received in the waits for those
    of the first one."""
    stages = ({"decode": 40 * MS}, {"decode": 10 * MS}) * 20
    trace = simulate(Job(2, 2, stages, ({"compute": 1 * MS},) * 40, take=2 * MS)).trace
    is_second = (pl.col("kind") == "wait") & (pl.col("batch") % 2 == 1)
    at_once = pl.when(is_second).then(pl.col("start_ns") + MS // 10).otherwise(pl.col("end_ns"))
    received = Trace(trace.run, trace.spans.with_columns(end_ns=at_once))
    assert float(pipeline(received).ranks[0].iterations[0].tasks.take_s.min()) > 0.001


def test_the_way_of_a_batch_shortens_where_fewer_threads_compete() -> None:
    """The threads that send it wait for a core as the workers do, each time as long as there are
    others."""
    made, own = ({"decode": 9 * MS},) * 20, ({"compute": MS},) * 20
    trace = simulate(Job(2, 2, made, own, transit=4 * MS)).trace
    recorded = pipeline(trace)
    cpu = CpuUse(busy_ratio=1.0, dilation=2.0, cpu_s=1.0)
    rank = replace(recorded.ranks[0], worker_cpu=cpu, loop_cpu=cpu)
    shared = filled(replace(recorded, ranks=(rank,), cores={"node1": 1.0}, shares_cores=True))
    tasks, loader = shared.ranks[0].iterations[0].tasks, plan(shared).ranks[0].loaders[0]
    assert 0 < np.median(tasks.transit_s)
    assert loader.contended_s == pytest.approx((tasks.transit_s / 2).tolist())
    assert loader.transit_s == pytest.approx(tasks.held_s.tolist())
    cores = _Shared(Resource(2.0))
    assert [1.0, 1.5] == [cores.slowdown, _busy(cores, 2).slowdown]


def _busy(cores: _Shared, users: int) -> _Shared:
    for number in range(users):
        cores.add(0.0, 1.0, 1.0, number, None)
    return cores


@pytest.mark.parametrize(("team", "took_s"), [(0.0, 2.0), (0.5, 2.0**1.5), (1.0, 4.0)])
def test_threads_that_wait_for_each_other_take_longer_beside_others(
    team: float, took_s: float
) -> None:
    """A second of two threads beside two others on two cores: each has a core half of the time, and
    both have one a quarter of it. The others are done as without that."""
    cores = (_Teams if team else _Shared)(Resource(2.0, team=team))
    cores.add(0.0, 1.0, 2.0, 0, "team")
    for number in (1, 2):
        cores.add(0.0, 10.0, 1.0, number, "other")
    assert cores.next_s() == pytest.approx(took_s)
    assert "team" == cores.remove(took_s)
    assert cores.next_s() == pytest.approx(took_s + (10 - took_s / 2))


def test_a_loop_whose_fast_steps_had_all_cores_has_threads_that_wait_for_each_other() -> None:
    """Steps of 10 ms of which most took four times as long: twice for each of two threads that had
    a core half of the time. Steps that take as long each say nothing of the kind."""
    own = tuple({"compute": (10 if number % 5 == 0 else 47.5) * MS} for number in range(40))
    trace = simulate(Job(2, 2, ({"decode": 9 * MS},) * 40, own)).trace
    rank = pipeline(trace).ranks[0]
    program = rank.program
    use = CpuUse(dilation=2.0, threads=2.0, cpu_s=1.0)
    found = with_team(use, program)
    assert found.team == pytest.approx(1.0, abs=0.02)
    assert found.cores_ratio == pytest.approx(0.25, abs=0.01)
    both = with_common_team([replace(rank, loop_cpu=each) for each in (found, use)])
    assert [found.team] * 2 == [each.loop_cpu.team for each in both]
    alike = replace(program, after_s=np.ones_like(program.after_s))
    assert use == with_team(use, alike)
    assert replace(use, threads=1.0) == with_team(replace(use, threads=1.0), program)


def test_a_wait_for_no_batch_is_time_of_the_loop() -> None:
    """Such as one for a compilation in another thread."""
    job = Job(
        2,
        2,
        tuple({"decode": 3 * MS} for _ in range(20)),
        tuple({"host": 5 * MS} for _ in range(20)),
    )
    trace = simulate(job).trace
    fourth = trace.spans.filter(pl.col("kind") == "wait", pl.col("batch") == 3)
    until = {"start_ns": pl.col("end_ns") + MS, "end_ns": pl.col("end_ns") + 3 * MS}
    waited = fourth.with_columns(batch=None, name=pl.lit("future", pl.Categorical()), **until).cast(
        dict(trace.spans.schema)
    )
    compiling = replace(trace, spans=pl.concat([trace.spans, waited]).sort("start_ns"))
    assert replayed(pipeline(compiling)).step_s == pytest.approx(replayed(pipeline(trace)).step_s)


def test_a_task_is_of_the_worker_that_did_it() -> None:
    """Where one of two workers has nothing more to read, the other does the rest; other numbers of
    workers take tasks in turn."""
    one = pipeline(
        simulate(
            Job(2, 2, tuple({"decode": 20 * MS} for _ in range(20)), ({"host": MS},) * 20)
        ).trace
    )
    rank, iteration = one.ranks[0], one.ranks[0].iterations[0]
    uneven = replace(iteration, makers=(0, 1) * 5 + (0,) * 10)
    paces = [
        replayed(replace(one, ranks=(replace(rank, iterations=(each,)),))).step_s
        for each in (iteration, uneven)
    ]
    assert () == iteration.makers
    assert paces == pytest.approx([0.010, 0.015], rel=0.2)
    assert (
        ()
        == changed(replace(one, ranks=(replace(rank, iterations=(uneven,)),)), Change(workers=4))
        .ranks[0]
        .iterations[0]
        .makers
    )


def test_what_other_threads_do_for_a_blocked_maker_is_in_its_stages() -> None:
    """An event loop that receives, and a thread that only passes its batches on. Not what was done
    while the maker was not blocked, and nothing that makers do for each other."""
    trace = timeline("""
    step         0000000000 1111111111 2222222222 3333333333 4444444444 5555555555
    wait main    00000000.. 11111111.. 22222222.. 33333333.. 44444444.. 55555555..
    fetch t0     00000000.. 11111111.. 22222222.. 33333333.. 44444444.. 55555555..
    read t1 socket .####..#.. .####..#.. .####..#.. .####..#.. .####..#.. .####..#..
    compute main ........## ........## ........## ........## ........## ........##
    """)
    threads = dict(trace.spans.select("kind", "tid").unique().iter_rows())
    maker, reader = threads["fetch"], threads["read"]
    waits = [block(10 * step, 10 * step + 6, maker, reader) for step in range(6)]
    stages = pipeline(with_blocks(trace, *waits)).ranks[0].iterations[0].tasks.stages_s
    assert [pytest.approx(4 * TICK_NS / 1e9)] * 6 == stages[:, STAGES.index("storage")].tolist()
    assert [pytest.approx(4 * TICK_NS / 1e9)] * 6 == stages[:, STAGES.index("loader")].tolist()
    alone = pipeline(trace).ranks[0].iterations[0].tasks.stages_s
    assert not alone[:, STAGES.index("storage")].any()


@pytest.mark.parametrize(("cores", "gain"), [(1.0, 1.0), (8.0, 2.0)])
def test_the_first_workers_of_a_loop_need_cores(cores: float, gain: float) -> None:
    """What the loop computed to make its batches, workers compute, too."""
    job = Job(0, 2, ({"decode": 10 * MS},) * 300, ({"compute": 10 * MS},) * 300)
    recorded = pipeline(simulate(job).trace)
    (rank,) = recorded.ranks
    own = replace(rank, loop_cpu=CpuUse(cpu_s=1.2))
    recorded = replace(recorded, ranks=(own,), cores={rank.host: cores}, shares_cores=True)
    after = replayed(filled(changed(recorded, Change(workers=4))))
    assert replayed(recorded).step_s / after.step_s == pytest.approx(gain, rel=0.05)


def test_work_that_is_divided_among_ranks_stays_the_same() -> None:
    """Of two ranks of which one has three times as much to do: equal in each step, the steps take
    what they take on average; by chance, more than that and less than before."""
    both = []
    for number, each in enumerate((5, 15)):
        job = Job(0, 2, ({"decode": each * MS},) * 60, ({"compute": each * MS},) * 60)
        (rank,) = pipeline(simulate(job).trace).ranks
        takes = np.array([op is Op.TAKE for op in rank.program.ops])
        step = np.where(takes, np.cumsum(takes), -1)
        arrive_s = np.where(takes, rank.program.after_s.sum(1), np.nan)
        program = replace(rank.program, step=step, arrive_s=arrive_s)
        both.append(replace(rank, rank=number, program=program))
    recorded = replace(pipeline(simulate(job).trace), ranks=tuple(both))
    equal, mixed = with_equal_ranks(recorded), with_mixed_ranks(recorded)
    assert equal is not None
    assert mixed is not None

    def work_s(changed: Pipeline) -> float:
        return sum(
            float(rank.program.after_s.sum() + each.tasks.stages_s.sum())
            for rank in changed.ranks
            for each in rank.iterations
        )

    assert [work_s(recorded)] * 2 == pytest.approx([work_s(equal), work_s(mixed)])
    as_it_was, alike, by_chance = (replayed(each).step_s for each in (recorded, equal, mixed))
    assert (0.03, 0.02) == pytest.approx((as_it_was, alike), rel=0.02)
    assert 0.022 < by_chance < 0.029
    shorter = replace(both[1], program=replace(both[1].program, step=both[1].program.step + 1))
    assert with_equal_ranks(replace(recorded, ranks=(both[0], shorter))) is None
