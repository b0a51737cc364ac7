"""A store of runs: what is kept, named baselines, and from which run on a job is slower."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import ROOT
from scipy.stats import t as student
from strategies import examples

import ioprof
from ioprof.analysis.regression import FALSE_ALARMS, PastRun, level_changes
from ioprof.analysis.student import quantile
from ioprof.cli import main
from ioprof.errors import RunError
from ioprof.format.run_record import SourceRecord
from ioprof.format.trace import Trace
from ioprof.report.run import Run
from ioprof.report.trend import History
from ioprof.store.runs import FILE, Store

DEMO = ROOT / "tests" / "data" / "demo"


def history(seed: int, before: int, after: int, ratio: float, variation: float) -> list[float]:
    """Times of runs, the last `after` of them `ratio` times as long."""
    times = np.random.default_rng(seed).lognormal(0, variation, before + after)
    times[before:] *= ratio
    return list(map(float, times))


def test_a_stored_run_is_compared_as_its_folder_is(tmp_path: Path) -> None:
    """Rates, differences and what changed, after the folder has gone; adding it twice is once."""
    store = Store(tmp_path / "store", make=True)
    run = Run.load(DEMO / "files")
    assert store.add(run, "demo", "main") == store.add(run, "demo", "main")
    store.add(Run.load(DEMO / "lmdb"), "demo")
    again = store.baseline("main")
    assert (again.summary, again.trace.run) == (run.summary, run.trace.run)
    assert again.steps.equals(run.steps)
    found = ioprof.compare("baseline:main", DEMO / "lmdb", store=tmp_path / "store")
    expected = ioprof.compare(DEMO / "files", DEMO / "lmdb")
    assert found.differences == expected.differences
    assert found.changes == expected.changes
    assert [each.name for each in store.runs("dem")] == ["files", "lmdb"]
    assert store.runs("other") == []


def test_what_cannot_be_is_one_line_that_says_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No store, an empty one, no such baseline or job, no store for a baseline, a damaged file."""
    run, store = str(DEMO / "files"), str(tmp_path / "store")
    for arguments, said in (
        (("history", "list", "--store", store), "ioprof history add"),
        (("compare", "baseline:main", run), "--store DIR"),
        (("compare", "baseline:main", run, "--store", store), "ioprof history add"),
        (("history", "add", run, run, "--store", store, "--baseline", "a"), "names one run"),
        (("history", "add", run, "--store", store, "--baseline", " "), "printable"),
        (("history", "add", run, "--store", str(DEMO / "files" / "run.json")), "cannot be made"),
        (("history", "add", str(tmp_path), "--store", store), "not an ioprof run"),
    ):
        assert 2 == main(list(arguments)), arguments
        message = capsys.readouterr().err
        assert said in message, message
        assert len(message.strip().splitlines()) == 1
    assert 0 == main(["history", "add", run, "--store", store, "--baseline", "main"])
    assert 2 == main(["compare", "baseline:other", run, "--store", store])
    assert "there are main" in capsys.readouterr().err
    assert 2 == main(["history", "trend", "--store", store, "--job", "none"])
    (tmp_path / "store" / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match="cannot be used"):
        Store(tmp_path / "store").runs()


def test_the_commands_find_the_run_that_made_a_job_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named with its commit, the page is written, and the exit code says so while it is
    new."""
    base = Run.load(DEMO / "files")
    store = Store(tmp_path, make=True)
    rate = base.summary.throughput.steady_samples_per_s or 0.0

    def add(number: int, seconds: float) -> None:
        throughput = base.summary.throughput.replace(steady_samples_per_s=rate / seconds)
        facts = base.trace.run.replace(
            started=f"2026-01-{number + 1:02d}T00:00:00Z", source=SourceRecord(commit="ab" * 20)
        )
        summary = base.summary.replace(
            throughput=throughput, run=base.summary.run.replace(name=f"run {number}")
        )
        trace = Trace(facts, base.trace.spans, base.trace.files)
        store.add(Run(trace, base.steps, summary), "job")

    times = history(3, 10, 1, 1.1, 0.004)
    for number, seconds in enumerate(times):
        add(number, seconds)
    assert 1 == main(["history", "trend", "--store", str(tmp_path), "--fail-if-slower"])
    said = capsys.readouterr()
    assert "slower from run 10 (abababababab) on" in said.out
    assert "slower from run 10" in said.err
    page = tmp_path / "trend.html"
    assert 0 == main(["history", "trend", "--store", str(tmp_path), "--html", str(page)])
    assert "run 10" in page.read_text()
    capsys.readouterr()
    assert 0 == main(["history", "list", "--store", str(tmp_path), "--json"])
    [found] = json.loads(capsys.readouterr().out)
    assert [10] == [change["at"] for change in found["changes"]]
    add(11, 1.1)
    assert 0 == main(["history", "trend", "--store", str(tmp_path), "--fail-if-slower"])


@given(st.integers(0, 10**6), st.floats(0.001, 1000))
@settings(max_examples=examples(50), deadline=None)
def test_the_unit_of_time_changes_nothing(seed: int, scale: float) -> None:
    """Changes are of ratios, in order, each found after it began; equal times have none."""
    times = history(seed, 12, 6, 1.05, 0.01)
    found, scaled = level_changes(times), level_changes([each * scale for each in times])
    assert [each.at for each in found] == [each.at for each in scaled]
    assert all(each.found_at - each.at < len(FALSE_ALARMS) for each in found)
    assert all(first.at < second.at for first, second in pairwise(found))
    assert level_changes([1.0] * 40) == ()


def test_a_slow_down_of_3_percent_is_found_within_three_runs() -> None:
    """In nine of ten histories whose runs vary by 0.8 %; without one, an alarm in one of a hundred
    checks. benchmarks/history.py has the whole table."""
    found = alarms = 0
    for seed in range(200):
        changed = level_changes(history(seed, 20, 3, 1.03, 0.008))
        found += any(each.at >= 20 and each.ratio > 1 for each in changed)
        same = level_changes(history(seed, 20, 3, 1.0, 0.008))
        alarms += any(each.at == 20 and each.ratio > 1 for each in same)
    assert found >= 180
    assert alarms <= 6


@pytest.mark.parametrize(("number", "said"), [(5, 6), (6, None), (7, 3), (8, 3), (9, None)])
def test_a_level_that_is_not_known_says_how_many_runs_it_needs(
    number: int, said: int | None
) -> None:
    """Six at first; three after a change, from which on the variation is known."""
    times = [1.0, 1.001, 0.999, 1.0, 1.001, 0.999, 1.2, 1.2, 1.2][:number]
    runs = (PastRun(0, "job", "run", "", "", None, None, each, "step", None) for each in times)
    line = list(History("job", tuple(runs)).lines())[-1]
    assert line.startswith("level: " if said is None else f"fewer than {said} runs")
    assert ("since the last change" in line) == (said == 3)


@pytest.mark.parametrize(
    ("probability", "freedom", "error"),
    [
        (0.975, 1, 1e-9),
        *((0.975, each, 0.01) for each in (2, 2.5, 3, 4, 5, 30)),
        *((1 - alarms, each, 0.004) for alarms in FALSE_ALARMS for each in (5, 8, 12, 19)),
    ],
)
def test_the_quantile_is_that_of_student(probability: float, freedom: float, error: float) -> None:
    assert quantile(probability, freedom) == pytest.approx(
        float(student.ppf(probability, freedom)), rel=error
    )
