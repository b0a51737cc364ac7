"""Replay: a recorded pipeline reproduces itself, a changed one is what the simulator of the tests
says, and laws of changes."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from repository import ROOT
from simulated_loader import ALL, STAGES, Job, seconds, simulate
from timeline import timeline

import ioprof
from ioprof.errors import CommandError
from ioprof.format.run_record import RunRecord, Summary
from ioprof.format.schema import CAUSES, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.model.changed import (
    changed,
    filled,
    resampled,
    shortened,
    with_factors,
    with_kept_workers,
)
from ioprof.model.changes import Change, parse_speed
from ioprof.model.engine import (
    CORES,
    STORAGE,
    LoaderPlan,
    Plan,
    RankPlan,
    Resource,
    Segment,
    Simulation,
)
from ioprof.model.gains import Gain, gains_of
from ioprof.model.pace import measured, replayed
from ioprof.model.pipeline import Op, Pipeline
from ioprof.model.plan import plan
from ioprof.model.prediction import Range, whatif
from ioprof.model.recorded import pipeline
from ioprof.model.summary import with_gains
from ioprof.report.run import Run
from ioprof.train.devices import rate
from ioprof.train.models import MODELS

MS = 1_000_000


@st.composite
def loader_jobs(draw: st.DrawFn, **fixed: Any) -> Job:
    """Jobs with every time drawn."""
    count = draw(st.integers(5, 14))
    times = st.integers(1, 20).map(lambda ms: ms * MS)
    stages = tuple({stage: draw(times) for stage in STAGES} for _ in range(count))
    waits = [row["storage"] for row in stages]
    # a few long ones among short ones are those of a rate, which other readers share
    assume(np.mean(waits) < 4 * np.median(waits))
    own = tuple({"compute": draw(times), "host": draw(times)} for _ in range(count))
    drawn = {name: draw(st.integers(0, 3)) * MS for name in ("lag", "take", "start", "end")}
    sizes = {
        "workers": draw(st.integers(0, 4)),
        "prefetch": draw(st.integers(1, 4)),
        "startup": draw(st.integers(4, 9)) * MS,
    }
    return Job(stages=stages, own=own, **(drawn | sizes | fixed))


def taken_s(job: Job) -> np.ndarray:
    """When the replay of the recorded job, changed in nothing, has each batch."""
    return replay_of(pipeline(simulate(job).trace))


def replay_of(recorded: Any) -> np.ndarray:
    """The same of a pipeline, on the clock of the test."""
    rank = recorded.ranks[0]
    times = Simulation(plan(filled(recorded))).run()[0]
    found = [
        ended for op, ended in zip(rank.program.ops, times.ended_s, strict=True) if op is Op.TAKE
    ]
    return np.array(found) + rank.begin_ns / 1e9


@settings(max_examples=15)
@given(loader_jobs())
def test_a_recorded_job_reproduces_itself(job: Job) -> None:
    """The replay of a recorded job has each batch when the job had it."""
    np.testing.assert_allclose(taken_s(job), seconds(simulate(job).got), atol=1e-7)


@settings(max_examples=15)
@given(loader_jobs(batches_per_epoch=4), st.booleans())
def test_so_does_a_job_of_several_epochs(job: Job, persistent: bool) -> None:
    """Workers that are started for each epoch, and workers that are kept."""
    job = replace(job, persistent=persistent)
    np.testing.assert_allclose(taken_s(job), seconds(simulate(job).got), atol=1e-7)


@settings(max_examples=15)
@given(
    loader_jobs(lag=0, transit=0, take=0, start=0, end=0, startup=0),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_other_workers_and_prefetch_are_what_the_simulator_says(
    job: Job, workers: int, prefetch: int
) -> None:
    """What is recorded with some workers predicts the job with others, where there are cores for
    all."""
    job = replace(job, workers=max(1, job.workers))
    recorded = pipeline(simulate(job).trace)
    # what the first batches of workers take longer by chance is that of all new workers
    assume(not any(each.first_s.any() for each in recorded.ranks[0].iterations))
    truth = simulate(replace(job, workers=workers, prefetch=prefetch))
    found = replay_of(changed(recorded, Change(workers=workers, prefetch=prefetch)))
    np.testing.assert_allclose(found, seconds(truth.got), atol=1e-7)


@st.composite
def pool_jobs(draw: Any) -> Job:
    """Jobs whose batches a pool of threads or of processes makes."""
    workers = draw(st.integers(1, 4))
    given = draw(st.sampled_from([ALL, workers]))
    fixed = {"lag": 0, "transit": 0, "take": 0, "start": 0, "end": 0, "startup": 0}
    job = draw(loader_jobs(**fixed))
    # reads that begin together look as if they shared a rate
    stages = tuple(row | {"storage": 0} for row in job.stages)
    return replace(job, stages=stages, workers=workers, pool=given, threads=draw(st.booleans()))


@settings(max_examples=15)
@given(pool_jobs(), st.integers(1, 6))
def test_a_pool_reproduces_itself_and_other_workers_are_what_the_simulator_says(
    job: Job, workers: int
) -> None:
    """Whoever is free takes the next task, threads of the loop's process as other processes."""
    recorded = pipeline(simulate(job).trace)
    np.testing.assert_allclose(replay_of(recorded), seconds(simulate(job).got), atol=1e-7)
    # a few that are all ready when the loop has the first look as if it had waited for all, and
    # first ones that take longer by chance as if workers took so long to begin
    (iteration,) = recorded.ranks[0].iterations
    assume(not iteration.together and not iteration.first_s.any())
    other = replace(job, workers=workers, pool=ALL if job.pool == ALL else workers)
    found = replay_of(changed(recorded, Change(workers=workers)))
    np.testing.assert_allclose(found, seconds(simulate(other).got), atol=1e-7)


@settings(max_examples=15)
@given(
    loader_jobs(),
    st.sampled_from(["decode", "transform", "collate", "storage"]),
    st.sampled_from([2.0, 4.0, math.inf]),
)
def test_other_speeds_are_what_the_simulator_says(job: Job, cause: str, speed: float) -> None:
    """A stage that is twice as fast, or that costs nothing."""
    factor = 0 if math.isinf(speed) else int(speed)
    stages = tuple(row | {cause: row[cause] // factor if factor else 0} for row in job.stages)
    lagging = replace(job, transit=0)  # a transit is known only where the loop waited for it
    truth = simulate(replace(lagging, stages=stages))
    found = replay_of(changed(pipeline(simulate(lagging).trace), Change(speeds={cause: speed})))
    # Where the loop always waited, 0.6 of the way from a worker to it is taken for what it does
    # itself.
    atol = 1e-7 + 0.4 * job.take / 1e9 * len(job.stages)
    np.testing.assert_allclose(found, seconds(truth.got), atol=atol)


@settings(max_examples=15)
@given(loader_jobs(lag=0, take=0), st.integers(0, 20))
def test_smaller_batches_are_what_the_simulator_says(job: Job, optimizer_ms: int) -> None:
    """Each batch becomes two of half the time. The loop's own Python and the optimizer take as long
    for each of the two."""
    own = tuple(row | {"optimizer": optimizer_ms * MS} for row in job.own)
    recorded = pipeline(simulate(replace(job, own=own)).trace)
    assume(not looks_like_starting(recorded))
    halves = tuple(
        {stage: took // 2 for stage, took in row.items()} for row in job.stages for _ in range(2)
    )
    half_own = tuple(row | {"compute": row["compute"] // 2} for row in own for _ in range(2))
    found = replay_of(changed(recorded, Change(batch=4)))
    np.testing.assert_allclose(
        found, seconds(simulate(replace(job, stages=halves, own=half_own)).got), atol=1e-7
    )


def looks_like_starting(recorded: Pipeline) -> bool:
    """Whether the first tasks of all workers take longer by chance, as those do that open the
    dataset: kept workers save that."""
    return any(each.first_s.any() for rank in recorded.ranks for each in rank.iterations)


@settings(max_examples=15)
@given(loader_jobs(batches_per_epoch=4, start=3 * MS, end=2 * MS))
def test_kept_workers_are_what_the_simulator_says(job: Job) -> None:
    """Workers that are started once instead of for each epoch. The lag of each worker's first task
    is not recorded."""
    job = replace(job, workers=max(1, job.workers), lag=0, transit=0, take=0)
    truth = simulate(replace(job, persistent=True, end=0))
    recorded = pipeline(simulate(job).trace)
    assume(not looks_like_starting(recorded))
    found = replay_of(changed(recorded, Change(persistent_workers=True)))
    np.testing.assert_allclose(found, seconds(truth.got), atol=1e-7)


@settings(max_examples=15)
@given(loader_jobs(batches_per_epoch=4, start=3 * MS, end=2 * MS))
def test_kept_workers_of_validation_are_too(job: Job) -> None:
    """Of loaders to validate from as of those to train from; each purpose by itself."""
    job = replace(job, workers=max(1, job.workers), lag=0, transit=0, take=0)
    truth = simulate(replace(job, persistent=True, end=0))
    recorded = pipeline(simulate(job).trace)
    assume(not looks_like_starting(recorded))
    of_ranks = (
        (rank, tuple(replace(each, is_validation=True) for each in rank.iterations))
        for rank in recorded.ranks
    )
    validation = replace(
        recorded, ranks=tuple(replace(rank, iterations=each) for rank, each in of_ranks)
    )
    np.testing.assert_allclose(
        replay_of(with_kept_workers(validation, of_validation=True)), seconds(truth.got), atol=1e-7
    )
    assert replay_of(with_kept_workers(validation)).tolist() == replay_of(validation).tolist()


@settings(max_examples=15)
@given(
    loader_jobs(),
    st.sampled_from(["storage", "decode", "transform", "collate", "loader", "compute", "host"]),
)
def test_less_work_is_never_slower(job: Job, cause: str) -> None:
    """Law of changes: what costs nothing costs no time elsewhere."""
    recorded = pipeline(simulate(job).trace)
    if cause in ("loader", "host"):
        found = {gain.cause: gain.seconds for gain in gains_of(pipeline(simulate(job).trace)).gains}
        assert found[cause] > -1e-6
    else:
        assert (
            replayed(changed(recorded, Change(speeds={cause: math.inf}))).total_s
            <= replayed(recorded).total_s + 1e-9
        )


@settings(max_examples=15)
@given(loader_jobs(start=0, end=0), st.integers(1, 4))
def test_more_workers_are_never_slower_with_enough_cores(job: Job, more: int) -> None:
    """Law of changes: a worker that has a core of its own and starts at once does not hold up the
    others."""
    recorded = pipeline(simulate(replace(job, workers=max(1, job.workers), lag=0, transit=0)).trace)
    workers = recorded.ranks[0].iterations[0].workers
    most = replayed(changed(recorded, Change(workers=workers, prefetch=2))).total_s
    assert (
        replayed(changed(recorded, Change(workers=workers * (1 + more), prefetch=2))).total_s
        <= most + 1e-6
    )


@settings(max_examples=5)
@given(loader_jobs())
def test_the_same_run_gives_the_same_prediction(job: Job) -> None:
    """Everything that is drawn has a fixed seed."""
    trace = simulate(replace(job, workers=max(1, job.workers))).trace
    assert whatif(trace, Change(workers=3)) == whatif(trace, Change(workers=3))


@settings(max_examples=5)
@given(loader_jobs())
def test_nothing_changed_predicts_what_was_measured(job: Job) -> None:
    """Factor 1 changes nothing."""
    trace = simulate(job).trace
    found = whatif(trace, Change(speeds={"decode": 1.0}))
    assert found.predicted.step_s == pytest.approx(found.measured.step_s)
    assert found.predicted.total_s == pytest.approx(found.measured.total_s)
    assert found.speedup == pytest.approx(1.0)
    assert measured(pipeline(trace)) == found.measured


@settings(max_examples=5)
@given(loader_jobs())
def test_gains_are_of_all_causes(job: Job) -> None:
    """In their order; a cause that did not occur gains nothing, and none gains more than the whole
    job."""
    found = gains_of(pipeline(simulate(job).trace))
    assert list(CAUSES) == [gain.cause for gain in found.gains]
    by_cause = {gain.cause: gain for gain in found.gains}
    assert by_cause["h2d"].share == by_cause["checkpoint"].share == 0.0
    assert all(
        gain.share <= 1.0 and gain.range.low <= gain.share <= gain.range.high
        for gain in found.gains
    )


def test_the_stage_to_fix_is_the_one_with_the_largest_gain() -> None:
    """The workers' longest stage gains most, although waits see another one."""
    stages = tuple({"decode": 60 * MS, "collate": 20 * MS} for _ in range(20))
    job = Job(1, 2, stages, tuple({"compute": 50 * MS} for _ in range(20)))
    found = gains_of(pipeline(simulate(job).trace))
    largest = max(found.gains, key=lambda gain: gain.share)
    assert "decode" == largest.cause
    assert largest.share == pytest.approx(30 / 80, abs=0.02)


@given(
    st.floats(-0.1, 1.0),
    st.floats(0.0, 0.2),
    st.floats(0.0, 1.0),
    st.sampled_from(["storage", "decode", "compute"]),
)
def test_the_range_of_a_gain_has_the_errors_of_earlier_predictions(
    share: float, varied: float, most: float, cause: str
) -> None:
    """It holds the gain and its variation, no more than the time of the cause, and is wider where
    there is time."""
    gain = Gain(cause, 0.0, share, Range(share - varied, share + varied))
    found = gain.range_up_to(most)
    assert found.low <= gain.range.low <= share <= gain.range.high <= found.high
    assert found.high <= max(most, gain.range.high)
    assert found.low >= min(0.0, gain.range.low)
    if share <= 0.5 and most >= share + varied + 0.2 and varied < 0.01:
        assert found.high > gain.range.high


# --------------------------------------------------------------------------------------- the engine


def one_rank(loaders: list[LoaderPlan], ops: list[Op]) -> RankPlan:
    """A rank that does nothing but take batches."""
    none: list[tuple[Segment, ...]] = [()] * len(ops)
    return RankPlan(
        0, loaders, [int(op) for op in ops], [0] * len(ops), none, none, [-1] * len(ops), none
    )


def loader(workers: int, tasks: list[tuple[Segment, ...]]) -> LoaderPlan:
    """A loader without any cost but its tasks."""
    zero = [0.0] * len(tasks)
    return LoaderPlan(
        workers, 2, tasks, zero, zero, [()] * len(tasks), len(tasks), [0.0] * workers, 0
    )


def job_s(
    workers: int,
    task: Segment,
    cores: float = 1.0,
    background: float = 0.0,
    rate: float = 1.0,
    own_groups: float = 0.0,
) -> float:
    """How long 8 such tasks take."""
    ops = [Op.START, *[Op.TAKE] * 8]
    rank = one_rank([loader(workers, [(task,)] * 8)], ops)
    host = Resource(cores, 1.0, background, own_groups)
    return Simulation(Plan([rank], [host], Resource(rate, rate))).run()[0].end_s


@pytest.mark.parametrize(
    ("workers", "background", "own_groups", "cores_of_job"),
    [
        (1, 2.0, 1.0, 1.0),  # one of two groups
        (2, 2.0, 1.0, 1.0),
        (4, 2.0, 1.0, 1.0),
        (4, 9.0, 1.0, 1.0),
        (4, 2.0, 1 / 3, 0.5),  # one of four groups
        (4, 4.0, 2.0, 4 / 3),  # two of three, as two ranks that torchrun started
        (2, 1.0, 1.0, 4 / 3),  # the other thread is on one of the two cores, where it counts twice
        (4, 1.0, 1.0, 4 / 3),
        (4, 1.0, 0.0, 8 / 5),  # all threads alike
    ],
)
def test_more_threads_get_no_more_than_their_group(
    workers: int, background: float, own_groups: float, cores_of_job: float
) -> None:
    """Of two cores, beside threads of groups of their own."""
    took_s = job_s(workers, Segment(CORES, 1.0), 2.0, background, own_groups=own_groups)
    assert 8 / cores_of_job == pytest.approx(took_s)


@pytest.mark.parametrize(
    ("workers", "cores", "expected"),
    [(1, 1, 8), (2, 1, 8), (4, 1, 8), (2, 2, 4), (4, 2, 4), (4, 4, 2)],
)
def test_cores_are_shared(workers: int, cores: int, expected: float) -> None:
    """Eight seconds of work take eight seconds over the cores that workers can use."""
    assert job_s(workers, Segment(CORES, 1.0), cores) == pytest.approx(expected)


def test_threads_beyond_the_cores_slow_all_down() -> None:
    """A task of two threads that has one core takes twice as long."""
    assert job_s(1, Segment(CORES, 1.0, 2.0), cores=1.0) == pytest.approx(16.0)


def test_other_programs_take_their_part() -> None:
    """One program that always computes leaves half of a core."""
    assert job_s(1, Segment(CORES, 1.0), cores=1.0, background=1.0) == pytest.approx(16.0)


def test_the_rate_of_storage_is_shared() -> None:
    """More readers do not get more bytes."""
    assert job_s(1, Segment(STORAGE, 100.0), rate=100.0) == pytest.approx(8.0)
    assert job_s(4, Segment(STORAGE, 100.0), rate=100.0) == pytest.approx(8.0)


def test_ten_thousand_batches_take_less_than_a_second() -> None:
    """So that predictions with a range take seconds."""
    count = 10_000
    stages = tuple({"decode": 10 * MS} for _ in range(200))
    recorded = pipeline(
        simulate(Job(4, 2, stages, tuple({"compute": 3 * MS} for _ in range(200)))).trace
    )
    many = [recorded.ranks[0].iterations[0].tasks.at(np.arange(count) % 200)]
    tasks = plan(filled(replace(recorded, ranks=(_with_tasks(recorded.ranks[0], many[0], count),))))
    began = time.process_time()
    Simulation(tasks).run()
    assert time.process_time() - began < 1.0


def _with_tasks(rank: Any, tasks: Any, count: int) -> Any:
    program = rank.program
    rows = np.concatenate([[0], np.full(count, 1)])
    longer = replace(
        program,
        ops=tuple(program.ops[row] for row in rows),
        iterations=(0,) * len(rows),
        spent_s=program.spent_s[rows],
        after_s=program.after_s[rows],
        arrive_s=program.arrive_s[rows],
        step=program.step[rows],
        device_s=np.zeros(len(rows)),
        transfer_s=np.zeros(len(rows)),
        device_step=np.full(len(rows), -1),
    )
    return replace(
        rank,
        program=longer,
        iterations=(replace(rank.iterations[0], tasks=tasks, num_taken=count),),
    )


# ----------------------------------------------------------------------------------- what runs show


@pytest.mark.parametrize("name", ["files", "lmdb", "lmdb-rgb256"])
def test_recorded_runs_of_an_emulated_device_reproduce_themselves(name: str) -> None:
    """Two ranks, an asynchronous device and an exchange: the replay is within 2 % of the measured
    step."""
    recorded = pipeline(Trace.load(ROOT / "tests" / "data" / "demo" / name))
    assert replayed(recorded).step_s == pytest.approx(measured(recorded).step_s, rel=0.02)
    assert 2 == len(recorded.ranks)


def test_a_device_bounds_the_gain() -> None:
    """However fast decoding is, a step takes what the device computes, and the exchange."""
    trace = Trace.load(ROOT / "tests" / "data" / "demo" / "lmdb-rgb256")
    recorded, config = pipeline(trace), trace.run.config
    device = (config.device or "").removeprefix("emulated:")
    computes_s = (config.batch_size or 0) / rate(device, MODELS[config.model or ""]).samples_per_s
    assert (
        replayed(
            changed(recorded, Change(speeds={"decode": math.inf, "transform": math.inf}))
        ).step_s
        > 0.98 * computes_s
    )
    assert (
        replayed(changed(recorded, Change(speeds={"compute": 100.0}))).step_s
        < replayed(recorded).step_s
    )


def test_the_summary_has_three_columns() -> None:
    """What was waited for, the workers' time, and the gain; the workers' shares sum to 1."""
    summary = with_gains(Run.load(ROOT / "tests" / "data" / "demo" / "files")).summary
    causes = {entry.cause: entry for entry in summary.steps.causes}
    assert summary.replay is not None
    assert summary.replay.reason is None
    assert sum(entry.workers_share or 0.0 for entry in causes.values()) == pytest.approx(1.0)
    assert causes["decode"].gain is not None
    assert causes["decode"].gain.low <= causes["decode"].gain.share <= causes["decode"].gain.high
    assert summary == Summary.from_json(summary.to_json())


def test_a_run_that_cannot_be_replayed_says_so_in_its_summary() -> None:
    """Its causes have no gain, and the reason is given."""
    summary = with_gains(Run.of(timeline("step 00001111\ncompute .000.111"))).summary
    assert summary.replay is not None
    assert "only 2 steps" in (summary.replay.reason or "")
    assert all(entry.gain is None for entry in summary.steps.causes)


@pytest.mark.job(every=4)
def test_the_command_prints_the_baseline_first(tmp_path: Path) -> None:
    """Then the prediction; `--json` is the result of the function."""
    run = ROOT / "tests" / "data" / "demo" / "files"
    printed = jobs.ioprof("whatif", run, "--workers", 4, "--decode", "2x", cwd=tmp_path)
    first, second, *_ = printed.out.splitlines()
    assert (0, True, True) == (
        printed.code,
        first.startswith("Baseline: "),
        second.startswith("Predicted with 4 workers, decode"),
    )
    as_json = jobs.ioprof("whatif", run, "--workers", 4, "--decode", "2x", "--json", cwd=tmp_path)
    assert ioprof.whatif(run, workers=4, decode="2x").to_json() + "\n" == as_json.out
    refused = jobs.ioprof("whatif", run, "--decode", "twice", cwd=tmp_path)
    assert (2, True) == (refused.code, "--decode twice" in refused.err)


# ----------------------------------------------------------------------------- refusals and parsing


def test_a_run_that_was_interrupted_is_replayed() -> None:
    """As far as it came."""
    drawn = "step 0001112223334445\nwait 00.11.22.33.44..\nfetch w0 00.11.22.33.44.."
    whole, stopped = (
        pipeline(timeline(drawn, status=each)) for each in ("complete", "interrupted")
    )
    assert replayed(whole) == replayed(stopped)


def test_waits_for_batches_that_nobody_made_are_time_of_the_loop() -> None:
    """Most of a run's batches must have a fetch for the loader to be replayed."""
    found = pipeline(timeline("step 0011223344\nwait 0.1.2.3.4."))
    assert not found.has_loader
    assert not found.knows_makers
    assert replayed(found).step_s == pytest.approx(measured(found).step_s)


@pytest.mark.parametrize("maker", ["t0", "w0", "main"])
def test_whoever_makes_batches_is_replayed_as_such(maker: str) -> None:
    """A thread of the rank, a worker process, and the thread that waits."""
    found = pipeline(
        timeline(f"step 0001112223334445\nwait 00.11.22.33.44..\nfetch {maker} 00.11.22.33.44..")
    )
    assert found.knows_makers
    assert found.has_loader
    assert replayed(found).step_s == pytest.approx(measured(found).step_s, rel=0.3)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (Change(cache="cold"), "--cache cold"),
        (Change(cores=2), "--cores"),
        (Change(speeds={"storage": 2.0}), "--storage"),
    ],
)
def test_a_change_whose_costs_the_run_does_not_show_is_refused(change: Change, word: str) -> None:
    """No prediction without a ground for it."""
    stages = tuple({"decode": 10 * MS} for _ in range(8))
    trace = simulate(Job(1, 2, stages, tuple({"compute": MS} for _ in range(8)))).trace
    with pytest.raises(CommandError, match=word):
        whatif(trace, change)


def test_speeds_are_parsed() -> None:
    """As `2x`, as a number, or as `none`."""
    assert (2.0, 1.5, math.inf) == tuple(
        parse_speed("--decode", text) for text in ("2x", "1.5", "none")
    )
    for wrong in ("0", "-1", "fast", "inf"):
        with pytest.raises(CommandError, match="--decode"):
            parse_speed("--decode", wrong)


def test_impossible_changes_are_refused() -> None:
    """Values that no job can have."""
    for wrong in (
        {"workers": -1},
        {"prefetch": 0},
        {"batch": 0},
        {"cache": "hot"},
        {"speeds": {"gc": 2.0}},
    ):
        with pytest.raises(CommandError):
            Change(**wrong)


def test_another_draw_is_another_run_of_the_same_job() -> None:
    """A draw has as many batches, of the recorded ones."""
    stages = tuple({"decode": (row + 1) * MS} for row in range(20))
    recorded = pipeline(
        simulate(Job(2, 2, stages, tuple({"compute": MS} for _ in range(20)))).trace
    )
    before, after = (
        recorded.ranks[0].iterations[0].tasks,
        resampled(recorded, 3).ranks[0].iterations[0].tasks,
    )
    assert len(before) == len(after)
    assert {tuple(row) for row in after.stages_s.tolist()} < {
        tuple(row) for row in before.stages_s.tolist()
    }


# --------------------------------------------------------------------------- validation by the loop


def test_a_loop_without_workers_that_validates_within_an_epoch_has_two_iterations() -> None:
    """Each validation is one of its own, and the training goes on after it as the same
    iteration."""
    trace = evaluating(trained=3, validated=4)
    [rank] = pipeline(trace).ranks
    assert [(6, False), (4, True), (4, True)] == [
        (each.num_taken, each.is_validation) for each in rank.iterations
    ]


def test_gains_of_a_job_that_begins_with_a_long_validation() -> None:
    """A sample of the job has its batches to train on, too: waits for batches to validate on, half
    of the time of each, are what is known of validations there."""
    found = gains_of(pipeline(evaluating(trained=3, validated=250, begins_with_validation=True)))
    validation = next(each for each in found.gains if each.cause == "validation")
    assert validation.share == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("most", [400, 1000])
def test_a_sample_of_a_job_is_as_fast_as_the_job(most: int) -> None:
    """Of one whose second half is three times as slow, and that validates after both epochs; all
    actions are stood for."""
    whole = pipeline(evaluating(trained=900, validated=400))
    slower = np.where(np.arange(1800) < 900, 1.0, 3.0)[:, None]
    [rank] = whole.ranks
    train, *others = rank.iterations
    tasks = replace(train.tasks, stages_s=train.tasks.stages_s * slower)
    rank = replace(rank, iterations=(replace(train, tasks=tasks), *others))
    whole = replace(whole, ranks=(rank,))
    sample = shortened(whole, most)
    assert len(sample.ranks[0].program) <= 1.2 * most
    assert sample.ranks[0].program.weight.sum() == pytest.approx(len(rank.program))
    assert replayed(sample).step_s == pytest.approx(replayed(whole).step_s, rel=0.03)
    assert replayed(sample).total_s == pytest.approx(replayed(whole).total_s, rel=0.03)


def evaluating(trained: int, validated: int, begins_with_validation: bool = False) -> Trace:
    """Two rounds of so many batches to train on and to validate on, all made by the loop itself;
    each validation ends."""
    part, purposes = ["validate"] * validated + ["end"], list[str]()
    for _ in range(2):
        purposes += (
            [*part, *["train"] * trained]
            if begins_with_validation
            else [*["train"] * trained, *part]
        )
    rows, step, batch = list[dict[str, Any]](), 0, 0
    for place, purpose in enumerate(purposes):
        at = {"host": "node1", "rank": 0, "pid": 100, "tid": 100}
        begin_ns = 100_000 * place
        name = None if purpose == "train" else purpose
        wait = {
            **at,
            "start_ns": begin_ns,
            "end_ns": begin_ns + 50_000,
            "kind": "wait",
            "name": name,
        }
        if purpose != "end":
            wait["batch"] = batch
            rows.append(
                {
                    **at,
                    "start_ns": begin_ns,
                    "end_ns": begin_ns + 50_000,
                    "kind": "fetch",
                    "batch": batch,
                }
            )
            batch += 1
        if purpose == "train":
            wait["step"] = step
            rows.append(
                {
                    **at,
                    "start_ns": begin_ns,
                    "end_ns": begin_ns + 100_000,
                    "kind": "step",
                    "step": step,
                }
            )
            step += 1
        rows.append(wait)
    spans = pl.DataFrame(rows, schema=table_schema(SPAN_COLUMNS)).sort("start_ns", "end_ns")
    return Trace(RunRecord(), spans)


def test_garbage_that_is_collected_while_the_loop_makes_its_batch_is_no_stage() -> None:
    """It comes wherever the loop is, and would be gone with the collector, not with the stage."""
    made, own = ({"collate": 8 * MS},) * 12, ({"compute": 2 * MS},) * 12
    trace, is_step = simulate(Job(0, 1, made, own)).trace, pl.col("kind") == "step"
    steps = pl.when(is_step).then(pl.col("start_ns") - 8 * MS).otherwise("start_ns")
    spans = trace.spans.with_columns(start_ns=steps)
    collections = spans.filter(pl.col("kind") == "fetch").with_columns(
        kind=pl.lit("gc", spans.schema["kind"]),
        start_ns=pl.col("start_ns") + 2 * MS,
        end_ns=pl.col("start_ns") + 6 * MS,
        batch=pl.lit(None, spans.schema["batch"]),
    )
    both = pipeline(Trace(trace.run, pl.concat([spans, collections])))
    found = {each.cause: each.share for each in gains_of(both).gains}
    assert [0.4, 0.4, 0.2] == pytest.approx([found[each] for each in ("collate", "gc", "compute")])


# ---------------------------------------------------------------------- a device that is waited for


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_loop_that_asks_for_a_batch_while_the_device_computes_is_ahead_of_it(
    is_ahead: bool,
) -> None:
    """Whatever fits the steps: while it waits for batches each of them does, and only one that is
    ahead gains all of that wait."""
    ms = 1_000_000
    own = 1 if is_ahead else 16
    trace = simulate(Job(1, 2, ({"decode": 20 * ms},) * 60, ({"host": own * ms},) * 60)).trace
    waits = trace.spans.filter(kind="wait").sort("start_ns")
    taken = waits.filter(pl.col("batch").is_not_null())
    steps = trace.spans.filter(kind="step").sort("start_ns")["step"]
    computed = taken.with_columns(
        kind=pl.lit("compute", taken.schema["kind"]),
        tid=pl.lit(7, taken.schema["tid"]),
        stream=pl.lit(0, taken.schema["stream"]),
        step=steps,
        start_ns=pl.col("end_ns"),
        end_ns=pl.col("end_ns") + 15 * ms,
    )
    config = trace.run.config.replace(device="cuda:0")
    of_device = Trace(trace.run.replace(config=config), pl.concat([trace.spans, computed]))
    found = pipeline(of_device)
    (rank,) = found.ranks
    assert rank.depth is not None
    assert is_ahead == (rank.depth > 0)
    without = replayed(with_factors(found, {"decode": 0.0})).step_s
    assert without == pytest.approx(0.015 if is_ahead else 0.016, rel=0.05)
