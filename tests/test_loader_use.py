"""What a loop does with its loader: batches that it throws away, workers without work, one pass."""

from functools import lru_cache
from typing import Any
from weakref import ref

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_loader import Job, simulate
from timeline import timeline
from told import summarise

from ioprof.analysis.loader_use import discarded, loader_use
from ioprof.analysis.loaders import batches, samples_in
from ioprof.format.run_record import KeptData as KeptDataRecord
from ioprof.format.run_record import NoGain, PartCode, RunRecord
from ioprof.format.schema import BATCHES_OF_SERIES, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.instrument.hooks.pytorch.kept_data import KeptData
from ioprof.instrument.hooks.state import HookState
from ioprof.model.recorded import pipeline
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


def test_a_batch_that_a_later_step_is_of_was_taken_ahead() -> None:
    """As by accelerate's loader, which waits for two batches where an epoch begins."""
    trace = job([False, *[True] * 16])
    spans = trace.spans.with_columns(
        batch=pl.when(pl.col("kind") == "step").then(pl.col("step")).otherwise("batch")
    )
    assert [0] == discarded(trace, batches(trace))["batch"].to_list()
    assert discarded(Trace(trace.run, spans), batches(trace)).is_empty()


def test_samples_that_a_loop_makes_a_batch_of_are_not_discarded() -> None:
    """A model was called with 32 samples, and the loader gave 8 at a time; of more than those four
    the earlier ones were thrown away."""
    used = [number % 5 == 4 for number in range(60)]
    trace = job(used)
    run = trace.run.replace(config=trace.run.config.replace(trained_samples=32))
    trace = Trace(run, trace.spans)
    received = batches(trace)
    # the last of a step and the three before it hold what the model was called with
    lost = [number for number in range(60) if number % 5 == 0]
    assert lost == discarded(trace, received)["batch"].sort().to_list()
    assert 4 == loader_use(trace, received, 2).per_step
    # one that does not say how many samples it holds is one sample
    unknown = received.with_columns(samples=pl.lit(None, received.schema["samples"]))
    assert discarded(trace, unknown).is_empty()


def test_a_step_of_batches_of_two_loaders_discards_none() -> None:
    """As of zipped ones: the loop asks the other loader at once. Each numbers its batches apart."""
    trace = job([False, True] * 20)
    number = pl.col("batch") // 2 + BATCHES_OF_SERIES * (pl.col("batch") % 2)
    spans = trace.spans.with_columns(batch=number.cast(trace.spans["batch"].dtype))
    assert discarded(Trace(trace.run, spans), batches(Trace(trace.run, spans))).is_empty()
    assert 20 == len(discarded(trace, batches(trace)))


@pytest.mark.parametrize(
    ("slow", "others", "is_told"), [(0, 2, True), (2, 0, False), (0, 0, False), (2, 2, False)]
)
def test_a_loader_whose_batches_the_loop_makes_beside_one_with_workers(
    slow: int, others: int, is_told: bool
) -> None:
    """It is to have workers, too, if it is waited for most."""
    drawing = """
        step                000000000011111111112222222222
        sampler name=Heavy  0.........1.........2.........
        wait                00000.....11111.....22222.....
        transform main      .0000......1111......2222.....
        compute main        .....00000.....11111.....22222
        """
    known = {"purposes": ["train", "step"]}
    found = timeline(
        drawing,
        config={"device": "cpu", "workers": others, "ranks": 1, "loader": "torch DataLoader"},
        loaders=[
            {**known, "dataset": "Heavy", "workers": slow, "made_at": "train.py:7"},
            {**known, "dataset": "Light", "workers": others, "made_at": "train.py:9"},
        ],
    )
    verdict = summarise(found).verdict
    told = [each for each in verdict.candidates if each.code == "loader_workers"]
    assert is_told == bool(told)
    for each in told:
        facts = each.facts["dataset"], each.facts["workers"], each.facts["made_at"]
        assert ("Heavy", 2, "train.py:7") == facts


def test_debugging_that_was_left_on_is_told_before_a_faster_device() -> None:
    """What it costs is not known from the recording."""
    drawing = """
        step         00000000001111111111222222222233333333334444444444
        compute main 00000000001111111111222222222233333333334444444444
        """
    for is_on in (False, True):
        trace = timeline(drawing, config={"device": "cpu", "detects_anomalies": is_on})
        findings = with_gains(Run.of(trace)).summary.verdict.findings
        assert is_on == (findings[0].code == "anomalies")


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


@given(st.integers(2, 30), st.integers(0, 5))
def test_samples_are_those_of_the_loaders_that_steps_begin_with(steps: int, added: int) -> None:
    """What only adds to the samples of another loader, such as noise, is no sample of its own."""
    rows, windows = [], []
    for step in range(steps):
        begin, loaders = 1000 * step, ["images", *["noise"] * added]
        windows.append({"rank": 0, "step": step, "start_ns": begin, "end_ns": begin + 1000})
        for place, loader in enumerate(loaders):
            rows.append((0, begin + 10 * (place + 1), False, 8, loader))
    names = {"rank": pl.Int32, "end_ns": pl.Int64, "validates": pl.Boolean}
    received = pl.DataFrame(
        rows, schema=names | {"samples": pl.Int64, "loader": pl.String}, orient="row"
    )
    table = pl.DataFrame(windows, schema_overrides={"rank": pl.Int32})
    assert (steps, 8 * steps) == samples_in(received, table)
    larger = pl.when(pl.col("loader") == "noise").then(9).otherwise("samples")
    others = received.with_columns(samples=larger)
    assert (steps * (1 + added), 8 * steps + 9 * steps * added) == samples_in(others, table)
    in_turn = received.with_columns(
        loader=pl.when(pl.col("end_ns") // 1000 % 2 == 0).then(pl.lit("a")).otherwise(pl.lit("b"))
    )
    assert len(rows) == samples_in(in_turn, table)[0]


class Images:
    """Keeps what it made in ways that are caches, and in others that are none."""

    def __init__(self) -> None:
        self.decoded: dict[int, bytes] = {}
        self.places: list[bytes | None] = [None] * 100
        self.seen: dict[int, int] = {}

    @lru_cache(maxsize=50)  # noqa: B019 - as in programs of users
    def parsed(self, number: int) -> bytes:
        """Of a function's cache."""
        return bytes([number])

    def make(self, number: int, way: str) -> None:
        """Make a sample and keep it."""
        self.seen[number] = self.seen.get(number, 0) + 1
        if way == "parsed":
            self.parsed(number)
        elif way != "none":
            getattr(self, way)[number] = bytes([number])


class Part:
    """A part of another dataset."""

    def __init__(self, dataset: Images) -> None:
        self.dataset = dataset


@pytest.mark.parametrize("way", ["decoded", "places", "parsed", "none"])
def test_what_a_dataset_keeps_in_a_worker_is_seen(way: str) -> None:
    """With its name, entries and samples from the second batch on, and which batches added to it;
    counters are no data."""
    Images.parsed.cache_clear()
    images, facts = Images(), list[dict[str, Any]]()
    kept = KeptData([Part(images)])
    for numbers in [(0, 1), (2, 3), (4, 5), (2, 4), (6, 7)]:
        kept.begin_batch(list(numbers))
        for number in numbers:
            images.make(number, way)
        kept.end_batch()
    state = HookState()
    state.record_fact = lambda **fact: facts.append(fact)  # type: ignore[method-assign]
    kept.record(state)
    if way == "none":
        assert [] == facts
        return
    found = KeptDataRecord.of(facts[0]["kept_data"])
    assert (f"Images.{way}", 6, 8, False) == (
        found.name,
        found.entries,
        found.samples,
        found.is_full,
    )
    if way != "places":  # it is not looked at after each batch
        assert (3, 1) == (found.new, found.repeated)


def test_nothing_that_a_dataset_drops_is_kept_alive() -> None:
    class Large(dict[int, bytes]):
        pass

    images = Images()
    images.decoded = Large()
    dropped = ref(images.decoded)
    kept = KeptData(images)
    kept.begin_batch([0])
    kept.end_batch()
    images.decoded = {}
    assert dropped() is None


def kept_job(persistent: bool = False, **kept: Any) -> Trace:
    """Three epochs of 20 batches, of 40 ms each in one of two workers, with the loop's 5 ms."""
    work, own = ({"loader": 40 * MS},) * 60, ({"compute": 5 * MS},) * 60
    trace = simulate(Job(2, 2, work, own, start=MS, end=MS, batches_per_epoch=20)).trace
    pids = sorted(set(trace.spans.filter(pl.col("kind") == "fetch")["pid"].to_list()))
    data = {"name": "Images.decoded", "entries": 72, "samples": 72, "new": 9, "new_ns": 9} | kept
    record = {
        "processes": [
            {"role": "worker", "rank": 0, "pid": number, "kept_data": data} for number in pids
        ],
        "loaders": [{"purposes": ["train", "step"], "sampler": "SequentialSampler"}],
        "config": {"workers": 2, "ranks": 1, "persistent_workers": persistent, "device": "cpu"}
        | {"loader": "torch DataLoader"},
        "hosts": [{"name": "node1", "cpus": 64}],
        "capture": {"reads": True},
    }
    return Trace(RunRecord.of(record), trace.spans)


def test_data_that_is_lost_with_workers_is_a_reason_to_keep_them() -> None:
    """How much a kept entry saves was not seen: all of the work at most, from the second epoch
    on. Three epochs of 20 batches of 20 ms become one, and two of the loop's 5 ms."""
    first = with_gains(Run.of(kept_job())).summary.verdict.advice[0]
    assert first.change is not None
    assert "Images.decoded" in first.action
    assert (True, True, 1.0) == (first.is_bound, first.change.in_order, first.change.reused)
    assert first.low is not None
    assert first.predicted_speedup == pytest.approx(60 / (20 + 2 * 5), rel=0.2)
    assert first.low < 1.2


def test_what_a_kept_entry_saves_is_measured_where_workers_used_some() -> None:
    kept = {"new": 40, "new_ns": 1600 * MS, "repeated": 40, "repeated_ns": 400 * MS}
    use = loader_use(*(trace := kept_job(**kept), batches(trace)), 2)
    assert use.kept is not None
    assert use.kept.is_measured
    assert use.kept.reused == pytest.approx(1200 / 2000)
    first = with_gains(Run.of(trace)).summary.verdict.advice[0]
    assert not first.is_bound


@pytest.mark.parametrize(
    ("persistent", "kept"), [(True, {}), (False, {"is_full": True}), (False, {"entries": 1})]
)
def test_kept_workers_and_caches_that_save_little_are_no_reason(
    persistent: bool, kept: dict[str, Any]
) -> None:
    """A cache of limited size has dropped what an epoch begins with."""
    found = with_gains(Run.of(kept_job(persistent, **kept))).summary.verdict.findings
    assert ["workers"] == [each.code for each in found]


def anew_job(loaders: list[dict[str, Any]], *, persistent: bool = False, epochs: int = 3) -> Trace:
    """Epochs of 20 batches of 4 ms in one worker, whose first takes 400 ms longer each time."""
    work = tuple({"loader": (400 if row % 20 == 0 else 4) * MS} for row in range(20 * epochs))
    own = ({"compute": 5 * MS},) * len(work)
    trace = simulate(Job(1, 2, work, own, start=MS, end=MS, batches_per_epoch=20)).trace
    record = {
        "loaders": [
            {"purposes": ["train", "step"], "made_at": "a.py:1"} | each for each in loaders
        ],
        "config": {"workers": 1, "ranks": 1, "persistent_workers": persistent, "device": "cpu"}
        | {"loader": "torch DataLoader"},
        "hosts": [{"name": "node1", "cpus": 64}],
        "capture": {"reads": True},
    }
    return Trace(RunRecord.of(record), trace.spans)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_made_anew_for_each_epoch_is_to_be_made_once(persistent: bool) -> None:
    """What its workers do first is then done once, and no argument of it does that. Of the steps
    after warm-up two begin an epoch, which takes 400 ms longer than 5 ms."""
    trace = anew_job([{"path": "a", "number": each} for each in range(3)], persistent=persistent)
    first = with_gains(Run.of(trace)).summary.verdict.findings[0]
    assert ("persistent_workers", "a.py:1") == (first.code, first.facts["made_at"])
    assert not first.can_be_proved
    assert first.gain == pytest.approx((54 * 5 + 2 * 400) / (54 * 5), rel=0.05)


@pytest.mark.parametrize(
    "loaders",
    [
        [{"path": "a", "number": 0}],
        [{"path": "a", "number": 0}, {"path": "a", "number": 1}],  # of several passes each
        [{"path": each, "number": 0} for each in "abc"],
    ],
)
def test_a_loader_of_several_passes_is_not_made_anew_for_each(
    loaders: list[dict[str, Any]],
) -> None:
    first = with_gains(Run.of(anew_job(loaders))).summary.verdict.findings[0]
    assert (first.code, None) == ("persistent_workers", first.facts.get("made_at"))


def test_one_long_first_batch_is_chance() -> None:
    """Of as few others."""
    trace = anew_job([{"path": "a", "number": 0}], epochs=1)
    (iteration,) = pipeline(trace).ranks[0].iterations
    assert not iteration.first_s.any()
