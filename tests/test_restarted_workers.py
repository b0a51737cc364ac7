"""Workers of pools that are started anew for each epoch: what their start costs, and what keeping
them brings, whether their tasks were recorded or only who woke whom."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline import TICK_NS, block, details, pid, timeline, with_blocks

from ioprof.analysis.loaders import generations
from ioprof.analysis.run import Run
from ioprof.format.run_record import PartCode
from ioprof.format.trace import Trace
from ioprof.model.changed import changed
from ioprof.model.changes import Change
from ioprof.model.pace import replayed
from ioprof.model.recorded import pipeline
from ioprof.model.summary import with_gains

TASKS = """
step             00000 1111 2222 3333 4444444444444 5555 6666 7777
wait name=pool   00... 1... 2... 3... 4444444444... 5... 6... 7...
compute main     ..000 .111 .222 .333 ..........444 .555 .666 .777
"""
MADE_ANEW = """
fetch w0         00222 .... .... .... ............. .... .... ....
fetch w1         11333 .... .... .... ............. .... .... ....
fetch w2         ..... .... .... .... .........4666 .... .... ....
fetch w3         ..... .... .... .... .........5777 .... .... ....
"""
KEPT = """
fetch w0         00222 .... .... .... .........4666 .... .... ....
fetch w1         11333 .... .... .... .........5777 .... .... ....
"""
START = 17
"""When the second pool is made, and waited for; its first batch is there 10 later."""
USUAL_START = 6
"""What that takes more than its worker usually does from one batch to the next."""
CPU = {"config": {"device": "cpu", "loader": "multiprocessing Pool"}}


def processes(begun: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    """Those of workers, and when they began."""
    return [
        {
            "host": "node1",
            "pid": pid(0, worker),
            "parent_pid": pid(0),
            "program": "python",
            "role": "other",
            "first_ns": tick * TICK_NS,
        }
        for worker, tick in begun
    ]


def given_by(worker: int, start: int, end: int) -> dict[str, Any]:
    """The loop waits for what this worker gives it."""
    return block(start, end, pid(0), pid(0, worker)) | {"waker_pid": pid(0, worker)}


def unrecorded(second: int, *, waits: bool = True) -> Trace:
    """The loop without the tasks; `second`: the worker that makes batch 4. `waits`: those of a pool
    are known, else it waits by other means, and each worker gives it several batches."""
    begun = [(0, 0), (1, 0), (2, START), (3, START)]
    lanes = [lane for lane in TASKS.splitlines() if waits or not lane.startswith("wait")]
    trace = timeline("\n".join(lanes), **CPU, processes=processes(begun))
    gave = [given_by(0, 0, 2), given_by(1, 5, 6), given_by(second, START, START + 10)]
    more = [given_by(0, 9, 10), given_by(1, 13, 14), given_by(second, START + 13, START + 14)]
    return with_blocks(trace, *gave, *([] if waits else more))


RECORDED = timeline(TASKS + MADE_ANEW, **CPU)
OWN = unrecorded(2, waits=False)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1))
def test_generations_do_not_overlap(lives: list[tuple[int, int]]) -> None:
    """Every worker of one has ended when the next one begins; within one, neighbours overlap."""
    begins = np.array([begin for begin, _ in lives])
    ends = begins + np.array([length for _, length in lives])
    found = generations(begins, ends)
    assert {*range(int(found.max()) + 1)} == {*found.tolist()}
    for number in range(1, int(found.max()) + 1):
        assert ends[found < number].max() < begins[found >= number].min()
    for number in range(int(found.max()) + 1):
        mine = np.flatnonzero(found == number)
        mine = mine[np.argsort(begins[mine], kind="stable")]
        reached = np.maximum.accumulate(ends[mine])
        assert (begins[mine][1:] <= reached[:-1]).all()


@pytest.mark.parametrize(
    ("trace", "cause", "waited", "again"),
    [
        (RECORDED, "loader", 9, 9),
        (unrecorded(2), "loader", 12, 10),
        (OWN, "host", USUAL_START, USUAL_START),
    ],
    ids=["tasks", "wakes", "processes"],
)
def test_what_later_starts_cost_is_what_kept_workers_save(
    trace: Trace, cause: str, waited: int, again: int
) -> None:
    """Of every generation but the first, of which a wait is seen where the tasks are not."""
    label = PartCode.WORKER_START.label("")
    assert (label, waited * TICK_NS) in details(trace, cause)[cause]
    recorded = pipeline(trace)
    kept = changed(recorded, Change(persistent_workers=True))
    saved_s = replayed(recorded).total_s - replayed(kept).total_s
    assert pytest.approx(again * TICK_NS / 1e9) == saved_s
    assert (
        replayed(changed(kept, Change(persistent_workers=True))).total_s == replayed(kept).total_s
    )


@pytest.mark.parametrize(
    ("trace", "again"),
    [(RECORDED, 9), (unrecorded(2), 10), (OWN, USUAL_START)],
    ids=["tasks", "wakes", "processes"],
)
def test_to_keep_them_is_found_with_that_gain(trace: Trace, again: int) -> None:
    """Of the steps after the first; with how often they were started."""
    findings = with_gains(Run.of(trace)).summary.verdict.findings
    kept = next(each for each in findings if each.code == "persistent_workers")
    assert 2 == kept.facts["times"]
    assert pytest.approx(33 / (33 - again)) == kept.gain


@pytest.mark.parametrize(
    "trace",
    [timeline(TASKS + KEPT, **CPU), unrecorded(0), unrecorded(0, waits=False)],
    ids=["tasks", "wakes", "processes"],
)
def test_of_workers_that_are_kept_there_is_none(trace: Trace) -> None:
    """They make the later batches, too, however long the loop waits for these."""
    run = with_gains(Run.of(trace))
    assert "persistent_workers" not in {each.code for each in run.summary.verdict.findings}
    recorded = pipeline(trace)
    assert 1 == sum(each.starts_workers for each in recorded.ranks[0].iterations) or not any(
        rank.program.again_s.any() for rank in recorded.ranks
    )
