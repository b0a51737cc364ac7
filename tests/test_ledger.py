"""The ledger of the whole job: what its time went to, from the start of the command to its end."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from repository import PROGRAMS
from sample_run import sample_run
from strategies import traces
from timeline import timeline
from told import summarise

from ioprof.analysis.ledger import PHASES, ledger, phases
from ioprof.format.run_record import Summary
from ioprof.format.schema import FILE_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.report.run import Run
from ioprof.report.texts.epoch_statements import start_text


def after_the_last_step(kind: str, longer: int) -> Summary:
    """Two ranks save or evaluate for 12 s in their steps, one of them for so many s after its last
    step, the other for 2 s less."""
    lanes = ""
    for rank, after in enumerate((longer, max(longer - 2, 0))):
        lanes += f"step r{rank} 0000000011111111.....\ncompute main r{rank} 00......11...........\n"
        lanes += f"{kind} main r{rank} ..######..######{'#' * after}{'.' * (5 - after)}\n"
    trace = timeline(lanes, config={"device": "cpu"})
    times = [pl.col(name) * 10**8 for name in ("start_ns", "end_ns")]
    return summarise(Trace(trace.run, trace.spans.with_columns(times)))


@pytest.mark.parametrize("kind", ["checkpoint", "validate"])
@pytest.mark.parametrize("longer", [0, 2, 5])
def test_what_follows_the_last_step_is_of_that_step(kind: str, longer: int) -> None:
    """As what follows any other step is of the next one: no part of the loop is in no step, and the
    steps and the whole job say the same of it."""
    summary, name = after_the_last_step(kind, longer), {"validate": "validation"}.get(kind, kind)
    assert name == summary.verdict.bound_by
    in_steps_s = next(e.seconds or 0.0 for e in summary.steps.causes if e.cause == name) / 2
    whole_s = next(phase.seconds for phase in summary.ledger.phases if phase.name == name)
    expected_s = 12 + (longer + max(longer - 2, 0)) / 2
    assert (expected_s, expected_s) == pytest.approx((in_steps_s, whole_s))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Run, dict[str, float]]":
    """A job whose parts have known lengths, recorded, and these lengths by its own clock."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "slow_to_import.py").write_text("import time\ntime.sleep(0.6)\nREADY = True\n")
    command = [
        sys.executable,
        str(PROGRAMS / "whole_job.py"),
        str(folder),
        str(folder / "model.pt"),
    ]
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--out",
            str(folder / "run"),
            "--",
            *command,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    return Run.load(folder / "run"), json.loads(ended.stdout)


@pytest.mark.job(every=4)
def test_the_parts_are_as_long_as_the_jobs_own_clock_says(
    whole: "tuple[Run, dict[str, float]]",
) -> None:
    """Imports, index, epochs, validation, checkpoints and end, each within 5 % or 0.1 s."""
    run, took = whole
    found = {phase.name: phase.seconds for phase in run.summary.ledger.phases}
    assert run.summary.ledger.is_whole
    close = {"rel": 0.05, "abs": 0.1}
    imports = {entry.name: entry.seconds for entry in run.summary.ledger.imports}
    assert took["imports"] == pytest.approx(imports["torch"] + imports["slow_to_import"], **close)
    # torch imports more of itself when an optimizer is made
    assert found["imports"] >= sum(imports.values()) * 0.999
    assert took["index"] == pytest.approx(found["start-up"], **close)
    assert took["epochs"] == pytest.approx(
        found["first batch"] + found["steps"] + found["epoch start"], rel=0.05, abs=0.2
    )
    assert took["validation"] == pytest.approx(found["validation"], **close)
    assert took["checkpoint"] == pytest.approx(found["checkpoint"], **close)
    assert took["end"] <= found["end"] + found["exit"]


@pytest.mark.job(every=4)
def test_the_imports_are_named(whole: "tuple[Run, dict[str, float]]") -> None:
    """The longest first; torch and the job's own slow module are among them."""
    imports = whole[0].summary.ledger.imports
    assert {"torch", "slow_to_import"} <= {entry.name for entry in imports}
    assert sorted((entry.seconds for entry in imports), reverse=True) == [
        entry.seconds for entry in imports
    ]


@pytest.mark.job
def test_the_phases_sum_to_the_commands_wall_time(whole: "tuple[Run, dict[str, float]]") -> None:
    """To the nanosecond."""
    trace, table = whole[0].trace, phases(whole[0].trace)
    assert trace.run.times is not None
    assert [trace.run.times.end_ns - trace.run.times.start_ns] == table["wall_ns"].to_list()
    assert [0] == (
        table["wall_ns"]
        - table.select(pl.sum_horizontal(f"{phase}_ns" for phase in PHASES)).to_series()
    ).to_list()


@given(traces())
def test_the_phases_of_any_trace_sum_to_its_wall_time(trace: Trace) -> None:
    """Whatever was recorded."""
    table = phases(trace)
    assert (
        table["wall_ns"].to_list()
        == table.select(pl.sum_horizontal(f"{phase}_ns" for phase in PHASES)).to_series().to_list()
    )


@pytest.mark.parametrize(("readers", "by"), [(1, "one rank"), (2, "each of 2 ranks")])
def test_the_rate_of_weights_is_that_of_the_ranks_that_read_them(readers: int, by: str) -> None:
    """Each of them reads 400 bytes in 40 ns; another rank gets them from the one that read."""
    lanes = "".join(
        f"read r{rank} file=3 400B {'####' if rank < readers else '....'}...\n"
        f"step r{rank} .....00\ncompute main r{rank} .....00\n"
        for rank in range(2)
    )
    files = pl.DataFrame([{"file": 3, "path": "/x/model.pt"}], schema=table_schema(FILE_COLUMNS))
    times = {"start_ns": 0, "end_ns": 70}
    found = ledger(timeline(lanes, times=times).with_facts(files=files))
    assert found.weights is not None
    assert (readers, 400 * readers) == (found.weights.ranks, found.weights.bytes)
    assert 4e-8 == pytest.approx(found.weights.reading_s)
    told = start_text(sample_run().summary.replace(ledger=found))
    assert f"40.0 ns of reading by {by} (10.0 GB/s)" in told


@pytest.mark.job
def test_a_failed_import_prints_the_same_traceback(tmp_path: Path) -> None:
    """With and without ioprof: no frame of it is in the output."""
    (tmp_path / "broken.py").write_text(
        "import time\ntime.sleep(0.02)\nraise ValueError('broken')\n"
    )
    command = [sys.executable, "-c", "import broken"]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    recorded = subprocess.run(
        [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", "run", "--", *command],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "ValueError: broken" in alone.stderr
    assert alone.stderr in recorded.stderr
