"""What staging took against what it brings: arithmetic on drawn timelines, and run.json as a
hostile hand might write it."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from timeline import TICK_NS, timeline

from ioprof.analysis.charge.staging_cost import epoch_seconds, staging_cost
from ioprof.format.run_record import Reason, RunRecord
from ioprof.format.trace import Trace
from ioprof.report.run import Run
from ioprof.report.texts.brief import brief_text
from ioprof.report.texts.storage_statements import preparation_statements, staging_statements

TICK_S = TICK_NS / 1e9

THREE_EPOCHS = """
step            0000 1111 22 33 4 5
step r1         0000 1111 22 33 4 5
fetch w0        00.. 11.. .2 .3 4 5
read w0         00.. 11.. .2 .3 4 5
fetch r1 w0     00.. 11.. .2 .3 4 5
read r1 w0      00.. 11.. .2 .3 4 5
"""
"""Two ranks with a worker each, two steps per epoch: epochs of 8, 4 and 2 ticks."""


def seconds(*ticks: float) -> list[float]:
    return [pytest.approx(each * TICK_S) for each in ticks]


def test_an_epoch_lasts_from_the_end_of_the_one_before() -> None:
    """Over all ranks; one that not every rank completed is none."""
    assert seconds(8, 4, 2) == epoch_seconds(timeline(THREE_EPOCHS), 2)
    assert seconds(8, 4) == epoch_seconds(timeline("step 0000 1111 22 33 4"), 2)
    assert [] == epoch_seconds(timeline("step 00"), 2)


def before(drawing: str, **stage: Any) -> Any:
    known = {
        "mode": "before",
        "steps_per_epoch": 2,
        "records": 4,
        "seconds": 6 * TICK_S,
        "shared_read": {"mean_s": 5 * TICK_S},
    }
    return staging_cost(timeline(drawing, stage={**known, **stage}, config={"batch_size": 1}))


def test_before_the_shared_epoch_exchanges_one_read_for_another() -> None:
    """Per record a worker fetched 1.33 ticks, all of it reading; a shared read takes 5: 4 records
    over 2 workers are 10 ticks."""
    cost = before(THREE_EPOCHS)
    assert (6 * TICK_S, pytest.approx(4 * TICK_S), pytest.approx(10 * TICK_S)) == (
        cost.cost_s,
        cost.local_epoch_s,
        cost.shared_epoch_s,
    )
    assert ("predicted", pytest.approx(6 / (10 - 4))) == (cost.basis, cost.epochs)


def test_where_the_device_is_the_bound_staging_brings_nothing() -> None:
    """Shared reads that hide behind the steps: no epoch is won back, and the reason says so."""
    cost = before(THREE_EPOCHS, shared_read={"mean_s": 1.5 * TICK_S})
    assert (None, Reason.NO_GAIN) == (cost.epochs, cost.reason)


@pytest.mark.parametrize(
    ("drawing", "stage", "reason"),
    [
        ("step 0", {}, Reason.NO_EPOCH),
        (THREE_EPOCHS, {"shared_read": None}, Reason.NO_SHARED_READ),
        ("step 00 11", {}, Reason.NO_WORKER_TIME),
    ],
)
def test_what_is_not_known_is_said(drawing: str, stage: dict[str, Any], reason: Reason) -> None:
    """Null with a reason, never a number that nothing measured."""
    cost = before(drawing, **stage)
    assert (None, reason) == (cost.epochs, cost.reason)


def test_while_training_the_first_epoch_is_compared_with_the_later_ones() -> None:
    """The first took 8 ticks, 2 of them writing in each of two workers: 6 from the shared path, and
    fewer from the copy."""
    stage = {"mode": "while-training", "steps_per_epoch": 2, "records": 4}
    trace = timeline(THREE_EPOCHS + "stage w0 ..0. ..1.\nstage r1 w0 ..0. ..1.\n", stage=stage)
    cost = staging_cost(trace)
    assert cost is not None
    assert (pytest.approx(2 * TICK_S), pytest.approx(6 * TICK_S)) == (
        cost.cost_s,
        cost.shared_epoch_s,
    )
    assert ("derived", pytest.approx(1 + 2 / (6 - cost.local_epoch_s / TICK_S))) == (
        cost.basis,
        cost.epochs,
    )


def test_one_epoch_is_not_enough_to_compare() -> None:
    """Nothing was read from the copy yet."""
    cost = staging_cost(
        timeline("step 00 11", stage={"mode": "while-training", "steps_per_epoch": 2})
    )
    assert cost is not None
    assert (None, Reason.NO_LATER_EPOCH) == (cost.epochs, cost.reason)


def test_a_run_without_staging_has_no_cost() -> None:
    """And no line in its report."""
    trace = timeline(THREE_EPOCHS)
    assert (None, ()) == (
        staging_cost(trace),
        staging_statements(trace.run.stage, staging_cost(trace)),
    )


def test_answers_that_were_asked_for_are_on_the_first_screen() -> None:
    """When staging breaks even, and what the model learned by when; with no option, nothing."""
    learning = {
        "evaluations": [
            {"step": 5, "seconds": 10.0, "accuracy": 0.5},
            {"step": 9, "seconds": 20.0, "accuracy": 0.25},
        ]
    }
    stage = {"mode": "before", "seconds": 1.0, "shared_read": {"mean_s": 1.0}}
    asked, plain = timeline(THREE_EPOCHS, stage=stage, learning=learning), timeline(THREE_EPOCHS)
    said = [
        " ".join(printed(brief_text(run.summary, run.steps, trace=run.trace)).split())
        for run in map(Run.of, (asked, plain))
    ]
    for words in (
        "Staging breaks even: ",
        "Accuracy 25.0% after 20.0 s (step 9), the best 50.0% after 10.0 s.",
    ):
        assert words in said[0]
        assert words[:9] not in said[1]


def printed(what: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


# --------------------------------------------------------------------------------- hostile run.json

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = """
mode bytes seconds to copied_bytes check_s reused filled_ratio steps_per_epoch records shared_read mean_s asked before start end
ratio
methods held_by unknown_files reason asked_bytes by peak_bytes page_cache_bytes times_at_limit scale source shared_bytes reclaim
"""  # noqa: E501
keys = st.sampled_from(KEYS.split())
damaged = anything | st.dictionaries(
    keys, anything | st.dictionaries(keys, anything, max_size=3), max_size=8
)


@given(st.sampled_from(["before", "while-training"]), damaged, damaged, damaged, damaged, damaged)
def test_whatever_run_json_holds_the_report_is_printed(
    mode: str, stage: Any, cache: Any, limit: Any, dataset: Any, place: Any
) -> None:
    """Law: no value of these keys is an error of Python's; what is shown holds no control
    character."""
    if isinstance(stage, dict):
        stage = {**stage, "mode": mode}
    run = {"stage": stage, "cache": cache, "limit": limit, "dataset": dataset, "own_place": place}
    trace = timeline(THREE_EPOCHS)
    trace = Trace(RunRecord.of({**trace.run.to_dict(), **run}), trace.spans)
    lines = [
        *preparation_statements(trace.run),
        *staging_statements(trace.run.stage, staging_cost(trace)),
    ]
    out = io.StringIO()
    Console(file=out).print(*(f"{line.label} {line.text}" for line in lines), markup=False)
    assert not any(character < " " and character != "\n" for character in out.getvalue())
