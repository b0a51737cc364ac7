"""Batches that were made, and that come late: what the threads did meanwhile for which the rank
waited, by who woke whom."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from timeline import TICK_NS, block, charged, pid, timeline, with_blocks

from ioprof.analysis.charge.blame import blame
from ioprof.analysis.graph.wakers import Wakers
from ioprof.analysis.intervals import total, union
from ioprof.analysis.reads import lineage
from ioprof.analysis.selection import by_rank
from ioprof.format.schema import BLOCK_COLUMNS
from ioprof.format.trace import Trace, table_schema

_SENDER = 7
QUEUE = ("channel", 9)


_DRAWING = """
    step        000000000000000
    wait        00000000000000.
    fetch w0    00.1111111111..
    fault w0    ...########....
    transform w0 ...........==..
    compute     ..............0
    """
_MAIN, _WORKER = pid(0), pid(0, 0)


def test_a_batch_is_late_for_what_keeps_the_lock_that_its_sender_needs() -> None:
    """A page fault, or Python code, of the thread that makes the next batch. What is in no stage
    of that is the loader's, and the message itself is the delivery."""
    trace = with_blocks(
        timeline(_DRAWING),
        block(0, 14, _MAIN, _SENDER, of=QUEUE),
        block(3, 13, _SENDER, _WORKER),
    )
    assert {"storage": 8, "transform": 2, "loader": 2, "delivery": 2, "compute": 1} == _first(trace)


def test_without_a_sender_that_waits_the_message_is_slow() -> None:
    """Whatever its worker does meanwhile."""
    trace = with_blocks(timeline(_DRAWING), block(0, 14, _MAIN, _SENDER, of=QUEUE))
    assert {"loader": 2, "delivery": 12, "compute": 1} == _first(trace)


def test_the_time_that_a_thread_waits_for_a_core_is_not_its_wakers() -> None:
    """It was woken, and is not blocked any more."""
    trace = with_blocks(
        timeline(_DRAWING),
        block(0, 14, _MAIN, _SENDER, of=QUEUE),
        block(3, 13, _SENDER, _WORKER, woken=8),
    )
    assert {"storage": 5, "loader": 2, "delivery": 7, "compute": 1} == _first(trace)


def test_a_thread_that_goes_on_waiting_waited_for_who_ended_that() -> None:
    """So a thread waits for the interpreter lock; one that gave up waited for nobody."""
    over, last = block(0, 5, _MAIN, None, of=QUEUE), block(5, 14, _MAIN, _WORKER, of=QUEUE)
    again = with_blocks(timeline(_DRAWING), over, last)
    assert {"storage": 8, "transform": 2, "loader": 2, "delivery": 2, "compute": 1} == _first(again)
    last = block(5, 14, _MAIN, _WORKER, of=("semaphore", 3))
    other = with_blocks(timeline(_DRAWING), over, last)
    assert {"storage": 6, "transform": 2, "loader": 2, "delivery": 4, "compute": 1} == _first(other)


def test_mapped_data_that_is_read_when_a_batch_is_sent_is_storage() -> None:
    """Parts of a map are read when the thread that sends them copies them. What another thread of
    the worker reads does not delay this batch."""
    trace = timeline(
        "step 000000000000\nwait 000000000000\nfetch w0 000..1......\nfault w0 t0 ##.####.....\n"
        "compute ............0"
    )
    sender = int(trace.spans.filter(kind="fault")["tid"][0])
    sent = with_blocks(trace, block(0, 12, _MAIN, sender, of=QUEUE))
    other = with_blocks(trace, block(0, 12, _MAIN, _SENDER, of=QUEUE))
    assert (4, 9) == (_first(sent)["storage"] - 2, _first(other)["delivery"])


def test_the_queue_that_workers_share_is_blocked_by_each_of_them() -> None:
    """The batch of one worker waits while another one, whose sender has the queue, faults."""
    trace = timeline("""
        step       000000000000000
        wait       00000000000000.
        fetch w0   00.............
        fetch w1   .1111111111111.
        fault w1   .############..
        compute    ..............0
        """)
    late = with_blocks(
        trace,
        block(0, 14, _MAIN, 7, of=QUEUE),
        block(2, 14, 7, 8, of=("semaphore", 3)),
        block(1, 13, 8, pid(0, 1)),
    )
    assert {"storage": 11, "loader": 2, "delivery": 1, "compute": 1} == _first(late)


_TIMES = st.integers(0, 40)
_BLOCKS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 12), st.integers(0, 3), st.integers(0, 3)),
    max_size=12,
)


@given(blocks=_BLOCKS, start=_TIMES, length=st.integers(1, 40))
def test_somebody_works_at_each_instant_or_threads_wait_for_each_other(
    blocks: list[tuple[int, int, int, int]], start: int, length: int
) -> None:
    """The times of the working threads are disjoint, within the time that is asked for, and those
    in which the thread itself was not blocked are its own. They are the sum of those of the parts
    of that time."""
    free = [0] * 4
    rows = []
    for gap, took, tid, waker in blocks:
        if tid != waker:
            rows.append(block(free[tid] + gap, free[tid] + gap + took, tid + 1, waker + 1))
            free[tid] += gap + took
    found = Wakers(
        pl.DataFrame([{**row, "host": "a"} for row in rows], table_schema(BLOCK_COLUMNS))
    )
    whole = union([[start * TICK_NS, (start + length) * TICK_NS]])
    parts = [union([[at * TICK_NS, (at + 1) * TICK_NS]]) for at in range(start, start + length)]
    at_once, one_by_one = found.working(1, whole), [found.working(1, part) for part in parts]
    assert sum(map(total, at_once.values())) <= total(whole)
    for tid in {*at_once, *(tid for each in one_by_one for tid in each)}:
        of_parts = sum(total(each[tid]) for each in one_by_one if tid in each)
        assert of_parts == (total(at_once[tid]) if tid in at_once else 0)
    blocked = union([[row["start_ns"], row["end_ns"]] for row in rows if row["tid"] == 1])
    assert total(at_once[1]) >= total(whole) - total(blocked)


def test_what_is_kept_back_is_the_fetches_of_others() -> None:
    """For the ceilings and the replay."""
    trace = with_blocks(
        timeline(_DRAWING),
        block(0, 14, _MAIN, _SENDER, of=QUEUE),
        block(3, 13, _SENDER, _WORKER),
    )
    [(rank, spans)] = by_rank(trace, ("wait", "fetch", "step"), ("pid", "tid", "batch", "name"))
    host = Wakers(trace.blocks)
    found = lineage.kept_back(lineage.with_worker(spans), host)
    assert (0, 10 * TICK_NS) == (rank, total(found))
    assert 0 == total(lineage.kept_back(lineage.with_worker(spans), None))


def _first(trace: Trace) -> dict[str, int]:
    """What the first step is charged with, in characters."""
    found = charged(blame(trace))[0, 0]
    return {cause: ticks for cause, ticks in found.items() if ticks is not None}
