"""The two ceilings of a loop, over pipelines whose truth a simulator knows."""

import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_simulator import Pipeline
from strategies import examples, shifted, shuffled, traces
from timeline import TICK_NS, block, pid, timeline, with_blocks
from told import summarise

from ioprof.analysis.ceilings import _imbalance_ns, ceilings
from ioprof.analysis.charge.blame import blame
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace

STEPS = 60
MARGIN = 1.1
"""Between ceilings that are closer than this the bound is not certain."""
PIPELINES = settings(max_examples=examples(40), deadline=None)
MS = 1_000_000


@st.composite
def steady(draw: st.DrawFn) -> tuple[Pipeline, float, float]:
    """A pipeline of equal batches, and its ceilings in ms: supply and consumer."""
    fetch, consume, workers = (
        draw(st.integers(1, 80)),
        draw(st.integers(1, 40)),
        draw(st.integers(0, 6)),
    )
    prefetch, deliver = draw(st.integers(2, 4)), draw(st.integers(0, 1))
    pipeline = Pipeline(
        [fetch * MS] * STEPS, [consume * MS] * STEPS, workers, prefetch, deliver * MS
    )
    return pipeline, fetch / max(workers, 1), consume


@PIPELINES
@given(steady())
def test_the_ceilings_are_those_of_the_pipeline(known: tuple[Pipeline, float, float]) -> None:
    """And the step is the slower one's, or the sum of both without workers, to a thousandth, or
    what the residual says."""
    pipeline, supply, consumer = known
    found = ceilings(pipeline.trace())
    assert found is not None
    assert (supply, consumer) == pytest.approx(
        (found.supply_s * 1e3, found.consumer_s * 1e3), rel=0.001
    )
    assert found.is_serial == (pipeline.workers == 0)
    assert found.step_s == pytest.approx(
        found.predicted_s + sum(part.seconds for part in found.residuals), rel=0.001
    )


@PIPELINES
@given(steady())
def test_the_bound_is_the_lower_ceiling(known: tuple[Pipeline, float, float]) -> None:
    """Outside of the margin, and where the loop waits for at least a tenth of its time."""
    pipeline, supply, consumer = known
    found = summarise(pipeline.trace())
    if pipeline.workers and consumer > MARGIN * supply:
        assert "compute" == found.verdict.bound_by, found.verdict.text
    elif pipeline.workers and supply > MARGIN * consumer * 1.2:
        assert "decode" == found.verdict.bound_by, found.verdict.text


@PIPELINES
@given(st.integers(0, 10**6), st.sampled_from([0.5, 0.8, 1.5, 3.0]), st.integers(1, 4))
def test_identical_runs_with_jitter_get_one_verdict(seed: int, ratio: float, workers: int) -> None:
    """Of times that vary by a third from batch to batch."""
    choice = random.Random(seed)
    verdicts = set()
    for _ in range(3):
        fetch = [
            int(20 * MS * workers * ratio * choice.uniform(0.67, 1.33)) for _ in range(4 * STEPS)
        ]
        consume = [int(20 * MS * choice.uniform(0.9, 1.1)) for _ in range(4 * STEPS)]
        verdicts.add(summarise(Pipeline(fetch, consume, workers).trace()).verdict.bound_by)
    assert 1 == len(verdicts) or ratio == 0.8


def test_a_slow_worker_is_named_in_the_residual() -> None:
    """In order, all others wait for it."""
    found = ceilings(
        Pipeline(
            [20 * MS] * 5 * STEPS, [2 * MS] * 5 * STEPS, 4, slowdown=(1.0, 1.0, 1.0, 3.0)
        ).trace()
    )
    assert found is not None
    assert "imbalance of workers" == found.residuals[0].name
    assert found.step_s == pytest.approx(found.predicted_s + found.residuals[0].seconds, rel=0.05)


def test_unequal_work_is_that_of_workers_of_one_epoch() -> None:
    """Of shards of unequal size: in each epoch one worker has more to read, and goes on when the
    other has ended."""
    rows = [(0, 90, 80), (5, 30, 20), (100, 140, 40), (100, 180, 70)]
    by_worker = pl.DataFrame(rows, schema=["start_ns", "end_ns", "busy"], orient="row")
    assert 30 + 15 == _imbalance_ns(by_worker)
    assert 0 == _imbalance_ns(by_worker[:1])


def test_a_slow_delivery_is_a_bound_only_where_workers_are_idle() -> None:
    """A pipe that takes 50 ms for a batch of workers that need 5 ms; and workers that always
    work."""
    slow = summarise(
        Pipeline([5 * MS] * STEPS, [2 * MS] * STEPS, 1, prefetch=1, deliver=50 * MS).trace()
    ).verdict
    busy = summarise(
        Pipeline([50 * MS] * STEPS, [2 * MS] * STEPS, 1, deliver=30 * MS).trace()
    ).verdict
    assert ("delivery", "decode") == (slow.bound_by, busy.bound_by)


@pytest.mark.parametrize(("waits", "name"), [(True, "blocked sends"), (False, "delivery")])
def test_a_send_that_is_blocked_is_no_slow_delivery(waits: bool, name: str) -> None:
    """Each batch comes 11 ms after it was made; its sender waits for the interpreter lock, which
    its worker has while it makes the next one."""
    number = "0123456789abcdef"
    rows = {
        "step": "".join(one * 14 for one in number),
        "wait": "".join(one * 13 + "." for one in number),
        "compute": "".join("." * 13 + one for one in number),
        "fetch w0": number[0] * 2 + "".join(".." + one * 12 for one in number[1:]),
    }
    trace = timeline("\n".join(f"{kind} {row}" for kind, row in rows.items()))
    blocks = [block(at * 14, at * 14 + 13, pid(0), 7) for at in range(16)]
    kept = [block(at * 14 + 3, at * 14 + 13, 7, pid(0, 0)) for at in range(16)]
    found = ceilings(with_blocks(trace, *blocks, *(kept if waits else ())))
    assert found is not None
    assert name == max(found.residuals, key=lambda part: part.seconds).name
    assert found.step_s == pytest.approx(
        found.predicted_s + sum(part.seconds for part in found.residuals)
    )


def test_waits_of_a_thread_are_no_waits_of_the_loop() -> None:
    """A thread takes batches from the loader beside the loop, which hardly waits for its queue: the
    loop takes all of its step."""
    loop = "\nstep 000011112222333344445555\nwait 0...1...2...3...4...5..."
    beside = "fetch t0 .111.222.333.444.555....\nwait t0 .111.222.333.444.555...."
    found = ceilings(timeline(beside + loop))
    assert found is not None
    assert (3 * TICK_NS, 3 * TICK_NS) == pytest.approx(
        (1e9 * found.supply_s, 1e9 * found.consumer_s)
    )
    assert ceilings(timeline(beside + loop.partition("\nwait")[0])) is None


@settings(max_examples=examples(30), deadline=None)
@given(traces(), st.integers(0, 10**12), st.data())
def test_order_and_shift_change_nothing(trace: Trace, by_ns: int, data: st.DataObject) -> None:
    """Of any trace; with no work for batches there are no ceilings."""
    found = ceilings(trace)
    assert found == ceilings(data.draw(shuffled(shifted(trace, by_ns))))


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.integers(0, 3), st.integers(1, 3), st.integers(0, 30))
def test_blame_is_what_the_simulator_knows(
    data: st.DataObject, workers: int, prefetch: int, deliver: int
) -> None:
    """To the nanosecond, for each step, with workers of different speeds."""
    times = st.lists(st.integers(1, 90), min_size=12, max_size=12)
    speeds = data.draw(
        st.lists(
            st.sampled_from([0.5, 1.0, 3.0]), min_size=max(workers, 1), max_size=max(workers, 1)
        )
    )
    pipeline = Pipeline(data.draw(times), data.draw(times), workers, prefetch, deliver, speeds)
    table = blame(pipeline.trace())
    told = [
        {cause: took for cause in CAUSES if (took := row[f"{cause}_ns"])}
        for row in table.iter_rows(named=True)
    ]  # fmt: skip
    assert pipeline.truth() == told
