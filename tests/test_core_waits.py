"""How long the training loop had no core, against the program's own stopwatch."""

import sys
from pathlib import Path

import pytest
from jobs import ioprof
from repository import PROGRAMS

from ioprof.format.schema import CORE_WAIT
from ioprof.report.run import Run

pytestmark = pytest.mark.job


@pytest.mark.job(every=4)
def test_python_without_a_core_is_a_named_part_of_host(tmp_path: Path) -> None:
    """Wall time less CPU time of Python that never waits is the time without a core. Sleeping is
    none, and is not named so."""
    command = (sys.executable, PROGRAMS / "share_core.py", 40, 6)
    done = ioprof("record", "--quiet", "--out", tmp_path / "run", "--", *command, cwd=tmp_path)
    assert 0 == done.code, done.err
    waited_s, _ = map(float, done.out.split())
    summary = Run.load(tmp_path / "run").summary
    host = next(entry for entry in summary.steps.causes if entry.cause == "host")
    found_s = sum(detail.seconds for detail in host.details if detail.name == CORE_WAIT)
    assert abs(found_s - waited_s) <= 0.15 * waited_s, (found_s, waited_s)
    assert waited_s > 0.1
    assert any(
        "Leave a core for the training loop" in advice.action for advice in summary.verdict.findings
    )
