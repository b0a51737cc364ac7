"""Advice has a gain or a reason, the largest first; the replay agrees with a brute-force
simulation; changes are proven by runs."""

import json
import math
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import brute_force
import images
import jobs
import made_datasets
import numpy as np
import pytest
import stored
from fuse_server import fuse_server
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import PROGRAMS, ROOT
from simulated_loader import Job, simulate
from strategies import examples
from told import summarise

import ioprof
from ioprof.analysis.reads.demand import demand
from ioprof.analysis.totals import totals
from ioprof.errors import CommandError
from ioprof.format.run_record import (
    CauseGain,
    Cost,
    Demand,
    Finding,
    JobChange,
    JobKind,
    NoGain,
    Reason,
    RunRecord,
    Summary,
)
from ioprof.format.trace import Trace
from ioprof.jobs.options import RunOptions
from ioprof.jobs.repeating import options_of_run, with_change
from ioprof.model.accuracy import error_of_others, further_error, kinds
from ioprof.model.advice import ordered, ranked
from ioprof.model.changed import changed, filled, with_factors
from ioprof.model.changes import CALLS, Change, change_of
from ioprof.model.cores.after_waits import unbroken_ratio
from ioprof.model.cores.contention import with_others
from ioprof.model.cores.cpu_use import Counted, Worked, cpu_use
from ioprof.model.engine import (
    BESIDE,
    CORES,
    DELAY,
    STORAGE,
    LoaderPlan,
    Plan,
    RankPlan,
    Resource,
    Segment,
    Simulation,
)
from ioprof.model.gains import gains_of
from ioprof.model.pace import measured, replayed
from ioprof.model.pipeline import OWN, STAGES, CpuUse, Op, Rank, Seconds
from ioprof.model.prediction import predict
from ioprof.model.proof import mean_ratio
from ioprof.model.recorded import pipeline
from ioprof.model.summary import with_gains
from ioprof.report.path_demand import path_statement, probed_path
from ioprof.report.run import Run
from ioprof.report.texts.headline import headline
from ioprof.report.texts.prediction import gain_text

MS = 1_000_000
DECODE = STAGES.index("decode")
FILES = ROOT / "tests" / "data" / "demo" / "files"


def decoding(workers: int = 2, count: int = 60) -> Run:
    """A job whose workers decode for 40 ms per batch, and whose loop computes for 10."""
    stages = tuple(
        {"storage": 2 * MS, "decode": (36 + row % 9) * MS, "collate": 2 * MS}
        for row in range(count)
    )
    return Run.of(
        simulate(Job(workers, 2, stages, tuple({"compute": 10 * MS} for _ in range(count)))).trace
    )


# ------------------------------------------------------------------------------------------- advice


def test_what_took_no_time_has_nothing_to_gain() -> None:
    """Nor a range, whatever the error of the replay."""
    causes = with_gains(decoding()).summary.steps.causes
    idle = [each for each in causes if each.seconds == 0 and not each.workers_share]
    assert idle
    assert all(CauseGain(0.0, 0.0, 0.0, 0.0) == each.gain for each in idle)


def test_each_advice_has_a_gain_or_a_reason() -> None:
    """Those with a gain have a range around it, and stand in the order of their gains."""
    advice = with_gains(decoding()).summary.verdict.findings
    assert advice
    assert all((each.gain is None) == (each.no_gain is not None) for each in advice)
    assert all(each.reason for each in advice if each.no_gain)
    known = [each for each in advice if each.gain is not None]
    assert all(each.low <= each.gain <= each.high for each in known)  # type: ignore[operator]
    assert all(each.costs for each in known)
    exact = [each.gain for each in known if not each.is_bound]
    assert exact == sorted(exact, key=lambda speedup: -(speedup or 0.0))


def test_what_brings_next_to_nothing_is_no_advice() -> None:
    """Where the device computes all the time, faster decoding and more workers change nothing. If
    that was the verdict's first advice, the replay and the charges disagree, and nothing is
    predicted."""
    own = tuple({"compute": 50_000_000} for _ in range(30))
    job = Job(2, 2, tuple({"decode": 2_000_000} for _ in range(30)), own)
    recorded = pipeline(simulate(job).trace)
    decode, compute = Finding("decode", cause="decode"), Finding("compute", cause="compute")

    def told(*found: Finding) -> list[Finding]:
        return list(ranked(found, recorded, 0.0, JobKind.TORCH))

    assert ["compute"] == [each.code for each in told(compute, decode)]
    known = ranked((decode, compute), recorded, 0.0, JobKind.TORCH, bound="compute")
    assert ["compute", "decode"] == [each.code for each in known]  # its bound is what is charged
    first, second = told(decode, compute)
    assert (None, NoGain.DISAGREES) == (first.gain, first.no_gain)
    assert 1.5 < (second.gain or 0.0)


def test_less_padding_is_told_beside_a_faster_device() -> None:
    """Both make computing faster, and each adds to the other. What is work on the code comes before
    other hardware that brings little more."""
    own = tuple({"compute": 50_000_000} for _ in range(30))
    recorded = pipeline(simulate(Job(2, 2, ({"decode": 2_000_000},) * 30, own)).trace)
    device, padding = (
        Finding(code, cause="compute", change=JobChange(speeds={"compute": speed}))
        for code, speed in (("device", 2.0), ("padding", 1.95))
    )
    found = ranked((device,), recorded, 0.0, JobKind.TORCH, candidates=(padding,))
    assert ["padding", "device"] == [each.code for each in found]


def test_a_loop_that_chooses_samples_takes_that_time_itself(tmp_path: Path) -> None:
    """Torch's loader does so while the loop waits: without the sampler the job is many times as
    fast, whatever its workers do."""
    run, _ = stored.replayed("parts", stored.slug("a sampler of 30 ms"), tmp_path / "spool")
    own_s = pipeline(run.trace).ranks[0].program.after_s
    assert own_s.min() >= 0
    charged_s = sum(each.seconds for each in run.summary.steps.causes if each.cause == "loader")
    assert own_s[:, OWN.index("loader")].sum() <= charged_s
    (advice,) = with_gains(run).summary.verdict.findings[:1]
    assert "sampler" in advice.action
    assert advice.gain is not None
    assert 1 / (1 - 0.9) < advice.gain
    fewer_calls = with_factors(pipeline(run.trace), {CALLS: 0.0}).ranks[0].program.after_s
    assert fewer_calls.tolist() == own_s.tolist()  # the sampler is no call of the dataset


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("threads", "a thread that holds the interpreter lock"),
        ("code", "Python in the tasks of a ThreadPoolExecutor"),
        ("parts", "a sampler of 30 ms"),
        ("process", "Python in the loop with threads that read ahead"),
        ("exchange", "all-reduces that take half of each step of equal ranks"),
    ],
)
def test_the_model_has_the_loop_do_what_the_verdict_charges(
    subject: str, name: str, tmp_path: Path
) -> None:
    """Each cause takes as long in both: else one advises what the other says is nothing."""
    run, _ = stored.replayed(subject, stored.slug(name), tmp_path / "spool")
    programs = [rank.program for rank in pipeline(run.trace).ranks]
    charged_s = {each.cause: each.seconds or 0.0 for each in run.summary.steps.causes}
    for place, cause in enumerate(OWN):
        own_s = sum(float(each.after_s[:, place] @ each.weight) for each in programs)
        if cause in ("compute", "exchange", "h2d", "gc", "checkpoint", "validation", "host"):
            assert own_s == pytest.approx(charged_s[cause], abs=0.05 * sum(charged_s.values()))


def test_a_thread_that_works_as_time_goes_by_holds_the_lock_in_shorter_steps_for_less() -> None:
    """A device twice as fast: the loop computes for half of the time, and waits for it as often."""
    recorded = pipeline(
        simulate(Job(1, 2, ({"decode": 1000},) * 30, ({"compute": 50 * MS},) * 30)).trace
    )
    (rank,) = recorded.ranks
    compute, host = OWN.index("compute"), OWN.index("host")
    after_s = np.zeros_like(rank.program.after_s)
    after_s[:, compute], after_s[:, host] = 0.4, 0.6
    rank = replace(rank, program=replace(rank.program, after_s=after_s), held_ratio=0.5)
    (faster,) = with_factors(replace(recorded, ranks=(rank,)), {"compute": 0.5}).ranks
    assert faster.program.after_s[:, compute] == pytest.approx(0.2)
    assert faster.program.after_s[:, host] == pytest.approx(0.1 + 0.5 * (0.2 + 0.1) / 0.5)


def test_what_fills_a_buffer_is_of_the_stage_that_does_it(tmp_path: Path) -> None:
    """The first task of a worker that shuffles after it transforms takes as long as many others: a
    loader that costs nothing leaves that."""
    name = (
        "webdataset that shuffles after it decodes, with workers that are made anew in each epoch"
    )
    run, _ = stored.replayed("libraries", stored.slug(name), tmp_path / "spool")
    shares = {each.cause: each.share for each in run.summary.steps.causes}
    gains = {each.cause: each.share for each in gains_of(pipeline(run.trace)).gains}
    assert gains["loader"] < 0.1
    assert gains["transform"] == pytest.approx(shares["transform"], abs=0.1)


def test_a_validation_that_costs_nothing_waits_for_nothing() -> None:
    """Its batches cost nothing either, whatever their time went to; those of the training cost what
    they did."""
    [rank] = pipeline(decoding().trace).ranks
    validating = replace(
        rank, iterations=tuple(replace(each, is_validation=True) for each in rank.iterations)
    )
    recorded = replace(pipeline(decoding().trace), ranks=(rank, validating))
    training, free = with_factors(recorded, {"validation": 0.0}).ranks
    assert all(each.tasks.stages_s.any() for each in training.iterations)
    assert not any(each.tasks.stages_s.any() or each.startup_s.any() for each in free.iterations)
    assert training.program.spent_s.tolist() == rank.program.spent_s.tolist()
    assert not free.program.spent_s.any()


def test_more_workers_are_proposed_with_what_the_simulator_says() -> None:
    """Two workers that take 42 ms for a batch hold up a loop that takes 10: four or more do not."""
    found = [
        each
        for each in with_gains(decoding()).summary.verdict.findings
        if each.change and each.change.workers
    ]
    assert 1 == len(found)
    assert found[0].gain == pytest.approx(44 / 2 / 11, rel=0.1)
    assert found[0].cause is None
    assert Cost.FREE is found[0].costs
    assert found[0].price is not None
    assert "more worker" in found[0].price


@pytest.mark.parametrize(("shards", "expected"), [(8, [8]), (3, [3]), (2, []), (1, [])])
def test_no_more_workers_are_proposed_than_there_are_shards(
    shards: int, expected: list[int]
) -> None:
    """More would have nothing to read."""
    run = decoding()
    record = run.trace.run.replace(config=run.trace.run.config.replace(shards=shards))
    found = with_gains(Run.of(run.trace.with_facts(run=record))).summary.verdict.findings
    assert expected == [
        each.change.workers for each in found if each.change and each.change.workers
    ]


def test_to_change_nothing_is_a_verdict() -> None:
    """A job that computes all the time is told so in the verdict; its advice names what would
    help."""
    stages = tuple({"decode": MS} for _ in range(40))
    found = with_gains(
        Run.of(simulate(Job(2, 2, stages, tuple({"compute": 60 * MS} for _ in range(40)))).trace)
    ).summary.verdict
    assert "compute" == found.bound_by
    assert 1 == len(found.findings)
    assert found.findings[0].gain == pytest.approx(2.0, rel=0.1)


def test_a_run_that_cannot_be_replayed_gives_each_advice_the_reason() -> None:
    """Its advice is that of the verdict, in the same order."""
    trace = decoding().trace
    config = trace.run.config.replace(loading_rank=0)
    stopped = Run.of(Trace(trace.run.replace(config=config), trace.spans))
    found = with_gains(stopped).summary.verdict.findings
    assert [each.action for each in found] == [
        each.action for each in stopped.summary.verdict.findings
    ]
    assert {NoGain.NOT_REPLAYED} == {each.no_gain for each in found}
    assert all("one rank loads" in gain_text(each) for each in found)


def test_bursts_need_as_many_batches_ahead_as_one_has() -> None:
    """Sixteen batches are made at once in the time of twelve steps: twice the depth hides little,
    and more than a burst brings no more."""
    work = tuple({"loader": (72 if row % 16 == 0 else 0) * MS} for row in range(160))
    recorded = pipeline(simulate(Job(1, 2, work, ({"compute": 6 * MS},) * 160)).trace)
    recorded = replace(recorded, cores={recorded.ranks[0].host: 64.0})
    found = ranked((), recorded, 0.0, JobKind.TORCH)
    deeper = next(each for each in found if each.code == "prefetch")
    assert deeper.facts["prefetch"] in (8, 16)
    assert deeper.gain == pytest.approx((16 * 6 + 72 - 2 * 6) / (16 * 6), rel=0.1)


def test_a_rank_with_fewer_workers_gets_those_of_the_others() -> None:
    """Before all get more: where one rank loads its own batches, the others wait for it."""
    alone, served = (
        pipeline(
            simulate(
                Job(workers, 2, ({"loader": 20 * MS},) * 40, ({"compute": 6 * MS},) * 40)
            ).trace
        )
        for workers in (0, 4)
    )
    own, other = alone.ranks[0], replace(served.ranks[0], rank=1)
    both = replace(served, ranks=(own, other), cores={own.host: 64.0})
    first = ranked((), both, 0.0, JobKind.TORCH)[0]
    facts = {"workers": 4, "now": 4, "lacking": 0, "fewest": 0, "added": 4}
    assert ("workers", facts) == (first.code, dict(first.facts))


def test_a_run_that_did_not_end_by_itself_is_replayed() -> None:
    """From its steady steps, as one that did."""
    trace = decoding().trace
    whole, stopped = (
        with_gains(Run.of(Trace(trace.run.replace(status=status), trace.spans))).summary.verdict
        for status in ("complete", "interrupted")
    )
    assert whole.advice == stopped.advice
    assert any(each.gain is not None for each in whole.advice)


def test_a_run_of_many_spans_is_replayed_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with very many spans says how to ask for it."""
    run = decoding()
    monkeypatch.setattr(Trace, "num_spans", property(lambda _: 4_000_001))
    assert {NoGain.RUN_TOO_LARGE} == {
        each.no_gain for each in with_gains(run, is_asked=False).summary.verdict.findings
    }
    assert NoGain.RUN_TOO_LARGE not in {
        each.no_gain for each in with_gains(run).summary.verdict.findings
    }


def test_what_makes_a_prediction_less_sure_adds_to_its_error() -> None:
    """Other programs, a changed job that would need most cores, and threads of which it is not
    known how they share the cores: a range is wider, and no gain is kept back."""
    recorded = pipeline(decoding().trace)
    host, change = recorded.ranks[0].host, Change(workers=4)
    new, found = changed(recorded, change), kinds(change, recorded)
    total_s = replayed(new).total_s
    assert 0.0 == further_error(recorded, new, total_s, found)
    beside = [replace(recorded, others={host: threads}) for threads in (0.1, 1.0, 2.0)]
    errors = [further_error(each, new, total_s, found) for each in beside]
    assert 0.0 == errors[0] < errors[1] < errors[2]
    few = replace(recorded, cores={host: 2.0})
    assert 0.0 < further_error(few, changed(few, change), total_s, found)
    assert 0.0 < further_error(replace(recorded, shares_cores=False), new, total_s, found)
    quiet, busy = (
        predict(each, Change(speeds={"decode": 2.0})).speedup_range
        for each in (recorded, beside[2])
    )
    assert busy.high / busy.low > quiet.high / quiet.low


def test_the_delay_of_woken_threads_is_not_competition() -> None:
    """Delay without other programs stays a part of the work; that of programs that used CPU time is
    theirs, as far as they did."""
    recorded = pipeline(decoding().trace)
    host, use = recorded.ranks[0].host, CpuUse(dilation=1.2, cpu_s=1.0)
    delayed = replace(
        recorded,
        ranks=tuple(replace(rank, loop_cpu=use, worker_cpu=use) for rank in recorded.ranks),
    )
    alone, beside, unknown = (with_others(delayed, used) for used in ({host: 0.0}, {host: 0.1}, {}))
    assert 0.0 == sum(alone.others.values())
    assert 0.0 == error_of_others(alone)
    assert all(rank.worker_cpu.dilation < 1.01 for rank in alone.ranks)
    assert replayed(alone).step_s == pytest.approx(replayed(recorded).step_s, rel=0.02)
    assert 0.0 < beside.others[host] <= 0.12
    assert unknown.others[host] > 0.12


@pytest.mark.parametrize(("waits", "gone"), [(1.0, 0.2), (0.1, 0.1), (0.0, 0.0)])
def test_workers_that_do_not_wait_for_storage_are_not_woken(waits: float, gone: float) -> None:
    """The time until a woken thread runs is work that takes no core, and is gone without the waits
    that it follows: no more of it than of them. `waits`: for storage, over the time of the work."""
    plain = pipeline(decoding().trace)
    host, use = plain.ranks[0].host, CpuUse(dilation=1.25, cpu_s=1.0)

    def reading(rank: Rank) -> Rank:
        iterations = tuple(
            replace(each, tasks=replace(each.tasks, stages_s=_reading(each.tasks.stages_s, waits)))
            for each in rank.iterations
        )
        return replace(rank, iterations=iterations, worker_cpu=use)

    woken = with_others(replace(plain, ranks=tuple(map(reading, plain.ranks))), {host: 0.0})
    wake_ratio = woken.ranks[0].worker_cpu.wake_ratio
    assert 0.2 == pytest.approx(wake_ratio, abs=0.01)
    for change in (Change(cache="warm"), Change(speeds={"storage": math.inf})):
        before_s, after_s = (
            sum(each.tasks.stages_s[:, DECODE].sum() for each in run.ranks[0].iterations)
            for run in (plain, changed(woken, change))
        )
        assert (1 - gone) * before_s == pytest.approx(after_s, rel=0.01)
        spread = changed(replace(woken, scattered={host: 0.5}), change).scattered
        assert spread.get(host, 0.0) == pytest.approx(0.5 * (1 - gone / 0.2), abs=0.02)
        left = changed(woken, change).ranks[0].worker_cpu.wake_ratio
        assert 1 - left == pytest.approx((1 - wake_ratio) / (1 - min(gone, wake_ratio)))
    sleeps = replace(
        woken,
        ranks=tuple(
            replace(rank, worker_cpu=replace(rank.worker_cpu, busy_ratio=0.5))
            for rank in woken.ranks
        ),
    )
    kept = changed(sleeps, Change(cache="warm")).ranks[0]
    assert kept.worker_cpu.wake_ratio == sleeps.ranks[0].worker_cpu.wake_ratio


def _reading(stages_s: Seconds, waits: float) -> Seconds:
    is_storage = np.array(STAGES) == "storage"
    work_s = stages_s * ~is_storage
    return work_s + waits * work_s.sum(1, keepdims=True) * is_storage


def test_cpu_time_is_that_between_samples_of_the_work() -> None:
    """Neither imports before it nor the exit after it count, also within the same second."""
    second = 1_000_000_000
    times = np.arange(7) * second
    # the work begins after 2.1 s, and ends after 5.4 s
    cpu_s = np.array([0.0, 1.0, 2.0, 2.3, 2.6, 2.9, 3.9])
    counts = Counted(times, cpu_s, np.zeros(7))
    busy = np.array(
        [[start, start + 300_000_000] for start in range(2_100_000_000, 5_200_000_000, second)]
    )
    found = cpu_use([Worked(counts, busy, 0)], 1)
    assert 0.6 == pytest.approx(found.cpu_s)
    assert 1.0 == pytest.approx(found.busy_ratio)
    assert not cpu_use([Worked(counts, busy[:1], 0)], 1).is_measured


@given(st.floats(0.2, 2.0), st.floats(0.2, 2.0), st.floats(0.1, 2.0), st.floats(0.0, 2.0))
def test_cpu_time_and_delay_are_those_of_work_or_of_reads(
    busy_s: float, reads_s: float, cpu_s: float, delay_s: float
) -> None:
    """Conservation: none is lost as far as there is time for it, and the work has it first."""
    edge, end = int(busy_s * 1e9), int((busy_s + reads_s) * 1e9)
    counts = Counted(np.array([0, end]), np.array([0.0, cpu_s]), np.array([0.0, delay_s]))
    found = cpu_use(
        [Worked(counts, np.array([[0, edge], [end, end]]), 0, np.array([[edge, end]]))], 1
    )
    in_reads_s = (found.reads_cpu_ratio + found.reads_delay_ratio) * found.reads_s
    assert found.reads_s == pytest.approx(reads_s, abs=1e-6)
    assert found.busy_ratio * busy_s + in_reads_s == pytest.approx(
        min(cpu_s + delay_s, busy_s + reads_s), abs=1e-6
    )
    assert in_reads_s == pytest.approx(0.0, abs=1e-6) or found.busy_ratio == 1.0
    if cpu_s <= busy_s and cpu_s + delay_s <= busy_s + reads_s:
        assert found.whole_dilation == pytest.approx(1 + delay_s / cpu_s, rel=1e-5)


def test_the_delay_after_reads_is_storage_as_far_as_no_competition_explains_it() -> None:
    """What was measured of the reads stays what it was, whatever it is charged to."""
    recorded, storage = pipeline(decoding().trace), STAGES.index("storage")
    [rank] = recorded.ranks
    halves = []
    for each in rank.iterations:
        stages = each.tasks.stages_s.copy()
        stages[:, storage] /= 2
        halves.append(
            replace(
                each, tasks=replace(each.tasks, stages_s=stages, reads_delay_s=stages[:, storage])
            )
        )
    use = CpuUse(cpu_s=1.0, reads_s=1.0, reads_delay_ratio=0.5)
    delayed = replace(
        recorded,
        ranks=(
            replace(rank, iterations=tuple(halves), worker_cpu=use, loop_cpu=CpuUse(cpu_s=0.1)),
        ),
    )
    alone, unknown = with_others(delayed, {rank.host: 0.0}), with_others(delayed, {})
    for found in (alone, unknown):
        for before, after in zip(rank.iterations, found.ranks[0].iterations, strict=True):
            whole = after.tasks.stages_s[:, storage] + after.tasks.reads_delay_s
            np.testing.assert_allclose(whole, before.tasks.stages_s[:, storage])
    assert alone.ranks[0].worker_cpu.reads_delay_ratio < 0.01
    assert unknown.others[rank.host] > 1
    assert 0.5 == pytest.approx(unknown.ranks[0].worker_cpu.reads_delay_ratio)


def test_cpu_time_in_reads_does_not_shrink_with_them() -> None:
    """Storage that is twice as fast has half of the wait and all of the system calls; without reads
    there are none."""
    recorded, storage = pipeline(decoding().trace), STAGES.index("storage")
    [rank] = recorded.ranks
    ran = tuple(
        replace(each, tasks=replace(each.tasks, reads_cpu_s=np.ones(len(each.tasks))))
        for each in rank.iterations
    )
    recorded = replace(recorded, ranks=(replace(rank, iterations=ran),))
    fast, none = (
        with_factors(recorded, {"storage": factor}).ranks[0].iterations[0].tasks
        for factor in (0.5, 0.0)
    )
    assert 1.0 == fast.reads_cpu_s.min()
    np.testing.assert_allclose(
        fast.stages_s[:, storage], rank.iterations[0].tasks.stages_s[:, storage] / 2
    )
    assert not none.reads_cpu_s.any()


def test_a_loop_that_was_not_sampled_computes_on_a_core() -> None:
    """On a single core the workers' computation and that of the model take turns, whether or not
    the loop was sampled."""
    [rank] = pipeline(decoding(workers=4).trace).ranks
    use = CpuUse(cpu_s=1.0)
    alone = replace(
        pipeline(decoding(workers=4).trace),
        cores={rank.host: 1.0},
        ranks=(replace(rank, worker_cpu=use),),
        on_device=False,
    )
    sampled = replace(alone, ranks=(replace(rank, worker_cpu=use, loop_cpu=use),))
    assert replayed(sampled).step_s == pytest.approx(replayed(alone).step_s, rel=0.01)
    elsewhere = replace(alone, on_device=True)
    assert replayed(elsewhere).step_s < 0.9 * replayed(alone).step_s


def test_nobody_waits_for_what_others_do_for_a_read() -> None:
    """It takes cores where they are short, and no time where there are enough."""
    none: list[tuple[Segment, ...]] = [()] * 9
    loader = LoaderPlan(
        1,
        2,
        [(Segment(BESIDE, 1.0), Segment(CORES, 1.0))] * 8,
        [0.0] * 8,
        [0.0] * 8,
        [()] * 8,
        8,
        [0.0],
        0,
    )
    rank = RankPlan(
        0, [loader], [int(Op.START), *[int(Op.TAKE)] * 8], [0] * 9, none, none, [-1] * 9, none
    )
    took = [
        Simulation(Plan([rank], [Resource(cores)], Resource(1.0))).run()[0].end_s
        for cores in (1.0, 2.0)
    ]
    assert took == [pytest.approx(16.0, rel=0.07), pytest.approx(8.0)]


def test_a_gain_of_which_a_part_was_seen_is_the_least() -> None:
    """Such as of waits for the interpreter lock."""
    seen = Finding("lock", cause="host", gain=1.35, is_bound=True, is_least=True)
    assert "at least 1.35 × as fast if that cost nothing" == gain_text(seen)


def test_changes_in_summary_json_are_those_that_are_replayed() -> None:
    """And survive being written and read."""
    record = JobChange(workers=3, speeds={"storage": None, "decode": 2.0})
    assert Change(workers=3, speeds={"storage": float("inf"), "decode": 2.0}) == change_of(record)
    summary = with_gains(decoding()).summary
    assert summary == Summary.from_json(summary.to_json())


# ------------------------------------------------------------------------------------------ removal


@pytest.mark.system(every=4)
def test_gain_of_storage(tmp_path: Path) -> None:
    """The differential method: a job on files behind 40 ms per read, cold, and again with all of
    them in memory."""
    tree = made_datasets.tree(
        tmp_path / "tree",
        {f"n0000000{number % 2}/{number}.JPEG": images.jpeg(seed=number) for number in range(60)},
    )
    runs = {}
    with fuse_server(tree, read_ms=40) as mounted:
        for name in ("cold", "cached"):
            words = (
                "record",
                "--quiet",
                "--no-stacks",
                "--out",
                name,
                "--",
                sys.executable,
                PROGRAMS / "train_on_files.py",
            )
            ended = jobs.ioprof(*words, mounted.path, 1, 15, cwd=tmp_path)
            assert 0 == ended.code, ended.err
            runs[name] = pipeline(Trace.load(tmp_path / name))
    if busy := [name for name, run in runs.items() if error_of_others(run)]:
        pytest.skip(
            f"other programs competed for the cores in the run that is {' and '.join(busy)}"
        )
    cold = gains_of(runs["cold"])
    assert abs(cold.baseline_error) < 0.05
    predicted = {gain.cause: gain.share for gain in cold.gains}["storage"]
    removed = 1 - measured(runs["cached"]).step_s / measured(runs["cold"]).step_s
    assert predicted == pytest.approx(removed, abs=0.1)
    assert predicted > 0.5


# ------------------------------------------------------------------------------------------- demand


def test_a_probed_path_is_compared_with_the_demand(tmp_path: Path) -> None:
    """By bytes per second at the best level; a file that is no probe is refused with what to
    type."""
    need = Demand(50e6, 500.0, 1000.0, "emulated", num_devices=4)
    level = {"test": "random", "clients": 8, "bytes_per_s": 25e6, "operations_per_s": 250.0}
    slower = level | {"clients": 1, "bytes_per_s": 5e6}
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"path": "/data", "levels": [slower, level], "more": 1}))
    assert path_statement(need, probed_path(probe)).text.endswith(
        "to 8 clients, which feeds 2 of such devices: too few for this job's 4"
    )
    assert (
        "not known" in path_statement(Demand(None, None, None, "unknown"), probed_path(probe)).text
    )
    probe.write_text("{}")
    with pytest.raises(CommandError, match="ioprof probe PATH --json"):
        path_statement(need, probed_path(probe))


def test_cores_and_devices_follow_from_the_demand() -> None:
    """Workers that spend 40 ms of a core on a batch that the loop takes 10 ms to compute need four
    cores."""
    found = decoding().trace
    need = demand(found, making=totals(found).work.stages, least_reads=1)
    assert need.cores == pytest.approx(42.0 / 10, rel=0.05)
    assert need.num_devices == 1
    few = demand(found, least_reads=10**6)
    assert (None, Reason.TOO_FEW_READS) == (few.bytes_per_s, few.reason)


# -------------------------------------------------------------------------------------- brute force


_PART = st.tuples(st.sampled_from([DELAY, CORES, STORAGE]), st.integers(1, 20))
_WORK = st.lists(_PART, min_size=1, max_size=3)


@settings(max_examples=examples(60))
@given(
    st.integers(1, 4), st.integers(1, 3), st.lists(_WORK, min_size=1, max_size=9), st.lists(_WORK, min_size=9, max_size=9),  # noqa: E501
    st.integers(1, 3),
)  # fmt: skip
def test_the_engine_agrees_with_brute_force(
    workers: int,
    prefetch: int,
    tasks: list[list[tuple[int, int]]],
    after: list[list[tuple[int, int]]],
    cores: int,
) -> None:
    """Delays, shared cores and shared storage, to the nanosecond."""
    count = len(tasks)
    exact = [[(resource, Fraction(ms, 1000)) for resource, ms in each] for each in tasks]
    exact_after = [
        [(resource, Fraction(ms, 1000)) for resource, ms in each] for each in after[:count]
    ]
    truth = brute_force.taken_at(workers, prefetch, exact, exact_after, cores)
    none: list[tuple[Segment, ...]] = [()] * (count + 1)
    zero = [0.0] * count
    loader = LoaderPlan(
        workers,
        prefetch,
        [_segments(each) for each in tasks],
        zero,
        zero,
        none,
        count,
        [0.0] * workers,
        0,
    )
    before = [(), *(_segments(each) for each in after[:count])]
    ops = [int(Op.START), *[int(Op.TAKE)] * count]
    rank = RankPlan(0, [loader], ops, [0] * len(ops), none, before, [-1] * len(ops), none)
    times = Simulation(Plan([rank], [Resource(cores)], Resource(1.0))).run()[0]
    np.testing.assert_allclose(times.ended_s[1:], [float(each) for each in truth], atol=1e-9)


def _segments(work: list[tuple[int, int]]) -> tuple[Segment, ...]:
    return tuple(Segment(resource, ms / 1000) for resource, ms in work)


# ------------------------------------------------------------------------------------------- proofs


def test_pairs_of_runs_have_a_mean_and_a_range() -> None:
    """Equal pairs leave no doubt, different ones do; one pair says nothing of it."""
    assert (2.0, None) == mean_ratio((2.0,))
    mean, between = mean_ratio((2.0, 2.0, 2.0))
    assert between is not None
    assert pytest.approx((2.0, 2.0, 2.0)) == (mean, between.low, between.high)
    mean, between = mean_ratio((0.5, 2.0))
    assert between is not None
    assert (pytest.approx(1.0), True) == (mean, between.low < 0.5 < 2.0 < between.high)


def test_a_change_becomes_options() -> None:
    """A larger batch takes fewer steps for as many samples; what `ioprof run` has no option for is
    refused."""
    options = RunOptions(workers=1, batch_size=8, steps=40)
    assert (3, 40) == (
        (changed_options := with_change(options, JobChange(workers=3))).workers,
        changed_options.steps,
    )
    assert (16, 20) == (
        (larger := with_change(options, JobChange(batch=16))).batch_size,
        larger.steps,
    )
    assert "warm" == with_change(options, JobChange(cache="warm")).cache
    for change in (
        JobChange(prefetch=4),
        JobChange(persistent_workers=True),
        JobChange(speeds={"compute": 2.0}),
        JobChange(),
    ):
        with pytest.raises(CommandError, match="no option"):
            with_change(options, change)


def test_only_jobs_of_ioprof_can_be_made_again() -> None:
    """A recorded script must be changed by hand, and the message says how to go on."""
    with pytest.raises(CommandError, match="ioprof compare"):
        options_of_run(
            RunRecord.of({"schema": "ioprof.run/1", "config": {"loader": "torch DataLoader"}})
        )
    with pytest.raises(CommandError, match="is not on this machine"):
        options_of_run(Trace.load(FILES).run)


@pytest.mark.job(every=4)
def test_prove_runs_the_job_without_and_with_the_change(tmp_path: Path) -> None:
    """Both runs differ in the change alone, and the result has what was predicted, or why not, and
    what was measured."""
    image = images.jpeg(900, 700)
    source = made_datasets.tree(
        tmp_path / "tree", {f"n00000001/{number}.JPEG": image for number in range(48)}
    )
    made_datasets.made(source, tmp_path / "data")
    options = (
        "--device",
        "emulated:h100",
        "--batch-size",
        4,
        "--workers",
        0,
        "--steps",
        24,
        "--no-stacks",
    )
    started = jobs.ioprof("run", "data", *options, "--out", "first", cwd=tmp_path)
    assert 0 == started.code, started.err
    advice = with_gains(Run.load(tmp_path / "first")).summary.verdict.findings
    number = next(
        (place for place, each in enumerate(advice, 1) if each.change and each.change.workers), None
    )
    if number is None:
        pytest.skip("this machine has no core for a worker, so none was advised")
    printed = jobs.ioprof(
        "prove", "first", "--advice", number, "--pairs", 1, "--json", cwd=tmp_path
    )
    assert 0 == printed.code, printed.err
    found = json.loads(printed.out)
    before, after = (Trace.load(Path(folder)).run.config for folder in found["runs"])
    assert (0, 1) == (before.workers, advice[number - 1].change.workers)  # type: ignore[union-attr]
    assert (after.workers, after.batch_size, after.steps, after.seed) == (
        1,
        before.batch_size,
        before.steps,
        before.seed,
    )
    assert found["measured"] == pytest.approx(found["pairs"][0])
    assert found["measured"] > 0
    assert (found["predicted"] is None) == (found["reason"] is not None)
    rates = [
        summarise(Trace.load(Path(folder))).throughput.steady_samples_per_s
        for folder in found["runs"]
    ]
    assert found["measured"] == pytest.approx(rates[1] / rates[0])  # type: ignore[operator]
    refused = jobs.ioprof("prove", "first", "--advice", 99, cwd=tmp_path)
    assert (2, True) == (refused.code, "there is no such advice" in refused.err)


def test_the_functions_are_public() -> None:
    """They are found by completion."""
    assert {"whatif", "prove"} <= set(dir(ioprof))
    assert "×" in gain_text(Finding("x", gain=1.5, low=1.4, high=1.6))


def test_ways_of_batches_that_were_not_waited_for_are_not_those_of_late_ones() -> None:
    """A loop that computes waits for the few batches that come late. Of the others it is known that
    they took at most 7 to 25 ms: most of them took less than the late ones."""
    job = Job(1, 2, ({"decode": 5 * MS},) * 100, ({"compute": 15 * MS},) * 100)
    recorded = pipeline(simulate(job).trace)
    (rank,) = recorded.ranks
    (iteration,) = rank.iterations
    is_late = np.arange(100) % 15 == 14
    limits = np.random.default_rng(0).uniform(0.007, 0.025, 100)
    tasks = replace(
        iteration.tasks,
        transit_s=np.where(is_late, 0.020, np.nan),
        held_s=np.where(is_late, 0.0, np.nan),
        transit_most_s=np.where(is_late, np.inf, limits),
    )
    changed_rank = replace(rank, iterations=(replace(iteration, tasks=tasks),))
    found = filled(replace(recorded, ranks=(changed_rank,))).ranks[0].iterations[0].tasks
    assert (found.transit_s[is_late] == 0.020).all()
    assert (found.transit_s + found.held_s)[~is_late].mean() < 0.003
    assert (found.transit_s + found.held_s <= tasks.transit_most_s).all()


def test_first_batches_of_workers_bound_the_way_of_others() -> None:
    """To send it a worker starts a thread. Where the loop waited for no other batch, those that it
    had at once are not taken for as late as that one."""
    job = Job(1, 2, ({"decode": 5 * MS},) * 100, ({"compute": 15 * MS},) * 100)
    recorded = pipeline(simulate(job).trace)
    (rank,) = recorded.ranks
    (iteration,) = rank.iterations
    is_first = np.arange(100) == 0
    tasks = replace(
        iteration.tasks,
        transit_s=np.where(is_first, 0.017, np.nan),
        held_s=np.where(is_first, 0.0, np.nan),
        transit_most_s=np.where(is_first, np.inf, 0.018),
    )
    changed_rank = replace(rank, iterations=(replace(iteration, tasks=tasks),))
    found = filled(replace(recorded, ranks=(changed_rank,))).ranks[0].iterations[0].tasks
    assert [0.017, 0.0] == [found.transit_s[is_first].mean(), found.transit_s[~is_first].max()]


def test_a_job_that_computes_says_where_a_faster_device_would_wait() -> None:
    """Workers take as long as the device: its first change is theirs, and no part of the report
    says that the device comes first."""
    own = tuple({"compute": 20 * MS} for _ in range(80))
    alike, slower, quick = (
        tuple({"decode": int(each * MS)} for _ in range(80)) for each in (39.8, 42, 4)
    )
    for stages, causes in ((alike, set()), (slower, {"decode"})):
        run = with_gains(Run.of(simulate(Job(2, 4, stages, own)).trace))
        verdict = run.summary.verdict
        assert "compute" == verdict.bound_by
        assert verdict.device_waits
        assert "a faster device would wait" in headline(run.summary)
        assert causes == {each.cause for each in verdict.findings if each.cause}
    other = with_gains(Run.of(simulate(Job(2, 4, quick, own)).trace)).summary.verdict
    assert not other.device_waits
    assert other.advice[0].gain == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("line 2.0 code, span 1.5 code, collate 1.2 code", "line span collate"),
        ("line 2.0 code, workers 1.95 free, span 1.2 code", "workers line span"),
        ("line 2.0 code, workers 1.5 free, span 1.2 code", "line workers span"),
        ("line 1.11 code, keep_memory 1.06 free", "line keep_memory"),  # half of the time
        ("device 2.0 hardware, line 1.7 code, span 1.2 code", "device line span"),
        ("device 2.0 hardware, line 1.95 code, span 1.2 code", "line device span"),
        ("cores 1.5 hardware, line 1.45 code, workers 1.3 free", "line cores workers"),
        ("line 12.0 code, shards 4.0 code, workers 1.5 free", "shards line workers"),
        ("line 12.0 code, shards 1.1 code, workers 1.5 free", "line workers shards"),
        ("sampler - code, line 1.1 code", "line sampler"),
        ("phase - code, line 1.1 code", "phase line"),
        ("cpu_quota - code, cpu_threads - code, line 1.1 code", "cpu_quota cpu_threads line"),
    ],
)
def test_findings_are_in_the_order_of_gains_and_of_what_they_cost(
    given: str, expected: str
) -> None:
    """Of changes that bring as much the cheaper one is first; what is done for nothing is before a
    line at no cost, if it brings as much as half of that line's time; none without a gain is before
    one with it, unless it was measured."""
    rows = [each.split() for each in given.split(", ")]
    found = [
        Finding(
            code,
            gain=None if gain == "-" else float(gain),
            low=None if gain == "-" else float(gain) * 0.8,
            high=None if gain == "-" else float(gain) * 1.2,
            costs=Cost(costs),
        )
        for code, gain, costs in rows
    ]
    assert expected == " ".join(each.code for each in ordered(found))


@pytest.mark.parametrize(
    ("waits", "without_ms", "ratio"),
    [(0.5, 8, 16 / 18), (0.5, 12, 1.0), (0.5, 2, 9.5 / 12), (1.0, 8, 0.75), (0.0, 8, 1.0)],
)
def test_a_loop_that_no_longer_waits_may_compute_faster(
    waits: float, without_ms: float, ratio: float
) -> None:
    """Its steps after a wait, which compute for 10 ms, as long as those without one; a quarter less
    where there are no such; not where none waits, where another device computes, or where the loop
    itself makes the batches."""
    stage, own = dict.fromkeys(STAGES, 1_000_000), {"compute": 1_000_000}
    job = Job(workers=1, prefetch=2, stages=(stage,) * 80, own=(own,) * 80)
    recorded = pipeline(simulate(job).trace)
    rank = recorded.ranks[0]
    count = len(rank.program)
    has_waited = np.arange(count) % 10 < waits * 10
    after_s = np.zeros_like(rank.program.after_s)
    after_s[:, 0] = np.where(has_waited, 0.010, without_ms / 1e3)
    taken_ns = rank.begun_ns + np.where(has_waited, 5_000_000, 0)
    rank = replace(rank, taken_ns=taken_ns, program=replace(rank.program, after_s=after_s))
    found = replace(recorded, ranks=(rank,))
    assert unbroken_ratio(found) == pytest.approx(ratio)
    assert 1.0 == unbroken_ratio(replace(found, on_device=True))
    alone = tuple(replace(each, workers=0) for each in rank.iterations)
    assert 1.0 == unbroken_ratio(replace(found, ranks=(replace(rank, iterations=alone),)))
