"""Gains of jobs whose GPU was recorded in windows: as if it had been recorded in all steps, and
without what recording it took."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples
from test_gpu_windows import gpu
from timeline import timeline

from ioprof.format.schema import WINDOW_SPAN
from ioprof.format.trace import Trace
from ioprof.model.changes import Change
from ioprof.model.gains import gains_of
from ioprof.model.pace import measured
from ioprof.model.pipeline import OWN
from ioprof.model.prediction import whatif
from ioprof.model.recorded import pipeline
from ioprof.model.windows import as_recorded

STEPS, LENGTH = 16, 8
DIGITS = "0123456789abcdef"


def job(first: int, last: int, blocked: int = 0, checkpoint: int = 0) -> Trace:
    """Each step copies for two ticks, computes for four, and does nothing known for two; each
    fourth one begins with a checkpoint.

    The device was recorded in the steps `first` to `last`. After these the loop was blocked for
    `blocked` ticks.
    """
    lanes = dict.fromkeys(("step", "h2d", "kernel", "checkpoint", "user name=window"), "")
    for step in range(STEPS):
        is_seen = first <= step <= last
        lengths = {
            "user name=window": blocked * (step == last + 1),
            "checkpoint": checkpoint * (step % 4 == 0),
            "h2d": 2 if is_seen else 0,
            "kernel": 4 if is_seen else 0,
        }
        lengths[""] = 2 if is_seen else LENGTH
        for kind, length in lengths.items():
            for lane in lanes:
                lanes[lane] += (DIGITS[step] if lane in ("step", kind) else ".") * length
    start, end = lanes["step"].index(DIGITS[first]), lanes["step"].rindex(DIGITS[last]) + 1
    drawn = timeline(
        "\n".join(f"{lane} {bar}" for lane, bar in lanes.items()),
        capture=gpu((first, last, start, end)),
    )
    name = pl.col("name").cast(pl.String).replace("window", WINDOW_SPAN).cast(pl.Categorical())
    return Trace(drawn.run, drawn.spans.with_columns(name=name))


def shares(trace: Trace) -> dict[str, float]:
    return {each.cause: each.share for each in gains_of(pipeline(trace)).gains if each.share > 1e-9}


@settings(max_examples=examples(20))
@given(st.integers(0, STEPS - 2), st.integers(1, STEPS), st.integers(0, 30))
def test_a_window_shows_what_all_steps_gain(first: int, length: int, blocked: int) -> None:
    """Whichever steps were recorded, and however long the end of the window took: the steps are
    alike."""
    found = shares(job(first, min(STEPS - 1, first + length), blocked))
    assert found == pytest.approx({"compute": 4 / 8, "h2d": 2 / 8, "host": 2 / 8}, abs=1e-6)


def test_what_windows_took_is_no_time_of_the_job() -> None:
    """The replay is measured against the steps without it."""
    usual, delayed = (measured(pipeline(job(4, 7, blocked))) for blocked in (0, 50))
    assert usual == delayed


@given(st.integers(1, 6))
def test_what_the_loop_noted_itself_is_known_everywhere(checkpoint: int) -> None:
    """Checkpoints are where they were; the rest of the time is divided."""
    program = pipeline(job(4, 7, checkpoint=checkpoint)).ranks[0].program
    wrote = program.after_s[:, OWN.index("checkpoint")] > 0
    assert [step % 4 == 0 for step in range(STEPS)] == wrote.tolist()
    rest = program.after_s[:, [OWN.index(cause) for cause in ("compute", "h2d", "host")]]
    assert np.allclose(rest, np.array([4, 2, 2]) * 1e-8)


@given(st.integers(0, 2**32))
def test_rows_keep_their_length(seed: int) -> None:
    """Seen rows stay as they are, what was noted stays everywhere, and nothing changes where
    nothing was seen."""
    random = np.random.default_rng(seed)
    after, trains, seen = (
        random.random((20, len(OWN))),
        random.random(20) < 0.8,
        random.random(20) < 0.4,
    )
    found = as_recorded(after, trains, seen)
    assert np.allclose(found.sum(1), after.sum(1))
    assert np.array_equal(found[seen | ~trains], after[seen | ~trains])
    noted = [OWN.index(cause) for cause in ("validation", "checkpoint")]
    assert np.array_equal(found[:, noted], after[:, noted])
    assert as_recorded(after, trains, np.zeros(20, np.bool_)) is after


@settings(max_examples=examples(20))
@given(st.integers(1, 9), st.sampled_from([1.25, 2.0, 8.0]))
def test_a_faster_device_waits_for_the_loop(own: int, speed: float) -> None:
    """A loop that needs `own` ticks of ten to launch the next step is the next bound; unless it is
    not known that it does."""
    bars = "".join(DIGITS[step] * 10 for step in range(STEPS))
    drawing = f"step {bars}\nkernel {bars}\nsync {('.' * own + '#' * (10 - own)) * STEPS}"
    for loop_waited_ns, left in ((1, own), (None, 0)):
        capture = gpu((0, STEPS - 1, 0, 10 * STEPS), loop_waited_ns=loop_waited_ns)
        found = whatif(timeline(drawing, capture=capture), Change(speeds={"compute": speed}))
        assert found.baseline_error == pytest.approx(0, abs=1e-6)
        # a loop may run ahead in the first steps
        assert 10 / found.speedup == pytest.approx(max(left, 10 / speed), rel=0.1)
