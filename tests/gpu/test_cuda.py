"""Tests that need a CUDA device: `make test-gpu`."""

import json

import jobs
import polars as pl
import pytest

from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.run_record import DeviceRecord
from ioprof.schema import CAUSES
from ioprof.trace import Trace

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """300 synthetic photographs as 256-pixel raw RGB in LMDB: quick to load."""
    folder = tmp_path_factory.mktemp("gpu")
    generate(folder / "tree", GenerateOptions(images=300, classes=10))
    options = ConvertOptions(layout="lmdb", image="rgb256", encoding="raw")
    convert(folder / "tree", folder / "data", options)
    return folder / "data"


def test_a_step_on_the_gpu_adds_up_and_its_events_lie_where_the_host_saw_them(dataset, tmp_path):
    """Causes sum exactly; copies and compute are measured, in order, and inside the time in which the host waited for them."""
    arguments = ("--device", "cuda", "--steps", 20, "--batch-size", 32, "--out", "run", "--json")
    finished = jobs.ioprof("run", dataset, *arguments, cwd=tmp_path)

    assert 0 == finished.code, finished.err
    assert "emulated" not in finished.out
    steps = pl.read_parquet(tmp_path / "run" / "steps.parquet")
    total = steps.select(pl.sum_horizontal(f"{cause}_ns" for cause in CAUSES)).to_series()
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == total.to_list()
    trace = Trace.load(tmp_path / "run")
    assert DeviceRecord(name="cuda", basis="measured", model="resnet50") == trace.run.device
    spans = trace.spans
    copies = {row["step"]: row for row in spans.filter(kind="h2d").to_dicts()}
    computes = {row["step"]: row for row in spans.filter(kind="compute").to_dicts()}
    assert set(range(20)) == set(copies) == set(computes)
    slack_ns = 100_000
    assert all(copies[step]["end_ns"] <= computes[step]["end_ns"] for step in range(20))
    assert all(computes[step]["end_ns"] <= computes[step + 1]["start_ns"] + slack_ns for step in range(19))
    last_step_end = spans.filter(kind="step")["end_ns"].max()
    assert computes[19]["end_ns"] <= last_step_end + slack_ns


def test_pinned_copies_run_beside_the_step_before(tmp_path):
    """Double-buffered page-locked copies on their own stream are hidden behind compute, for the most part."""
    arguments = ("--loader", "null", "--device", "cuda", "--steps", 40, "--batch-size", 128, "--out", "run", "--json")
    finished = jobs.ioprof("run", *arguments, cwd=tmp_path)

    overlap = json.loads(finished.out)["overlap"]["h2d"]
    assert overlap["hidden_ratio"] > 0.5, overlap


@pytest.mark.parametrize(("copy", "least", "most"), [("overlapped", 0.5, 1.0), ("pinned", 0.0, 0.05), ("pageable", 0.0, 0.05)])
def test_each_way_of_copying_hides_what_it_can(copy, least, most, tmp_path):
    """Only copies on a stream of their own run while the device computes; the loss is a number in each step."""
    arguments = (
        "--loader",
        "null",
        "--device",
        "cuda",
        "--steps",
        30,
        "--batch-size",
        128,
        "--copy",
        copy,
        "--out",
        "run",
        "--json",
    )
    finished = jobs.ioprof("run", *arguments, cwd=tmp_path)

    assert 0 == finished.code, finished.err
    assert least <= json.loads(finished.out)["overlap"]["h2d"]["hidden_ratio"] <= most
    assert 30 == len(Trace.load(tmp_path / "run").run.learning.losses)


@pytest.mark.parametrize("model", ["alexnet", "vgg16", "inception3", "transformer", "mlp", "small_cnn"])
def test_every_model_trains_on_the_gpu(model, tmp_path):
    """With copies, autocast and channels-last as by default."""
    arguments = ("--loader", "null", "--device", "cuda", "--model", model, "--steps", 4, "--batch-size", 8, "--out", "run")
    finished = jobs.ioprof("run", *arguments, cwd=tmp_path)

    assert 0 == finished.code, finished.err
    assert model == Trace.load(tmp_path / "run").run.device.model


def test_a_job_on_the_gpu_evaluates_and_goes_on_from_a_checkpoint(dataset, tmp_path):
    """Accuracy and checkpoints as on a CPU; the second command does the rest of the steps."""
    own = ("--device", "cuda", "--model", "small_cnn", "--batch-size", 50, "--checkpoints", "kept", "--eval-data", dataset)
    first = jobs.ioprof("run", dataset, *own, "--steps", 6, "--out", "first", cwd=tmp_path)
    second = jobs.ioprof("run", dataset, *own, "--steps", 12, "--resume", "--out", "second", cwd=tmp_path)

    assert (0, 0) == (first.code, second.code), first.err + second.err
    learning = Trace.load(tmp_path / "second").run.learning
    assert (6, 6) == (learning.first_step, len(learning.losses))
    assert 300 == learning.evaluations[-1].samples


def test_more_ranks_than_gpus_are_refused_before_the_job(tmp_path):
    """Each rank has its own GPU: two ranks on one GPU would affect the measurements of each other."""
    found = torch.cuda.device_count()
    arguments = ("--loader", "null", "--device", "cuda", "--ranks", found + 1, "--steps", 2, "--out", "run")
    finished = jobs.ioprof("run", *arguments, cwd=tmp_path)

    assert (2, True) == (finished.code, f"use --ranks {found}" in finished.err), finished.err
    assert not (tmp_path / "run").exists()
