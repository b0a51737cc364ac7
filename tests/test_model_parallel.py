"""Jobs whose ranks divide the model: what they compute is the same, and what they send and wait for
is in the run."""

import json
import os
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import jobs
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS
from torch import nn

import ioprof
from ioprof.analysis.charge.blame import charges
from ioprof.analysis.ranks.exchange_rate import (
    MANY_SUMS,
    SmallSums,
    exchange_rate,
    exchanges_per_update,
    small_sums,
)
from ioprof.analysis.ranks.stragglers import arrivals
from ioprof.errors import CommandError
from ioprof.format.run_record import ConfigRecord, PartCode, RunRecord
from ioprof.format.schema import CAUSES, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.jobs.options import RunOptions
from ioprof.jobs.training_run import plan_job
from ioprof.loaders import make_loader
from ioprof.options import given_options
from ioprof.report.texts.training_statements import network_statements
from ioprof.reporter import SILENT
from ioprof.train.config import JobConfig
from ioprof.train.learner import Learner
from ioprof.train.models import MODELS, make_model
from ioprof.train.stages import divide

STEPS, BATCH = 6, 24
BOTH_RANKS = (
    'for rank in 0 1; do RANK=$rank "$@" & pids="$pids $!"; done; for pid in $pids; do wait $pid ||'
    " exit 1; done"
)


def recorded(folder: Path, what: str, ranks: int) -> "ioprof.Run":
    """A run of the built-in job with a perceptron on constant batches."""
    words = (
        "--loader",
        "null",
        "--device",
        "cpu",
        "--model",
        "mlp",
        "--ranks",
        ranks,
        "--batch-size",
        BATCH,
        "--steps",
        STEPS,
    )
    finished = jobs.ioprof(
        "run", *words, "--parallel", what, "--no-stacks", "--out", what, cwd=folder
    )
    assert 0 == finished.code, finished.err
    return ioprof.Run.load(folder / what)


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """Three stages, six microbatches."""
    return recorded(tmp_path_factory.mktemp("staged"), "pipeline", 3)


def expected_losses(num_batches: int) -> list[float]:
    """Of the first of so many constant batches of as many ranks, where one process trains on all of
    them."""
    torch.set_num_threads(1)
    config = JobConfig(
        loader="null", device="cpu", batch_size=BATCH, workers=0, steps=STEPS, model="mlp"
    )
    learner = Learner(config, 1000, torch.device("cpu"), lambda model: model, 0)
    ranks = JobConfig(
        loader="null", device="cpu", ranks=9, batch_size=BATCH, workers=0, steps=1, model="mlp"
    )
    each = [
        next(iter(make_loader("null", None, ranks.loader_options(rank))))
        for rank in range(num_batches)
    ]
    images, labels = (
        torch.cat([batch.images for batch in each]),
        torch.cat([batch.labels for batch in each]),
    )
    losses = []
    for _ in range(STEPS):
        with torch.no_grad():
            losses.append(
                float(nn.functional.cross_entropy(learner.model(each[0].images), each[0].labels))
            )
        learner.train_step(images, labels)
    return losses


@pytest.mark.system(every=3)
def test_a_pipeline_learns_what_one_process_learns(staged):
    """The means over microbatches are those over the batch: the same loss in each step, but for the
    order of additions."""
    assert pytest.approx(expected_losses(1), rel=1e-5) == list(staged.trace.run.learning.losses)


@pytest.mark.job(every=4)
def test_each_message_has_one_name_on_both_ranks(staged):
    """Activations forward and gradients back, one of each per microbatch and border, and the
    labels."""
    messages = staged.trace.spans.filter(kind="comm", step=STEPS - 1).with_columns(
        pl.col("name").cast(pl.String)
    )
    names = messages.group_by("name").agg(pl.col("rank").unique().sort(), pl.col("offset").unique())
    expected = dict.fromkeys(((0, 1), (1, 2), (1, 0), (2, 1)), 6) | {(0, 2): 1}
    found: dict[tuple[int, int], int] = {}
    for name, ranks, senders in names.iter_rows():
        source, target = map(int, name.split()[1].split(">"))
        assert ([source], sorted((source, target))) == (senders, ranks)
        found[source, target] = found.get((source, target), 0) + 1
    assert expected == found
    sizes = (
        messages.filter(pl.col("name").str.starts_with("message 0>1"))["bytes"].unique().to_list()
    )
    assert [BATCH // 6 * 512 * 4] == sizes


@pytest.mark.job(every=4)
def test_stages_wait_in_bubbles_and_the_time_is_charged_whole(staged):
    """Causes sum to the steps; a stage waits for others, by name; each sample counts once."""
    found = charges(staged.trace)
    assert found.steps.select(pl.sum_horizontal(f"{cause}_ns" for cause in CAUSES).alias("sum"))[
        "sum"
    ].to_list() == ((found.steps["end_ns"] - found.steps["start_ns"]).to_list())
    assert (found.steps.group_by("rank").agg(pl.col("compute_ns").sum())["compute_ns"] > 0).all()
    summary = staged.summary
    straggler = next(entry for entry in summary.steps.causes if entry.cause == "straggler")
    assert straggler.seconds > 0
    assert all(
        part.name.startswith("bubble, rank ") and "straggler" not in part.name
        for part in straggler.details
    )
    assert ("pipeline", 3, 6) == (
        summary.run.parallel,
        summary.run.stages,
        summary.run.microbatches,
    )
    wall_s = (found.steps["end_ns"].max() - found.steps["start_ns"].min()) / 1e9
    assert pytest.approx(STEPS * BATCH / wall_s) == summary.throughput.samples_per_s
    report = jobs.report_of(staged.folder)
    assert "3 stages, 6 microbatches: bubbles take " in report
    assert "(25.0% with stages of the same time: (p-1)/(m+p-1))" in report


@pytest.mark.system(every=3)
def test_sharded_parameters_learn_what_one_process_learns(tmp_path):
    """Gradients are means over the ranks; gathering and reducing them are spans of the step, and no
    part of its computation."""
    run = recorded(tmp_path, "fsdp", 2)
    assert pytest.approx(expected_losses(2), rel=1e-4) == list(run.trace.run.learning.losses)
    spans = run.trace.spans.filter(pl.col("rank") == 0, pl.col("step") == STEPS - 1).with_columns(
        pl.col("name").cast(pl.String)
    )
    collectives = spans.filter(kind="comm")
    # all_gather..., reduce_scatter...
    assert {"all", "reduce"} == {name.partition("_")[0] for name in collectives["name"]}
    computed = spans.filter(kind="compute")
    both = collectives.join(computed, how="cross", suffix="_computed")
    assert both.filter(
        pl.col("start_ns") < pl.col("end_ns_computed"),
        pl.col("end_ns") > pl.col("start_ns_computed"),
    ).is_empty()


# -------------------------------------------------------------------------------- scripts of others


def foreign(folder: Path, what: str, *before: object) -> list[dict]:
    """What both ranks of the program printed."""
    folder.mkdir(exist_ok=True)
    line = [
        "bash",
        "-c",
        BOTH_RANKS,
        "ranks",
        sys.executable,
        PROGRAMS / "train_divided.py",
        what,
        folder / "store",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, [*before, *line])),
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        cwd=folder,
    )
    assert 0 == done.returncode, done.stderr
    return sorted(
        (json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")),
        key=lambda each: each["rank"],
    )


def record(folder: Path) -> tuple[object, ...]:
    return sys.executable, "-m", "ioprof", "record", "--quiet", "--no-stacks", "--out", folder, "--"


@pytest.mark.system(every=3)
@on_a_quiet_machine
def test_a_stage_of_a_foreign_script_waits_for_the_slow_one_before_it(tmp_path):
    """The bubble is as long as the program's own stopwatch says, and its cause is what the first
    stage computed meanwhile."""
    printed = foreign(tmp_path / "a", "pipeline", *record(tmp_path / "run"))
    assert printed[1]["losses"] == foreign(tmp_path / "b", "pipeline")[1]["losses"]
    trace = ioprof.load(tmp_path / "run").trace
    assert ("pipeline", 2, 4) == (
        trace.run.config.parallel,
        trace.run.config.stages,
        trace.run.config.microbatches,
    )
    found = charges(trace)
    steps = found.steps.filter(pl.col("rank") == 1).sort("step")["straggler_ns"].to_list()[2:]
    waited = printed[1]["waits"][2:]
    with comparing_times():
        # backward passes wait a little, too
        assert 0.8 * sum(waited) <= sum(steps) <= 1.3 * sum(waited), (
            steps,
            waited,
        )
        largest, *_ = found.details.of_cause("straggler", sum(steps), trace)
        assert (PartCode.BUBBLE, "rank 0: compute") == largest[0]


@pytest.mark.system(every=3)
@on_a_quiet_machine
def test_a_slow_rank_with_sharded_parameters_is_named(tmp_path):
    """What it computed while the other waited to gather or to reduce."""
    foreign(tmp_path / "a", "fsdp", *record(tmp_path / "run"))
    trace = ioprof.load(tmp_path / "run").trace
    assert "fsdp" == trace.run.config.parallel
    found = charges(trace)
    waits = found.straggler_wait_ns[1]
    with comparing_times():
        assert "compute" == max(waits, key=waits.__getitem__)
        assert waits["compute"] >= 0.7 * 8 * 0.03e9
        assert sum(found.straggler_wait_ns.get(0, {}).values()) < 0.5 * sum(waits.values())


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel": "tensor"}, "--parallel tensor: unknown"),
        ({"microbatches": 4}, "only a pipeline has them"),
        ({"parallel": "pipeline", "device": "emulated:p100"}, "runs on --device cpu alone"),
        ({"parallel": "fsdp", "device": "emulated:p100"}, "runs on --device cpu alone"),
        ({"parallel": "pipeline", "model": "transformer"}, "it is no row of layers"),
        (
            {"parallel": "pipeline", "ranks": 11, "batch_size": 22},
            "it can be divided into 10 stages",
        ),
        ({"parallel": "pipeline", "microbatches": 3}, "does not divide a batch of 64"),
        ({"parallel": "pipeline", "microbatches": 1}, "fewer than the 2 stages"),
        (
            {"parallel": "pipeline", "checkpoints": Path("kept")},
            "--checkpoints kept: not with --parallel pipeline",
        ),
    ],
)
def test_what_does_not_combine_is_refused_before_the_job(options, message, tmp_path):
    """Nothing is started, and nothing is ignored."""
    usual = {
        "loader": "null",
        "device": "cpu",
        "model": "mlp",
        "ranks": 2,
        "steps": 2,
        "out": tmp_path / "run",
    }
    with pytest.raises(CommandError, match=message):
        plan_job(given_options(RunOptions, {**usual, **options}), {}, SILENT)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.data())
def test_no_division_has_a_smaller_largest_part(costs, data):
    """Of all divisions in as many parts."""
    parts = data.draw(st.integers(1, len(costs)))
    bounds = divide(costs, parts)
    assert (0, len(costs), parts + 1) == (bounds[0], bounds[-1], len(bounds))
    largest = max(sum(costs[a:b]) for a, b in pairwise(bounds))
    others = ([0, *cuts, len(costs)] for cuts in combinations(range(1, len(costs)), parts - 1))
    assert largest == min(max(sum(costs[a:b]) for a, b in pairwise(other)) for other in others)


@pytest.mark.parametrize("name", [name for name, facts in MODELS.items() if facts.most_stages])
def test_a_model_has_as_many_stages_as_its_facts_say(name):
    """One for each layer in the row that has parameters."""
    with torch.device("meta"):
        model = make_model(name, 1000)
    assert MODELS[name].most_stages == sum(any(True for _ in layer.parameters()) for layer in model)


def test_a_sender_waits_only_where_it_waits_for_the_receiver():
    """It hands the message over and goes on; the receiver has waited since its call."""
    times = {"rank": [0, 0, 1], "start_ns": [10, 30, 4], "end_ns": [11, 31, 14]}
    spans = pl.DataFrame(times).with_columns(
        kind=pl.lit("comm"), step=0, offset=0, name=pl.lit("message 0>1")
    )
    found = (
        arrivals(Trace(RunRecord(), whole(spans)))
        .sort("rank")
        .select("own_ns", "complete_ns", "late_rank", "is_message")
    )
    assert [(30, 30, 0, True), (4, 10, 0, True)] == found.rows()


def test_the_rate_of_an_exchange_that_waits_for_gradients_is_a_bound():
    """DistributedDataParallel on the CPU has one span for all buckets: the transfer took at most
    that, and at least its end."""
    times = {
        "rank": [0, 1, 0, 1, 0],
        "start_ns": [20, 30, 0, 0, 90],
        "end_ns": [90, 90, 70, 60, 95],
    }
    kinds = {"kind": ["comm"] * 2 + ["compute"] * 3, "name": ["gradients"] * 2 + ["backward"] * 3}
    spans = pl.DataFrame({**times, **kinds}).with_columns(step=0)
    config = ConfigRecord(ranks=2, gradient_bytes=1000)
    found = exchange_rate(Trace(RunRecord(config=config), whole(spans)))
    assert (found.seconds, found.alone_s) == (pytest.approx(60e-9), pytest.approx(20e-9))
    assert pytest.approx(1000 / 60e-9) == found.bytes_per_s
    (said,) = network_statements(RunRecord(config=config), found)
    assert (
        "in 60.0 ns of a median step, 20.0 ns of it after all gradients were computed: at least"
        " 16.7 GB/s of bus bandwidth (2L(p-1)/p / t)" in said.text
    )


@pytest.mark.parametrize(
    ("number", "size", "is_told"),
    [(MANY_SUMS, 1000, True), (MANY_SUMS - 1, 1000, False), (60, 2**21, False)],
)
def test_many_small_sums_in_a_step_are_told(number, size, is_told):
    """As of a loop over parameters; neither few nor large ones, nor those of a library."""
    names = [f"all_reduce {place}" if place else "all_reduce" for place in range(number)]
    steps = [
        pl.DataFrame({"name": [*names, "gradients"]}).with_columns(step=step, rank=rank)
        for step in range(3)
        for rank in range(2)
    ]
    spans = pl.concat(steps).with_columns(kind=pl.lit("comm"), bytes=size, start_ns=0, end_ns=1)
    assert (SmallSums(number, size) if is_told else None) == small_sums(
        Trace(RunRecord(), whole(spans))
    )


@pytest.mark.parametrize(
    ("passes", "times"),
    [
        ("bgbgbgbgo", 4),
        ("bgoo", 1),  # an optimizer's step in two spans
        ("bgobgo", 1),  # of two models
        ("bbbbgo", 1),  # all but the last without an exchange
        ("bo", 0),
    ],
)
def test_exchanges_are_counted_for_each_step_of_an_optimizer(passes, times):
    """Not for each step of the loop, which may have several optimizers."""
    kinds = {
        "b": ("compute", "backward"),
        "g": ("comm", "gradients"),
        "o": ("compute", "optimizer"),
    }
    rows = [
        {"kind": kinds[each][0], "name": kinds[each][1], "step": step, "rank": rank}
        | {"start_ns": 100 * step + place, "end_ns": 100 * step + place + 1}
        for rank in range(2)
        for step in range(3)
        for place, each in enumerate(passes)
    ]
    assert times == exchanges_per_update(Trace(RunRecord(), whole(pl.DataFrame(rows))))


def whole(spans: pl.DataFrame) -> pl.DataFrame:
    """Spans with all columns."""
    types = table_schema(SPAN_COLUMNS).items()
    return spans.select(
        (pl.col(name) if name in spans.columns else pl.lit(None)).cast(of).alias(name)
        for name, of in types
    )
