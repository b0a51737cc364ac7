"""Traces that people have: of any version and vendor, without marks of steps, with times that
cannot be, and cut: what is true of the job is what the run says, or it says that it does not know.
"""

import csv
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from foreign_traces import KERNELS, MS, kineto_events, kineto_text, write_nsys
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from ioprof.errors import CommandError
from ioprof.format.run_record import StepsBy
from ioprof.interchange import kineto, nsys
from ioprof.interchange.imported import to_trace
from ioprof.interchange.job_steps import steps_of_kernels, steps_of_ranges
from ioprof.model.changes import Change
from ioprof.model.prediction import whatif
from ioprof.model.summary import with_gains
from ioprof.report.page.answer import headline
from ioprof.report.run import Run
from ioprof.report.texts.import_statements import import_notes

TRACES = os.environ.get("IOPROF_TRACES")
"""A folder of traces of real jobs, see `test_real_traces`."""


def imported(reader: Any, path: Path) -> Run:
    return Run.of(to_trace(reader([path]), "run", "ioprof import", "a clock"))


def run_of(folder: Path, events: list[dict[str, Any]], device: str | None = "NVIDIA H100") -> Run:
    path = folder / "trace.json"
    path.write_text(kineto_text(events, device))
    return imported(kineto.read_kineto, path)


def shares(run: Run) -> dict[str, float]:
    return {entry.cause: round(entry.share or 0.0, 3) for entry in run.summary.steps.causes}


MARKED = {"compute": 0.6, "loader": 0.35, "host": 0.05}
WAYS = {
    None: {},
    StepsBy.OPTIMIZER: {"marks": False},
    StepsBy.LOADER: {"marks": False, "optimizer": False},
    StepsBy.PERIOD: {"marks": False, "optimizer": False, "loader": False},
}


@pytest.mark.parametrize(
    ("form", "by"), [("kineto", by) for by in WAYS] + [("nsys", by) for by in StepsBy]
)
def test_steps_are_found_without_marks(tmp_path: Path, form: str, by: StepsBy | None) -> None:
    """By the optimizer, by the loader, or by the period of the kernels: of 100 ms, in which the
    device computes for 60."""
    if form == "kineto":
        run = run_of(tmp_path, kineto_events(**WAYS[by]))
    else:
        run = imported(nsys.read_nsys, write_nsys(tmp_path / "x.sqlite", **WAYS[by]))
    lengths = (run.steps["end_ns"] - run.steps["start_ns"]).to_numpy()
    assert run.summary.steps.found_by is by
    assert run.summary.steps.count >= 19
    assert np.median(lengths) == 100 * MS
    assert shares(run)["compute"] == pytest.approx(0.6, abs=0.02)
    assert run.summary.run.device == "NVIDIA H100"
    notes = " ".join(import_notes(run.summary))
    assert ("derived" in notes) == (by is not None)
    assert run.summary.steps.period_kernels == (len(KERNELS) if by is StepsBy.PERIOD else None)


def ranges_of(times: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(
        times, schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row"
    ).sort("start_ns")


def test_a_step_has_one_batch_or_one_call_whatever_its_parts() -> None:
    """Two optimizers of a step, an optimizer that calls another, two batches for one call: the step
    is what is between."""
    batches = ranges_of([(100 * each, 100 * each + 10) for each in range(4)])
    two = [(100 * each + at, 100 * each + at + 5) for each in range(4) for at in (50, 80)]
    nested = [
        (100 * each + at, 100 * each + to) for each in range(4) for at, to in ((50, 90), (60, 85))
    ]
    rare = [(190, 200), (390, 400)]
    for calls, count in ((two, 4), (nested, 4), (rare, 2)):
        found = steps_of_ranges(ranges_of(calls), batches)
        assert found is not None
        assert found.table["start_ns"].to_list()[0] == 0
        assert len(found.table) == count
    assert steps_of_ranges(ranges_of([(5, 6)]), ranges_of([])) is None


def wall(names: list[str], begins: list[int], length: int = 5) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": names,
            "device": 0,
            "stream": 7,
            "wall_ns": pl.Series(begins, dtype=pl.Int64),
            "dur_ns": pl.Series([length] * len(names), dtype=pl.Int64),
        }
    )


def steps_are_found(seed: int) -> bool:
    """Of a random job: a step has layers that are alike, forwards and backwards, and an optimizer;
    one has a kernel more. All but the first and the last are found, each where the device is
    idle."""
    chance = random.Random(seed)
    layers, size, steps = (chance.randrange(*some) for some in ((2, 10), (3, 31), (4, 13)))
    layer = [f"f{chance.randrange(9)}" for _ in range(size)]
    back = [f"b{chance.randrange(9)}" for _ in range(size + 1)]
    step = ["in", *layer * layers, "loss", *back * layers, "adam", "adam"]
    names, begins, at, starts = [], [], 1 << 60, []
    for number in range(steps):
        at += 500 + chance.randrange(20)
        starts.append(at)
        more = ["log"] if number == 2 else []
        for name in step + more:
            names.append(name)
            begins.append(at)
            at += 6
    found = steps_of_kernels(wall(names, begins))
    if found is None or found.num_kernels not in (len(step), len(step) + 1):
        return False
    ends = set(found.table["end_ns"].to_list())
    # a step ends with the work before the idle time
    last = {start - 500 - 20 for start in starts[1:]}
    return sum(any(0 <= end - early <= 25 for early in last) for end in ends) >= steps - 2


def test_the_period_is_a_step_and_not_a_layer_of_it() -> None:
    """Of random jobs, but for one in a hundred: four steps of which one is longer can be taken for
    others (2 of 1,500 were)."""
    assert sum(map(steps_are_found, range(200))) >= 198


def test_kernels_in_random_order_have_no_period() -> None:
    chance = random.Random(4)
    names = [f"k{chance.randrange(6)}" for _ in range(3000)]
    assert steps_of_kernels(wall(names, [1 << 60 | 10 * each for each in range(3000)])) is None
    assert steps_of_kernels(wall([], [])) is None


@pytest.mark.parametrize("tid", [3004819264, "1890023232", -7, 2**70, 41])
@pytest.mark.parametrize("stream", [7, "stream 7", 2**40, -1])
def test_threads_and_streams_have_any_number(tmp_path: Path, tid: Any, stream: Any) -> None:
    """Of torch 1.8: the lower half of `pthread_self()`, and "stream 7". Its work is of a device."""
    run = run_of(tmp_path, kineto_events(tid=tid, stream=stream), device=None)
    assert {cause: shares(run)[cause] for cause in MARKED} == MARKED
    assert run.summary.run.device == "GPU"
    assert "CPU" not in run.summary.verdict.text


def test_a_report_that_was_not_exported_says_how(tmp_path: Path) -> None:
    (tmp_path / "x.nsys-rep").write_bytes(b"NVIDIA" * 100)
    with pytest.raises(CommandError, match="nsys export --type sqlite"):
        nsys.read_nsys([tmp_path / "x.nsys-rep"])


def test_a_database_of_impossible_activities_is_refused(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "x.sqlite", steps=1)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -5")
    database.close()
    with pytest.raises(CommandError, match="no kernel or copy"):
        nsys.read_nsys([path])


def test_amd_is_as_nvidia(tmp_path: Path) -> None:
    """Calls of HIP, copies whose direction is a number of `hipMemcpyKind`, addresses for memory."""
    events = kineto_events(vendor="hip")
    for number in range(20):
        begin = 1.7e15 + number * 1e5 + 35_200
        copy = {"ph": "X", "cat": "gpu_memcpy", "pid": 0, "tid": 7, "ts": begin, "dur": 400}
        way = ("1", "HtoD")[number % 2]
        events.append({**copy, "name": f"Memcpy {way} (0x7f3c -> 0x7f00)", "args": {}})
        sync = {"ph": "X", "cat": "cuda_runtime", "name": "hipStreamSynchronize", "pid": 100}
        events.append({**sync, "tid": 100, "ts": begin + 60_000, "dur": 500, "args": {}})
    run = run_of(tmp_path, events, "AMD Instinct MI300X")
    assert shares(run)["h2d"] == pytest.approx(0.004)
    assert run.summary.run.device == "AMD Instinct MI300X"
    copies = run.trace.spans.filter(pl.col("kind") == "h2d")
    assert copies["name"].cast(pl.String).unique().to_list() == ["unknown"]
    assert len(run.trace.spans.filter(pl.col("kind") == "sync")) == 20


def damaged(
    events: list[dict[str, Any]], chance: random.Random, count: int
) -> list[dict[str, Any]]:
    """With this many events that have times that cannot be: a zero, far away, or a kernel that
    lasts longer than its stream lets it."""
    found = [dict(event) for event in events]
    for _ in range(count):
        event = chance.choice(found)
        kind = chance.randrange(4)
        if kind == 0:
            event["ts"] = 0
        elif kind == 1:
            event["ts"] = event["ts"] + chance.choice([-1, 1]) * chance.choice([1e11, 8e12])
        elif kind == 2 and event["cat"] == "kernel":
            event["dur"] = chance.choice([1.8e5, 1.9e6, 1e12])
        else:
            event["dur"] = -1
    return found


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_times_that_cannot_be_do_not_change_the_answer(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Up to three events in 320: the shares stay what they are to two points, the job takes no
    longer than its steps, and what was left out or cut is said."""
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("damaged")
    run = run_of(folder, damaged(kineto_events(), chance, chance.randrange(1, 4)))
    assert shares(run)["compute"] == pytest.approx(0.6, abs=0.02)
    assert sum(phase.seconds for phase in run.summary.ledger.phases) < 2.5
    assert run.summary.capture.import_damage


@settings(max_examples=examples(60), deadline=None)
@given(part=st.floats(0.01, 0.999))
def test_a_cut_file_is_said_and_tells_nothing_wrong(
    tmp_path_factory: pytest.TempPathFactory, part: float
) -> None:
    """What the host did comes first: steps whose kernels are missing are not charged."""
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    text = kineto_text(kineto_events())
    path.write_text(text[: int(part * len(text))])
    try:
        run = imported(kineto.read_kineto, path)
    except CommandError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        return
    assert any("truncated" in note for note in import_notes(run.summary))
    if not run.summary.verdict.bound_by and run.summary.steps.count:
        assert "not in the files" in headline(run.summary)
    charged = sum(entry.seconds or 0.0 for entry in run.summary.steps.causes)
    if charged:
        assert shares(run)["compute"] == pytest.approx(0.6, abs=0.01)


def test_advice_is_about_the_job(tmp_path: Path) -> None:
    """Nothing is to be recorded or wrapped; a loader without workers is to have some."""
    for kinds, name in (({"workers": False}, "num_workers"), ({"loader": False}, "")):
        run = with_gains(run_of(tmp_path, kineto_events(**kinds)), is_asked=False)
        words = " ".join(each.action for each in run.summary.verdict.findings)
        assert name in words
        assert "ioprof" not in words
        assert "Record" not in words


def test_workers_are_predicted_for_a_loop_that_has_none(tmp_path: Path) -> None:
    """Of the 100 ms of a step the loop makes its batch for 35, which workers would do meanwhile."""
    run = run_of(tmp_path, kineto_events(workers=False))
    assert run.trace.run.config.workers == 0
    for workers in (1, 4):
        found = whatif(run.trace, Change(workers=workers)).predicted
        assert found.step_s == pytest.approx(0.065, abs=0.003)


@pytest.mark.skipif(TRACES is None, reason="needs IOPROF_TRACES: a folder of public traces")
def test_real_traces() -> None:
    """Of all files steps and a device are found; busy and idle time agree to a point with the CSV
    beside a file; the job without workers predicts the one with four.

    The CSVs count from the first to the last activity whose launch is in the file, and so does
    `DeviceTime`.
    """
    folder, runs = Path(str(TRACES)), dict[str, Run]()
    for path in sorted(folder.glob("*.json.gz")) + sorted(folder.glob("*.sqlite")):
        reader = nsys.read_nsys if path.suffix == ".sqlite" else kineto.read_kineto
        run = runs[path.name.split(".")[0]] = imported(reader, path)
        assert run.summary.steps.count, path
        assert run.summary.run.device not in (None, "cpu"), path
        assert "CPU" not in run.summary.verdict.text, path
    for path in folder.glob("*.gpu_timeline.csv"):
        lines = path.read_text().splitlines()
        rows = {row["type"]: float(row["percent"]) for row in csv.DictReader(lines)}
        found = runs[path.name.split(".")[0]].summary.device_time
        assert found is not None
        parts = {
            "computation_time": found.compute_s,
            "exposed_comm_time": found.exchange_s,
            "exposed_memcpy_time": found.copies_s,
            "idle_time": found.idle_s,
        }
        for name, seconds in parts.items():
            assert 100 * seconds / found.total_s == pytest.approx(rows[name], abs=1), (path, name)
    none, four = (runs[f"kineto_resnet50_workers{each}"] for each in (0, 4))
    found = whatif(none.trace, Change(workers=4))
    assert found.predicted.step_s == pytest.approx(four.summary.steps.p50_s, rel=0.05)
    num_steps = none.summary.steps.count
    assert found.predicted.total_s / num_steps == pytest.approx(four.summary.steps.mean_s, rel=0.05)
