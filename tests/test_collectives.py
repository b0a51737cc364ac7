"""Operations of NCCL in traces and reports: two ranks whose plugin is called as NCCL does, with a
timeline that they measure."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from compiling import compiled
from hypothesis import given
from hypothesis import strategies as st
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import NATIVE, PROGRAMS
from timeline import timeline

from ioprof.analysis.charge.blame import blame
from ioprof.analysis.ranks.collectives import collective_gaps
from ioprof.format.run_record import CollectiveCapture, GpuCapture, GpuWindow, Reason
from ioprof.format.trace import Trace
from ioprof.ingest.clocks.gpu_timer import host_times
from ioprof.ingest.collectives.files import read_collective_files
from ioprof.ingest.collectives.spans import Collectives, add_collectives, collectives_of
from ioprof.instrument import preload
from ioprof.recording.external_samplers import capture_record
from ioprof.report.run import Run
from ioprof.report.texts.catalogue.answer import gap_texts
from ioprof.report.texts.statements import statements

STEPS, LATE_MS = 15, 50
MEANS = {2: "network transfers", 3: "what the host saw", 6: "the GPU's timer"}
EXACT_NS = 2_000_000
"""Most by which a sum per step may differ from the stopwatch of the program, whose Python and
barrier lie between."""
needs_plugin = pytest.mark.skipif(
    preload.nccl_plugin() is None, reason="the plugin for NCCL is not built: no C compiler"
)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of nccl_calls.c."""
    return compiled(
        "nccl_calls.c",
        tmp_path_factory.mktemp("calls") / "calls.so",
        "-shared",
        "-fPIC",
        f"-I{NATIVE / 'nccl'}",
    )


def recorded(
    calls: Path, folder: Path, version: int, *more: str, **variables: str
) -> tuple[Run, pl.DataFrame]:
    """The run of nccl_job.py, and what its ranks measured: rank, step, arrived_ns, complete_ns,
    ended_ns."""
    words = [sys.executable, PROGRAMS / "nccl_job.py", calls, version, STEPS, LATE_MS, *more]
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--out",
            folder / "run",
            "--",
            *map(str, words),
        ],
        env={**os.environ, "IOPROF_NCCL": "on", **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert 0 == ended.returncode, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    truth = pl.DataFrame(
        rows, schema=["rank", "step", "arrived_ns", "complete_ns", "ended_ns"], orient="row"
    )
    return Run.load(folder / "run"), truth.sort("rank", "step")


# ---------------------------------------------------------------------------------------- two ranks


@needs_plugin
@needs_library
@pytest.mark.parametrize("version", [2, 3, 6])
@on_a_quiet_machine
def test_waiting_for_a_late_rank_is_told_from_transfer(
    version: int, calls: Path, tmp_path: Path
) -> None:
    """Rank 1 arrives 50 ms late: rank 0 waits so long in each step, and both transfer for 20 ms.
    The report names rank 1, and what timed the collectives.
    """
    run, truth = recorded(calls, tmp_path, version, "compute")
    assert (
        "rank 1: host"
        == next(entry for entry in run.summary.steps.causes if entry.cause == "straggler")
        .details[0]
        .name
    )
    line = next(each.text for each in statements(run.summary) if each.label == "collectives")
    assert (
        f"{2 * STEPS} by NCCL's profiler interface {version}: {2 * STEPS} timed by {MEANS[version]}"
        == line
    )
    spans = run.trace.spans.filter(pl.col("kind") == "comm").sort("rank", "start_ns")
    assert 2 * STEPS == len(spans)
    assert {4 << 20} == set(spans["bytes"])
    zero_ns = run.trace.run.clocks.zero_monotonic_ns or 0
    arrival = (spans["start_ns"] + zero_ns - truth["arrived_ns"]).abs()
    end = (spans["end_ns"] + zero_ns - truth["ended_ns"]).abs()
    table = blame(run.trace)
    last = truth.group_by("step").agg(pl.col("arrived_ns").max()).sort("step")["arrived_ns"]
    waited = table.filter(pl.col("rank") == 0)["straggler_ns"] - (
        last - truth.filter(pl.col("rank") == 0)["arrived_ns"]
    )
    with comparing_times():
        assert max(arrival.median(), end.median(), waited.abs().median()) < EXACT_NS
        assert table.filter(pl.col("rank") == 1)["straggler_ns"].sum() < EXACT_NS * STEPS
        for rank in range(2):
            transferred = truth.filter(pl.col("rank") == rank)["ended_ns"] - last
            assert (
                table.filter(pl.col("rank") == rank)["exchange_ns"] - transferred
            ).abs().median() < EXACT_NS


@pytest.mark.job(every=4)
@needs_plugin
@needs_library
def test_without_the_devices_computation_exchange_may_be_hidden(
    calls: Path, tmp_path: Path
) -> None:
    """It is told, and said to be an upper bound."""
    run, _ = recorded(calls, tmp_path, 4)
    found = {entry.cause: (entry.basis, entry.reason_code) for entry in run.summary.steps.causes}
    assert ("derived", Reason.MAY_BE_HIDDEN) == found["exchange"] == found["straggler"]
    assert "how much of it was hidden is not known" in run.summary.verdict.text


@pytest.mark.job(every=4)
@needs_plugin
@needs_library
def test_what_the_job_records_itself_counts_once(calls: Path, tmp_path: Path) -> None:
    """Of two spans of one collective on a device that of the job stays."""
    run, _ = recorded(calls, tmp_path, 6, "compute", "own")
    names = run.trace.spans.filter(pl.col("kind") == "comm")["name"].cast(pl.String)
    assert {"bucket 0": 2 * STEPS} == dict(names.value_counts().iter_rows())
    sources = run.summary.collectives
    assert sources is not None
    assert (2 * STEPS, 2 * STEPS, 2 * STEPS) == (
        sources.operations,
        sources.seen_by_others,
        sources.other_spans,
    )


@needs_plugin
def test_a_plugin_of_the_job_is_left_alone(tmp_path: Path) -> None:
    """NCCL loads only one, and ours only where it is asked for; the run says why ours was not
    it."""
    asked = {"IOPROF_NCCL": "on"}
    own = {"NCCL_PROFILER_PLUGIN": "mine", **asked}
    assert "mine" == preload.environment(tmp_path, own, hooks=True)["NCCL_PROFILER_PLUGIN"]
    assert Reason.NCCL_PLUGIN_OF_JOB is capture_record(own).collectives_reason
    assert "NCCL_PROFILER_PLUGIN" not in preload.environment(tmp_path, {}, hooks=True)
    assert Reason.NCCL_SWITCHED_OFF is capture_record({}).collectives_reason
    ours = preload.environment(tmp_path, asked, hooks=True)
    assert str(preload.nccl_plugin()) == ours["NCCL_PROFILER_PLUGIN"]
    assert (
        None
        is capture_record(asked).collectives_reason
        is capture_record(ours | asked).collectives_reason
    )


# ------------------------------------------------------------------------------ Kineto saw them too


def _with_window(trace: Trace, start_ns: int, end_ns: int) -> Trace:
    window = GpuWindow(host="h", pid=1, rank=0, start_ns=start_ns, end_ns=end_ns)
    spans = trace.spans.with_columns(
        host=pl.lit("h").cast(trace.spans.schema["host"]), pid=pl.lit(1, pl.Int32)
    )
    return replace(
        trace,
        run=trace.run.replace(capture=trace.run.capture.replace(gpu=GpuCapture(windows=(window,)))),
        spans=spans,
    )


def _of_plugin(trace: Trace, *times: tuple[int, int]) -> Collectives:
    """Spans of the plugin at these times."""
    row = trace.spans.filter(pl.col("kind") == "comm").head(1)
    spans = pl.concat(
        [
            row.with_columns(start_ns=pl.lit(start, pl.Int64), end_ns=pl.lit(end, pl.Int64))
            for start, end in times
        ]
    )
    return Collectives(
        "h",
        spans,
        CollectiveCapture(host="h", pid=1, rank=0, operations=len(times), by_gpu_timer=len(times)),
        (),
    )


def test_kinetos_window_counts_where_it_saw_exchange() -> None:
    """Within it all spans of the plugin are the same ones, although clocks differ a little; outside
    of it none is."""
    trace = timeline("step 0000000000\ncomm ..00......")
    kineto = trace.spans.with_columns(
        stream=pl.when(pl.col("kind") == "comm").then(7).cast(pl.Int32)
    )
    trace = _with_window(replace(trace, spans=kineto), 0, 60)
    merged = add_collectives(trace, [_of_plugin(trace, (21, 41), (45, 55), (70, 90))])
    found = (
        merged.spans.filter(pl.col("kind") == "comm")
        .sort("start_ns")
        .select("start_ns", "end_ns")
        .rows()
    )
    assert [(20, 40), (70, 90)] == found
    assert (2,) == tuple(each.seen_by_others for each in merged.run.capture.collectives)


def test_a_window_without_exchange_does_not_count() -> None:
    """Kineto then failed to record it, or there was none of it."""
    drawn = timeline("step 0000000000\ncomm ..00......")
    trace = _with_window(
        replace(drawn, spans=drawn.spans.with_columns(stream=pl.lit(None, pl.Int32))), 0, 60
    )
    # the span of the drawing is that of a host
    merged = add_collectives(trace, [_of_plugin(trace, (21, 41))])
    assert 2 == len(merged.spans.filter(pl.col("kind") == "comm"))


@pytest.mark.job
@needs_plugin
def test_an_operation_that_never_ended_is_named(calls: Path, tmp_path: Path) -> None:
    """The job was killed while this rank waited for the others: its span ends with the recording,
    and the list of what was not seen says in which operation the rank was.
    """
    variables = {
        **os.environ,
        "IOPROF_SPOOL": str(tmp_path),
        "NCCL_PROFILER_PLUGIN": str(preload.nccl_plugin()),
    }
    subprocess.run(
        [sys.executable, PROGRAMS / "nccl_events.py", calls, "6", "killed"], env=variables
    )
    trace = add_collectives(
        timeline("step 00"), collectives_of(read_collective_files(tmp_path), [])
    )
    spans = trace.spans.filter(pl.col("kind") == "comm").sort("start_ns")
    assert ["AllReduce 0", "AllReduce 1"] == spans["name"].cast(pl.String).to_list()
    pid = trace.run.capture.collectives[0].pid
    assert [
        f"rank 3 (pid {pid}) had not left 1 operation of NCCL when it ended: AllReduce 1"
    ] == list(gap_texts(collective_gaps(trace)))


@pytest.mark.job
@needs_plugin
def test_a_receive_waits_for_its_sender(calls: Path, tmp_path: Path) -> None:
    """Both have one name, so that the analysis finds when each rank arrived."""
    labels = []
    for function, rank, peer in (("Send", 0, 1), ("Recv", 1, 0)):
        spool = tmp_path / function
        spool.mkdir()
        variables = {
            **os.environ,
            "IOPROF_SPOOL": str(spool),
            "NCCL_PROFILER_PLUGIN": str(preload.nccl_plugin()),
        }
        words = [
            sys.executable,
            PROGRAMS / "nccl_events.py",
            calls,
            "6",
            "point_to_point",
            function,
            str(rank),
            str(peer),
        ]
        subprocess.run(words, env=variables, check=True)
        (found,) = collectives_of(read_collective_files(spool), [])
        labels += found.spans["name"].cast(pl.String).to_list()
    assert ["SendRecv 0>1 0", "SendRecv 0>1 0"] == labels


# ----------------------------------------------------------------------------- the timer of the GPU


@given(
    offset_ns=st.integers(-(10**18), 10**18),
    drift_ppm=st.integers(-100, 100),
    delays=st.lists(st.integers(2_000, 5_000_000), min_size=2, max_size=200),
    gap_ns=st.integers(1_000, 10**9),
)
def test_times_of_the_gpu_are_late_by_a_delay_at_most(
    offset_ns: int, drift_ppm: int, delays: list[int], gap_ns: int
) -> None:
    """Converted times lie between the event and the moment at which the host knew of it, whatever
    offset and drift."""
    truth = np.arange(len(delays), dtype=np.int64) * gap_ns
    gpu = truth + truth * drift_ppm // 1_000_000 + offset_ns
    host = truth + np.array(delays)
    found = host_times(gpu, (gpu, host))
    assert (found <= host + 2).all()
    slack = 1e-3 * gap_ns + 2  # of the drift's own rounding, and of a slope that is bounded
    assert (found >= truth + min(delays) - slack - max(delays)).all()


def test_a_drift_is_followed() -> None:
    """60 s at 50 ppm are 3 ms; with delays of 5 to 205 µs the error stays below 10 µs."""
    random = np.random.default_rng(7)
    truth = np.sort(random.integers(0, 60_000_000_000, 20_000))
    gpu = truth + truth // 20_000 + 10**18
    host = truth + 5_000 + random.integers(0, 200_000, len(truth))
    error = host_times(gpu, (gpu, host)) - truth
    assert 0 <= error.min()
    assert error.max() < 15_000


@pytest.mark.job
@needs_plugin
def test_a_timer_of_another_unit_is_not_believed(calls: Path, tmp_path: Path) -> None:
    """Such as one that counts at 100 MHz: then times are those at which the host saw the kernels,
    and the file is named."""
    variables = {
        **os.environ,
        "IOPROF_SPOOL": str(tmp_path),
        "NCCL_PROFILER_PLUGIN": str(preload.nccl_plugin()),
    }
    subprocess.run(
        [sys.executable, PROGRAMS / "nccl_events.py", calls, "6", "ticks"],
        env=variables,
        check=True,
    )
    (found,) = read_collective_files(tmp_path)
    assert ["kernel"] == found.operations["times"].unique().to_list()
    assert (found.operations["end_ns"] - found.operations["start_ns"]).min() >= 10_000_000
    assert 1 == len(+found.damage)


# ------------------------------------------------------------------------------------------- damage


@pytest.mark.job
@needs_plugin
@given(place=st.integers(0, 70_000), byte=st.integers(0, 255), length=st.integers(0, 80_000))
def test_a_damaged_file_never_raises(
    place: int, byte: int, length: int, sample: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is valid is kept."""
    data = bytearray(sample[:length])
    if place < len(data):
        data[place] = byte
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "a.nccl").write_bytes(data)
    (found,) = read_collective_files(folder)
    assert len(found.operations) <= 7


@pytest.fixture(scope="module")
def sample(calls: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of seven operations."""
    spool = tmp_path_factory.mktemp("spool")
    variables = {
        **os.environ,
        "IOPROF_SPOOL": str(spool),
        "NCCL_PROFILER_PLUGIN": str(preload.nccl_plugin()),
    }
    subprocess.run(
        [sys.executable, PROGRAMS / "nccl_events.py", calls, "6", "one_of_each"],
        env=variables,
        check=True,
    )
    (path,) = spool.glob("*.nccl")
    return path.read_bytes()[:80_000]
