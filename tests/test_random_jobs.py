"""`benchmarks/random_jobs.py`: the grammar of its jobs, and how it judges a report."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from repository import ROOT

from ioprof.format.run_record import Finding, JobChange

sys.path.insert(0, str(ROOT / "benchmarks"))

import random_jobs
from random_jobs import FAULTS, JOB, LOOPS, Outcome, Spec, advised, changes, spec_of

SPEC = Spec("loader", 2, 2, False, 1, 2, 4, 40, 100, {"sleep": 3.0, "metric": 5.0})


def test_seeds_make_jobs_of_all_kinds() -> None:
    """A seed makes the same job each time; among many every loop and every fault occurs."""
    specs = [spec_of(seed, 500.0) for seed in range(600)]
    assert specs == [spec_of(seed, 500.0) for seed in range(600)]
    assert set(LOOPS) == {spec.loop for spec in specs}
    assert FAULTS.keys() == {name for spec in specs for name in spec.faults}
    assert {1, 2, 3} == {len(spec.faults) for spec in specs}
    assert all(spec.loop in FAULTS[name].loops for spec in specs for name in spec.faults)


def test_each_change_is_one_change() -> None:
    """No change is the job itself, and none is there twice."""
    for seed in range(200):
        spec = spec_of(seed, 500.0)
        found = list(changes(spec))
        assert spec not in [each for _, each in found]
        assert len({name for name, _ in found}) == len(found)
        assert {f"no {name}" for name in spec.faults} < {name for name, _ in found}


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        (Finding("", change=JobChange(workers=4)), SPEC.but(workers=4)),
        (Finding("", change=JobChange(persistent_workers=True)), SPEC.but(persistent=True)),
        (Finding("", change=JobChange(speeds={"compute": 2.0})), SPEC.but(is_fast=True)),
        (Finding("", cause="host"), SPEC.without("metric")),
        (Finding("", cause="transform"), SPEC.without("sleep")),
        (Finding("", cause="h2d"), None),
    ],
)
def test_an_advice_is_a_change(advice: Finding, expected: Spec | None) -> None:
    """Of a setting, of the device, or of the faults of a cause."""
    assert expected == advised(SPEC, advice)


def test_without_a_shared_lock_the_rest_is_done_at_once() -> None:
    """What was held for it still takes its time."""
    job = SPEC.but(faults={"thread_lock": 1.0, "sleep": 2.0})
    assert SPEC.but(faults={"sleep": 3.0}) == advised(job, Finding("own_lock"))
    assert advised(SPEC, Finding("own_lock")) is None


def test_a_line_tells_faults_of_one_cause_apart() -> None:
    """An advice that names a line is about the fault in whose function it is."""
    line = random_jobs.lines_of_functions()["read_file"].start + 1
    both = SPEC.but(faults={"sleep": 1.0, "reads": 1.0})
    advice = Finding("line", f"read less at {JOB.name}:{line}", cause="transform")
    assert both.without("reads") == advised(both, advice)


@pytest.mark.parametrize(
    ("outcome", "is_right", "is_refused", "is_within", "is_harmful"),
    [
        (Outcome(1, "", predicted=1.5, low=1.4, high=1.6, true=1.5, best_gain=1.6), True, False, True, False),  # noqa: E501
        (Outcome(1, "", predicted=1.5, low=1.4, high=1.6, true=1.2, best_gain=1.6), False, False, False, False),  # noqa: E501
        (Outcome(1, "", predicted=1.2, low=1.1, high=1.3, true=0.9, best_gain=1.0), True, False, False, True),  # noqa: E501
        (Outcome(1, "", best_gain=1.04), True, False, None, False),
        (Outcome(1, "", best_gain=1.5), False, True, None, False),
    ],
)  # fmt: skip
def test_outcomes(
    outcome: Outcome, is_right: bool, is_refused: bool, is_within: bool | None, is_harmful: bool
) -> None:
    assert is_right == outcome.is_right
    assert is_refused == outcome.is_refused
    assert is_within is outcome.is_within
    assert is_harmful == outcome.is_harmful
    assert outcome.row.startswith("| 1 | ")


@pytest.mark.job(every=4)
@pytest.mark.parametrize("loop", LOOPS)
def test_every_fault_of_a_loop_runs(loop: str, tmp_path: Path) -> None:
    """A job with all faults that its loop may have makes all of its steps."""
    names = [name for name, fault in FAULTS.items() if loop in fault.loops]
    left_out = ("discarded", "many_threads", "one_shard")  # fewer steps, many cores, one worker
    faults = {name: 1.0 for name in names if name not in left_out}
    spec = Spec(loop, 0 if loop == "plain" else 2, 1, False, 1, 2, 4, 16, 64, faults)
    (tmp_path / "spec.json").write_text(json.dumps(asdict(spec)))
    words = [sys.executable, str(JOB), str(tmp_path / "spec.json"), str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert 0 == ended.returncode, ended.stderr
    (said,) = random_jobs.lines(ended.stdout)
    assert 8 == said["steps"]
