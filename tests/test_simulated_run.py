"""A run made here, beside its simulation on its own host."""

from pathlib import Path

import pytest
from quiet_machine import comparing_times, on_a_quiet_machine

import ioprof
from ioprof.model.pace import measured
from ioprof.model.recorded import pipeline


@on_a_quiet_machine
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_is_simulated_as_it_was_measured(tmp_path: Path, ranks: int) -> None:
    """The steps of an emulated device that computes longer than its batches take: nothing but the
    device's known time remains, in the run and in its simulation."""
    out = tmp_path / "run"
    ioprof.run(
        device="emulated:p100",
        model="resnet50",
        loader="null",
        ranks=ranks,
        steps=30,
        batch_size=32,
        out=out,
        stacks=False,
    )
    found = ioprof.simulate(out, out, ranks=ranks)
    run = pipeline(ioprof.load(out).trace)
    with comparing_times():
        assert measured(run).step_s == pytest.approx(found.first.step_s.value, rel=0.15)
    assert ("compute", "measured") == (found.first.bound_by, found.job_basis)
