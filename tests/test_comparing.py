"""Whether runs differ, by cause, with intervals from their steps."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_simulator import Pipeline
from sample_run import sample_run

import ioprof
from ioprof.analysis.comparing import difference
from ioprof.cli import main
from ioprof.format.run_record import HostRecord
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace
from ioprof.report.run import Run

MS = 1_000_000
STEPS = 300


def job(seed: int, fetch_ms: float = 20.0, consume_ms: float = 5.0) -> Trace:
    """A loop whose times vary by a third from batch to batch."""
    random = np.random.default_rng(seed)
    fetch, consume = (
        [int(middle * MS * each) for each in random.uniform(0.67, 1.33, STEPS)]
        for middle in (fetch_ms, consume_ms)
    )
    return Pipeline(fetch, consume).trace()


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_identical_runs_have_no_difference(seed: int) -> None:
    """Nor does any of their causes, and nothing fails."""
    found = ioprof.compare(job(seed), job(seed + 1))
    assert "no difference" in str(found)
    assert () == found.slower_than(0.05)


def test_a_slower_run_names_the_cause() -> None:
    """Decoding takes 10 % longer; the differences of the causes sum to that of the step."""
    found = difference(Run.of(job(1)), Run.of(job(2, fetch_ms=22.0)))
    assert found.step is not None
    assert found.step.differs
    assert found.ratio == pytest.approx(1.1, abs=0.03)
    assert ["decode"] == [entry.cause for entry in found.causes if entry.differs]
    assert sum(entry.other_s - entry.first_s for entry in found.causes) == pytest.approx(
        found.step.other_s - found.step.first_s
    )
    assert found.step.low_s <= 0.002 <= found.step.high_s


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6))
def test_order_of_runs_turns_the_sign(seed: int) -> None:
    """And nothing else: of A against B, and B against A."""
    first, other = Run.of(job(seed)), Run.of(job(seed + 7, fetch_ms=25.0))
    there, back = difference(first, other), difference(other, first)
    assert there.step is not None
    assert back.step is not None
    assert (there.step.low_s, there.step.high_s) == (
        pytest.approx(-back.step.high_s),
        pytest.approx(-back.step.low_s),
    )
    assert [entry.differs for entry in there.causes] == [entry.differs for entry in back.causes]


def test_time_that_moves_to_another_cause_is_told() -> None:
    """A step of the same length, of which the wait is less and compute is more."""
    found = ioprof.compare(job(1, 20.0, 5.0), job(2, 20.0, 12.0))
    assert "no difference" in str(found)
    assert "but the time went elsewhere" in " ".join(str(found).split())


def test_fail_above_ends_with_1(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """If a run is slower by more than that; not for a faster or an equal one, nor within the limit.
    Wrong limits are refused."""
    for name, seed, fetch_ms in (("first", 1, 20.0), ("equal", 2, 20.0), ("slow", 3, 23.0)):
        job(seed, fetch_ms).save(tmp_path / name)
    first, equal, slow = (str(tmp_path / name) for name in ("first", "equal", "slow"))
    assert 0 == main(["compare", first, equal, "--fail-above", "5%"])
    assert 1 == main(["compare", first, slow, "--fail-above", "5%"])
    assert "longer than in the first run, most of it decode" in " ".join(
        capsys.readouterr().err.split()
    )
    assert 0 == main(["compare", first, slow, "--fail-above", "30%"])
    assert 0 == main(["compare", slow, first, "--fail-above", "5%"])
    assert 1 == main(["compare", first, equal, slow, "--json", "--fail-above", "5%"])
    for wrong in ("5", "much%", "-1%", "nan%"):
        assert 2 == main(["compare", first, slow, "--fail-above", wrong]), wrong


def test_too_few_steps_cannot_be_compared() -> None:
    """It says so, and with a limit it fails."""
    short = Pipeline([MS] * 5, [MS] * 5).trace()
    found = ioprof.compare(job(1), short)
    assert "cannot be compared" in str(found)
    assert 1 == len(found.slower_than(0.05))
    assert "fewer than 8 steady steps" in found.differences[0].to_dict()["reason"]
    assert set(CAUSES) >= {entry.cause for entry in found.differences[0].causes}


def test_a_comparison_says_what_changed() -> None:
    """An argument, a version, a variable, a host and the state of the page cache are named; of the
    same run nothing is."""
    first = sample_run(run={"command": "python train.py --workers 1 --lr 0.1"}, steps=8).trace
    facts = first.run.replace(
        command="python train.py --workers 4 --lr 0.1",
        versions={"torch": "2.13.0"},
        environment={"OMP_NUM_THREADS": "8"},
        hosts=(HostRecord(name="node2"),),
    )
    cached = first.spans.with_columns(
        source=pl.when(pl.col("kind") == "read")
        .then(pl.lit("page_cache"))
        .otherwise(pl.col("source").cast(pl.String))
    )
    other = Trace(facts, cached.cast({"source": first.spans.schema["source"]}), first.files)

    changes = {each.what: each for each in ioprof.compare(first, other).changes[0]}
    assert ("--workers 1", "--workers 4") == (
        changes["arguments"].first,
        changes["arguments"].other,
    )
    assert {"arguments", "torch", "OMP_NUM_THREADS", "host", "page cache"} == changes.keys()
    assert "arguments --workers 1 → --workers 4; torch none → 2.13.0" in str(
        ioprof.compare(first, other)
    ).replace("\n", " ")
    assert ((),) == ioprof.compare(first, first).changes
