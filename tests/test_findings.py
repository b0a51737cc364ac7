"""What is found besides the causes: loaders, the workers' time, reads, waits and epochs."""

import json
import sys
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import polars as pl
import pytest
from faults.agreement import printed
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_simulator import Pipeline, with_epochs
from preload import needs_library
from repository import PROGRAMS
from strategies import examples, shifted, shuffled, traces
from timeline import TICK_NS, timeline
from told import summarise

from ioprof.analysis.findings import Finding
from ioprof.analysis.loaders import batches, take_turns
from ioprof.analysis.ranks.stragglers import arrivals
from ioprof.analysis.reads.queue_depth import DepthOverTime
from ioprof.analysis.selection import look
from ioprof.analysis.totals import totals
from ioprof.format.run_record import Findings, HostRecord, LoaderTime, RunRecord
from ioprof.format.trace import Trace
from ioprof.report.run import Run
from ioprof.report.texts.finding_statements import finding_lines
from ioprof.report.texts.text import summary_text

MS = 1_000_000
STEPS = 60


def found(trace: Trace) -> Findings:
    """The findings of a trace."""
    return summarise(trace).findings


def with_sizes(trace: Trace, sizes: list[int]) -> Trace:
    """The trace with the number of samples of each batch, as a fetch has it."""
    of_batch = pl.DataFrame({"batch": range(len(sizes)), "samples": sizes})
    spans = trace.spans.join(of_batch, on="batch", how="left")
    is_fetch = pl.col("kind") == "fetch"
    return Trace(
        trace.run, spans.with_columns(offset=pl.when(is_fetch).then("samples")).drop("samples")
    )


# -------------------------------------------------------------------------------- loaders and rates


def test_samples_are_counted_by_batches() -> None:
    """Of batches of 2 to 8 samples, of which a step takes four: gradients are accumulated."""
    sizes = [2 + number % 7 for number in range(STEPS)]
    trace = with_sizes(Pipeline([5 * MS] * STEPS, [20 * MS] * STEPS).trace(), sizes)
    steps = trace.spans.filter(pl.col("kind") == "step").with_columns(step=pl.col("step") // 4)
    merged = steps.group_by("step").agg(
        pl.exclude("start_ns", "end_ns").first(), pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    rest = trace.spans.filter(pl.col("kind") != "step")
    summary = summarise(Trace(trace.run, pl.concat([rest, merged.select(rest.columns)])))
    wall_s = (steps["end_ns"].to_numpy().max() - steps["start_ns"].to_numpy().min()) / 1e9
    assert STEPS / 4 == summary.steps.count
    assert sum(sizes) / wall_s == pytest.approx(summary.throughput.samples_per_s)
    [loader] = summary.findings.loaders
    assert (sum(sizes), 2, 8) == (loader.samples, loader.fewest_samples, loader.most_samples)


@pytest.fixture(scope="module")
def in_ways(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[list[float], dict[str, Any]]]:
    """What each way of training printed, and its summary."""
    told = {}
    for way in ("accumulate", "iterable", "two_loaders"):
        folder = tmp_path_factory.mktemp(way)
        ended = jobs.ioprof(
            "record",
            "--out",
            "run",
            "--",
            sys.executable,
            PROGRAMS / "train_in_ways.py",
            way,
            40,
            1,
            cwd=folder,
        )
        assert 0 == ended.code, ended.err
        line = next(line for line in ended.out.splitlines() if line.count(" ") == 2)
        told[way] = (
            [float(word) for word in line.split()],
            json.loads(Path(folder, "run", "summary.json").read_text()),
        )
    return told


@pytest.mark.job(every=4)
@needs_library
def test_rates_are_those_of_the_program(
    in_ways: dict[str, tuple[list[float], dict[str, Any]]],
) -> None:
    """With accumulation, of an iterable dataset with a short last batch, and of two loaders, by the
    counters of the program."""
    for way, ((samples, number, seconds), summary) in in_ways.items():
        told = summary["findings"]["loaders"]
        assert samples == sum(entry["samples"] for entry in told), way
        assert number == sum(entry["batches"] for entry in told), way
        ended_s = sum(
            phase["seconds"]
            for phase in summary["ledger"]["phases"]
            if phase["name"] == "epoch start"
        )
        assert summary["demand"]["at_samples_per_s"] >= summary["throughput"]["samples_per_s"], way
        assert (
            samples / seconds * 0.9
            <= summary["throughput"]["samples_per_s"]
            <= 1.1 * samples / max(seconds - ended_s, 0.1)
        ), way


@pytest.mark.job(every=4)
@needs_library
def test_loaders_are_told_apart(in_ways: dict[str, tuple[list[float], dict[str, Any]]]) -> None:
    """By the class of their dataset, the slow one's and the other one's."""
    told = {
        entry["name"]: LoaderTime.of(entry)
        for entry in in_ways["two_loaders"][1]["findings"]["loaders"]
    }
    assert {"Labelled", "Samples"} == set(told)
    first, second = told["Labelled"], told["Samples"]
    assert (2, 4) == (first.most_samples, second.most_samples)
    assert first.making_s > 40 * 2 * 0.02
    assert [40, 40] == [first.batches, second.batches]


@pytest.mark.job
@needs_library
def test_loaders_in_turn_have_no_common_number_of_workers(
    in_ways: dict[str, tuple[list[float], dict[str, Any]]],
) -> None:
    """Nothing is said of more workers than the two that the two loaders have together, nor that
    these should do as much."""
    summary = in_ways["two_loaders"][1]
    assert "failed" not in (summary["replay"]["reason"] or "")
    actions = [each["action"] for each in summary["verdict"]["findings"]]
    assert not any("num_workers" in action or "as much work" in action for action in actions), (
        actions
    )


@pytest.mark.parametrize(
    ("numbers", "validates", "expected"),
    [
        ([0, 1024, 1, 1025, 2, 1026, 3, 1027, 4], False, True),
        ([0, 1024, 1, 1025, 2, 1026, 3, 1027, 4], True, False),  # of which one is to validate from
        ([2, 0, 1, 5, 3, 4, 8, 6, 7, 9], False, False),  # in the order in which they were made
    ],
)
def test_whether_loaders_are_taken_from_in_turn(
    numbers: list[int], validates: bool, expected: bool
) -> None:
    """By the numbers of the batches, of which each loader takes blocks."""
    times = {"rank": 0, "start_ns": range(len(numbers)), "end_ns": range(1, len(numbers) + 1)}
    rows = pl.DataFrame(
        {
            "batch": numbers,
            "validates": [validates and number >= 1024 for number in numbers],
            **times,
        }
    )
    assert expected == take_turns(rows)


# -------------------------------------------------------------------------------- the workers' time


def test_the_workers_time_is_divided_by_cause_and_name() -> None:
    """All of it is told, waited for or not; what no span covers is the dataset's own Python."""
    trace = timeline("""
        step                        0000000000
        wait                        0.........
        fetch w0                    1111111111
        read w0                     ##........
        decode w0                   .###......
        transform w0 name=Resize    ....##....
        transform w0 name=Flip      ......#...
        collate w0                  .........#
    """)
    told = found(trace).workers
    assert told is not None
    expected = [
        ("storage", None, 2),
        ("decode", None, 2),
        ("transform", None, 3),
        ("transform", "Resize", 2),
        ("transform", "Flip", 1),
        ("collate", None, 1),
        ("loader", None, 2),
    ]
    assert expected == [
        (part.cause, part.name, round(part.seconds * 1e9 / TICK_NS)) for part in told.parts
    ]
    assert [part.seconds / told.seconds for part in told.parts] == pytest.approx(
        [part.share for part in told.parts]
    )


@settings(max_examples=examples(20), deadline=None)
@given(traces())
def test_the_workers_time_sums_to_the_time_of_fetches(trace: Trace) -> None:
    """Exactly; and no named part is more than its cause."""
    made = totals(trace).work
    assert 0 <= made.total_ns - sum(made.stages.values())
    for (cause, _), took_ns in made.named.items():
        assert took_ns <= ({**made.stages, "loader": made.total_ns}).get(cause, 0)


# --------------------------------------------------------------------------------------------- laws


@settings(max_examples=15, deadline=None)
@given(traces(), st.integers(0, 10**9), st.data())
def test_order_and_shift_change_nothing(trace: Trace, by_ns: int, data: st.DataObject) -> None:
    """Law 7, of all findings but the queue's depth over time, whose pieces begin with the first
    step."""
    before = found(trace)
    assert before == found(data.draw(shuffled(shifted(trace, by_ns))))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 300)), min_size=100, max_size=130))
def test_littles_law(drawn: list[tuple[int, int]]) -> None:
    """The reads in progress are their number times their mean time over the time, as a count of
    each instant says."""
    starts, lengths = np.array(drawn, np.int64).T
    ones = np.ones_like(starts)
    depth = DepthOverTime(0, 1200)
    for part in (slice(50), slice(50, None)):
        depth.add(*(column[part] for column in (starts, starts + lengths, ones, ones, ones)))
    told = depth.found()
    assert told is not None
    counted = np.zeros(1200)
    for start, length in drawn:
        counted[start : start + length] += 1
    assert counted.mean() == pytest.approx(told.mean, rel=1e-4)
    assert told.mean == pytest.approx(told.reads_per_s * told.latency_s, rel=1e-4)
    assert counted.reshape(60, 20).mean(1) == pytest.approx(np.array(told.over_time), abs=1e-3)


# ------------------------------------------------------------------------------------------ storage


def reading(took_ms: list[float], sizes: list[int], workers: int = 1, **columns: Any) -> Trace:
    """A loop whose workers read one range for each batch, in turn."""
    number = len(took_ms)
    trace = Pipeline([int(each * MS) for each in took_ms], [MS // 10] * number, workers).trace(
        "read"
    )
    of_batch = pl.DataFrame({"batch": range(number), "size": sizes})
    is_read = pl.col("kind") == "read"
    spans = trace.spans.join(of_batch, on="batch", how="left").with_columns(
        bytes=pl.when(is_read).then("size"),
        source=pl.when(is_read).then(pl.lit("storage", dtype=trace.spans["source"].dtype)),
        file=pl.when(is_read).then(pl.col("batch") % 3),
        offset=pl.when(is_read).then(pl.col("batch") * 1000),
        **columns,
    )
    files = pl.DataFrame({"file": [0, 1, 2], "path": ["/data/a", "/data/b", "/data/c"]})
    run = trace.run.replace(capture=trace.run.capture.replace(reads=True))
    return Trace(
        run,
        spans.drop("size"),
        trace.files.join(files, how="full", on=["file", "path"], coalesce=True).select(
            trace.files.columns
        ),
    )


def test_reads_of_one_time_are_bound_by_latency() -> None:
    """However large they are; then the first advice is more readers."""
    random = np.random.default_rng(0)
    sizes = random.integers(10_000, 900_000, 400).tolist()
    summary = summarise(reading(random.normal(20, 1, 400).tolist(), sizes))
    assert summary.findings.reads.depth is not None
    assert "latency" == summary.findings.reads.depth.bound
    assert summary.verdict.findings[0].action.startswith("Read more at a time")


def test_whether_reads_of_one_size_have_a_latency_or_share_a_rate_is_not_known() -> None:
    """Chunks of one size that take as long as each other: the report says so, and advice on workers
    depends on it."""
    took_ms = np.random.default_rng(0).normal(20, 1, 400).tolist()
    trace = reading(took_ms, [500_000] * 400)
    summary = summarise(
        trace.with_facts(run=trace.run.replace(hosts=(HostRecord("node1", cpus=8),)))
    )
    depth = summary.findings.reads.depth
    assert depth is not None
    assert depth.bound is None
    [line] = [text for label, text, _ in finding_lines(summary) if label == "in progress"]
    assert "not known whether bound by latency or by throughput" in line
    actions = [advice.action for advice in summary.verdict.findings]
    assert not any(action.startswith(("Read more at a time", "Keep ")) for action in actions)
    [workers] = [action for action in actions if "instead of 1" in action]
    assert workers.startswith("If storage is bound by latency (not known")


def test_reads_that_share_a_rate_are_bound_by_throughput() -> None:
    """Of two workers whose reads of different sizes take as long as the rate says; then workers are
    kept, and bytes are saved."""
    random = np.random.default_rng(0)
    sizes = random.pareto(1.2, 600) * 40_000 + 1_000
    sizes = np.minimum(sizes, 2_000_000)
    summary = summarise(reading((sizes / 5_000_000 * 1e3).tolist(), sizes.astype(int).tolist()))
    assert summary.findings.reads.depth is not None
    assert "throughput" == summary.findings.reads.depth.bound, summary.findings.reads.depth.reason
    actions = [advice.action for advice in summary.verdict.findings]
    assert any("read fewer bytes" in action for action in actions), actions
    assert not any(action.startswith("Use num_workers") for action in actions)


def test_times_of_reads_by_source_size_and_file() -> None:
    """Percentiles are within 2 %; the file with most time is first, with the place of its slowest
    read."""
    took = [10.0] * 120 + [50.0]
    told = found(reading(took, [4_000] * 60 + [100_000] * 61)).reads
    groups = {(group.source, group.least_bytes): group for group in told.groups}
    assert {None, 1024, 65536} == {size for _, size in groups}
    assert groups["storage", None].p50_s == pytest.approx(0.010, rel=0.02)
    assert groups["storage", None].max_s == pytest.approx(0.050)
    assert (121, 60, 61) == tuple(groups["storage", size].accesses for size in (None, 1024, 65536))
    [first, *_] = told.files
    assert ("/data/a", 120_000, 0.05) == (first.path, first.max_offset, pytest.approx(first.max_s))


def test_bytes_that_are_read_again_are_told_beside_the_demand() -> None:
    """Three files of 10 kB in 120 reads of all of it: 40 times. A read whose place is not known may
    be of other bytes."""
    run = reading([10.0] * 120, [10_000] * 120)
    spans = run.spans.with_columns(
        offset=pl.when(pl.col("kind") == "read").then(pl.lit(0, pl.Int64))
    )
    facts = run.run.replace(config=run.run.config.replace(batch_size=4, device="cuda"))
    summary = summarise(Trace(facts, spans, run.files))
    told = summary.findings.reads
    assert (30_000, 40.0) == (told.file_bytes, told.times_read)
    shown = " ".join(printed(summary_text(summary)).split())
    assert "each of the 30.0 kB in the files was read at least 40.0 times on average" in shown
    unknown = spans.with_columns(offset=pl.when(pl.col("batch") != 7).then("offset"))
    assert found(Trace(run.run, unknown, run.files)).reads.times_read is None


def test_page_faults_at_random_places_want_no_readahead() -> None:
    """Each fetched 128 kB."""
    random = np.random.default_rng(0)
    trace = reading([5.0] * 300, [131_072] * 300)
    is_read = pl.col("kind") == "read"
    places = pl.Series(random.integers(0, 1 << 40, len(trace.spans)))
    spans = trace.spans.with_columns(
        offset=pl.when(is_read).then(places),
        file=pl.when(is_read).then(0),
        kind=pl.when(is_read)
        .then(pl.lit("fault", dtype=trace.spans["kind"].dtype))
        .otherwise("kind"),
    )
    [pattern] = found(Trace(trace.run, spans, trace.files)).reads.patterns
    assert "readahead of a map" == pattern.code
    assert "MADV_RANDOM" in pattern.remedy


MB = 1_000_000


def fetching(*reads: tuple[str, int, int, str], fetched: int, imports: int = 0) -> Trace:
    """A rank without a loader: reads of a file, at a millisecond, of so many bytes, from a source;
    and what its calls fetched.

    Its steps begin at 10 ms. `imports`: bytes that the kernel fetched while modules were imported.
    """
    drawn = timeline("step 0\nphase name=x 0\nread main 0")
    made = {
        kind: drawn.spans.filter(pl.col("kind") == kind).row(0, named=True)
        for kind in ("step", "phase", "read")
    }
    steps = [
        made["step"]
        | {
            "step": number,
            "start_ns": (10 + number) * MS,
            "end_ns": (11 + number) * MS,
        }
        for number in range(9)
    ]
    phase = made["phase"] | {
        "name": "import torch",
        "start_ns": 0,
        "end_ns": 5 * MS,
        "bytes": imports,
    }
    names = list(dict.fromkeys(path for path, *_ in reads))
    of_files = [
        made["read"]
        | {
            "file": names.index(path),
            "start_ns": at * MS,
            "end_ns": at * MS + 1000,
            "bytes": size,
            "source": source,
            "step": None,
            "batch": None,
        }
        for path, at, size, source in reads
    ]
    counts = {"fetched_bytes": fetched, "io_read_bytes": fetched, "mapped_bytes": imports}
    processes = [
        {"host": "node1", "pid": made["step"]["pid"], "rank": 0, "role": "rank", "reads": counts}
    ]
    trace = timeline("step 0", capture={"reads": True}, processes=processes)
    files = pl.DataFrame(
        {"file": range(len(names)), "path": names},
        schema_overrides={"file": trace.files.schema["file"]},
    )
    files = (
        trace.files.clear()
        .join(files, how="full", on=["file", "path"], coalesce=True)
        .select(trace.files.columns)
    )
    return Trace(
        trace.run, pl.DataFrame([*steps, phase, *of_files], schema=drawn.spans.schema), files
    )


DATA = [("/data/a", 11 + number % 8, 100_000, "storage") for number in range(100)]
"""10 MB."""
INSTALLED = "/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("reads", "fetched", "imports", "said"),
    [
        pytest.param(
            DATA,
            100 * MB,
            0,
            "100 MB were fetched during calls that asked for 10 MB",
            id="ranges of data",
        ),
        pytest.param(DATA, 10 * MB, 0, None, id="data without readahead"),
        pytest.param(DATA, 100 * MB, 90 * MB, None, id="most of it by imports"),
        pytest.param(
            [*DATA, ("/data/index", 8, 95 * MB, "storage")],
            105 * MB,
            0,
            None,
            id="an index before the first step",
        ),
        pytest.param(
            [*DATA, ("/data/index", 8, 95 * MB, "page_cache")],
            100 * MB,
            0,
            "100 MB were fetched",
            id="an index in memory",
        ),
        pytest.param(
            [(f"{INSTALLED}/x.dist-info/METADATA", 12, 900, "storage")],
            100 * MB,
            0,
            None,
            id="installed files alone",
        ),
        pytest.param(
            [*DATA, (f"{INSTALLED}/y.json", 12, 80 * MB, "storage")],
            100 * MB,
            0,
            None,
            id="installed files beside data",
        ),
    ],
)
def test_what_was_fetched_for_data_is_compared_with_what_data_was_asked_for(
    reads: list[tuple[str, int, int, str]], fetched: int, imports: int, said: str | None
) -> None:
    """Not what the process fetched for its imports, its index or its installed files, of which no
    advice is given."""
    told = [
        pattern.seen
        for pattern in found(fetching(*reads, fetched=fetched, imports=imports)).reads.patterns
    ]
    assert ([] if said is None else [said]) == [text[: len(said or "")] for text in told]


@pytest.mark.parametrize(
    ("path", "is_data"),
    [
        ("/data/a", True),
        ("/data/lib/python/a", True),
        (f"{INSTALLED}/tabulate-0.10.0.dist-info/METADATA", False),
        (f"{INSTALLED}/pandas/x.json", False),
        ("/usr/share/zoneinfo/UTC", False),
        ("/etc/localtime", False),
        ("/usr/bin/python3.12", False),
        ("/usr/local/cuda-13.0/bin/nvcc", False),
        ("/usr/include/c++/14/cmath", False),
        ("/tmp/torchinductor_me/ab/cab.cpp", False),
        ("/share/lib/images/a", True),
        ("/proc/self/maps", False),
        ("/job/train.py", False),
    ],
)
def test_slow_files_are_of_data(path: str, is_data: bool) -> None:
    """Files of the Python installation and of the system are no data where they made no batch."""
    told = found(fetching((path, 12, 1000, "storage"), fetched=0)).reads.files
    assert ([path] if is_data else []) == [file.path for file in told]


def test_installed_files_that_make_batches_are_data() -> None:
    """Such as the examples that a package has; but not what says what is installed."""
    paths = [
        f"{INSTALLED}/sklearn/datasets/digits.csv",
        f"{INSTALLED}/x.dist-info/METADATA",
        "/data/a",
    ]
    trace = reading([1.0] * 300, [1000] * 300)
    files = trace.files.with_columns(
        path=pl.col("file").replace_strict(dict(enumerate(paths)), return_dtype=pl.String)
    )
    told = found(Trace(trace.run, trace.spans, files)).reads.files
    assert {paths[0], paths[2]} == {file.path for file in told}


# --------------------------------------------------------------------------------- waits and epochs


def test_few_waits_that_are_most_of_the_waiting() -> None:
    """Every twentieth batch takes a second."""
    fetch = [(1000 if number % 20 == 19 else 1) * MS for number in range(200)]
    told = found(Pipeline(fetch, [2 * MS] * 200).trace()).waiting
    assert told is not None
    assert (200, pytest.approx(0.05, abs=0.011)) == (told.waits, told.most_ratio)
    assert told.tenth_ratio > 0.95


def test_epochs_that_become_slower_name_the_cause() -> None:
    """Decoding takes longer from epoch to epoch."""
    fetch = [(20 + 5 * (number // 30)) * MS for number in range(150)]
    told = found(with_epochs(Pipeline(fetch, [2 * MS] * 150).trace(), 30)).trend
    assert told is not None
    assert [30] * 5 == [epoch.steps for epoch in told.epochs]
    assert "decode" == told.cause
    assert told.growth_ratio == pytest.approx(40 / 25 - 1, rel=0.1)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10**6))
def test_epochs_with_jitter_have_no_trend(seed: int) -> None:
    """Steps that vary by a third."""
    random = np.random.default_rng(seed)
    fetch = [int(20 * MS * random.uniform(0.67, 1.33)) for _ in range(200)]
    told = found(with_epochs(Pipeline(fetch, [2 * MS] * 200).trace(), 40)).trend
    assert told is not None
    assert (None, None) == (told.growth_ratio, told.cause)


def test_no_batches_no_findings() -> None:
    """A rank that only computes."""
    trace = timeline("step 0000\ncompute 0000")
    found = Finding(trace, batches(trace))
    look(trace, found.reads)
    assert Findings() == found.findings(Run.of(trace).steps, totals(trace).work, arrivals(trace))


def test_a_rank_that_falls_behind() -> None:
    """By more from step to step; what is closer than the clocks is not late."""
    drawing = """
        step      r0   00000 11111 22222 33333
        comm      r0   .0000 .1111 .2222 .3333
        step      r1   00000 11111 22222 33333
        comm      r1   .0000 ..111 ...22 ....3
    """
    late, early = found(timeline(drawing)).skew
    assert (1, 0.75, (0.0, 1e-8, 2e-8, 3e-8)) == (late.rank, late.last_ratio, late.over_time)
    assert (0, 0.0, 0.0) == (early.rank, early.last_ratio, early.behind_s)
    uncertain = found(timeline(drawing, clocks={"uncertainty_ns": 25})).skew
    assert (0.25, 7.5e-9) == (uncertain[0].last_ratio, pytest.approx(uncertain[0].behind_s))


@pytest.mark.parametrize(
    ("size", "large", "is_named"),
    [
        pytest.param(1, 0, True, id="a byte"),
        pytest.param(4095, 0, True, id="less than a page"),
        pytest.param(4096, 0, True, id="a page"),
        pytest.param(8192, 0, True, id="the default buffer"),
        pytest.param(8193, 0, False, id="more than the default buffer"),
        pytest.param(
            4096,
            100_000,
            False,
            id="a page, as the beginning of a file that is read in large pieces",
        ),
        pytest.param(512, 100_000, True, id="headers between large pieces"),
    ],
)
def test_small_reads_are_named_up_to_the_default_buffer(
    size: int, large: int, is_named: bool
) -> None:
    """By their exact size, not by the class of sizes that they are listed in."""
    spans = [
        line
        for place in range(300)
        for line in (
            {"kind": "read", "start_ns": place * MS, "end_ns": place * MS + MS // 2, "bytes": size},
            {
                "kind": "read",
                "start_ns": place * MS + MS // 2,
                "end_ns": place * MS + MS - 1,
                "bytes": large,
            },
        )
        if line["bytes"]
    ]
    drawn = timeline("step 0\nwait 0\nfetch w0 0\nread w0 0")
    template = {
        kind: drawn.spans.filter(pl.col("kind") == kind).row(0, named=True)
        for kind in ("step", "wait", "fetch", "read")
    }
    whole = {"start_ns": 0, "end_ns": 300 * MS}
    rows = [{**template[kind], **whole} for kind in ("step", "wait", "fetch")] + [
        template["read"] | line for line in spans
    ]
    trace = Trace(drawn.run, pl.DataFrame(rows, schema=drawn.spans.schema), drawn.files)
    patterns = [pattern for pattern in found(trace).reads.patterns if pattern.code == "small reads"]
    assert is_named == bool(patterns)
    if is_named:
        assert f"300 reads moved {size:,} bytes each" in patterns[0].seen


@pytest.mark.parametrize(
    ("pieces", "opens", "code"),
    [(20, 30, "searching"), (10, 30, "small reads"), (200, 3, "small reads")],
)
def test_archives_that_are_searched_for_each_sample_want_an_index(
    pieces: int, opens: int, code: str
) -> None:
    """They are opened again and again, each time read in many pieces; a buffer would read more. A
    few opens are none of that."""
    drawn = timeline("step 0\nwait 0\nfetch w0 0\nread w0 file=1 0\nopen w0 file=1 0")
    template = {
        kind: drawn.spans.filter(pl.col("kind") == kind).row(0, named=True)
        for kind in ("step", "wait", "fetch", "read", "open")
    }
    rows, now = [], 0
    for _ in range(opens):
        rows.append(template["open"] | {"start_ns": now, "end_ns": now + MS // 100})
        for _ in range(pieces):
            now += MS
            rows.append(
                template["read"]
                | {
                    "start_ns": now,
                    "end_ns": now + MS // 2,
                    "bytes": 512,
                    "offset": 512,
                }
            )
        now += MS
    rows += [template[kind] | {"start_ns": 0, "end_ns": now} for kind in ("step", "wait", "fetch")]
    files = pl.DataFrame(
        {"file": [1], "path": ["/data/a.tar"], "size_bytes": [10**7]},
        schema_overrides={"file": pl.Int64},
    )
    files = (
        drawn.files.clear()
        .join(files, how="full", on=["file", "path", "size_bytes"], coalesce=True)
        .select(drawn.files.columns)
    )
    told = [
        each.code
        for each in found(
            Trace(drawn.run, pl.DataFrame(rows, schema=drawn.spans.schema), files)
        ).reads.patterns
    ]
    assert code in told
    assert ("searching" in told) is not ("small reads" in told)
    # as many processes each open it once or twice, and read on: such as the pages of a tree
    processes = [{"role": "worker", "pid": number} for number in range(opens // 2)]
    record = RunRecord.of({"config": {"ranks": 1}, "processes": processes})
    shared = found(Trace(record, pl.DataFrame(rows, schema=drawn.spans.schema), files))
    assert "searching" not in [each.code for each in shared.reads.patterns]
