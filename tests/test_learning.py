"""The built-in job learns: accuracy, evaluation, checkpoints, and weights that do not depend on
kills or on being recorded."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jobs
import polars as pl
import pytest
import torch
from coloured_images import COLOURS, make_coloured_dataset
from repository import ROOT

from ioprof.errors import CommandError
from ioprof.format.trace import Trace
from ioprof.jobs.options import RunOptions
from ioprof.jobs.training_run import plan_job
from ioprof.options import given_options
from ioprof.reporter import SILENT
from ioprof.train.config import JobConfig
from ioprof.train.curve import curve_path
from ioprof.train.devices import device_names
from ioprof.train.learner import Learner

PROGRAM = ROOT / "tests" / "programs" / "resume_killed.py"


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coloured")
    make_coloured_dataset(folder / "train", 30)
    make_coloured_dataset(folder / "test", 10, seed=1)
    return folder


@pytest.fixture(scope="module")
def learned(coloured, tmp_path_factory):
    """The run of a small network on four colours, in two ranks."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "mine.toml").write_text(
        '[job]\nmodel = "small_cnn"\ndevice = "cpu"\n[recipe]\nlr = 0.05\nmomentum = 0.9\n'
    )
    arguments = (
        "--preset",
        "mine.toml",
        "--ranks",
        2,
        "--batch-size",
        10,
        "--epochs",
        10,
        "--workers",
        1,
        "--no-stacks",
        "--out",
        "run",
    )
    evaluation = (
        "--eval-data",
        coloured / "test",
        "--eval-every",
        "5epochs",
        "--checkpoints",
        "kept",
    )
    finished = jobs.ioprof("run", coloured / "train", *arguments, *evaluation, cwd=folder)
    assert 0 == finished.code, finished.err
    return folder, finished


@pytest.mark.job(every=4)
def test_a_small_network_learns_four_colours_in_two_ranks(learned):
    """What separates the classes is found: at least 95 % of images that it has not seen are
    right."""
    folder, _ = learned
    learning = Trace.load(folder / "run").run.learning
    assert [(30, 5.0, 40), (60, 10.0, 40)] == [
        (each.step, each.epoch, each.samples) for each in learning.evaluations
    ]
    assert learning.evaluations[-1].accuracy >= 0.95
    assert learning.losses[-1] < 0.5 * learning.losses[0]
    assert 60 == len(learning.losses)
    assert "accuracy after epoch 10" in jobs.report_of(folder / "run")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    points = [(each["step"], each["accuracy"]) for each in summary["evaluations"]]
    assert [(each.step, each.accuracy) for each in learning.evaluations] == points
    assert "Accuracy of each evaluation" in (folder / "run" / "report.html").read_text()


@pytest.mark.job(every=4)
def test_evaluations_and_checkpoints_are_spans_of_their_kinds(learned):
    """Both are charged to causes of their own, and belong to the step after which they were;
    nothing else does."""
    folder, _ = learned
    trace = Trace.load(folder / "run")
    for kind, count in (("validate", 2), ("checkpoint", 10)):
        spans = trace.spans.filter(kind=kind)
        assert [(rank, count) for rank in range(2)] == spans.group_by("rank").len().sort(
            "rank"
        ).rows(), kind
    steps = pl.read_parquet(folder / "run" / "steps.parquet")
    with_validation = steps.filter(pl.col("validation_ns") > 1_000_000)
    assert {29, 59} == set(with_validation["step"].to_list())
    assert {*range(5, 60, 6)} == set(steps.filter(pl.col("checkpoint_ns") > 0)["step"].to_list())
    assert ["step-54", "step-60"] == sorted(path.name for path in (folder / "kept").glob("step-*"))


@pytest.mark.job
def test_batches_of_an_evaluation_are_no_batches_of_the_training(learned):
    """Each step belongs to a batch of its own; what the workers made for an evaluation belongs to
    none."""
    folder, _ = learned
    steps = Trace.load(folder / "run").spans.filter(kind="step", rank=0)
    assert 60 == steps["batch"].n_unique()


@pytest.mark.job(every=4)
def test_a_job_that_was_not_recorded_has_the_same_losses(learned, coloured, tmp_path):
    """Recording observes only: without it every loss of 12 steps is the same, bit for bit."""
    config = JobConfig(
        loader="files",
        device="cpu",
        ranks=2,
        batch_size=10,
        workers=1,
        steps=12,
        spool=tmp_path,
        dataset=coloured / "train",
        model="small_cnn",
        steps_per_epoch=6,
    )
    config.save(tmp_path / "config.json")
    job = [
        sys.executable,
        "-m",
        "ioprof.train.job",
        str(tmp_path / "config.json"),
        str(os.getpid()),
    ]
    variables = [
        {"OMP_NUM_THREADS": "1", **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(2)
    ]
    ranks = [subprocess.Popen(job, env=environment) for environment in variables]
    assert [0, 0] == [rank.wait(timeout=120) for rank in ranks]
    arguments = (
        "--device",
        "cpu",
        "--ranks",
        2,
        "--batch-size",
        10,
        "--steps",
        12,
        "--workers",
        1,
        "--out",
        "run",
    )
    finished = jobs.ioprof("run", coloured / "train", *arguments, cwd=tmp_path)

    assert 0 == finished.code, finished.err
    assert (
        tuple(json.loads(curve_path(tmp_path).read_text())["losses"])
        == Trace.load(tmp_path / "run").run.learning.losses
    )


@pytest.mark.job(every=4)
def test_a_job_that_was_killed_ends_with_the_same_weights(coloured, tmp_path):
    """Killed twice at random instants and resumed, two ranks have the weights, momenta and random
    states of an undisturbed job."""
    arguments = map(str, (PROGRAM, coloured / "train", tmp_path, 2, 0, 2, 15))
    finished = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=280, check=False
    )

    assert (0, True) == (finished.returncode, "the same bit for bit: True" in finished.stdout), (
        finished.stdout + finished.stderr
    )


@pytest.mark.job
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": True, "steps": 60}, "has done its 60 steps"),
        ({"resume": True, "steps": 99, "seed": 1}, "of another job: seed was 0, and is 1"),
        ({"steps": 99}, "has checkpoints of a job; add --resume"),
        (
            {"steps": 99, "checkpoints": None, "eval_every": "2"},
            "give the dataset to evaluate on, with --eval-data DATASET",
        ),
        (
            {"steps": 99, "checkpoints": None, "checkpoint_every": "often"},
            "give a number of steps, such as 100, or of epochs",
        ),
    ],
)
def test_what_cannot_go_on_is_refused_before_the_job(learned, coloured, options, message, tmp_path):
    """Checkpoints of another job, or of one that is done, and options that miss another."""
    folder, _ = learned
    own = RunOptions(
        dataset=coloured / "train",
        preset=str(folder / "mine.toml"),
        ranks=2,
        batch_size=10,
        checkpoints=folder / "kept",
        out=tmp_path / "second",
    )
    with pytest.raises(CommandError, match=message):
        plan_job(replace(own, **options), {}, SILENT)


@pytest.fixture
def one_thread():
    """Threads of torch that share few cores with others wait for each other for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["mlp", "transformer", "small_cnn"])
def test_a_model_trains_and_is_restored(name, one_thread, tmp_path):
    """A step changes its weights; what a checkpoint has of it makes the next step the same as it
    would have been."""
    config = JobConfig(
        loader="null", device="cpu", batch_size=2, workers=0, steps=4, spool=tmp_path, model=name
    )
    samples = torch.randint(0, 256, (2, *config.model_facts.sample_shape), dtype=torch.uint8)
    labels = torch.tensor([0, 1])

    def learner() -> Learner:
        return Learner(config, len(COLOURS), torch.device("cpu"), lambda model: model, 0)

    first = learner()
    first.train_step(samples, labels)
    torch.save(first.state(0), tmp_path / "state")
    expected = float(first.train_step(samples, labels)), first.evaluate(samples, labels)
    second = learner()
    second.restore(torch.load(tmp_path / "state", weights_only=False), 0)
    assert expected == (float(second.train_step(samples, labels)), second.evaluate(samples, labels))


def test_bfloat16_and_channels_last_change_how_it_computes(tmp_path):
    """Both options act on a CPU: one changes the loss a little, the other the memory order of the
    weights."""
    plain = JobConfig(
        loader="null",
        device="cpu",
        batch_size=4,
        workers=0,
        steps=1,
        spool=tmp_path,
        model="small_cnn",
    )
    samples, labels = torch.full((4, 3, 224, 224), 77, dtype=torch.uint8), torch.arange(4)
    losses, formats = [], []
    for options in ({}, {"bf16": True}, {"channels_last": True}):
        learner = Learner(
            JobConfig(**{**vars(plain), **options}), 4, torch.device("cpu"), lambda model: model, 0
        )
        losses.append(float(learner.train_step(samples, labels)))
        formats.append(learner.model[1].weight.is_contiguous(memory_format=torch.channels_last))
    assert [False, False, True] == formats
    assert losses[0] != losses[1]
    assert pytest.approx(losses[0], rel=0.05) == losses[1]
    assert pytest.approx(losses[0], rel=1e-4) == losses[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "emulated:p100", "bf16": True}, "--bf16: emulated:p100 computes nothing"),
        ({"device": "cpu", "copy": "pinned"}, "--device cpu copies nothing"),
        ({"device": "cpu", "exchange": "ring"}, "--exchange: only an emulated device has a choice"),
        ({"copy": "fast"}, "--copy fast: unknown; choose one of overlapped, pinned, pageable"),
        ({"resume": True}, "--resume: give the folder of the checkpoints"),
        ({"model": "vgg"}, "--model vgg: unknown"),
        (
            {"preset": "mlperf-v0.7-resnet50", "device": "cpu", "ranks": 1},
            "its learning rate depends on epochs",
        ),
    ],
)
def test_an_option_without_effect_is_refused(options, message, tmp_path):
    """No option of `run` is ignored."""
    with pytest.raises(CommandError, match=message):
        plan_job(
            given_options(
                RunOptions, {"loader": "null", "steps": 2, "out": tmp_path / "run", **options}
            ),
            {},
            SILENT,
        )


def test_tokens_come_from_the_null_loader_alone(coloured, tmp_path):
    """A dataset of images has none."""
    with pytest.raises(
        CommandError, match="takes tokens, which only --loader null makes; this is files"
    ):
        plan_job(
            RunOptions(
                dataset=coloured / "train", model="transformer", steps=2, out=tmp_path / "run"
            ),
            {},
            SILENT,
        )


@pytest.mark.job(every=4)
def test_an_emulated_device_reads_for_evaluations_and_writes_checkpoints(coloured, tmp_path):
    """It learns nothing and says so; the images are read, and the checkpoint has the model's
    weights and momenta in bytes."""
    device = f"emulated:{device_names()[0]}"
    arguments = (
        "--device",
        device,
        "--model",
        "mlp",
        "--batch-size",
        60,
        "--workers",
        0,
        "--out",
        "run",
        "--checkpoints",
        "kept",
        "--json",
    )
    finished = jobs.ioprof(
        "run", coloured / "train", *arguments, "--eval-data", coloured / "test", cwd=tmp_path
    )

    assert 0 == finished.code, finished.err
    learning = Trace.load(tmp_path / "run").run.learning
    assert [(2, 40, None)] == [
        (each.step, each.samples, each.accuracy) for each in learning.evaluations
    ]
    size = sum(
        path.stat().st_size
        for path in Path(tmp_path / "kept" / "step-2").rglob("*")
        if path.is_file()
    )
    assert pytest.approx(2 * 4 * 4_187_624, rel=0.01) == size
    causes = {
        entry["cause"]: entry["seconds"] for entry in json.loads(finished.out)["steps"]["causes"]
    }
    assert causes["validation"] > 0
    assert causes["checkpoint"] > 0
