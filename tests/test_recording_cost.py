"""The stated cost of recording: robust on a busy machine, never 0, and a reason where it is not
known."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Final

import pytest
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from timeline import timeline
from told import summarise

from ioprof.analysis.capture import capture
from ioprof.format.run_record import CaptureRecord, CpuEvidence, Reason, RunRecord, Summary
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, empty_table
from ioprof.instrument import recorder
from ioprof.instrument.call_cost import cost_per_call_ns, cost_per_process_ns
from ioprof.recording.costs import measured_costs, with_costs, with_kept_costs
from ioprof.report.texts.statements import statements

NAMES: Final = ("ns_per_span", "ns_per_cold_span", "ns_per_call", "ns_per_cold_call")
COSTS: Final = {
    "span": recorder.cost_per_span_ns,
    "call": lambda: cost_per_call_ns(dict(os.environ)),
}


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two processes for each core that use all CPU time they can get."""
    spin = ["sh", "-c", "while :; do :; done"]
    spinners = [subprocess.Popen(spin) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        time.sleep(0.2)
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def of_a_run(measure: Callable[[], float | None]) -> float:
    """The lower of the values before and after, as in a run; one more, since the machine that runs
    the tests may be busy itself."""
    return min(value for value in (measure(), measure(), measure()) if value is not None)


@needs_library
@pytest.mark.parametrize("what", COSTS)
@on_a_quiet_machine
def test_a_busy_machine_changes_the_stated_cost_by_less_than_a_factor_of_two(what: str) -> None:
    """Trials that other programs interrupt do not count."""
    quiet = of_a_run(COSTS[what])
    with busy_machine():
        busy = of_a_run(COSTS[what])
    with comparing_times():
        assert 0.5 * quiet <= busy <= 2 * quiet


@pytest.mark.job
@needs_library
def test_too_few_trials_give_no_cost() -> None:
    """None, and not a number that nothing supports."""
    assert recorder.cost_per_span_ns(trials=recorder.FEWEST_TRIALS - 1) is None
    assert cost_per_call_ns(dict(os.environ), trials=recorder.FEWEST_TRIALS - 1) is None


@pytest.mark.job
@needs_library
def test_of_several_measurements_the_lowest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs only add to a cost; a measurement that they interrupted does not count."""
    measured = iter([None, 300.0, 20.0])
    monkeypatch.setattr(recorder, "cost_per_span_ns", lambda *_: next(measured))
    costs = measured_costs(dict(os.environ))
    assert (300.0, 20.0) == (costs["ns_per_span"], costs["ns_per_cold_span"])


@pytest.mark.job
@needs_library
def test_a_span_after_other_work_costs_more_than_one_among_spans() -> None:
    """Its code and data are not in the processor's caches."""
    costs = measured_costs(dict(os.environ))
    assert 0 < (costs["ns_per_span"] or 0) < (costs["ns_per_cold_span"] or 0)
    assert 0 < (costs["ns_per_call"] or 0) < (costs["ns_per_cold_call"] or 0)


@pytest.mark.job
@needs_library
def test_a_small_program_starts_later_with_the_library(tmp_path: Path) -> None:
    """It is loaded, finds the functions that it stands for, and makes a file."""
    if which("cat") is None:
        pytest.skip("there is no cat")
    assert 0 < (cost_per_process_ns(dict(os.environ)) or 0) < 1e9
    assert cost_per_process_ns({**os.environ, "PATH": str(tmp_path)}) is None


def test_programs_that_a_job_starts_are_in_the_cost() -> None:
    """A rank of a second that starts a hundred, at a millisecond each."""
    rank = {"role": "rank", "rank": 0, "pid": 1, "first_ns": 0, "last_ns": 1_000_000_000}
    programs = [{"role": "other", "pid": 2 + number} for number in range(100)]
    costs = dict.fromkeys(NAMES, 1.0) | {"ns_per_process": 1e6}
    run = RunRecord.of({"processes": [rank, *programs], "capture": costs})
    found = capture(Trace(run, empty_table(SPAN_COLUMNS)))
    assert found.overhead_ratio == pytest.approx(0.1)


def test_the_upper_estimate_is_of_the_process_that_recorded_most() -> None:
    """The job may wait for that one alone; workers that start anew each epoch are one."""
    second = {"first_ns": 0, "last_ns": 1_000_000_000}
    rank = {"role": "rank", "rank": 0, "pid": 1, "spans": 1000, **second}
    workers = [
        {"role": "worker", "rank": 0, "worker": 0, "pid": 2, "spans": 10, **second},
        {"role": "worker", "rank": 0, "worker": 0, "pid": 3, "spans": 90, "last_ns": 10_000_000}
        | {"first_ns": 0},
    ]
    costs = {"ns_per_span": 1.0, "ns_per_cold_span": 100_000.0}
    run = RunRecord.of({"processes": [rank, *workers], "capture": costs})
    found = capture(Trace(run, empty_table(SPAN_COLUMNS)))
    assert found.overhead_ratio_most == pytest.approx(0.1)


def test_what_hooks_of_steps_took_is_in_the_cost() -> None:
    """Instead of that of their spans, if it is more; at most several times that, and
    their spans."""
    times = {"first_ns": 0, "last_ns": 1_000_000_000}
    rank = {"role": "rank", "rank": 0, "pid": 1, "spans": 1000, "hooks_ns": 20_000_000, **times}
    costs = {"ns_per_span": 1.0, "ns_per_cold_span": 10_000.0}
    run = RunRecord.of({"processes": [rank], "capture": costs})
    found = capture(Trace(run, empty_table(SPAN_COLUMNS)))
    bounds = found.overhead_ratio, found.overhead_ratio_most
    assert (0.02, 0.08) == pytest.approx(bounds)


@pytest.mark.parametrize(("idle", "expected"), [(0.0, 0.05), (0.5, 0.025), (1.0, 0.0)])
def test_what_samplers_compute_is_in_the_upper_estimate_where_no_core_is_idle(
    idle: float, expected: float
) -> None:
    """0.2 s beside a job that computes on two cores for two seconds."""
    rank = {"role": "rank", "rank": 0, "pid": 1, "spans": 0, "first_ns": 0, "last_ns": 2 * 10**9}
    helpers = {"samplers": {"cpu_s": 0.1}, "stacks": {"cpu_s": 0.04}}
    helpers["faults"] = {"copier_cpu_s": 0.06}
    costs = {"ns_per_span": 1.0, "ns_per_cold_span": 2.0, **helpers}
    run = RunRecord.of({"processes": [rank], "capture": costs})
    cpu = CpuEvidence(host="node1", job_cores=2.0, idle_ratio=idle)
    found = capture(Trace(run, empty_table(SPAN_COLUMNS)), cpu)
    assert found.overhead_ratio_most == pytest.approx(expected)


@pytest.mark.job
@needs_library
def test_costs_are_measured_once_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further runs have those that were kept; a recording of calls without the library has none of
    calls."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    assert (None, Reason.COST_UNRESOLVED) == _known(with_kept_costs(CaptureRecord(), environment))
    first = with_costs(CaptureRecord(), environment)
    monkeypatch.setattr(recorder, "cost_per_span_ns", None)
    assert (
        first
        == with_costs(CaptureRecord(), environment)
        == with_kept_costs(CaptureRecord(), environment)
    )
    without = with_costs(CaptureRecord(library=False), environment)
    assert (first.ns_per_span, None, None, None) == (
        *_known(without),
        without.ns_per_call,
        without.ns_per_cold_call,
    )


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ns_per_span": 1}', "null", *(
    json.dumps(dict.fromkeys(NAMES, wrong)) for wrong in (0, -1, "nan", None, 1e999)
)])  # fmt: skip
def test_damaged_costs_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """Whatever stands in the file that kept them."""
    known = dict.fromkeys(NAMES, 100.0)  # those of a busy machine may be unknown, and are not kept
    monkeypatch.setattr("ioprof.recording.costs.measured_costs", lambda _: known)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with_costs(CaptureRecord(), environment)
    (file,) = tmp_path.glob("ioprof/costs-*.json")
    file.write_text(content)
    assert 100.0 == with_costs(CaptureRecord(), environment).ns_per_span
    assert known == json.loads(file.read_text())


@pytest.mark.job
@needs_library
def test_a_cache_folder_that_cannot_be_made_costs_only_time(tmp_path: Path) -> None:
    """The costs are measured for each run then."""
    (tmp_path / "file").touch()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")}
    assert None is with_costs(CaptureRecord(), environment).cost_reason


def _known(capture: CaptureRecord) -> tuple[float | None, Reason | None]:
    return capture.ns_per_span, capture.cost_reason


@pytest.mark.job
@needs_library
def test_no_trial_of_the_cost_waits_for_pages(tmp_path: Path) -> None:
    """In the process that records, large blocks are returned when they are freed; all trials copy
    the same 8 MB."""
    program = (
        "import os, resource\n"
        "from ioprof.instrument import recorder\n"
        "from ioprof.process import return_freed_memory\n"
        "return_freed_memory(os.environ)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "assert recorder.cost_per_span_ns(5, 60, 8 << 20) is not None\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 3 * (8 << 20) // resource.getpagesize()


@pytest.mark.job
@needs_library
def test_measuring_makes_no_file_with_a_name(tmp_path: Path) -> None:
    """Whatever ends the process then, nothing of it is left."""
    program = (
        "import tempfile; tempfile.gettempdir(); print('begin', flush=True)\n"
        "from ioprof.instrument import recorder\n"
        "from ioprof.instrument.call_cost import cost_per_call_ns\n"
        "assert recorder.cost_per_span_ns(trials=300) and cost_per_call_ns({})\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert b"begin\n" == process.stdout.readline()
        names: set[str] = set()
        while process.poll() is None:
            names |= set(os.listdir(tmp_path))
    assert (0, set()) == (process.returncode, names)


def summary_of(**capture: object) -> Summary:
    """The summary of a rank that recorded 3 spans in 0.1 µs."""
    processes = [
        {"host": "node1", "pid": 100, "role": "rank", "rank": 0, "first_ns": 0, "last_ns": 100}
    ]
    drawing = "step 0000000000\nwait 00000.....\ncompute .....00000"
    return summarise(timeline(drawing, capture=capture, processes=processes))


def text_of(summary: Summary) -> str:
    return next(statement.text for statement in statements(summary) if statement.label == "capture")


def test_the_report_states_a_range_or_why_there_is_none() -> None:
    """From the cost of a span among spans to that of a span after other work."""
    found = summary_of(native=True, ns_per_span=1.0, ns_per_cold_span=5.0)
    assert (0.03, 0.15, None) == pytest.approx(
        (
            found.capture.overhead_ratio,
            found.capture.overhead_ratio_most,
            found.capture.overhead_reason,
        )
    )
    assert "cost 3.00% to 15.00% of the job's time" in text_of(found)
    unknown = summary_of(native=True, ns_per_span=None, cost_reason="cost_unresolved")
    assert (None, Reason.COST_UNRESOLVED) == (
        unknown.capture.overhead_ratio,
        unknown.capture.overhead_reason,
    )
    assert f"cost not known ({Reason.COST_UNRESOLVED.text})" in text_of(unknown)
    assert (
        Reason.COST_UNRESOLVED is summary_of(native=True, ns_per_span=0.0).capture.overhead_reason
    )


@pytest.mark.parametrize(("native", "is_advised"), [(True, False), (False, True), (None, False)])
def test_a_compiler_is_advised_only_where_there_was_none(
    native: bool | None, is_advised: bool
) -> None:
    """A recording that the native library made cannot become cheaper by one."""
    from ioprof.report.texts.caveats import caveats

    remedy = next(
        caveat.remedy
        for caveat in caveats(summary_of(native=native, ns_per_span=20.0))
        if caveat.name == "recording cost"
    )
    assert is_advised == ("compiler" in remedy)
