"""What-if with costs that the run does not show: batches of another run, and another device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import ROOT
from simulated_loader import Job, seconds, simulate
from test_replay import MS, loader_jobs, replay_of

import ioprof
from ioprof.errors import CommandError
from ioprof.format.trace import Trace
from ioprof.model.changed import changed
from ioprof.model.changes import Change
from ioprof.model.other_costs import DeviceCosts, Grounds
from ioprof.model.pace import replayed
from ioprof.model.prediction import whatif
from ioprof.model.recorded import pipeline
from ioprof.train.devices import rate
from ioprof.train.models import MODELS

DEMO = ROOT / "tests" / "data" / "demo"
NAMES = ("files", "lmdb", "lmdb-rgb256")


@pytest.mark.parametrize("name", NAMES)
def test_batches_like_its_own_change_nothing(name: str) -> None:
    """Of a recorded run, to the last digit."""
    found = ioprof.whatif(DEMO / name, like=DEMO / name)
    assert found.speedup == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("after", NAMES)
@pytest.mark.parametrize("before", NAMES)
def test_recorded_runs_predict_each_other(before: str, after: str) -> None:
    """Three layouts, two ranks: a run with the batches of another one has that one's rate."""
    found = ioprof.whatif(DEMO / before, like=DEMO / after)
    other = ioprof.whatif(DEMO / after, decode=1.0)
    assert found.samples_per_s == pytest.approx(other.measured_samples_per_s, rel=0.1)


@settings(max_examples=15)
@given(loader_jobs(lag=0, transit=0, take=0), st.data())
def test_other_batches_are_what_the_simulator_says(job: Job, data: st.DataObject) -> None:
    """The job with the batches and the Python of another job, recorded with other workers, where
    there are cores for all."""
    times = st.integers(1, 20).map(lambda ms: ms * MS)
    row = {stage: data.draw(times) for stage in job.stages[0]}
    others = tuple(row for _ in range(24))
    host = data.draw(times)
    like = replace(
        job,
        stages=others,
        own=tuple({"compute": MS, "host": host} for _ in others),
        workers=data.draw(st.integers(0, 3)),
    )
    truth = simulate(
        replace(
            job,
            stages=others[: len(job.stages)],
            own=tuple(each | {"host": host} for each in job.own),
        )
    )
    found = changed(
        pipeline(simulate(job).trace), Change(), Grounds(like=pipeline(simulate(like).trace))
    )
    assert replay_of(found) == pytest.approx(seconds(truth.got), abs=1e-7)


def of_equal_batches(decode_ms: int, batch_size: int = 8, number: int = 40) -> Trace:
    """One worker, and a loop that needs 5 ms."""
    trace = simulate(
        Job(1, 2, ({"decode": decode_ms * MS},) * number, ({"compute": 5 * MS},) * number)
    ).trace
    run = trace.run.replace(config=trace.run.config.replace(batch_size=batch_size))
    return Trace(run, trace.spans)


def test_batches_of_another_size_are_made_in_proportion() -> None:
    """Batches of 4 that took 10 ms are batches of 8 in 20 ms."""
    found = whatif(of_equal_batches(40), Change(like="other"), of_equal_batches(10, batch_size=4))
    assert found.predicted.step_s == pytest.approx(0.020, rel=1e-6)
    assert {"batch_size": 8, "other_size": 4}.items() <= found.assumptions[0].facts.items()


def refused(run: Trace, change: Change, like: Trace | None = None) -> str:
    with pytest.raises(CommandError) as error:
        whatif(run, change, like)
    return str(error.value)


def with_dataset(trace: Trace, **keys: Any) -> Trace:
    return Trace(trace.run.of({**trace.run.to_dict(), **keys}), trace.spans)


def test_what_no_run_shows_is_refused() -> None:
    """With what to type."""
    run = of_equal_batches(40)
    assert "--layout lmdb: this run does not show" in refused(run, Change(layout="lmdb"))
    assert "--like LIKE" in refused(run, Change(image="rgb256"))
    assert "--layout lmdb: the run of --like read something" in refused(
        run, Change(layout="lmdb"), of_equal_batches(10)
    )
    assert "record more steps" in refused(run, Change(), of_equal_batches(10, number=6))
    assert "--compute 2x" in refused(run, Change(device="emulated:h100"))
    assert "no copy to the device was recorded" in refused(run, Change(copy="pinned"))
    for wrong in ({"copy": "fast"}, {"cache": "hot"}):
        with pytest.raises(CommandError, match="choose one of"):
            Change(**wrong)


def rate_of(device: str) -> float:
    """Samples per second that it computes of the demo's model."""
    model = Trace.load(DEMO / "lmdb-rgb256").run.config.model
    return rate(device, MODELS[model or ""]).samples_per_s


def test_another_device_bounds_the_step() -> None:
    """The P100 computes its rate on each rank; the H100 leaves the workers as the bound."""
    slow, fast = (
        ioprof.whatif(DEMO / "lmdb-rgb256", device=f"emulated:{name}") for name in ("p100", "h100")
    )
    assert slow.samples_per_s == pytest.approx(2 * rate_of("p100"), rel=0.03)
    assert 1.0 <= fast.speedup < rate_of("h100") / rate_of("v100") / 2
    said = f"emulated: p100 computes {rate_of('p100'):,.0f} samples/s ("
    assert slow.assumptions[0].text.startswith(said)
    with pytest.raises(CommandError, match="unknown; choose one of"):
        ioprof.whatif(DEMO / "files", device="emulated:p1000")
    with pytest.raises(CommandError, match="only emulated devices"):
        ioprof.whatif(DEMO / "files", device="cuda")


def test_a_slower_device_shows_computation_that_waits_had_hidden() -> None:
    """Of one rank, whose own time alone would reproduce the run."""
    trace = Trace.load(DEMO / "lmdb-rgb256")
    run = trace.run.replace(config=trace.run.config.replace(ranks=1))
    alone = Trace(
        run,
        trace.spans.filter((pl.col("rank") == 0) & (pl.col("kind").cast(pl.String) != "comm")),
        trace.files,
    )
    found = whatif(alone, Change(device="emulated:p100"))
    assert found.samples_per_s == pytest.approx(rate_of("p100"), rel=0.03)
    twice = whatif(alone, Change(speeds={"compute": 0.5}))
    assert twice.predicted.step_s == pytest.approx(2 * 16 / rate_of("v100"), rel=0.03)


@pytest.mark.parametrize(
    ("mode", "copy_ms", "expected_ms"),
    [
        ("overlapped", 4, 20),
        ("overlapped", 30, 30),
        ("pinned", 4, 24),
        ("pageable", 4, 24),
        ("pageable", 30, 50),
    ],
)
def test_copies_on_the_stream_of_the_computation_are_added(
    mode: str, copy_ms: float, expected_ms: float
) -> None:
    """A step of 20 ms on the device whose batches are always there. A loop that waits for its copy
    launches the computation some 0.1 ms later."""
    recorded = pipeline(Trace.load(DEMO / "lmdb-rgb256"))
    stages = ("decode", "transform", "collate", "storage", "page_cache", "loader")
    free = changed(recorded, Change(speeds=dict.fromkeys(stages, 1e9)))
    ranks = []
    for rank in free.ranks:
        device_s = rank.program.device_s
        ranks.append(
            replace(
                rank,
                program=replace(
                    rank.program, device_s=0.020 * (device_s != 0), transfer_s=0 * device_s
                ),
            )
        )
    assert {1} == {rank.depth for rank in ranks}
    with_copies = replace(free, ranks=tuple(ranks), copy_s=copy_ms / 1e3)
    found = changed(with_copies, Change(), Grounds(device=DeviceCosts(mode=mode)))
    assert replayed(found).step_s * 1e3 == pytest.approx(expected_ms, rel=0.02)


@pytest.mark.job(every=4)
def test_the_command_takes_them(tmp_path: Path) -> None:
    """Layout and image are checked against what the other run read."""
    run, like = DEMO / "files", DEMO / "lmdb-rgb256"
    printed = jobs.ioprof(
        "whatif", run, "--layout", "lmdb", "--image", "rgb256", "--like", like, cwd=tmp_path
    )
    assert (0, True) == (printed.code, "with the layout lmdb, images as rgb256: " in printed.out), (
        printed.err
    )
    assert "Assumes: batches cost what the " in printed.out
    wrong = jobs.ioprof("whatif", run, "--layout", "webdataset", "--like", like, cwd=tmp_path)
    assert (2, True) == (
        wrong.code,
        "--layout webdataset: the run of --like read lmdb" in wrong.err,
    )
    alone = jobs.ioprof("whatif", run, "--image", "rgb256", cwd=tmp_path)
    assert (2, True) == (alone.code, "--image rgb256: this run does not show" in alone.err)
