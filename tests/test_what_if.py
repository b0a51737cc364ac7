"""The benchmark of predictions: which runs it makes in which order, and from which of them a change
is predicted."""

import sys
from datetime import datetime
from typing import Any

import msgspec
import pytest
from repository import ROOT
from simulated_loader import Job, simulate

from ioprof.format.run_record import HostRecord
from ioprof.format.trace import Trace
from ioprof.model.changes import Change
from ioprof.report.texts.prediction import change_text

sys.path.insert(0, str(ROOT / "benchmarks"))

import what_if
import what_if_scenarios
from what_if_runs import next_time

US = 1_000
SCENARIO = what_if_scenarios.Scenario("a job", {"workers": 1}, what_if_scenarios.workers(2, 3))


class Drifting:
    """Runs of a simulated job on a machine whose speed changes after each second run; other
    programs compete with some of them."""

    def __init__(self, disturbed: tuple[str, ...] = (), most: int = 100) -> None:
        self.names = list[str]()
        self._disturbed, self._most = disturbed, most

    def can_record(self, name: str) -> bool:
        return len(self.names) < self._most

    def record(self, job: what_if_scenarios.Job, name: str) -> Trace:
        speed = 10 + 3 * (len(self.names) // 2)
        self.names.append(name)
        stages, own = ({"decode": 900 * speed * US},) * 60, ({"compute": 200 * speed * US},) * 60
        trace = simulate(Job(job.settings["workers"], 2, stages, own)).trace
        return disturbed(trace) if name in self._disturbed else trace


def disturbed(trace: Trace) -> Trace:
    """The run on two cores of which other programs used one."""
    hosts = (HostRecord(name="node1", cpus=2, online_cpus=2, others_cpu_ratio=0.5),)
    return Trace(msgspec.structs.replace(trace.run, hosts=hosts), trace.spans)


def paired(runs: Any) -> list[what_if.Result]:
    return list(what_if.paired_results(runs, SCENARIO))


def test_a_change_is_predicted_from_the_run_directly_before() -> None:
    """So that a machine whose speed changes between pairs makes no error. One first run for all
    changes has all of it."""
    runs = Drifting()
    found = paired(runs)
    assert runs.names == ["pair1/base", "pair1/changed", "pair2/base", "pair2/changed"]
    assert [(each.base, each.run) for each in found] == [
        ("pair1/base", "pair1/changed"),
        ("pair2/base", "pair2/changed"),
    ]
    assert [each.error for each in found] == pytest.approx([0, 0], abs=1e-3)
    assert found[1].noise == pytest.approx(10 / 13 - 1)
    errors = [each.error for each in what_if.results(Drifting(), SCENARIO)]
    assert errors == pytest.approx([10 / 13 - 1] * 2, abs=1e-3)


def test_a_pair_from_a_disturbed_run_is_made_once_more(capsys: pytest.CaptureFixture[str]) -> None:
    """At most once; the table has what was used, and that reports predict nothing of it."""
    runs = Drifting(disturbed=("pair1/base", "pair2/base", "pair2/base-again"))
    found = paired(runs)
    assert runs.names == [
        f"pair{number}/{name}" for number in (1, 2) for name in ("base", "base-again", "changed")
    ]
    assert [(each.base, bool(each.refused)) for each in found] == [
        ("pair1/base-again", False),
        ("pair2/base-again", True),
    ]
    assert capsys.readouterr().out.count("the job once more: others had cores") == 2


def test_pairs_without_time_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A pair that was begun is finished."""
    found = paired(Drifting(most=1))
    assert [each.change for each in found] == [change_text(Change(workers=2))]
    assert f"{change_text(Change(workers=3))}: left" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "day"), [("21:50", 25), ("21:49", 26), ("00:30", 26)])
def test_a_time_is_the_next_one(text: str, day: int) -> None:
    assert next_time(text, datetime(2026, 11, 25, 21, 49, 30)) == datetime.strptime(
        f"2026-11-{day} {text}", "%Y-%m-%d %H:%M"
    )
