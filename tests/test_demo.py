"""The demo shows the same story on any machine."""

from hypothesis import given
from hypothesis import strategies as st

from ioprof.jobs.demo import _RANKS, _between

SLOWEST, FASTEST = 100.0, 5_000.0
"""Photographs that two workers decode per second: of one core shared with others, and of the
fastest cores there are."""
LEAST_RATIO = 3.1
"""Small images are decoded that many times as fast; 3.4 was measured on two busy cores."""


@given(st.floats(SLOWEST, FASTEST), st.floats(LEAST_RATIO, 10.0))
def test_the_device_lies_between_what_is_decoded(slow: float, ratio: float):
    """It trains faster than original images are decoded, and more slowly than small ones are."""
    rate = _RANKS * _between(slow, ratio * slow).samples_per_s
    assert slow < rate < ratio * slow
