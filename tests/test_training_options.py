"""Options of the built-in job on an emulated device, in whole recorded jobs: what they change is in
the report."""

import json
from importlib.resources import files

import jobs
import polars as pl
import pytest
from quiet_machine import comparing_times, on_a_quiet_machine

import ioprof
from ioprof.errors import CommandError
from ioprof.format.trace import Trace
from ioprof.report.run import Run
from ioprof.train.accelerators.exchange import Exchange
from ioprof.train.devices import emulated_device
from ioprof.train.models import MODELS

ALEXNET = (
    "run",
    "--loader",
    "null",
    "--device",
    "emulated:p100",
    "--model",
    "alexnet",
    "--batch-size",
    512,
    "--no-stacks",
)


@pytest.mark.parametrize(
    ("copy", "least", "most"), [("overlapped", 0.9, 1.0), ("pageable", 0.0, 0.01)]
)
@on_a_quiet_machine
def test_what_hiding_copies_brings_is_in_the_report(copy, least, most, tmp_path):
    """Copies on their own stream are hidden but for the first; pageable ones not at all, and are
    longer."""
    finished = jobs.ioprof(
        *ALEXNET, "--steps", 20, "--copy", copy, "--out", "run", "--json", cwd=tmp_path
    )
    assert 0 == finished.code, finished.err
    hidden = json.loads(finished.out)["overlap"]["h2d"]["hidden_ratio"]
    copies = Trace.load(tmp_path / "run").spans.filter(kind="h2d")
    device = emulated_device("emulated:p100", MODELS["alexnet"])
    rate = {"overlapped": device.h2d_bytes_per_s, "pageable": device.pageable_bytes_per_s}[copy]
    took = (copies["end_ns"] - copies["start_ns"]).unique().to_list()
    assert [pytest.approx(512 * (3 * 224 * 224 + 8) / rate * 1e9, abs=2)] == took
    with comparing_times():
        assert least <= hidden <= most, hidden
    report = jobs.report_of(tmp_path / "run")
    assert f"{copy} copies" in report
    assert "alexnet; 2,987.0 samples/s per device, published: TensorFlow benchmarks" in report


@pytest.mark.job(every=4)
def test_a_preset_makes_its_job_with_the_exchange_that_was_asked_for(tmp_path):
    """Options that are given win over the preset's; buckets take the time of their scheme on two
    emulated nodes."""
    given = (
        "--exchange",
        "hierarchical",
        "--ranks-per-node",
        1,
        "--ranks",
        2,
        "--batch-size",
        8,
        "--steps",
        6,
        "--out",
        "run",
    )
    finished = jobs.ioprof(
        "run",
        "--preset",
        "tsubame-io-resnet50",
        "--loader",
        "null",
        "--no-stacks",
        *given,
        cwd=tmp_path,
    )

    assert 0 == finished.code, finished.err
    assert (
        "learns nothing: optimizer, learning rate and label smoothing of the preset are not used"
        in finished.err
    )
    trace = Trace.load(tmp_path / "run")
    assert ("resnet50", "hierarchical", 1, 2, 8) == tuple(
        getattr(trace.run.config, name)
        for name in ("model", "exchange", "ranks_per_node", "ranks", "batch_size")
    )
    plan = Exchange(
        "hierarchical", 2, 1, emulated_device("emulated:p100", MODELS["resnet50"]).links
    )
    is_bucket = pl.col("name").cast(pl.String).str.starts_with("gradients")
    buckets = trace.spans.filter(pl.col("kind") == "comm", pl.col("step") > 1, is_bucket)
    both = buckets.group_by("step", "name").agg(
        arrived=pl.col("start_ns").max(),
        ended=pl.col("end_ns").max(),
        num_bytes=pl.col("bytes").first(),
    )
    for _, _, arrived, ended, num_bytes in both.rows():
        assert pytest.approx(plan.seconds(num_bytes) * 1e9, rel=0.05) == ended - arrived
    report = jobs.report_of(tmp_path / "run")
    assert "102 MB of gradients by hierarchical in 2 nodes" in report


@pytest.mark.job
def test_presets_are_listed_with_their_sources(tmp_path):
    """`ioprof presets` names each with its source, and its year or why there is none; in JSON all
    that it sets."""
    listed = jobs.ioprof("presets", "--json", cwd=tmp_path)
    found = {preset["name"]: preset for preset in json.loads(listed.out)}
    assert (2020, "lars", 7.4, 208) == (
        found["mlperf-v0.7-resnet50"]["year"],
        found["mlperf-v0.7-resnet50"]["recipe"]["optimizer"],
        found["mlperf-v0.7-resnet50"]["recipe"]["lr"],
        found["mlperf-v0.7-resnet50"]["job"]["batch_size"],
    )
    text = jobs.ioprof("presets", cwd=tmp_path).out
    assert all(
        word in text
        for word in ("tsubame-io-alexnet", "2019", "MLPerf training v0.6", "config_DGX1.sh")
    )
    assert (
        text.count("year unknown: ")
        == len([preset for preset in found.values() if not preset["year"]])
        == 6
    )


def study_of_ranks(folder):
    """A file of a preset, a pipeline, with a study of 1, 2 and 4 ranks."""
    preset = files("ioprof.train.presets").joinpath("rannc-mlp.toml").read_text()
    (folder / "mine.toml").write_text(f"{preset}\n[study]\nranks = [1, 2, 4]\n")
    return str(folder / "mine.toml")


@pytest.mark.job(every=4)
def test_a_study_is_made_again_by_one_command(tmp_path):
    """One run for each number of ranks; its table is what the runs say, and the parts of a step sum
    to it."""
    words = ("--values", "1,2", "--steps", 8, "--batch-size", 16, "--out", "made", "--json")
    preset = study_of_ranks(tmp_path)
    finished = jobs.ioprof("study", preset, *words, cwd=tmp_path)
    assert 0 == finished.code, finished.err
    found = json.loads(finished.out)
    assert (preset, None, "ranks", "pipeline") == (
        found["preset"],
        found["year"],
        found["varied"],
        found["parallel"],
    )
    assert {"mlp"} == {row["model"] for row in found["rows"]}
    assert [("1", 1, 16, 8, "measured"), ("2", 2, 16, 8, "measured")] == [
        (row["value"], row["ranks"], row["samples_per_step"], row["steps"], row["basis"])
        for row in found["rows"]
    ]
    for row in found["rows"]:
        run = Run.load(tmp_path / row["run"])
        parts = dict(row["iteration"])
        step_s = parts.pop("step_s")
        assert pytest.approx(step_s) == sum(parts.values())
        steady = run.steps.filter(pl.col("step") >= 2)
        assert pytest.approx(step_s) == (steady["end_ns"] - steady["start_ns"]).mean() / 1e9
        assert pytest.approx(parts["straggler_s"]) == steady["straggler_ns"].mean() / 1e9
        named = run.trace.spans.filter(
            pl.col("kind") == "compute",
            pl.col("step") >= 2,
            pl.col("name").cast(pl.String) == "optimizer",
        )
        assert (
            pytest.approx(parts["optimizer_s"])
            == (named["end_ns"] - named["start_ns"]).sum() / len(steady) / 1e9
        )
        assert (
            pytest.approx(row["speedup"])
            == row["samples_per_s"] / found["rows"][0]["samples_per_s"]
        )
    page = (tmp_path / "made" / "study.html").read_text()
    assert all(word in page for word in ("forward + backward", "bubbles", "speed-up", "RaNNC"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "tsubame-resnet50"}, "names no study"),
        ({"ranks": 2}, "--ranks: this study varies it"),
        ({"values": ["two"]}, "give numbers of ranks"),
        ({"values": [1, 32]}, "has no 32 stages"),
        ({"preset": "rannc-mlp", "values": [1]}, r"change its \[\[axes\]\]"),
    ],
)
def test_a_study_that_cannot_be_made_starts_no_job(options, message, tmp_path):
    """All runs are checked before the first."""
    options = {"preset": study_of_ranks(tmp_path), **options}
    with pytest.raises(CommandError, match=message):
        ioprof.study(**options, batch_size=64, out=tmp_path / "made")
    assert not (tmp_path / "made").exists()
