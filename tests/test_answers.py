"""What the answer of a report says first: culprit, part of the job, doubts, and advice in the words
of the tool at hand."""

import re

import polars as pl
import pytest
from hypothesis import given, settings
from strategies import examples, traces
from test_code_lines import with_stacks
from timeline import details, timeline
from told import summarise

from ioprof.analysis.charge.blame import charges
from ioprof.format.run_record import Doubt, JobKind, RunRecord
from ioprof.format.trace import Trace
from ioprof.report.texts.statements import statements

CPU = {"config": {"device": "cpu", "workers": 1, "batch_size": 4, "loader": "torch DataLoader"}}


def slower(trace: Trace) -> Trace:
    """A drawing in which one character is a second."""
    scale = 100_000_000
    stacks = trace.stacks.with_columns(pl.col("time_ns") * scale)
    return Trace(
        trace.run,
        trace.spans.with_columns(pl.col("start_ns", "end_ns") * scale),
        trace.files,
        trace.counters,
        stacks,
    )


# ----------------------------------------------------------------------------------------- culprits


def test_python_in_the_loop_is_named_by_file_and_line() -> None:
    """In the sentence and in the advice; then the verdict is sure."""
    trace = timeline("step 0000000000\ncompute main ........00\nwait 0.........\nfetch w0 0", **CPU)
    samples = [(tick, 0, 100, "/job/train.py:7:main") for tick in range(1, 8)]
    found = summarise(slower(with_stacks(trace, samples))).verdict
    assert "host" == found.bound_by
    assert "70.0% at /job/train.py:7 in main" in found.text
    assert found.findings[0].action.startswith("Do less at /job/train.py:7 in main")
    assert () == found.doubts


def test_a_line_that_waits_for_another_process_is_no_work_of_the_rank() -> None:
    """It receives from an environment in a process of its own: the advice is not to do less
    there."""
    trace = timeline("step 0000000000\ncompute main ........00", config={"device": "cpu"})
    stack = "/job/train.py:18:Env.step\n/usr/lib/python3.12/multiprocessing/connection.py:395:Connection._recv"  # noqa: E501
    found = summarise(
        slower(with_stacks(trace, [(tick, 0, 100, stack) for tick in range(8)]))
    ).verdict
    assert "host" == found.bound_by
    assert "waiting for other threads or processes, which were not followed" in found.text
    assert "at /job/train.py:18 in Env.step" in found.text
    assert found.findings[0].action.startswith(
        "Make what /job/train.py:18 in Env.step waits for faster"
    )
    assert "Do less" not in found.findings[0].action


def test_a_worker_that_has_not_begun_is_starting() -> None:
    """From the wait for its first batch to its fetch; later it is what it does."""
    drawing = """
        step            000000001111
        wait name=start #...........
        wait            .00000..1111
        fetch w0        ....00..11..
        compute         ......00....
    """
    trace = timeline(drawing, **CPU)
    assert [("start of workers", 40)] == details(trace, "loader")["loader"][:1]
    actions = [entry.action for entry in summarise(trace).verdict.findings]
    assert any(action.startswith("Start the workers in less time") for action in actions)


def test_a_sampler_that_prepares_an_epoch_is_no_start_of_workers() -> None:
    """Workers that are kept are told of the epoch, and the sampler orders its samples meanwhile:
    its own line is named."""
    drawing = """
        step            00000000001111
        wait name=start ########......
        sampler         .#######......
        wait            ........00..11
        fetch w0        ........00..11
        compute main    ..........00..
    """
    facts = {"config": {**CPU["config"], "persistent_workers": True}}
    samples = [(tick, 0, 100, "/job/train.py:7:Buckets.__iter__") for tick in range(1, 8)]
    idle = [(tick, 0, 101, "/job/train.py:9:main") for tick in range(8)]
    trace = slower(with_stacks(timeline(drawing, **facts), [*samples, *idle]))
    found = summarise(trace).verdict
    assert [("sampler", 70), ("start of workers", 10)] == [
        (name, ns // 10**8) for name, ns in details(trace, "loader")["loader"]
    ]
    assert "on sampler (/job/train.py:7 in Buckets.__iter__)" in found.text
    assert "in the sampler at /job/train.py:7 in Buckets.__iter__" in found.findings[0].action


def test_workers_that_are_kept_already_are_not_to_be_kept() -> None:
    """No advice to set what is set."""
    drawing = """
        step            000000001111
        wait name=start ######......
        wait            ......00..11
        fetch w0        ......00..11
        compute main    ........00..
    """
    trace = timeline(drawing, config={**CPU["config"], "persistent_workers": True})
    advice = [entry.action for entry in summarise(trace).verdict.findings]
    assert advice[0].startswith("Do less at the start of an epoch")
    assert "persistent_workers=True" not in " ".join(advice)


@pytest.mark.parametrize(
    ("decoder", "advice"),
    [
        ("tokenizers.Tokenizer.encode", "Tokenize the text once before training"),
        ("pandas.read_csv", "Store the data in a form that needs less parsing"),
        ("gzip._GzipReader.read", "Store the data uncompressed"),
        ("JPEG", "Decode less for each sample (images stored smaller)"),
    ],
)
def test_the_advice_on_decoding_is_of_what_is_decoded(decoder: str, advice: str) -> None:
    """A text has no smaller images."""
    drawing = f"""
        step             0000000000
        wait             00000000..
        fetch            00000000..
        decode name={decoder} #######...
        compute main     ........00
    """
    found = summarise(timeline(drawing, config={**CPU["config"], "workers": 0})).verdict
    assert "decode" == found.bound_by
    assert [entry.action for entry in found.findings if entry.action.startswith(advice)]
    assert ("image" in " ".join(entry.action for entry in found.findings)) == (decoder == "JPEG")
    assert "the ranks, which make their batches themselves, spent" in found.text


@pytest.mark.parametrize(("worker", "expected"), [("", [("pipe:cat", 70)]), ("w0", [])])
def test_the_peer_of_a_rank_that_fetches_itself_is_named(
    worker: str, expected: list[tuple[str, int]]
) -> None:
    """Its main thread receives the data; where workers make the batches it receives these, which
    are no file."""
    drawing = f"""
        step             0000000000
        wait             00000000..
        fetch {worker}   00000000..
        read {worker}    {"#######..." if worker else ".........."}
        read file=0 pipe #######...
        compute main     ........00
    """
    trace = timeline(drawing, **CPU)
    files = pl.DataFrame([{"file": 0, "path": "pipe:cat"}], schema=trace.files.schema)
    assert expected == details(Trace(trace.run, trace.spans, files), "storage")["storage"]


def test_what_a_server_sends_is_not_to_be_copied_from_it() -> None:
    """A loop without a loader receives from a socket."""
    trace = timeline(
        "step 0000000000\nread file=0 socket #######...\ncompute main .......000",
        config={"device": "cpu"},
    )
    files = pl.DataFrame([{"file": 0, "path": "tcp://127.0.0.1:80"}], schema=trace.files.schema)
    found = summarise(Trace(trace.run, trace.spans, files)).verdict
    assert "storage" == found.bound_by
    assert ["Receive from tcp://127.0.0.1:80"] == [entry.action[:31] for entry in found.findings]


# ------------------------------------------------------------------------------------------- doubts

STAGES = (
    "step 0000000000\nwait 0000000...\nfetch w0 0000000\ndecode w0 {}\ntransform w0 {}\ncompute"
    " main .......000"
)
EVEN = (
    "step 00000000000\nwait 00000......\nfetch w0 00000\ndecode w0 #####\ncompute main ......0...."
)


@pytest.mark.parametrize(
    ("drawing", "doubts", "said"),
    [
        (
            "step 0000000000\nwait 0.........\nfetch w0 0\ncompute main ........00",
            (Doubt.UNNAMED,),
            "ranks' own Python",
        ),
        (EVEN, (Doubt.CLOSE,), "work on decode"),
        (STAGES.format("####...", "....###"), (), "work on decode"),
        (STAGES.format("###....", "...###."), (Doubt.CLOSE,), "as much as"),
    ],
)
def test_thin_evidence_is_called_so(drawing: str, doubts: tuple[Doubt, ...], said: str) -> None:
    """Time without a name, a second cause that is as great, two stages that are."""
    found = summarise(timeline(drawing, **CPU)).verdict
    assert doubts == found.doubts, found.text
    assert said in found.text
    assert bool(doubts) == ("Unsure, because" in found.text)


# --------------------------------------------------------------------------------- parts of the job


@pytest.mark.parametrize(("start_s", "phase"), [(-30, "start-up"), (-3, None)])
def test_a_long_start_is_said_first(start_s: int, phase: str | None) -> None:
    """With its line of code; a short one is not."""
    trace = slower(timeline("step 0\ncompute main 0", **CPU))
    first_ns = start_s * 1_000_000_000
    stacks = [
        (first_ns + 1 + tick * 10**9, "node1", 0, 100, 100, "rank", "/job/data.py:9:index")
        for tick in range(-start_s)
    ]
    process = {"pid": 100, "rank": 0, "role": "rank", "first_ns": first_ns}
    run = trace.run.replace(processes=RunRecord.of({"processes": [process]}).processes)
    table = pl.DataFrame(stacks, schema=trace.stacks.schema, orient="row")
    found = summarise(Trace(run, trace.spans, trace.files, trace.counters, table)).verdict
    assert phase == found.phase
    assert (phase is not None) == found.text.startswith("The job spent")
    assert phase is None or (
        "at /job/data.py:9 in index" in found.text and "index" in found.findings[0].action
    )


def test_a_line_of_the_start_takes_no_longer_than_that() -> None:
    """Both are means of the ranks."""
    trace = slower(timeline("step 0\ncompute main 0\nstep r1 0\ncompute r1 main 0", **CPU))
    stacks = [
        ((tick - 30) * 10**9 + 1, "node1", rank, pid, pid, "rank", "/job/data.py:9:index")
        for rank, pid in ((0, 100), (1, 200))
        for tick in range(30)
    ]
    processes = [
        {"pid": pid, "rank": rank, "role": "rank", "first_ns": -30 * 10**9}
        for rank, pid in ((0, 100), (1, 200))
    ]
    run = trace.run.replace(processes=RunRecord.of({"processes": processes}).processes)
    table = pl.DataFrame(stacks, schema=trace.stacks.schema, orient="row")
    found = summarise(Trace(run, trace.spans, trace.files, trace.counters, table)).verdict
    (facts,) = (each.facts for each in found.sentences if each.code == "phase")
    assert facts["took_s"] / 2 < facts["line_s"] <= facts["took_s"]


def test_a_long_loading_of_weights_is_said_first() -> None:
    """With its file."""
    trace = slower(timeline("step 0\ncompute main 0", **CPU))
    read = {
        **trace.spans.filter(pl.col("kind") == "step").row(0, named=True),
        "kind": "read",
        "step": None,
        "file": 0,
        "bytes": 1 << 30,
        "source": "storage",
        "start_ns": -20 * 10**9,
        "end_ns": -1,
    }
    spans = pl.concat([pl.DataFrame([read], schema=trace.spans.schema), trace.spans])
    files = pl.DataFrame([{"file": 0, "path": "/m/a.safetensors"}], schema=trace.files.schema)
    process = {"pid": 100, "rank": 0, "role": "rank", "first_ns": -21 * 10**9}
    run = trace.run.replace(processes=RunRecord.of({"processes": [process]}).processes)
    found = summarise(Trace(run, spans, files)).verdict
    assert "loading weights" == found.phase
    assert "on loading weights (/m/a.safetensors)" in found.text
    assert found.findings[0].subject is not None
    assert ("file", "/m/a.safetensors") == (
        found.findings[0].subject.kind,
        found.findings[0].subject.name,
    )


# -------------------------------------------------------------------------------------------- tools


@pytest.mark.parametrize(
    ("loader", "libraries", "kind", "said"),
    [
        (
            "torch DataLoader",
            ("webdataset 1.0.2",),
            JobKind.WEBDATASET,
            "num_workers=7 of the WebLoader",
        ),
        (
            "torch DataLoader",
            ("litdata 0.2.76",),
            JobKind.LITDATA,
            "num_workers=7 of the StreamingDataLoader",
        ),
        ("torch DataLoader", ("streaming 0.13.0",), JobKind.STREAMING, "num_workers=7"),
        (
            "torch DataLoader",
            ("datasets 5.2.0", "accelerate 1.15.0"),
            JobKind.HF_DATASETS,
            "num_workers=7",
        ),
        (
            "torchdata StatefulDataLoader",
            (),
            JobKind.TORCHDATA,
            "num_workers=7 of the StatefulDataLoader",
        ),
        ("SPDL pipeline", (), JobKind.SPDL, "concurrency=7 and num_threads=7"),
        ("Ray Data", ("ray 2.60.0",), JobKind.RAY, "concurrency=7 of map_batches()"),
        ("torch DataLoader", (), JobKind.TORCH, "Use num_workers=7 instead of 2"),
    ],
)
def test_advice_names_the_arguments_of_the_library(
    loader: str, libraries: tuple[str, ...], kind: JobKind, said: str
) -> None:
    """That feeds the job."""
    config = {
        "device": "cuda",
        "loader": loader,
        "libraries": list(libraries),
        "workers": 2,
        "batch_size": 4,
    }
    trace = timeline(
        "step 0000000\nwait 00000..\nfetch w0 00000\ndecode w0 #####\ncompute .....00",
        config=config,
        hosts=[{"cpus": 8}],
    )
    assert kind is trace.run.job_kind
    assert said in " ".join(entry.action for entry in summarise(trace).verdict.findings)


def test_tasks_of_ray_are_charged_by_time() -> None:
    """They are in processes of no rank, and have no number of a batch; what the rank receives is
    their result."""
    drawing = (
        "step 0000000000\nwait 00000000..\nread socket ########\ntransform w0 name={} #####\ndecode"
        " w0 ..#\ncompute main ........00"
    )
    for name, expected in (("Ray_Data_task", 0), ("Ray Data task", 40)):
        trace = timeline(
            drawing.format("Ray_Data_task"),
            config={"device": "cpu", "loader": "Ray Data", "workers": None},
        )
        renamed = (
            pl.when(pl.col("kind") == "transform")
            .then(pl.lit(name))
            .otherwise(pl.col("name").cast(pl.String))
        )
        of_rank = pl.when(pl.col("pid") == 100).then(pl.col("rank"))
        spans = trace.spans.with_columns(name=renamed.cast(trace.spans["name"].dtype), rank=of_rank)
        found = charges(Trace(trace.run, spans))
        assert expected == (found.steps["transform_ns"].sum() or 0)
        assert ({"transform": 40, "decode": 10} if expected else {}) == found.derived_ns


@settings(max_examples=examples(40), deadline=None)
@given(traces(max_steps=3))
def test_a_recorded_script_on_a_cpu_is_told_nothing_of_other_jobs(trace: Trace) -> None:
    """Neither options of the built-in job nor commands that need its datasets, nor of devices that
    it does not have."""
    config = trace.run.config.replace(loader="torch DataLoader", device="cpu")
    summary = summarise(Trace(trace.run.replace(config=config), trace.spans))
    texts = [
        summary.verdict.text,
        *(advice.action for advice in summary.verdict.findings),
        *(line.text for line in statements(summary)),
    ]
    for text in texts:
        assert not re.search(
            r"ioprof (run|convert)|--batch-size|--workers|GPU|accelerator", text
        ), text
