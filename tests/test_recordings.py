"""Predictions from several recordings of one job: the middle one counts, and the range has how much
they differ."""

from dataclasses import replace
from pathlib import Path

import jobs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repository import ROOT
from simulated_loader import Job, simulate

import ioprof
from ioprof.errors import CommandError
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.model.changes import Change
from ioprof.model.pace import Pace
from ioprof.model.prediction import Prediction, Range
from ioprof.model.recordings import of_recordings

DEMO = ROOT / "tests" / "data" / "demo"
MS = 1_000_000


def prediction(step_s: float, speedup: float, off: float) -> Prediction:
    """One of a recording with such steps."""
    pace = Pace(step_s, 10 * step_s)
    between = Range(speedup / off, speedup * off)
    return Prediction(
        change=Change(),
        measured=pace,
        baseline=pace,
        baseline_error=0.0,
        predicted=Pace(step_s / speedup, 10.0),
        speedup=speedup,
        speedup_range=between,
        kind_error=0.0,
        is_compared=True,
        further_error=0.0,
        samples_per_s=None,
        measured_samples_per_s=None,
        assumptions=(),
    )


PREDICTIONS = st.builds(prediction, st.floats(0.01, 1.0), st.floats(0.5, 3.0), st.floats(1.0, 1.5))


def recorded(milliseconds: float, samples: int = 8) -> Trace:
    """A simulated job whose decoding takes that long."""
    stages = tuple({"decode": int(milliseconds * MS), "transform": MS} for _ in range(20))
    trace = simulate(Job(2, 2, stages, tuple({"compute": MS} for _ in range(20)))).trace
    return trace.with_facts(
        run=trace.run.replace(config=trace.run.config.replace(batch_size=samples))
    )


@given(st.lists(PREDICTIONS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_middle_prediction_counts_in_any_order(found: list[Prediction], random: object) -> None:
    """As many recordings predict a shorter step as a longer one, or one less."""
    runs = [RunRecord()] * len(found)
    combined = of_recordings(found, runs)
    steps = sorted(each.predicted.step_s for each in found)
    assert combined.predicted.step_s == steps[(len(found) - 1) // 2]
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert of_recordings(shuffled, runs).predicted.step_s == combined.predicted.step_s
    assert of_recordings(shuffled, runs).speedup_range == combined.speedup_range


@given(st.lists(PREDICTIONS, min_size=1, max_size=6))
def test_the_range_holds_those_of_all_recordings(found: list[Prediction]) -> None:
    """And what a run with the change may differ by, if it differs as the recordings do."""
    between = of_recordings(found, [RunRecord()] * len(found)).speedup_range
    steps = sorted(each.measured.step_s for each in found)
    middle_s = steps[(len(steps) - 1) // 2]
    for each in found:
        for step_s in steps:
            assert between.low <= each.speedup_range.low * middle_s / step_s * (1 + 1e-9)
            assert between.high >= each.speedup_range.high * middle_s / step_s * (1 - 1e-9)


def test_recordings_that_agree_say_what_one_says() -> None:
    """The same run three times."""
    alone, three = (
        ioprof.whatif(recorded(4), decode=2.0),
        ioprof.whatif(*[recorded(4)] * 3, decode=2.0),
    )
    assert (3, alone) == (len(three.recordings), replace(three, recordings=()))
    assert () == alone.recordings


def test_recordings_that_differ_widen_the_range() -> None:
    """The job takes 3.6, 4 and 4.8 ms: so may the changed one."""
    alone, three = (
        ioprof.whatif(recorded(4), decode=2.0),
        ioprof.whatif(recorded(3.6), recorded(4.8), recorded(4), decode=2.0),
    )
    assert alone.predicted == three.predicted
    assert three.speedup_range.low < alone.speedup_range.low / 1.1
    assert three.speedup_range.high > alone.speedup_range.high * 1.1


def test_another_job_is_no_recording_of_this_one() -> None:
    """What differs is named; a command may differ, and that is said."""
    with pytest.raises(
        CommandError,
        match=r"run 3 is of another job than the first one: its batch size is 16, not 8; .*compare",
    ):
        ioprof.whatif(recorded(4), recorded(4), recorded(4, 16), decode=2.0)
    trace = recorded(4)
    other = trace.with_facts(run=trace.run.replace(command="train.py --out second"))
    assert "recordings" in {
        each.code for each in ioprof.whatif(trace, other, decode=2.0).assumptions
    }


@pytest.mark.job(every=4)
def test_the_command_takes_several_runs(tmp_path: Path) -> None:
    """It says how many there are, and `--json` is the result of the function."""
    folders = [DEMO / "files"] * 2
    printed = jobs.ioprof("whatif", *folders, "--workers", 4, cwd=tmp_path)
    assert (0, True) == (printed.code, printed.out.startswith("2 recordings: ")), printed.err
    assert "how much the 2 recordings differ" in printed.out
    as_json = jobs.ioprof("whatif", *folders, "--workers", 4, "--json", cwd=tmp_path)
    assert ioprof.whatif(*folders, workers=4).to_json() + "\n" == as_json.out
    refused = jobs.ioprof("whatif", DEMO / "files", DEMO / "lmdb", "--workers", 4, cwd=tmp_path)
    assert (2, True) == (refused.code, "run 2 is of another job" in refused.err)
