"""The parts of checkpoints that sum to what each took, and how often a job should save."""

import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import ioprof
from repository import PROGRAMS
from strategies import traces
from test_code_lines import with_stacks
from timeline import timeline
from told import summarise

from ioprof.analysis.charge.saves import PARTS, saves, saves_summary
from ioprof.analysis.save_interval import best_interval_s, lost_ratio, save_interval
from ioprof.format.run_record import Saves
from ioprof.format.schema import FLUSH, OPEN_TO_WRITE, RENAME, SPAN_COLUMNS, WRITE
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest.written_files import LEAST_KEPT_BYTES, WrittenFiles
from ioprof.report.run import Run

COLUMNS: Final = [f"{part.replace(' ', '_')}_ns" for part in PARTS]


def parts(trace: Trace) -> list[dict[str, int]]:
    """The parts of each checkpoint that took time, in characters of a drawing."""
    return [
        {column.removesuffix("_ns"): row[column] // 10 for column in COLUMNS if row[column]}
        for row in saves(trace).iter_rows(named=True)
    ]


def test_each_instant_of_a_save_belongs_to_one_part() -> None:
    """To the first that covers it; what follows to bring it to storage is of it; a load is none,
    and what another thread does is none of what stopped the training."""
    trace = timeline(f"""
        step                               000000000000 111111111111
        checkpoint name=save               ..####...... ............
        checkpoint name=load               ............ .####.......
        user main name={WRITE}             ...##....... .#..........
        d2h                                ..##........ ..#.........
        user main name={RENAME}            .......#.... ............
        checkpoint t0 name=save            ............ ........###.
    """)
    flush = trace.spans.filter(pl.col("name").cast(pl.String) == RENAME).to_dicts()[0]
    rows = [
        *trace.spans.to_dicts(),
        flush | {"start_ns": 60, "end_ns": 70, "name": f"{FLUSH}fsync"},
    ]
    flushed = Trace(trace.run, pl.DataFrame(rows, schema=trace.spans.schema))
    [found] = saves(flushed).iter_rows(named=True)
    assert [{"device_to_host": 2, "write": 1, "fsync": 1, "rename": 1, "other": 1}] == parts(
        flushed
    )
    assert (60, 30) == (found["wall_ns"], found["background_ns"])


def test_libraries_say_what_a_save_does_between_its_writes() -> None:
    """By samples of the stack, each of which has the same part of that time."""
    trace = timeline("step 000000000000 11111111\ncheckpoint name=save ..########.. ........")
    packages, standard = "/env/lib/python3.12/site-packages", "/usr/lib/python3.12"
    inner = {
        "compression": f"{standard}/gzip.py:9:write",
        "serialization": f"{packages}/torch/serialization.py:5:_save",
        "upload": f"{packages}/botocore/client.py:7:call",
        "planning": f"{packages}/torch/distributed/checkpoint/planner.py:3:plan",
    }
    stacks = [f"/job/train.py:8:save\n{frame}" for frame in inner.values() for _ in range(2)]
    sampled = with_stacks(trace, [(2 + tick, 0, 100, stack) for tick, stack in enumerate(stacks)])
    assert [dict.fromkeys(inner, 2)] == parts(sampled)


def test_steps_beside_a_save_are_compared_with_the_others() -> None:
    """By the median of those, for the part of a step that it lasts."""
    trace = timeline("""
        step             000000 111111 22222222 33333333 444444
        checkpoint name=async_save .....# ...... ........ ........ ......
        checkpoint t0 name=save    ...... ...... ######## ####.... ......
    """)
    names = pl.col("name").cast(pl.String).str.replace("_", " ").cast(pl.Categorical)
    [found] = saves(Trace(trace.run, trace.spans.with_columns(name=names))).iter_rows(named=True)
    assert (10, 120, 30) == (found["wall_ns"], found["background_ns"], found["slowed_ns"])


@given(traces())
def test_the_parts_of_any_save_sum_to_its_time(trace: Trace) -> None:
    """In integer nanoseconds, whatever was recorded; and so do those of the mean."""
    table = saves(trace)
    total = table.select(pl.sum_horizontal(COLUMNS)).to_series().to_list()
    assert table["wall_ns"].to_list() == total
    if (mean := saves_summary(trace)) is not None:
        assert mean.seconds == pytest.approx(sum(part.seconds for part in mean.parts))


def test_ranks_write_parts() -> None:
    """Each of them has its own size and rate; the folder is that in which files were opened
    meanwhile, and not where code is. What is saved between two steps is one checkpoint, in the
    advice, too."""
    trace = timeline("""
        step r0                         00000 11111
        checkpoint r0 50B name=save     ..#.. ...#.
        checkpoint r0 50B name=save     ...#. ....#
        user main r0 file=1 name=open   ..#.. ...#.
        open main r0 file=2             .#... ....#
        step r1                         00000 11111
        checkpoint r1 100B name=save    ..### ..###
    """)
    paths = ["/job/a.py", "/ckpt/run/part", "/job/b.py"]
    files = pl.DataFrame(
        {"file": range(3), "path": paths}, schema_overrides={"file": trace.files.schema["file"]}
    )
    files = (
        trace.files.clear()
        .join(files, how="full", on=["file", "path"], coalesce=True)
        .select(trace.files.columns)
    )
    name = pl.col("name").cast(pl.String).replace({"open": OPEN_TO_WRITE})
    spans = trace.spans.with_columns(name.cast(trace.spans.schema["name"]))
    found = saves_summary(Trace(trace.run, spans, files))
    assert found is not None
    assert (2, 2, 100, "/ckpt/run") == (found.number, found.ranks, found.bytes, found.folder)
    assert 25e-9 == pytest.approx(found.seconds)
    facts = next(
        each.facts for each in summarise(trace).verdict.findings if each.code == "checkpoint_less"
    )
    assert {"checkpoints": 2, "each_bytes": 100} == {
        name: facts[name] for name in ("checkpoints", "each_bytes")
    }
    assert facts["bytes_per_s"] == pytest.approx(100 / 25e-9)


def test_one_without_a_size_has_no_rate() -> None:
    """What loads is no checkpoint that is written."""
    found = summarise(timeline("step 00000 11111\ncheckpoint name=save ..### .....")).verdict
    assert not any("checkpoints" in each.facts for each in found.findings)
    assert "checkpoint_less" in {each.code for each in found.findings}
    assert saves_summary(timeline("step 00011\ncheckpoint 50B name=load .##..")) is None


def user(name: str, start: int, end: int, file: int = 1, size: int = LEAST_KEPT_BYTES) -> Any:
    return {
        "start_ns": start,
        "end_ns": end,
        "kind": "user",
        "name": name,
        "file": file,
        "bytes": size if name == WRITE else None,
    }


def test_what_is_written_and_kept_is_a_checkpoint() -> None:
    """If it is large and then flushed or renamed, within one step; not what a hook has seen, nor
    what is only written."""
    step = {"kind": "step", "name": None, "file": None, "bytes": None}
    rows = [
        {**step, "start_ns": 0, "end_ns": 1000},
        {**step, "start_ns": 1000, "end_ns": 2000},
        user(OPEN_TO_WRITE, 60, 61),
        user(WRITE, 100, 110, size=LEAST_KEPT_BYTES // 2),
        user(WRITE, 150, 160, size=LEAST_KEPT_BYTES // 2),
        user(RENAME, 170, 171, 2),
        user(WRITE, 200, 210, 3),
        user(WRITE, 220, 230, 4, 10),
        user(f"{FLUSH}fsync of /log", 240, 250),
        user(WRITE, 990, 995, 5, LEAST_KEPT_BYTES // 2),
        user(WRITE, 1005, 1010, 5, LEAST_KEPT_BYTES // 2),
        user(RENAME, 1011, 1012, 5),
        {**step, "kind": "checkpoint", "name": "save", "start_ns": 1100, "end_ns": 1200},
        user(WRITE, 1110, 1190, 6),
        user(RENAME, 1201, 1202, 6),
    ]
    thread = {"host": "node1", "rank": 0, "pid": 10, "tid": 10}
    table = pl.DataFrame([row | thread for row in rows], schema=table_schema(SPAN_COLUMNS))
    for pieces in (1, 4):
        written = WrittenFiles()
        for first in range(pieces):
            written.add(table.gather_every(pieces, first))
        found = written.spans().select("kind", "name", "start_ns", "end_ns", "bytes", "file")
        assert [("checkpoint", "save", 60, 160, LEAST_KEPT_BYTES, 1)] == found.rows()


def simulated_s(
    work_s: float, interval_s: float, cost_s: float, restart_s: float, mtbf_s: float, seed: int
) -> float:
    """How long a job takes that fails at random, saves after each interval, and goes on from its
    last checkpoint."""
    failures = random.Random(seed)
    now_s, done_s, left_s = 0.0, 0.0, failures.expovariate(1 / mtbf_s)
    while done_s < work_s:
        part_s = min(interval_s, work_s - done_s)
        takes_s = part_s + (cost_s if done_s + part_s < work_s else 0.0)
        if left_s >= takes_s:
            left_s, now_s, done_s = left_s - takes_s, now_s + takes_s, done_s + part_s
            continue
        now_s, left_s = now_s + left_s, failures.expovariate(1 / mtbf_s)
        while left_s < restart_s:
            now_s, left_s = now_s + left_s, failures.expovariate(1 / mtbf_s)
        now_s, left_s = now_s + restart_s, left_s - restart_s
    return now_s


@pytest.mark.parametrize(("cost_s", "restart_s", "mtbf_s"), [(20, 60, 4000), (5, 300, 20_000)])
def test_the_best_interval_is_that_of_a_job_with_failures(
    cost_s: float, restart_s: float, mtbf_s: float
) -> None:
    """Within 20 % of the best of a simulation; and what is lost there is what the formula says."""
    best_s, work_s = best_interval_s(cost_s, mtbf_s), 300 * mtbf_s
    taken = {
        factor: sum(
            simulated_s(work_s, best_s * factor, cost_s, restart_s, mtbf_s, seed)
            for seed in range(6)
        )
        for factor in (0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
    }
    assert 0.8 <= min(taken, key=lambda factor: taken[factor]) <= 1.2
    lost = 1 - 6 * work_s / taken[1.0]
    assert lost == pytest.approx(lost_ratio(best_s, cost_s, restart_s, mtbf_s), rel=0.1)


@given(st.floats(0.01, 1e4), st.floats(0, 1e4), st.floats(1, 1e7))
def test_no_other_interval_is_much_better(cost_s: float, restart_s: float, mtbf_s: float) -> None:
    """Where a checkpoint costs less than half of the time between failures; beyond, all is lost."""
    best_s = best_interval_s(cost_s, mtbf_s)
    assert best_s > 0
    lost = lost_ratio(best_s, cost_s, restart_s, mtbf_s)
    assert 0 <= lost <= 1
    if cost_s < mtbf_s / 2:
        others = [lost_ratio(best_s * factor, cost_s, restart_s, mtbf_s) for factor in (0.5, 2)]
        assert lost <= min(others)


def test_a_save_as_long_as_the_time_to_the_next_says_nothing_of_the_steps_between() -> None:
    """The steps of the best interval are then as long as the median one."""
    summary = summarise(timeline("step 0000111122223333\ncompute 0000111122223333"))
    saves = Saves(number=3, ranks=1, bytes=None, seconds=5.0, every_s=4.0, every_steps=2.0)
    found = save_interval(summary.replace(saves=saves), 1e6)
    assert found is not None
    assert found.now_ratio is None
    assert round(found.seconds / (summary.steps.p50_s or 0)) == found.steps


WAYS: Final = {
    "torch": ("write",),
    "distributed": ("write",),
    "async": (),
    "safetensors": ("write",),
    "pickle": ("write", "fsync", "rename"),
    "gzip": ("fsync", "rename"),
    "accelerate": ("write",),
}
"""How a job saves, and parts that it must have, of those that are measured: of a short save no
sample of a stack may tell another one."""


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.job(every=4)
def test_a_saving_job_is_told_what_its_saves_took(how: str, tmp_path: Path) -> None:
    """Each of them, as long as the job's own clock says and as large as its files are, whatever
    saves; and the report has it."""
    if how in ("safetensors", "accelerate"):
        pytest.importorskip(how)
    program = [sys.executable, PROGRAMS / "save_in_ways.py", how, 8, tmp_path / "models"]
    ended = ioprof("record", "--quiet", "--out", "run", "--", *program, cwd=tmp_path)
    assert 0 == ended.code, ended.err
    said, run = json.loads(ended.out), Run.load(tmp_path / "run")
    table = saves(run.trace)
    assert len(said["took_s"]) == len(table)
    for took_s, size, row in zip(
        said["took_s"], said["bytes"], table.iter_rows(named=True), strict=True
    ):
        assert row["wall_ns"] == sum(row[column] for column in COLUMNS)
        assert row["wall_ns"] / 1e9 == pytest.approx(took_s, rel=0.1, abs=0.05)
        assert row["bytes"] == pytest.approx(size, rel=0.02)
    assert [4, 8] == table["step"].to_list()
    assert {f"{part}_ns" for part in WAYS[how]} <= {c for c in COLUMNS if table[c].sum()}
    assert how != "async" or int(table["background_ns"].sum()) > 0
    report = ioprof("report", "run", "--full", "--mtbf", "1h", "--html", "page.html", cwd=tmp_path)
    assert "2 checkpoints" in report.out
    assert re.search(r"^checkpoint interval +save every", report.out, flags=re.MULTILINE)
    assert 1 == report.out.count("checkpoint interval")
    assert "Checkpoints and start-up" in (tmp_path / "page.html").read_text()


@pytest.mark.job(every=4)
def test_what_is_only_written_is_no_checkpoint(tmp_path: Path) -> None:
    """Predictions of the model, which nothing brings to storage; and a job without checkpoints is
    told so where it asks how often to save."""
    program = [sys.executable, PROGRAMS / "save_in_ways.py", "predictions", 8, tmp_path / "out"]
    ended = ioprof("record", "--quiet", "--out", "run", "--", *program, cwd=tmp_path)
    assert 0 == ended.code, ended.err
    assert saves(Run.load(tmp_path / "run").trace).is_empty()
    assert "no checkpoint was recorded" in ioprof("report", "run", "--mtbf", "1d", cwd=tmp_path).out
    wrong = ioprof("report", "run", "--mtbf", "often", cwd=tmp_path)
    assert 2 == wrong.code
    assert "--mtbf 24h" in wrong.err


@pytest.mark.job(every=4)
def test_a_start_is_divided_into_its_parts(tmp_path: Path) -> None:
    """Weights that come by map, with their file, and batches that a resumed job skips; they sum to
    the time to the first step."""
    import torch

    save_file = pytest.importorskip("safetensors.torch").save_file
    weights = tmp_path / "all.safetensors"
    save_file({"weight": torch.arange(4_000_000, dtype=torch.int64)}, weights)
    with weights.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    program = [sys.executable, PROGRAMS / "save_in_ways.py", "torch", 8, tmp_path / "out", weights]
    ended = ioprof("record", "--quiet", "--out", "run", "--", *program, cwd=tmp_path)
    assert 0 == ended.code, ended.err
    ledger = Run.load(tmp_path / "run").summary.ledger
    found = {phase.name: phase.seconds for phase in ledger.phases}
    assert found["fast-forward"] > 0
    assert found["loading weights"] > 0
    assert ledger.wall_s == pytest.approx(sum(found.values()))
    assert ledger.weights is not None
    assert ledger.weights.file.endswith("all.safetensors")
