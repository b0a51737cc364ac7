"""The share of an activity that compute of the accelerator hides."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import examples, shifted, shuffled, split, traces
from timeline import timeline

from ioprof.analysis.totals import totals
from ioprof.format.run_record import Overlap
from ioprof.format.trace import Trace


def overlap(trace: Trace) -> dict[str, Overlap]:
    return totals(trace).overlaps


DRAWING = """
    step            0000000000
    compute         ....0000..
    h2d             ..00000...
    d2h             ........##
    comm            .......000
    fetch w0        000000....
    read w0         ####......
    read w0 cache   ....##....
    fetch w1        111111....
    read w1 unknown ..####....
    decode w1       .......###
"""


def test_hidden_is_what_lies_under_compute() -> None:
    """An instant counts once per rank, however many workers read; reads from the page cache are not
    storage, unknown ones are."""
    found = {
        name: (entry.total_s, entry.hidden_s) for name, entry in overlap(timeline(DRAWING)).items()
    }
    ns = 1e-9
    assert found == {
        "h2d": pytest.approx((50 * ns, 30 * ns)),
        "d2h": pytest.approx((20 * ns, 0.0)),
        "storage": pytest.approx((60 * ns, 20 * ns)),
        "decode": pytest.approx((30 * ns, 10 * ns)),
        "communication": pytest.approx((30 * ns, 10 * ns)),
    }


def test_ranks_add_up() -> None:
    """Compute of another rank does not hide it."""
    two = overlap(timeline("compute 00..\nh2d r1 0000\nh2d 0.0."))["h2d"]
    assert (pytest.approx(60e-9), pytest.approx(10e-9), pytest.approx(1 / 6)) == (
        two.total_s,
        two.hidden_s,
        two.hidden_ratio,
    )


def test_what_was_not_recorded_is_null_with_a_reason() -> None:
    """It is null, not 0."""
    for entry in overlap(timeline("step 00\ncompute 00")).values():
        assert (None, None, None, "unknown") == (
            entry.total_s,
            entry.hidden_s,
            entry.hidden_ratio,
            entry.basis,
        )
        assert entry.reason


def test_without_compute_nothing_is_known_of_hiding() -> None:
    """The total is kept."""
    entry = overlap(timeline("step 00\nh2d 00"))["h2d"]
    assert (pytest.approx(20e-9), None, None) == (entry.total_s, entry.hidden_s, entry.hidden_ratio)
    assert "accelerator" in str(entry.reason)


def test_overlap_with_an_emulated_device_is_emulated() -> None:
    """Also for real reads, because the compute that hides them is emulated."""
    found = overlap(timeline(DRAWING, device={"basis": "emulated", "samples_per_s": 100.0}))
    assert {"emulated"} == {entry.basis for entry in found.values()}


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(traces(), st.data())
def test_order_shift_and_splits_change_nothing(trace: Trace, data: st.DataObject) -> None:
    """Law 6."""
    expected = overlap(trace)
    assert expected == overlap(data.draw(shuffled(data.draw(split(trace)))))
    assert expected == overlap(shifted(trace, data.draw(st.integers(0, 10**15))))
    assert all(0 <= (entry.hidden_ratio or 0.0) <= 1 for entry in expected.values())
