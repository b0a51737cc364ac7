"""When a model is evaluated, where its mode alone says so."""

from pathlib import Path

import polars as pl
import pytest
from hooked import of_kind, recorded, run
from repository import PROGRAMS
from told import summarise

from ioprof.analysis.intervals import overlaps, total, union
from ioprof.analysis.selection import intervals
from ioprof.format.run_record import PartCode, Reason
from ioprof.format.schema import BY_MODE
from ioprof.format.trace import Trace
from ioprof.model.recorded import pipeline

pytestmark = pytest.mark.job

EVALUATIONS, PASSES, STEPS, EVERY = 3, 3, 12, 4


def traced(how: str, tmp_path: Path) -> Trace:
    """What the loop that calls its model for that reason recorded."""
    run([PROGRAMS / "evaluating.py", how], tmp_path / "spool")
    return recorded(tmp_path / "spool")


@pytest.mark.job(every=4)
def test_an_evaluation_without_a_loader_is_one(tmp_path: Path) -> None:
    """Each is one span: from its first pass to the next training, also the last one of the job.
    Nothing else is."""
    trace = traced("evaluation", tmp_path)
    found, truth = (
        of_kind(trace, "validate"),
        trace.spans.filter(pl.col("name").cast(str) == "evaluate").sort("start_ns"),
    )
    assert [BY_MODE] * EVALUATIONS == found["name"].cast(str).to_list()
    assert EVALUATIONS == len(truth)
    whole = union(intervals(truth))
    common = total(overlaps(union(intervals(found)), whole))
    # not the preparation of the first batch, and of the last evaluation no rest
    assert common >= 0.8 * total(whole)
    assert total(union(intervals(found))) <= 1.3 * common


@pytest.mark.job(every=4)
def test_its_time_is_a_validation_by_derivation(tmp_path: Path) -> None:
    """And says so."""
    causes = {
        entry.cause: entry for entry in summarise(traced("evaluation", tmp_path)).steps.causes
    }
    found = causes["validation"]
    assert ("derived", Reason.BY_MODE) == (found.basis, found.reason_code)
    assert found.seconds is not None
    assert found.seconds >= (EVALUATIONS - 1) * (PASSES - 1) * 0.01


@pytest.mark.job(every=4)
@pytest.mark.parametrize("how", ["targets", "playing"])
def test_other_passes_without_gradients_are_no_evaluation(how: str, tmp_path: Path) -> None:
    """Neither those of a teacher in every step nor those on batches of one sample; they are
    computations by a name of their own, at the line that calls the model."""
    trace = traced(how, tmp_path)
    assert of_kind(trace, "validate").is_empty()
    names = of_kind(trace, "compute")["name"].cast(pl.String)
    assert names.is_in(["inference"]).sum() >= EVALUATIONS
    assert names.is_in(["forward"]).sum() >= STEPS
    causes = {entry.cause: entry for entry in summarise(trace).steps.causes}
    parts = {part.code: part.share for part in causes["compute"].details}
    assert parts[PartCode.INFERENCE] > 0.02


@pytest.mark.job(every=4)
def test_a_loader_in_evaluation_mode_gives_batches_to_validate_on(tmp_path: Path) -> None:
    """Though gradients are wanted where the loop takes them; the training's batches are not of
    those."""
    trace = traced("loader", tmp_path)
    waits = of_kind(trace, "wait").filter(pl.col("batch").is_not_null())
    assert EVALUATIONS * PASSES == (waits["name"].cast(str) == "validate").sum()
    assert EVALUATIONS * PASSES + STEPS == len(waits)
    assert of_kind(trace, "validate").is_empty()


@pytest.mark.job(every=4)
def test_a_search_in_training_mode_is_no_training(tmp_path: Path) -> None:
    """It has the name and line of its function, and is no computation; a teacher that is called in
    each step is a part of the training."""
    trace = traced("search", tmp_path)
    name = pl.col("name").cast(pl.String)
    users = of_kind(trace, "user")
    searched = users.filter(name.str.starts_with("search (evaluating.py:"))
    truth = users.filter(name == "whole search")
    assert len(truth) == EVALUATIONS
    assert len(searched) == EVALUATIONS
    common = total(overlaps(union(intervals(searched)), union(intervals(truth))))
    assert common >= 0.8 * total(union(intervals(truth)))
    computed = of_kind(trace, "compute").filter(name == "forward")
    assert total(overlaps(union(intervals(computed)), union(intervals(truth)))) == 0
    (tmp_path / "other").mkdir()
    assert (
        of_kind(traced("targets", tmp_path / "other"), "user")
        .filter(name.str.contains("py:"))
        .is_empty()
    )


@pytest.mark.job(every=4)
def test_a_loader_that_begins_anew_by_itself_is_known_by_its_use(tmp_path: Path) -> None:
    """Though the model that was called last is in evaluation mode. The first step begins with its
    batch, not with the workers, and a replay has both loaders' batches."""
    trace = traced("endless", tmp_path)
    waits = of_kind(trace, "wait").filter(pl.col("batch").is_not_null()).sort("start_ns")
    validates = (waits["name"].cast(str) == "validate").fill_null(value=False)
    assert ([False] * EVERY + [True] * EVERY) * 2 == validates.to_list()
    steps = of_kind(trace, "step").sort("start_ns")
    assert int(waits["start_ns"][0]) == int(steps["start_ns"][0])
    assert [1, 1, 1] == [each.workers for each in pipeline(trace).ranks[0].iterations]
    taken = {(each.is_validation, each.num_taken) for each in pipeline(trace).ranks[0].iterations}
    assert {(False, EVERY), (True, 2 * EVERY)} == taken
    found = summarise(trace)
    assert found.ceilings is not None
    assert 1 == found.ceilings.workers
