"""Waits for the interpreter lock, by samples of the main thread and of who held the lock."""

from typing import Any

import polars as pl
import pytest
from timeline import block, timeline, with_blocks

from ioprof.analysis.charge.blame import blame, charges
from ioprof.analysis.charge.interpreter_lock import FEWEST_WAITS, long_holds
from ioprof.analysis.cpu.stacks import unexplained
from ioprof.analysis.intervals import EMPTY
from ioprof.analysis.totals import totals
from ioprof.format.run_record import PartCode
from ioprof.format.schema import CAUSES, STACK_COLUMNS
from ioprof.format.trace import Trace, table_schema

DRAWING = """
step            0000000000111111111122222222223333333333
compute main    .00000000..11111111..22222222..33333333.
"""
GAP_NS = 100_000
"""Between two waits for the lock in a row."""
HOLDER = "<thread>:0:metrics\n/usr/lib/python3.12/threading.py:1:Thread._bootstrap\n/job/metrics.py:7:count"  # noqa: E501


def waiting(num_waits: int) -> Trace:
    """A sample in each tick; in the first ticks of the computations the main thread waits for the
    lock."""
    trace = timeline(DRAWING)
    run = trace.run.replace(config=trace.run.config.replace(device="cpu"))
    host = trace.spans["host"][0]
    inside = [tick for tick in range(40) if tick % 10 not in (0, 9)]
    rows = [
        (10 * tick + 5, host, 0, 100, 100, "rank", "/job/train.py:3:main") for tick in range(40)
    ]
    rows += [(10 * tick + 5, host, 0, 100, 107, "rank", HOLDER) for tick in inside[:num_waits]]
    table = pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS), orient="row")
    return Trace(run, trace.spans, trace.files, trace.counters, table)


def sums(steps: pl.DataFrame) -> dict[str, int]:
    """Nanoseconds by cause, of the two that the drawing has."""
    return {cause: int(steps[f"{cause}_ns"].sum()) for cause in ("compute", "host")}


def test_the_part_of_the_samples_that_waited_is_host() -> None:
    """Half of a computation's samples are half of its time; each step keeps its length."""
    before, found = charges(waiting(0)), charges(waiting(16))
    assert sums(before.steps)["compute"] == 2 * sums(found.steps)["compute"]
    assert {"compute": sums(found.steps)["compute"]} == found.lock_ns
    for steps in (before.steps, found.steps):
        charged = sum(steps[f"{cause}_ns"].fill_null(0) for cause in CAUSES)
        assert (steps["end_ns"] - steps["start_ns"]).to_list() == charged.to_list()  # type: ignore[union-attr]
    (part, took_ns), *_ = found.details.of_cause("host", sums(found.steps)["host"], waiting(16))
    assert ((PartCode.LOCK, "metrics"), found.lock_ns["compute"]) == (part, took_ns)


def test_few_such_samples_move_nothing() -> None:
    """One sample in a short job would be a large share of it."""
    assert sums(blame(waiting(0))) == sums(blame(waiting(FEWEST_WAITS - 1)))
    assert sums(blame(waiting(0))) != sums(blame(waiting(FEWEST_WAITS)))


def test_the_line_is_that_of_the_thread_that_held_the_lock() -> None:
    """And not that of the loop, which waited; the lines of `host` share all of its time."""
    trace = waiting(16)
    found = totals(trace)
    lines = {
        (line.file, line.line): line for line in unexplained(trace, found.charged, found.samples)
    }
    assert {("/job/metrics.py", 7), ("/job/train.py", 3)} == set(lines)
    assert (16, 8) == (lines["/job/metrics.py", 7].samples, lines["/job/train.py", 3].samples)


def waited(start: int, end: int, tid: int, waker: int | None) -> dict[str, Any]:
    """A wait for the lock in these ticks; the main thread is 100."""
    return block(start, end, tid, waker) | {"pid": 100, "rank": 0, "waker_pid": 100}


def test_where_blocks_were_recorded_they_say_how_long_it_waited_and_for_whom() -> None:
    """It waits 5 ms at a time, and again. A thread that it never has to leave the lock to is none:
    that is another condition."""
    trace = waiting(0)
    host = trace.spans["host"][0]
    waits = [
        *(waited(10 * step + 2, 10 * step + 4, 100, 107) for step in range(4)),
        waited(5, 6, 100, None),
        waited(6, 7, 100, 107),
        waited(4, 5, 107, 100),
        *(waited(10 * step + 8, 10 * step + 9, 100, 109) | {"id": 6} for step in range(4)),
    ]
    found = charges(with_blocks(trace, *(each | {"host": host} for each in waits)))
    moved_ns = sums(charges(trace).steps)["compute"] - sums(found.steps)["compute"]
    assert moved_ns == pytest.approx(100, abs=4)  # by whole nanoseconds of each step
    (part, _), *_ = found.details.of_cause("host", sums(found.steps)["host"], trace)
    assert (PartCode.LOCK, "107") == part


@pytest.mark.parametrize(
    ("turns", "others", "is_free"), [(20, 1, True), (1, 1, False), (20, 4, False)]
)
def test_a_lock_that_is_held_at_length_whatever_the_loop_does(
    turns: int, others: int, is_free: bool
) -> None:
    """Until a call of C has ended, which is many turns of 5 ms; not by a thread that waits for the
    loop now and then, as one does that makes its batches."""
    trace = waiting(0)
    host = {"host": trace.spans["host"][0]}
    ms = 1_000_000

    def wait(at_ms: int, turn: int, waker: int | None) -> dict[str, Any]:
        start_ns = at_ms * ms + turn * (5 * ms + GAP_NS)
        times = {"start_ns": start_ns, "end_ns": start_ns + 5 * ms}
        return waited(0, 1, 100, waker) | times | host

    waits = [
        wait(200 * hold, turn, 107 if turn == turns - 1 else None)
        for hold in range(8)
        for turn in range(turns)
    ]
    beside = waited(0, 1, 107, 100) | {"object": "semaphore", "id": 9} | host
    found = long_holds(with_blocks(trace, *waits, *[beside] * others)).get(0, EMPTY)
    assert (8 if is_free else 0) == len(found)
    whole_ns = turns * (5 * ms + GAP_NS) - GAP_NS
    assert all(end - start == whole_ns for start, end in found.tolist())


def test_waits_for_another_process_are_a_part_of_the_loops_own_python() -> None:
    """What is computed meanwhile, as by threads of an operator, is not."""
    trace = timeline(DRAWING)
    host = {"host": trace.spans["host"][0], "pid": 100, "rank": 0}
    other, own = {"waker_pid": 200}, {"waker_pid": 100}
    waits = [
        block(8, 11, 100, 201) | other,
        block(28, 31, 100, 107) | own,
        block(33, 35, 100, 201) | other,
    ]
    found = charges(with_blocks(trace, *(each | host for each in waits)))
    parts = found.details.of_cause("host", sums(found.steps)["host"], trace)
    assert [20] == [took_ns for (code, _), took_ns in parts if code is PartCode.PROCESSES]
