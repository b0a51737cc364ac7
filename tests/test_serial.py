"""What makers of batches do one at a time, found in their waits for each other; and who works
while a thread waits."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from timeline import pid

from ioprof.analysis.graph.wakers import Wakers, of_working_threads, with_blocked
from ioprof.analysis.intervals import total
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import (
    BLOCK_COLUMNS,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    STACK_COLUMNS,
)
from ioprof.format.trace import Trace, table_schema
from ioprof.model.changed import changed, with_factors
from ioprof.model.changes import Change
from ioprof.model.pace import measured, replayed
from ioprof.model.pipeline import STAGES
from ioprof.model.recorded import pipeline
from ioprof.model.serial import serial

MS = 1_000_000
BLOCKS = table_schema(BLOCK_COLUMNS)
WORKERS, BATCHES, AHEAD = 4, 120, 4
LOADER = STAGES.index("loader")


def with_lock(held_ns: int, own_ns: int, times: int, step_ns: int) -> Trace:
    """A loader whose workers take a lock so many times for each batch, first come, first served;
    the loop takes the batches in turn, some ahead of it for each worker."""
    spans, blocks = list[dict[str, Any]](), list[dict[str, Any]]()
    free_ns = loop_ns = 10 * MS
    holder, taken, ready = -1, 0, dict[int, int]()
    allowed = [0] * (BATCHES + WORKERS)
    started = [10 * MS + worker for worker in range(WORKERS)]
    queue = [(started[worker], worker, worker, times) for worker in range(WORKERS)]
    while taken < BATCHES:
        while taken in ready:
            begin_ns, loop_ns = loop_ns, max(loop_ns, ready[taken])
            end_ns = loop_ns + step_ns
            facts = {"pid": pid(0), "tid": pid(0), "batch": taken, "step": taken}
            spans += [
                {**facts, "kind": "wait", "start_ns": begin_ns, "end_ns": loop_ns},
                {**facts, "kind": "step", "start_ns": begin_ns, "end_ns": end_ns},
                {**facts, "kind": "compute", "start_ns": loop_ns, "end_ns": end_ns},
            ]
            if taken + AHEAD * WORKERS < BATCHES:
                allowed[taken + AHEAD * WORKERS] = loop_ns
            loop_ns, taken = end_ns, taken + 1
        if not queue:
            break
        queue.sort()
        at_ns, worker, batch, left = queue.pop(0)
        process = pid(0, worker)
        if left:
            if free_ns > at_ns and holder != worker:
                blocks.append(
                    {
                        "start_ns": at_ns, "end_ns": free_ns + 5000, "pid": process, "tid": process,
                        "waker_pid": pid(0, holder), "waker_tid": pid(0, holder),
                        "woken_ns": free_ns,
                    }
                )  # fmt: skip
            free_ns, holder = max(at_ns, free_ns) + held_ns, worker
            queue.append((free_ns, worker, batch, left - 1))
            continue
        ready[batch] = at_ns + own_ns
        facts = {"pid": process, "tid": process, "batch": batch}
        fetch = {"kind": "fetch", "start_ns": started[worker], "end_ns": ready[batch]}
        spans.append({**facts, **fetch})
        if batch + WORKERS < BATCHES:
            started[worker] = max(ready[batch], allowed[batch + WORKERS])
            queue.append((started[worker], worker, batch + WORKERS, times))
    host = {"rank": 0, "host": "node"}
    lock = {**host, "object": "semaphore", "id": 7, "timed_out": False}
    config = {"ranks": 1, "workers": WORKERS, "prefetch": AHEAD, "batch_size": 8, "device": "cpu"}
    return replace(
        Trace(
            RunRecord.of({"config": config, "status": "complete"}),
            pl.DataFrame([{**host, **each} for each in spans], schema=table_schema(SPAN_COLUMNS)),
        ),
        blocks=pl.DataFrame(
            [{**lock, **each} for each in blocks], schema=table_schema(BLOCK_COLUMNS)
        ),
    )


@pytest.mark.parametrize("step_ns", [1 * MS, 11 * MS])
def test_what_a_lock_guards_is_found_and_not_divided_by_workers(step_ns: int) -> None:
    """Whether the loop waits for it, or it is nearly as slow as the loop."""
    found = pipeline(with_lock(2 * MS, 1 * MS, 5, step_ns))
    tasks = found.ranks[0].iterations[0].tasks
    assert tasks.serial_s.mean() == pytest.approx(0.010, rel=0.15)
    assert replayed(found).step_s == pytest.approx(measured(found).step_s, rel=0.1)
    more = replayed(changed(found, Change(workers=12))).step_s
    assert more == pytest.approx(max(0.010, step_ns / 1e9), rel=0.15)
    without = replayed(with_factors(found, {"loader": 0.0})).step_s
    assert without == pytest.approx(step_ns / 1e9, rel=0.15)


@pytest.mark.parametrize("host", ["node", None])
def test_threads_of_other_hosts_with_the_same_ids_hold_no_lock_of_this_one(
    host: str | None,
) -> None:
    """Nor serve its workers: of two ranks whose workers have the same ids, those of one meet."""
    locked = with_lock(2 * MS, 1 * MS, 5, 1 * MS)
    facts = {"rank": pl.lit(1, pl.Int32), "host": pl.lit("other", locked.spans.schema["host"])}
    named = {"host": pl.lit(host, locked.spans.schema["host"])}
    spans = pl.concat([locked.spans.with_columns(**each) for each in (named, facts)])
    blocks = locked.blocks.with_columns(**named)
    run = RunRecord.of({"config": locked.run.config.to_dict() | {"ranks": 2}})
    found = pipeline(replace(Trace(run, spans), blocks=blocks))
    serial_s = [rank.iterations[0].tasks.serial_s for rank in found.ranks]
    assert serial_s[0].mean() == pytest.approx(0.010, rel=0.15)
    assert 0.0 == serial_s[1].sum()


@pytest.mark.parametrize("idle", [False, True])
def test_what_one_thread_answers_for_all_workers_is_found(idle: bool) -> None:
    """As what a lock guards; but not while that thread waits for something to do."""
    locked = with_lock(2 * MS, 1 * MS, 5, 1 * MS)
    server = {"waker_pid": 900, "waker_tid": 900, "object": "channel"}
    waits = locked.blocks.with_columns(
        *(pl.lit(value).cast(BLOCKS[name]).alias(name) for name, value in server.items())
    )
    of_server = waits.with_columns(
        pl.lit(900).cast(pl.Int32).alias("pid"), pl.lit(900).cast(pl.Int32).alias("tid"),
        waker_tid=pl.col("tid"), waker_pid=pl.col("pid"),
    )  # fmt: skip
    found = pipeline(replace(locked, blocks=pl.concat([waits, of_server] if idle else [waits])))
    serial_s = found.ranks[0].iterations[0].tasks.serial_s
    assert serial_s.mean() == pytest.approx(0.0 if idle else 0.010, abs=0.0015)


@pytest.mark.parametrize("in_turn", [False, True])
def test_what_a_process_answers_by_a_thread_for_each_worker_is_found(in_turn: bool) -> None:
    """Where its threads wait for each other, as for its interpreter lock; not where they work at
    once."""
    locked = with_lock(2 * MS, 1 * MS, 5, 1 * MS)
    server, channel = pl.col("tid") + 10_000, pl.lit("channel").cast(BLOCKS["object"])
    waits = locked.blocks.with_columns(
        object=channel, waker_pid=pl.lit(900, pl.Int32), waker_tid=server
    )
    others_turns = waits.with_columns(
        object=pl.lit("condition").cast(BLOCKS["object"]), end_ns=pl.col("woken_ns") - 2 * MS,
        woken_ns=pl.col("woken_ns") - 2 * MS, pid=pl.lit(900, pl.Int32), tid=server,
        waker_tid=pl.lit(901, pl.Int32),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))  # fmt: skip
    found = pipeline(
        replace(locked, blocks=pl.concat([waits, others_turns] if in_turn else [waits]))
    )
    serial_s = found.ranks[0].iterations[0].tasks.serial_s
    assert serial_s.mean() == pytest.approx(0.010 if in_turn else 0.0, abs=0.0015)


def test_what_a_process_computes_for_workers_goes_with_their_batches() -> None:
    """Also where it answers them all at once: 400 ms for 120 batches take the cores from them."""
    locked = with_lock(2 * MS, 1 * MS, 5, 1 * MS)
    waits = locked.blocks.with_columns(
        object=pl.lit("channel").cast(BLOCKS["object"]), waker_pid=pl.lit(900, pl.Int32),
        waker_tid=pl.col("tid") + 10_000,
    )  # fmt: skip
    name = pl.lit("process.cpu_user").cast(table_schema(COUNTER_COLUMNS)["name"])
    begin, end = (locked.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    rows = [
        {"time_ns": int(at_ns), "host": "node", "pid": 900, "value": value}
        for at_ns, value in ((begin.min(), 0.0), (end.max(), 0.4))
    ]
    counters = pl.DataFrame(rows, schema=table_schema(COUNTER_COLUMNS)).with_columns(name=name)
    found = pipeline(replace(locked, blocks=waits, counters=counters))
    served_s = found.ranks[0].iterations[0].tasks.served_s
    assert served_s.sum() == pytest.approx(0.4, rel=0.05)
    without = with_factors(found, {"loader": 0.0}).ranks[0].iterations[0].tasks.served_s
    assert 0.0 == without.sum()


@pytest.mark.parametrize(
    ("num_makers", "loop_ns", "maker_ns"),
    [(2, 1 * MS, 2 * MS), (3, 2 * MS, 2 * MS), (3, 1 * MS, 1 * MS), (2, MS // 5, 10 * MS)],
)
def test_what_makers_hold_the_interpreter_for_is_found(
    num_makers: int, loop_ns: int, maker_ns: int
) -> None:
    """By who waits for whom: threads that work for 4 ms without its lock, and for so long with
    it."""
    random = np.random.default_rng(7)
    tids = [pid(0), *range(9001, 9001 + num_makers)]
    held_ns = dict.fromkeys(tids, 0)
    queue = [(int(random.exponential(4 * MS)), tid) for tid in tids]
    free_ns, holder, blocks = 0, -1, list[dict[str, Any]]()
    while min(queue)[0] < 4000 * MS:
        at_ns, tid = min(queue)
        queue.remove((at_ns, tid))
        if free_ns > at_ns and holder != tid:
            blocks.append(
                {"start_ns": at_ns, "end_ns": free_ns, "tid": tid, "waker_tid": holder}
            )  # fmt: skip
        holds_ns = int(random.exponential(loop_ns if tid == pid(0) else maker_ns))
        free_ns, holder = max(at_ns, free_ns) + holds_ns, tid
        held_ns[tid] += holds_ns
        queue.append((free_ns + int(random.exponential(4 * MS)), tid))
    facts = {"pid": pid(0), "host": "node", "rank": 0, "object": "condition", "id": 7}
    fetches = pl.DataFrame(
        [
            {
                "batch": number * num_makers + place,
                "worker": tid,
                "pid": pid(0),
                "tid": tid,
                "start_ns": number * 40 * MS,
                "end_ns": (number + 1) * 40 * MS,
            }
            for number in range(100)
            for place, tid in enumerate(tids[1:])
        ],
        schema_overrides={"pid": pl.Int32, "tid": pl.Int32},
    )
    rows = [{**facts, **each, "woken_ns": each["end_ns"], "timed_out": False} for each in blocks]
    trace = replace(
        Trace(RunRecord.of({}), pl.DataFrame(schema=table_schema(SPAN_COLUMNS))),
        blocks=pl.DataFrame(rows, schema=table_schema(BLOCK_COLUMNS)),
    )
    spans = trace.spans.with_columns(worker=pl.lit(0, pl.Int64))
    found = serial(trace.blocks, spans, fetches, pid(0))
    truth_s = sum(held_ns[tid] for tid in tids[1:]) / 1e9 / len(fetches)
    assert found.batch_s == pytest.approx(truth_s, rel=0.2)


def test_a_line_that_waits_holds_no_interpreter_lock() -> None:
    """Of makers that sleep for 30 ms, hold it for 20 and wait for it for 25: half of their time
    that is waiting is the sleep, half of it of which two fifths are waiting are the others."""
    recorded = pipeline(with_lock(2 * MS, 1 * MS, 5, 1 * MS))
    rank = recorded.ranks[0]
    tasks = rank.iterations[0].tasks
    number, stages = len(tasks), np.zeros_like(tasks.stages_s)
    stages[:, LOADER] = 0.030
    tasks = replace(tasks, stages_s=stages, serial_s=np.full(number, 0.020))
    tasks = replace(tasks, serial_own_s=tasks.serial_s)
    each = replace(rank.iterations[0], tasks=tasks, has_lock=False, lock_wait_s=0.025)
    rank = replace(rank, iterations=(each,), stage_waits={"loader": 0.6})
    known = replace(recorded, ranks=(rank,))

    def left(waits: float | None) -> tuple[float, float]:
        found = with_factors(known, {"loader": 0.5}, waits).ranks[0].iterations[0].tasks
        return float(found.stages_s[:, LOADER].mean()), float(found.serial_s.mean())

    assert left(1.0) == pytest.approx((0.0, 0.020), abs=1e-6)
    assert left(0.4) == pytest.approx((0.030, 0.0), abs=2e-3)
    assert left(None) == pytest.approx((0.015, 0.010))


def test_workers_that_do_not_meet_are_divided() -> None:
    """A lock that is held for a hundredth of the time."""
    found = pipeline(with_lock(MS // 10, 20 * MS, 1, 1 * MS))
    assert 0.0 == found.ranks[0].iterations[0].tasks.serial_s.sum()
    more = replayed(changed(found, Change(workers=8))).step_s
    assert more == pytest.approx(replayed(found).step_s / 2, rel=0.1)


# ---------------------------------------------------------------------------- back along the wakers


def blocks_of(*rows: tuple[int, int, int, int | None]) -> pl.DataFrame:
    """Blocks of threads: start, end, thread, and who ended it."""
    found = [
        {
            "start_ns": start, "end_ns": end, "host": "node", "pid": tid // 10, "tid": tid,
            "object": "semaphore", "id": 7, "timed_out": by is None, "waker_tid": by,
            "waker_pid": by and by // 10,
        }
        for start, end, tid, by in rows
    ]  # fmt: skip
    return pl.DataFrame(found, schema=table_schema(BLOCK_COLUMNS))


def test_the_way_ends_at_a_thread_that_works_or_sleeps() -> None:
    """Of another process, too."""
    wakers = Wakers(blocks_of((0, 100, 10, 11), (0, 90, 11, 20), (40, 60, 20, None)))
    way = wakers.way(np.array([10, 10, 11, 20]), np.array([50, 95, 50, 50]))
    assert [[10, 10, 11, 20], [11, 11, 20, 0], [20, 0, 0, 0]] == [step.tolist() for step in way]


def test_a_thread_is_blocked_for_other_processes_while_they_work() -> None:
    """Not while a thread of its own process does that asked another one before, nor while it waited
    for a core."""
    rows = ((0, 100, 10, 20), (100, 200, 10, 11), (150, 180, 11, 20), (90, 150, 20, 11))
    found = Wakers(blocks_of(*rows)).in_others(10, np.array([[50, 190]]))
    assert [[50, 100], [150, 180]] == found.tolist()
    wakers = Wakers(blocks_of(*rows[:3]))  # nobody had asked it
    assert [[50, 180]] == wakers.in_others(10, np.array([[50, 190]])).tolist()
    assert [] == wakers.in_others(99, np.array([[0, 100]])).tolist()


def test_what_an_event_loop_does_by_a_timer_is_not_on_the_way() -> None:
    """It looks at its timers while another thread makes what it will pass on."""
    wakers = Wakers(blocks_of((0, 100, 10, 11), (5, 40, 11, None), (45, 95, 11, 20)))
    way = wakers.way(np.full(3, 10), np.array([20, 42, 60]))
    assert [[10] * 3, [11] * 3, [20] * 3] == [step.tolist() for step in way]


def test_a_thread_is_waited_for_while_another_one_works_for_it() -> None:
    """A thread that hands over what an event loop asks another process for: a read of the loop is
    what is waited for, though the loop is blocked in it."""
    wakers = Wakers(blocks_of((0, 100, 10, 11), (5, 90, 11, 20)))
    times = np.array([[0, 100]])
    worked = {tid: each.tolist() for tid, each in wakers.working(10, times).items()}
    assert ([[90, 100]], [[0, 90]]) == (worked[11], worked[20])
    waited = wakers.working(10, times, or_waited=True)
    assert [[0, 100]] == waited[11].tolist()


def test_threads_that_take_turns_are_followed_to_each_turn() -> None:
    """Of two that have a lock 5 ms each, a hundred times, and of a way that goes nowhere."""
    turns = [(5 * each, 5 * each + 5, 20 + each % 2, 21 - each % 2) for each in range(200)]
    wakers = Wakers(blocks_of((0, 1000, 10, 20), *turns))
    found = wakers.working(10, np.array([[0, 1000]]))
    assert [500, 500] == [total(found[tid]) for tid in (20, 21)]
    assert [21, 20] == wakers.way(np.full(2, 10), np.array([2, 7]))[-1].tolist()
    mutual = Wakers(blocks_of((0, 100, 10, 11), (0, 100, 11, 10)))
    assert {10: []} == {
        tid: each.tolist() for tid, each in mutual.working(10, np.array([[10, 20]])).items()
    }


def test_a_sample_asks_another_process_where_that_answers_by_a_pipe() -> None:
    """Not where it waits for a lock, for a thread of its own process, or for nobody."""
    known = blocks_of((0, 100, 10, 20), (200, 300, 10, 11), (400, 500, 10, None))
    rows = [
        {"time_ns": time_ns, "host": "node", "pid": 1, "tid": 10, "stack": "waits"}
        for time_ns in (50, 150, 250, 450)
    ]
    samples = pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS))
    channel = pl.lit("channel").cast(known.schema["object"])
    found = with_blocked(samples, known.with_columns(object=channel))
    assert [True, False, False, False] == found["asks"].to_list()
    assert [True, False, True, True] == found["is_blocked"].to_list()
    assert not with_blocked(samples, known)["asks"].any()


def test_a_sample_of_a_blocked_thread_is_that_of_who_works_meanwhile() -> None:
    """One of a thread that works is its own; so is one where the other has none."""

    def sample(time_ns: int, tid: int, stack: str) -> dict[str, Any]:
        return {"time_ns": time_ns, "host": "node", "pid": tid // 10, "tid": tid, "stack": stack}

    rows = [
        sample(50, 10, "waits"), sample(51, 20, "makes"), sample(150, 10, "trains"),
        sample(250, 10, "waits again"),
    ]  # fmt: skip
    samples = pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS))
    known = blocks_of((0, 100, 10, 20), (200, 300, 10, 30))
    found = of_working_threads(with_blocked(samples, known), known)
    stacks = ["makes", "makes", "trains", "waits again"]
    assert stacks == found["stack"].cast(pl.String).to_list()
    assert [True, False, False, False] == found["of_other"].to_list()
    unknown = with_blocked(samples, known.clear())
    assert unknown.equals(of_working_threads(unknown, known.clear()))
    assert not unknown["of_other"].any()
    rows = [sample(50, 15, "makes"), sample(51, 10, "trains")]
    samples = pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS))
    known = blocks_of((0, 100, 15, 10))
    for loops, stack in (([], "trains"), ([10], "makes"), ([15], "trains")):
        found = of_working_threads(with_blocked(samples, known), known, loops)
        assert stack == found["stack"][0]
