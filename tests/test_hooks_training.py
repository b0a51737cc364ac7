"""Training jobs as people write them, under the hooks: their steps, what the steps did, and what
they waited for."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hooked import finish, job_has, of_kind, recorded, run, start
from PIL import Image
from repository import PROGRAMS

from ioprof.format.trace import Trace
from ioprof.report.run import Run

pytestmark = pytest.mark.job

PROGRAM = PROGRAMS / "hooked_training.py"
STEPS = 12
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
COMPLETE = {"failures": (), "status": "complete"}


def job(folder: Path, *arguments: object, launcher: tuple[str, ...] = (), code: int = 0) -> Trace:
    """What a job recorded, with what its hooks learned of it."""
    spool = folder / "spool"
    run([*launcher, PROGRAM, *arguments], spool, code)
    trace = recorded(spool)
    capture = trace.run.capture.replace(reads=False)
    return Trace(trace.run.replace(**COMPLETE, capture=capture), trace.spans, trace.files)


def assert_sums_are_exact(recorded: Run) -> None:
    """Every nanosecond of every step belongs to one cause."""
    causes = [
        name
        for name in recorded.steps.columns
        if name.endswith("_ns") and name not in ("start_ns", "end_ns")
    ]
    assert recorded.steps.select(
        (pl.sum_horizontal(causes) == pl.col("end_ns") - pl.col("start_ns")).all()
    ).item()


def assert_steps_follow_each_other(trace: Trace) -> None:
    """Steps count from 0, and each begins where the one before ended."""
    for (rank,), steps in of_kind(trace, "step").partition_by("rank", as_dict=True).items():
        assert list(range(len(steps))) == steps["step"].to_list(), rank
        assert steps["end_ns"].to_list()[:-1] == steps["start_ns"].to_list()[1:]


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two ranks under torch's own launcher."""
    return job(tmp_path_factory.mktemp("parallel"), "parallel", launcher=TWO_RANKS)


@pytest.mark.job(every=4)
def test_ranks_of_a_parallel_job(parallel: Trace) -> None:
    """Each rank has its steps, one batch for each; the launcher is none of them."""
    assert [0, 1] == parallel.ranks
    assert_steps_follow_each_other(parallel)
    for rank in (0, 1):
        mine = parallel.select(rank=rank)
        assert list(range(STEPS)) == of_kind(mine, "step")["batch"].to_list()
        assert list(range(STEPS)) == sorted(of_kind(mine, "fetch")["batch"].to_list())
    roles = sorted(
        (process.role, process.rank)
        for process in parallel.run.processes
        if process.role != "other"
    )
    assert [("rank", 0), ("rank", 1), ("worker", 0), ("worker", 1)] == roles
    learned = {"ranks": 2, "workers": 1, "batch_size": 4, "device": "cpu", "optimizer": "SGD"}
    assert learned.items() <= parallel.run.config.to_dict().items()


@pytest.mark.job(every=4)
def test_collectives_of_a_parallel_job(parallel: Trace) -> None:
    """The script's own are named as it called them, and have their place in a step; DDP's exchange
    is seen."""
    found = of_kind(parallel, "comm").with_columns(pl.col("name").cast(str))
    counts = dict(found.group_by("name").len().rows())
    assert {
        "broadcast_coalesced": 2,
        "gradients": 2 * STEPS,
        "all_reduce": 2 * STEPS,
        "all_reduce 2": 2 * STEPS,
        "barrier": 2,
    } == counts
    assert {4} == set(found.filter(pl.col("name").str.starts_with("all_reduce"))["bytes"])
    for name in ("all_reduce", "all_reduce 2"):
        assert [*range(STEPS)] * 2 == found.filter(pl.col("name") == name).sort("rank", "start_ns")[
            "step"
        ].to_list()


def test_computation_of_a_parallel_job(parallel: Trace) -> None:
    """Forward, backward and optimizer of every step; none of them covers a wait, a blocking
    collective, or another computation."""
    found = of_kind(parallel, "compute").with_columns(pl.col("name").cast(str))
    for name in ("forward", "backward", "optimizer"):
        steps = (
            found.filter(pl.col("name") == name)
            .select("rank", "step")
            .unique()
            .sort("rank", "step")
        )
        assert [(rank, step) for rank in (0, 1) for step in range(STEPS)] == steps.rows()
    own = parallel.spans.filter(
        pl.col("kind").is_in(["compute", "wait"]) | (pl.col("name").cast(str) == "all_reduce")
    )
    for busy in own.sort("start_ns").partition_by("rank"):
        assert [] == busy.filter(pl.col("start_ns").shift(-1) < pl.col("end_ns")).rows()


@pytest.mark.job(every=4)
def test_gradients_of_several_batches_are_exchanged_once(tmp_path: Path) -> None:
    """Within `no_sync()` DDP exchanges nothing, and its forward pass leaves its log as it was: the
    exchange before it is seen."""
    spool = tmp_path / "spool"
    output = run([*TWO_RANKS, PROGRAMS / "accumulate_on_ranks.py", STEPS, "none"], spool)
    trace = recorded(spool)
    found = of_kind(trace, "comm").filter(pl.col("name").cast(str) == "gradients")
    for line in output.splitlines():
        if line.startswith("{"):
            made = json.loads(line)
            spans = found.filter(rank=made["rank"])
            took = zip(made["passes"], (spans["end_ns"] - spans["start_ns"]).to_list(), strict=True)
            assert all(0 < exchanged < ended - began for (began, ended), exchanged in took)
            assert [*range(STEPS)] == spans["step"].to_list()
    assert 2 * STEPS == len(found)


def test_analysis_of_a_parallel_job(parallel: Trace) -> None:
    """It adds up, and knows compute, communication and the wait for a batch."""
    found = Run.of(parallel)
    assert_sums_are_exact(found)
    causes = {cause.cause: cause.seconds for cause in found.summary.steps.causes}
    assert all(causes[cause] for cause in ("compute", "exchange", "delivery"))


@pytest.mark.job(every=4)
def test_slow_decoding_is_named(tmp_path: Path) -> None:
    """Large images through Pillow in a worker: the analysis says decode."""
    folder = tmp_path / "images"
    folder.mkdir()
    Image.effect_noise((1600, 1200), 80).convert("RGB").save(folder / "image.jpg")
    trace = job(tmp_path, "images", folder)
    # modules of Cython decompress their constants at import
    decodes = of_kind(trace, "decode").filter(pl.col("name") == "JPEG")
    assert STEPS * 4 == len(decodes)
    assert [*range(STEPS)] == decodes["batch"].unique().sort().to_list()
    assert (
        set(of_kind(trace, "fetch")["pid"])
        == set(decodes["pid"])
        != set(of_kind(trace, "wait")["pid"])
    )
    found = Run.of(trace)
    assert_sums_are_exact(found)
    assert "decode" == found.summary.verdict.bound_by


@pytest.mark.job(every=4)
def test_without_an_optimizer_batches_are_steps(tmp_path: Path) -> None:
    """Inference over two epochs: a step for each batch, and none for the change of epoch."""
    trace = job(tmp_path, "inference")
    steps = of_kind(trace, "step")
    assert [*range(2 * STEPS)] == steps["step"].to_list() == steps["batch"].to_list()
    assert_sums_are_exact(Run.of(trace))


@pytest.mark.job(every=4)
def test_the_first_optimizer_counts(tmp_path: Path) -> None:
    """Two optimizers and accumulated gradients: a step for each step of the first; other data's
    batches are told apart."""
    trace = job(tmp_path, "adversarial")
    assert_steps_follow_each_other(trace)
    waited = of_kind(trace, "wait").drop_nulls("batch").with_columns(pl.col("name").cast(str))
    assert STEPS == len(of_kind(trace, "step"))
    assert {None: 2 * STEPS, "validate": 2} == dict(waited.group_by("name").len().rows())
    assert len(waited) == waited["batch"].n_unique()


@pytest.mark.job(every=4)
def test_an_interrupt_arrives_as_it_does(tmp_path: Path) -> None:
    """Ctrl-C while the job waits ends it by KeyboardInterrupt, with the capture file closed."""
    text = run([PROGRAM, "interrupted"], tmp_path / "spool", code=-2)
    assert "KeyboardInterrupt" == text.splitlines()[-1]
    processes = recorded(tmp_path / "spool").run.processes
    assert [True] == [process.closed for process in processes if process.role == "rank"]


@pytest.mark.job(every=4)
def test_dali_shows_its_waits(tmp_path: Path) -> None:
    """Every batch of an iterator and of a pipeline run by hand is waited for once; nothing is said
    of what DALI did meanwhile."""
    if not job_has("nvidia.dali"):
        pytest.skip("DALI is not installed (pip install ioprof[dali])")
    trace = job(tmp_path, "dali")
    waited = of_kind(trace, "wait").drop_nulls("batch")["batch"].to_list()
    assert [*range(2 * STEPS)] == waited == of_kind(trace, "step")["batch"].to_list()
    assert 0 == len(of_kind(trace, "fetch"))


@pytest.mark.job(every=4)
def test_the_compiler_finds_nothing_of_the_hooks(tmp_path: Path) -> None:
    """A compiled function breaks where it did, and nowhere else: collectives and backward passes
    within it are read through."""
    program = """
import torch, torch.distributed as dist
model, x = torch.nn.Linear(4, 1), torch.ones(2, 4)
def backward(x):
    torch.autograd.backward(model(x).sum())
    return x
def reduce(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1
dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
print([torch._dynamo.explain(function)(x).graph_break_count for function in (backward, reduce)])
try:
    print(torch.compile(reduce, fullgraph=True, backend='eager')(x).sum().item())
except torch._dynamo.exc.Unsupported as error:  # of collectives, by torch 2.1
    print(type(error).__name__)
dist.destroy_process_group()
"""
    with start(["-W", "ignore", "-c", program], None) as beside:
        hooked = run(["-W", "ignore", "-c", program], tmp_path / "spool").splitlines()[-2:]
        assert finish(beside).splitlines()[-2:] == hooked


@pytest.mark.job(every=4)
def test_profile_makes_a_run_of_a_block(tmp_path: Path) -> None:
    """Without `ioprof record`: a run folder that says that reads were not captured, and a process
    that is as it was before."""
    program = f"""
import sys, pathlib, torch, ioprof
sys.path.insert(0, {str(PROGRAMS)!r})
import hooked_training as jobs
method = torch.utils.data.DataLoader.__iter__
def train():
    model = torch.nn.Linear(64, 1)
    jobs.train(model, torch.utils.data.DataLoader(jobs.Numbers(48), 4, num_workers=1), torch.optim.SGD(model.parameters(), 0.01))
with ioprof.profile({str(tmp_path / "whole")!r}):
    train()
assert not any(type(finder).__module__.startswith('ioprof') for finder in sys.meta_path)  # torch adds finders of its own
assert torch.utils.data.DataLoader.__iter__ is method
try:
    with ioprof.profile(pathlib.Path({str(tmp_path / "failed")!r})):
        train()
        raise LookupError('mine')
except LookupError:
    train()
    print('raised')
"""  # noqa: E501
    assert "raised" == run(["-c", program], None, TMPDIR=str(tmp_path)).splitlines()[-1]
    whole, failed = (Trace.load(tmp_path / name) for name in ("whole", "failed"))
    for trace in (whole, failed):
        assert STEPS == len(of_kind(trace, "step")) == len(of_kind(trace, "fetch"))
        assert trace.run.capture.reads is False
        assert {
            "batch_size": 4,
            "workers": 1,
            "ranks": 1,
        }.items() <= trace.run.config.to_dict().items()
        assert_sums_are_exact(Run.of(trace))
    assert ("complete", "failed") == (whole.run.status, failed.run.status)
    assert [(0, "LookupError: mine")] == [
        (failure.rank, failure.what) for failure in failed.run.failures
    ]
    assert [] == list(tmp_path.glob("ioprof-*"))


def test_profile_refuses_to_overwrite(tmp_path: Path) -> None:
    """It says so before the block runs."""
    (tmp_path / "mine").touch()
    program = f"import ioprof\nwith ioprof.profile({str(tmp_path)!r}):\n    print('ran')"
    assert "ran" not in run(["-c", program], None, code=1)


def _steps() -> tuple[Any, list[tuple[int, int, int, int]]]:
    """Steps of no process, and what they emit: start, end, step, batch."""
    from ioprof.instrument.hooks.steps import Steps

    made: list[tuple[int, int, int, int]] = []
    return Steps(lambda kind, start, end, step, batch: made.append((start, end, step, batch))), made


def test_steps_by_batches_then_by_an_optimizer() -> None:
    """A process that looks at batches first and trains later has one row of steps, without a
    gap."""
    steps, made = _steps()
    for batch in range(5):
        steps.consume(10 * batch, batch)
    assert [(0, 10, 0, 0), (10, 20, 1, 1), (20, 30, 2, 2), (30, 40, 3, 3)] == made
    steps.step_optimizer(optimizer := Optimizer(), 45, 48)
    steps.consume(50, 5)
    steps.step_optimizer(Optimizer(), 54, 55)
    steps.step_optimizer(optimizer, 56, 58)
    assert [(40, 48, 4, 4), (48, 58, 5, 5)] == made[4:]


@pytest.mark.parametrize(("asked", "begins"), [(15, 0), (40, 40)])
def test_a_step_begins_with_its_batch_unless_workers_were_started_for_it(
    asked: int, begins: int
) -> None:
    """Workers that a loader starts when it is made are no part of the first step."""
    steps, made = _steps()
    steps.begin(0, 10)
    steps.consume(asked, 0)
    steps.step_optimizer(Optimizer(), 60, 70)
    assert [(begins, 70, 0, 0)] == made


def test_a_short_look_at_batches_is_counted_at_the_end() -> None:
    """Too few batches to be sure of: they become steps when the process ends, and the last ends
    with its loader."""
    steps, made = _steps()
    steps.consume(0, 0)
    steps.consume(10, 1)
    steps.end_epoch(20)
    steps.finish(99)
    assert [(0, 10, 0, 0), (10, 20, 1, 1)] == made


def test_a_loop_that_waits_ahead_has_the_batch_that_it_uses() -> None:
    """Waits for batches to be used later make no step; what is consumed when the loop is given a
    batch does."""
    steps, made = _steps()
    for given in range(5):
        steps.looks_ahead = True
        for batch in (0, 1) if given == 0 else (given + 1,) if given < 4 else ():
            steps.consume(10 * given + 1, batch)
        steps.end_epoch(10 * given + 2)
        steps.looks_ahead = False
        steps.consume(10 * given, given)
    steps.end_epoch(50)
    assert [
        (10 * given + (given == 0), 10 * given + 10, given, given) for given in range(5)
    ] == made


def test_what_came_before_the_training_is_no_step() -> None:
    """After a restart the first step begins with the next wait."""
    steps, made = _steps()
    steps.add_optimizer()
    steps.consume(0, 0)
    steps.restart()
    steps.consume(100, 1)
    steps.step_optimizer(Optimizer(), 110, 120)
    assert [(100, 120, 0, 1)] == made


def test_an_optimizer_that_is_gone_makes_room() -> None:
    """A new one counts from its first step when the old one does not exist any more."""
    steps, made = _steps()
    steps.step_optimizer(Optimizer(), 0, 1)
    kept = Optimizer()
    steps.step_optimizer(kept, 2, 3)
    assert 2 == len(made)


@pytest.mark.parametrize("are_kept", [True, False])
def test_models_that_are_trained_one_after_the_other_have_all_steps(are_kept: bool) -> None:
    """Of a sweep, or the folds of a cross-validation, whether earlier optimizers are kept or not;
    with their batches and times."""
    steps, made = _steps()
    kept, number = [], 0
    for _ in range(5):
        optimizer = Optimizer()
        kept += [optimizer] if are_kept else []
        for _ in range(45):
            steps.consume(10 * number, number)
            steps.step_optimizer(optimizer, 10 * number + 5, 10 * number + 9)
            number += 1
    steps.finish(10 * number)
    assert [(max(0, 10 * each - 1), 10 * each + 9, each, each) for each in range(number)] == made


def test_optimizers_that_step_in_turn_are_one_loop() -> None:
    """The one that was first makes the steps, however often another one steps for each; also where
    both replaced earlier ones."""
    steps, made = _steps()
    old, first, second, time = Optimizer(), Optimizer(), Optimizer(), 0
    steps.step_optimizer(old, 0, 1)
    for _ in range(40):
        for optimizer in (first, second, second, second, second, second):
            time += 10
            steps.step_optimizer(optimizer, time, time + 1)
    steps.finish(time + 10)
    assert [1, *range(11, time, 60)] == [end for _, end, _, _ in made]


class Optimizer:
    """Nothing but a thing that can be referred to."""
