"""What a loop does with its loader: batches that it throws away, workers without work, one pass."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ioprof.analysis.loader_use import discarded, loader_use
from ioprof.analysis.loaders import batches
from ioprof.format.run_record import NoGain, PartCode, RunRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.model.summary import with_gains
from ioprof.report.run import Run

MS = 1_000_000
STEP_MS, WAIT_MS = 20, 10


def job(used: list[bool], workers: int = 2, makers: int = 2) -> Trace:
    """A loop that waits 10 ms for each batch, of which a worker needs 10 x `makers`, and computes
    20 ms with those that it uses; a batch that it throws away takes it 10 us."""
    rows, now_ns, step, begin_ns = [], 0, 0, 0
    at = {"host": "node1", "rank": 0, "pid": 100, "tid": 100}
    for batch, is_used in enumerate(used):
        ready_ns = now_ns + WAIT_MS * MS
        maker = {**at, "pid": 200 + batch % makers, "tid": 200 + batch % makers}
        made = {"start_ns": ready_ns - makers * WAIT_MS * MS, "end_ns": ready_ns}
        rows.append({**maker, **made, "kind": "fetch", "batch": batch, "offset": 8})
        wait = {"start_ns": now_ns, "end_ns": ready_ns, "kind": "wait", "batch": batch}
        rows.append({**at, **wait})
        now_ns = ready_ns
        if is_used:
            done_ns = now_ns + STEP_MS * MS
            compute = {"start_ns": now_ns, "end_ns": done_ns, "kind": "compute"}
            rows.append({**at, **compute, "step": step})
            rows.append(
                {**at, "start_ns": begin_ns, "end_ns": done_ns, "kind": "step", "step": step}
            )
            step, now_ns, begin_ns = step + 1, done_ns, done_ns
        else:
            now_ns += MS // 100
    spans = pl.DataFrame(rows, schema=table_schema(SPAN_COLUMNS))
    shift = 10_000 * MS  # the first batches are made before the loop asks for them
    spans = spans.with_columns(pl.col("start_ns") + shift, pl.col("end_ns") + shift)
    config = {"device": "cpu", "workers": workers, "ranks": 1, "loader": "torch DataLoader"}
    run = RunRecord()
    return Trace(run.replace(config=run.config.replace(**config)), spans.sort("start_ns", "end_ns"))


@given(st.lists(st.booleans(), min_size=1, max_size=40).map(lambda used: [*used, True, True]))
def test_a_batch_is_discarded_if_nothing_was_done_with_it(used: list[bool]) -> None:
    trace = job(used)
    found = discarded(trace, batches(trace))
    expected = [number for number, is_used in enumerate(used) if not is_used]
    assert expected == sorted(found["batch"].to_list())


def test_gathering_gradients_of_several_batches_discards_none() -> None:
    """Each of them takes a part of the step."""
    trace = job([True] * 16)
    step = pl.col("step") // 4
    spans = trace.spans.filter((pl.col("kind") != "step") | (pl.col("step") % 4 == 3))
    trace = Trace(trace.run, spans.with_columns(step=step))
    assert discarded(trace, batches(trace)).is_empty()


def test_batches_discarded_before_the_first_step_come_first() -> None:
    """They have no gain for a steady step, and the advice says what they took."""
    run = with_gains(Run.of(job([False] * 60 + [True] * 20)))
    first = run.summary.verdict.findings[0]
    assert "60 of 80 batches (480 samples) nothing was done" in first.action
    assert NoGain.NOT_OF_STEPS is first.no_gain


def test_every_other_batch_discarded_is_a_gain() -> None:
    """A step waits for two batches, 10 ms each, and computes 20: without the other batch its worker
    has 20 ms more for the next one, so that the loop waits for none."""
    run = with_gains(Run.of(job([False, True] * 40)))
    found = [each for each in run.summary.verdict.findings if "Skip batches" in each.action]
    assert 1 == len(found)
    assert found[0].change is not None
    assert found[0].change.skip_discarded
    assert found[0].gain == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize(("makers", "idle"), [(1, 3), (4, 0)])
def test_workers_that_make_nothing_are_told_and_more_are_not_advised(
    makers: int, idle: int
) -> None:
    run = with_gains(Run.of(job([True] * 60, workers=4, makers=makers)))
    use = loader_use(run.trace, batches(run.trace), 4)
    assert idle == use.idle_workers(4)
    advice = run.summary.verdict.findings
    assert bool(idle) == any("Divide the data into 4 shards" in each.action for each in advice)
    if idle:
        assert all(each.change is None or each.change.workers in (None, 4) for each in advice)


def test_workers_that_are_started_once_are_not_advised_to_stay() -> None:
    """A pass over the loader that begins with a long start: persistent_workers changes nothing."""
    trace = job([True] * 12)
    start = trace.spans.filter(pl.col("kind") == "wait").head(1)
    begin_ns = int(trace.spans.filter(pl.col("kind") == "step")["start_ns"].min())  # type: ignore[arg-type]
    before = start.with_columns(
        start_ns=begin_ns - 2000 * MS, end_ns=begin_ns, name=pl.lit("start"), batch=None
    ).cast(dict(start.schema))
    first = (pl.col("kind") == "step") & (pl.col("step") == 0)
    spans = trace.spans.with_columns(
        start_ns=pl.when(first).then(begin_ns - 2000 * MS).otherwise("start_ns")
    )
    spans = pl.concat([spans, before], how="vertical_relaxed").sort("start_ns", "end_ns")
    run = with_gains(Run.of(Trace(trace.run, spans)))
    causes = {entry.cause: entry for entry in run.summary.steps.causes}
    assert PartCode.WORKER_START is causes["loader"].details[0].code
    actions = [each.action for each in run.summary.verdict.findings]
    assert any("the only start of its 2 workers" in action for action in actions)
    assert not any("persistent_workers" in action for action in actions)
