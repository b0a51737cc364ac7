"""Batches that were made, and could not be sent because their workers kept the interpreter lock."""

import polars as pl
import pytest
from timeline import TICK_NS, timeline

from ioprof.analysis.charge.blame import blame
from ioprof.analysis.charge.blocked_sends import held
from ioprof.format.trace import Trace


def test_a_batch_that_cannot_be_sent_because_its_worker_waits_for_a_page_is_late_for_storage() -> (
    None
):
    """A page fault keeps the interpreter lock, without which no thread of the worker sends: the
    batch comes when the fault ends.

    One that comes later than that, or while the fault goes on, was not waiting for it.
    """
    drawing = (
        "step 000000000000000\nwait 00000000000000.\nfetch w0 00.111111111111\nfault w0"
        " ...{}\ncompute ..............0"
    )
    held, before, after = "##########..", "####........", "############"
    assert [(10, 2), (0, 12), (0, 12)] == [
        _storage_and_delivery_ms(drawing.format(bar)) for bar in (held, before, after)
    ]


def test_the_queue_that_workers_share_is_blocked_by_each_of_them() -> None:
    """The batch of one worker waits while another faults."""
    drawing = """
        step       000000000000000
        wait       00000000000000.
        fetch w0   00.............
        fetch w1   .1111111111111.
        fault w1   .############..
        compute    ..............0
    """
    assert (11, 1) == _storage_and_delivery_ms(drawing)


@pytest.mark.parametrize(
    ("first", "next_one", "charged_ms"),
    [
        ("00000000000.", "222222222222", {"transform": 15, "loader": 1, "delivery": 1}),
        ("00000000000.", "...222222222", {"transform": 13, "loader": 1, "delivery": 3}),
        ("00000000000.", "............", {"transform": 5, "loader": 0, "delivery": 12}),
        ("00..........", "222222222222", {"transform": 5, "loader": 0, "delivery": 12}),
    ],
)
def test_a_batch_that_its_worker_keeps_while_it_makes_the_next_one_is_late_for_that(
    first: str, next_one: str, charged_ms: dict[str, int]
) -> None:
    """Python code keeps the interpreter lock, so the thread that sends waits. But where the worker
    was idle, or all batches take as long, it is the message that is slow. `first` arrives after 12
    ms, and the next batch 12 ms after it was made.
    """
    drawing = f"""
        step      000000000000011111111111111111
        wait      000000000000.11111111111111111
        fetch w0  {first}.11111{next_one}
        transform w0 {"." * 13}=====.{next_one[1:-1].replace("2", "#")}.
        compute   ............0.................
    """
    trace = timeline(drawing)
    spans = trace.spans.with_columns(pl.col("start_ns", "end_ns") * (10**6 // TICK_NS))
    row = blame(Trace(trace.run, spans)).row(1, named=True)
    assert charged_ms == {cause: round(row[f"{cause}_ns"] / 1e6) for cause in charged_ms}


@pytest.mark.parametrize(
    ("arrives", "last_ms", "cause"),
    [
        ("when the next batch is made", 12, "transform"),
        ("in the middle of it", 7, "delivery"),
        ("in the middle of it", 1, "transform"),
        ("in the middle of it", 6, "delivery"),
    ],
)
def test_batches_that_all_arrive_when_the_next_one_is_made_are_late_for_that(
    arrives: str, last_ms: int, cause: str
) -> None:
    """Then the worker always keeps the lock; a slow message ends at any time. The last batch, whose
    worker is idle, shows what a message takes by itself.
    """
    early = 0 if arrives == "when the next batch is made" else 5
    number = "0123456789abcdef"
    rows = {
        "step": "0" * 26 + "".join(one * 13 for one in number[1:]),
        "wait": (
            "0" * (25 - early)
            + "." * (1 + early)
            + "".join(one * (12 - early) + "." * (1 + early) for one in number[1:-1])
            + "f" * last_ms
            + "." * (13 - last_ms)
        ),
        "compute": "." * 25 + "0" + "".join("." * 12 + one for one in number[1:]),
        "fetch w0": "".join(one * 12 + "." for one in number) + "." * 13,
        "transform w0": (
            "".join(("=" if place % 2 else "#") * 12 + "." for place in range(16)) + "." * 13
        ),
    }
    trace = timeline("\n".join(f"{kind} {row}" for kind, row in rows.items()))
    spans = trace.spans.with_columns(pl.col("start_ns", "end_ns") * (10**6 // TICK_NS))
    row = blame(Trace(trace.run, spans)).row(8, named=True)
    assert (12 - early) * 10**6 == pytest.approx(row[f"{cause}_ns"], abs=2 * 10**6)


@pytest.mark.parametrize(
    ("made_ms", "after_ms", "is_held"),
    [(32, 2, True), (32, 7, True), (32, 9, False), (12, 2, True)],
)
def test_a_batch_may_arrive_a_quarter_of_the_next_one_later(
    made_ms: int, after_ms: int, is_held: bool
) -> None:
    """Where other programs use the cores too. One worker alone makes nearly all batches: another
    one, which has few, ends them at any time, and says nothing of the first.
    """
    ms, count, apart = 10**6, 40, made_ms + 2
    ready = pl.Series(range(count)) * apart * ms
    fetches = pl.DataFrame(
        {"batch": range(count), "worker": 0, "start_ns": ready - made_ms * ms, "end_ns": ready}
    )
    few = fetches[::5].with_columns(worker=1, batch=pl.col("batch") + count)
    known = fetches.select("batch", "worker", start_ns=pl.col("end_ns") + ms, ready_ns="end_ns")
    known = known.with_columns(end_ns=pl.col("ready_ns") + (apart + after_ms) * ms)
    others = few.select(
        "batch",
        "worker",
        start_ns=pl.col("end_ns") + ms,
        ready_ns="end_ns",
        end_ns=pl.col("end_ns") + 6 * ms,
    )
    found = held(pl.concat([known[:-1], others.select(known.columns)]), pl.concat([fetches, few]))
    assert (count - 1 if is_held else 0) == len(found)


def _storage_and_delivery_ms(drawing: str) -> tuple[int, int]:
    """What the first step is charged with, where each character is 1 ms."""
    trace = timeline(drawing)
    spans = trace.spans.with_columns(pl.col("start_ns", "end_ns") * (10**6 // TICK_NS))
    row = blame(Trace(trace.run, spans)).row(0, named=True)
    return row["storage_ns"] // 10**6, row["delivery_ns"] // 10**6
