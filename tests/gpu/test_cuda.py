"""Tests that need a CUDA device: `make test-gpu`."""

import json
import sys
from pathlib import Path

import jobs
import polars as pl
import pytest

from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.format.run_record import DeviceRecord
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace
from ioprof.instrument.gpu import WINDOW_SPAN
from ioprof.report.run import Run

torch = pytest.importorskip("torch")
PROGRAMS = Path(__file__).parents[1] / "programs"
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
    """Causes sum exactly; copies and compute are measured, in order, and inside the time in which
    the host waited for them."""
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
    assert all(
        computes[step]["end_ns"] <= computes[step + 1]["start_ns"] + slack_ns for step in range(19)
    )
    last_step_end = spans.filter(kind="step")["end_ns"].max()
    assert computes[19]["end_ns"] <= last_step_end + slack_ns


def test_pinned_copies_run_beside_the_step_before(tmp_path):
    """Double-buffered page-locked copies on their own stream are hidden behind compute, for the
    most part."""
    arguments = (
        "--loader",
        "null",
        "--device",
        "cuda",
        "--steps",
        40,
        "--batch-size",
        128,
        "--out",
        "run",
        "--json",
    )
    finished = jobs.ioprof("run", *arguments, cwd=tmp_path)

    overlap = json.loads(finished.out)["overlap"]["h2d"]
    assert overlap["hidden_ratio"] > 0.5, overlap


@pytest.mark.parametrize(
    ("copy", "least", "most"),
    [("overlapped", 0.5, 1.0), ("pinned", 0.0, 0.05), ("pageable", 0.0, 0.05)],
)
def test_each_way_of_copying_hides_what_it_can(copy, least, most, measured, tmp_path):
    """Only copies on a stream of their own run while the device computes; the loss is a number in
    each step."""
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
    )
    finished = jobs.ioprof("run", *arguments, "--out", "run", "--json", cwd=tmp_path)

    assert 0 == finished.code, finished.err
    hidden = json.loads(finished.out)["overlap"]["h2d"]["hidden_ratio"]
    copies = Trace.load(tmp_path / "run").spans.filter(kind="h2d")
    per_s = copies["bytes"].sum() / (copies["end_ns"] - copies["start_ns"]).sum()
    measured(f"copies, {copy}: {per_s:.2f} GB/s, {hidden:.1%} hidden")
    assert least <= hidden <= most
    assert 30 == len(Trace.load(tmp_path / "run").run.learning.losses)


def test_gpu_windows_lose_no_step_and_their_time_is_recorded(measured, tmp_path):
    """Of the same job without and within windows: how long a step takes, and for how long windows
    blocked it."""
    for windows in ("off", "all"):
        words = (
            "--quiet",
            "--no-stacks",
            "--gpu-window",
            windows,
            "--out",
            windows,
            "--",
            sys.executable,
        )
        finished = jobs.ioprof(
            "record", *words, PROGRAMS / "train_on_device.py", "cuda", 400, cwd=tmp_path
        )
        assert 0 == finished.code, finished.err
        run = Run.load(tmp_path / windows)
        assert 400 == run.summary.steps.count
        blocked = run.trace.spans.filter(kind="user", name=WINDOW_SPAN)
        assert (
            ("all" == windows)
            == (len(run.trace.spans.filter(kind="kernel")) > 0)
            == (len(blocked) > 0)
        )
        blocked_ms = (blocked["end_ns"] - blocked["start_ns"]).sum() / 1e6
        measured(
            f"GPU windows {windows}: step {run.summary.steps.p50_s * 1e3:.3f} ms, median; blocked"
            f" for {blocked_ms:.1f} ms in all"
        )


@pytest.mark.parametrize(
    "model", ["alexnet", "vgg16", "inception3", "transformer", "mlp", "small_cnn"]
)
def test_every_model_trains_on_the_gpu(model, tmp_path):
    """With copies, autocast and channels-last as by default."""
    arguments = (
        "--loader",
        "null",
        "--device",
        "cuda",
        "--model",
        model,
        "--steps",
        4,
        "--batch-size",
        8,
        "--out",
        "run",
    )
    finished = jobs.ioprof("run", *arguments, cwd=tmp_path)

    assert 0 == finished.code, finished.err
    assert model == Trace.load(tmp_path / "run").run.device.model


def test_a_job_on_the_gpu_evaluates_and_goes_on_from_a_checkpoint(dataset, tmp_path):
    """Accuracy and checkpoints as on a CPU; the second command does the rest of the steps."""
    own = (
        "--device",
        "cuda",
        "--model",
        "small_cnn",
        "--batch-size",
        50,
        "--checkpoints",
        "kept",
        "--eval-data",
        dataset,
    )
    first = jobs.ioprof("run", dataset, *own, "--steps", 6, "--out", "first", cwd=tmp_path)
    second = jobs.ioprof(
        "run", dataset, *own, "--steps", 12, "--resume", "--out", "second", cwd=tmp_path
    )

    assert (0, 0) == (first.code, second.code), first.err + second.err
    learning = Trace.load(tmp_path / "second").run.learning
    assert (6, 6) == (learning.first_step, len(learning.losses))
    assert 300 == learning.evaluations[-1].samples


def test_more_ranks_than_gpus_are_refused_before_the_job(tmp_path):
    """Each rank has its own GPU: two ranks on one GPU would affect the measurements of each
    other."""
    found = torch.cuda.device_count()
    arguments = (
        "--loader",
        "null",
        "--device",
        "cuda",
        "--ranks",
        found + 1,
        "--steps",
        2,
        "--out",
        "run",
    )
    finished = jobs.ioprof("run", *arguments, cwd=tmp_path)

    assert (2, True) == (finished.code, f"use --ranks {found}" in finished.err), finished.err
    assert not (tmp_path / "run").exists()
