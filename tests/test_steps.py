"""The table of steps."""

import polars as pl
import pytest
from timeline import timeline

from ioprof.analysis.charge.steps import steps, warmup
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace


def test_one_row_per_rank_and_step_in_order() -> None:
    """A step extends from its earliest span to its latest, for any order of the rows."""
    trace = timeline("step r1 .1122\nstep 0.0.1\nstep ...0.")
    expected = [(0, 0, 0, 40), (0, 1, 40, 50), (1, 1, 10, 30), (1, 2, 30, 50)]
    assert expected == steps(trace).rows()
    assert expected == steps(Trace(trace.run, trace.spans.reverse())).rows()


def test_a_step_without_number_or_rank_is_none() -> None:
    """There is nothing to compare it with."""
    trace = timeline("step ##00")
    assert [(0, 0, 20, 40)] == steps(trace).rows()
    assert 0 == len(
        steps(Trace(RunRecord(), trace.spans.with_columns(rank=pl.lit(None, pl.Int32))))
    )


@pytest.mark.parametrize(
    ("num_steps", "expected"), [(0, 0), (3, 0), (4, 2), (20, 2), (29, 2), (30, 3), (1000, 100)]
)
def test_warmup_is_a_tenth_and_at_least_two(num_steps: int, expected: int) -> None:
    """Too few steps have no steady part."""
    assert expected == warmup(num_steps)


@pytest.mark.parametrize(("lost", "expected"), [(0, 3), (5, 2)])
def test_no_step_rests_on_spans_that_were_lost(lost: int, expected: int) -> None:
    """A worker that had no room from some time on makes the steps after it unknown."""
    processes = [
        {"role": "rank", "pid": 1, "lost": 0, "last_ns": 300},
        {"role": "worker", "pid": 2, "lost": lost, "last_ns": 250},
        {"role": "other", "pid": 3, "lost": 9, "last_ns": 10},
    ]
    trace = timeline("step 0000000000 1111111111 2222222222", processes=processes)
    assert expected == len(steps(trace))
