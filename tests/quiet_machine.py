"""Tests that compare times, and so hold on a machine that does nothing else."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from ioprof.recording.host_facts import CpuMeter

MOST_OTHERS: Final = 0.2
"""How many cores other programs may use, on average of the test's time."""

EVERY: Final = 4
"""Each of these tests runs on one day in so many: meanwhile, all cores but one have nothing to
do."""


class WrongTimeError(AssertionError):
    """An assertion about times that does not hold."""


_inside: Final[list[str]] = []
"""The test `on_a_quiet_machine` that runs."""


@contextmanager
def comparing_times() -> Iterator[None]:
    """Mark assertions that compare how long something took, or of what share of the time something
    is known."""
    if not _inside:
        raise RuntimeError("only a test on_a_quiet_machine may compare times")
    try:
        yield
    except AssertionError as error:
        raise WrongTimeError(str(error)) from error


def on_a_quiet_machine(test: Callable[..., None]) -> Callable[..., None]:
    """A test of the tier `system`, beside which no other test runs. It is skipped if an assertion
    within `comparing_times()` fails while other programs use more than `MOST_OTHERS` cores; every
    other assertion must hold on any machine."""

    @functools.wraps(test)
    def made(*arguments: Any, **fixtures: Any) -> None:
        meter = CpuMeter()
        _inside.append(test.__name__)
        try:
            test(*arguments, **fixtures)
        except WrongTimeError as error:
            others = meter.others_ratio() * (os.cpu_count() or 1)
            if others <= MOST_OTHERS:
                raise
            pytest.skip(
                f"other programs used {others:.1f} cores; a machine that does nothing else is"
                f" needed for: {error}"
            )
        finally:
            _inside.pop()

    return pytest.mark.system(every=EVERY)(pytest.mark.alone(made))
