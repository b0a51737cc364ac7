"""Threads that share a core while another one is idle: how much of the cores they get, and how that
is found in a run."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_loader import Job, simulate

from ioprof.model.changed import changed, filled, with_factors
from ioprof.model.changes import Change
from ioprof.model.cores.contention import with_others
from ioprof.model.engine import Resource, Simulation
from ioprof.model.pace import measured, replayed
from ioprof.model.pipeline import STAGES, CpuUse, Pipeline
from ioprof.model.plan import plan
from ioprof.model.prediction import predict
from ioprof.model.recorded import pipeline

MS = 1_000_000
STORAGE = STAGES.index("storage")


@pytest.mark.parametrize(("cores", "threads"), [(2, 2), (2, 5), (3, 2), (4, 3)])
def test_threads_at_random_leave_cores_idle(cores: int, threads: int) -> None:
    """As many cores have a thread as in the mean of all ways to place them."""
    ways = [len(set(way)) for way in product(range(cores), repeat=threads)]
    assert sum(ways) / len(ways) == pytest.approx(Resource(cores, scattered=1.0).usable(threads))


@given(st.integers(1, 8), st.floats(0.0, 20.0), st.floats(0.0, 1.0))
def test_scattered_threads_get_no_more_than_others(
    cores: int, threads: float, scattered: float
) -> None:
    """And one alone always has a core."""
    best, found = (
        Resource(cores).usable(threads),
        Resource(cores, scattered=scattered).usable(threads),
    )
    assert min(1.0, best) - 1e-9 <= found <= best == min(cores, threads)


def delayed(scattered: float, seen_as: float) -> tuple[Pipeline, str]:
    """A run on two cores whose work was stretched as that of threads scattered so far, and whose
    batches came as if `seen_as`."""
    stages = tuple({"storage": 30 * MS, "decode": (16 + row % 9) * MS} for row in range(160))
    recorded = pipeline(
        simulate(Job(4, 2, stages, tuple({"compute": 6 * MS} for _ in stages))).trace
    )
    [rank] = recorded.ranks
    use = CpuUse(cpu_s=1.0)
    run = replace(
        recorded,
        cores={rank.host: 2.0},
        on_device=False,
        ranks=(replace(rank, loop_cpu=use, worker_cpu=use),),
    )
    simulation = Simulation(plan(filled(replace(run, scattered={rank.host: scattered}))))
    simulation.run()
    use = replace(use, dilation=simulation.dilation(0))
    [times] = Simulation(plan(filled(replace(run, scattered={rank.host: seen_as})))).run()
    work = np.where(np.arange(len(STAGES)) == STORAGE, 1.0, use.dilation)
    iterations = [
        replace(each, tasks=replace(each.tasks, stages_s=each.tasks.stages_s * work))
        for each in rank.iterations
    ]
    rank = replace(
        rank,
        iterations=tuple(iterations),
        loop_cpu=use,
        worker_cpu=use,
        program=replace(rank.program, after_s=rank.program.after_s * use.dilation),
        begun_ns=rank.begin_ns + (np.array(times.begun_s) * 1e9).astype(np.int64),
        taken_ns=rank.begin_ns + (np.array(times.ended_s) * 1e9).astype(np.int64),
        end_ns=rank.begin_ns + int(times.end_s * 1e9),
    )
    return replace(run, ranks=(rank,)), rank.host


def test_how_far_threads_are_scattered_is_found_in_the_delay() -> None:
    """From the delay of the processes alone, and the replay is as fast as the run."""
    run, host = delayed(0.7, seen_as=0.7)
    found = with_others(run, {host: 0.0})
    assert 0.7 == pytest.approx(found.scattered[host], abs=0.1)
    assert measured(run).step_s == pytest.approx(replayed(found).step_s, rel=0.01)


def test_threads_are_not_scattered_where_the_run_is_faster_than_that() -> None:
    """Then the delay has another reason."""
    run, host = delayed(0.7, seen_as=0.0)
    assert not any(with_others(run, {host: 0.0}).scattered.values())


@pytest.mark.parametrize(
    "change",
    [
        Change(speeds={"storage": 4.0}),
        Change(cache="warm"),
        Change(batch=4),
        Change(workers=8),
        Change(cores=1),
    ],
)
def test_where_who_gets_a_core_changes_the_cores_are_shared(change: Change) -> None:
    """Also if times as measured reproduce the run better: they say nothing of another
    competition."""
    run, _ = delayed(0.7, seen_as=0.7)
    found, shared = (predict(replace(run, shares_cores=shares), change) for shares in (False, True))
    assert found == shared
    naive = (
        replayed(run).step_s / replayed(changed(replace(run, shares_cores=False), change)).step_s
    )
    assert found.speedup != pytest.approx(naive, rel=0.02)


def test_a_deeper_prefetch_is_replayed_as_the_run_is() -> None:
    """It changes how long batches wait, not who computes."""
    run, _ = delayed(0.7, seen_as=0.7)
    found = predict(replace(run, shares_cores=False), Change(prefetch=4))
    assert found.baseline == replayed(replace(run, shares_cores=False))


def test_threads_that_are_not_woken_are_not_scattered() -> None:
    """Without waits for storage the scheduler balances threads that compute."""
    run, host = delayed(0.7, seen_as=0.7)
    found = with_others(run, {host: 0.0})
    assert found.scattered == changed(found, Change(speeds={"storage": 2.0})).scattered
    assert {} == changed(found, Change(cache="warm")).scattered


def test_storage_that_nothing_waited_for_changes_nothing_if_it_is_free() -> None:
    """Where batches were read from it, workers that never sleep again are spread over the cores."""
    own = tuple({"compute": 6 * MS} for _ in range(40))
    for stages, is_same in (({"decode": MS}, True), ({"decode": MS, "storage": MS}, False)):
        recorded = pipeline(simulate(Job(2, 2, tuple(stages for _ in own), own)).trace)
        scattered = replace(recorded, scattered={rank.host: 1.0 for rank in recorded.ranks})
        assert is_same == (with_factors(scattered, {"storage": 0.0}).scattered != {})
