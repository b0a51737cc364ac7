"""The Kineto session of a process, with CPU activities instead of GPU ones; everything else is the
same."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import examples

from ioprof import clock
from ioprof.errors import CaptureError
from ioprof.ingest import kineto, read_spool
from ioprof.instrument import gpu, recorder

CPU = ("CPU",)


@pytest.fixture(autouse=True)
def stopped(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No session outlives its test, the class of torch is unpatched, and the stderr output of
    Kineto is captured."""
    patched = torch.autograd.profiler.profile
    before = (patched._prepare_trace, patched.__exit__)
    yield
    gpu.stop()
    assert before == (patched._prepare_trace, patched.__exit__)


def work() -> tuple[int, int]:
    """Run an operation that Kineto records; returns the times before and after."""
    begin_ns = clock.monotonic_ns()
    torch.mm(torch.ones(100, 100), torch.ones(100, 100))
    return begin_ns, clock.monotonic_ns()


def as_kernels(window: kineto.Window, name: str = "aten::mm") -> list[tuple[int, int, int | None]]:
    """Start, end and step of the operators of that name, read as if they were kernels of a
    device."""
    text = window.path.read_text().replace('"cat": "cpu_op"', '"cat": "kernel"')
    path = window.path.with_name("kineto-turned-1-0.json")
    path.write_text(text)
    turned = kineto.read_window(
        path, window.path.with_name(window.path.name.replace(".json", ".meta.json"))
    )
    path.unlink()
    return turned.spans.filter(name=name).select("start_ns", "end_ns", "step").rows()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("off", None),
        ("all", gpu.Plan(5_000_000_000, 5_000_000_000)),
        ("2s/30s", gpu.Plan(2_000_000_000, 30_000_000_000)),
        ("500ms/1m", gpu.Plan(500_000_000, 60_000_000_000)),
    ],
)
def test_settings(setting: str, expected: gpu.Plan | None) -> None:
    """A length and a period, all, or off."""
    assert expected == gpu.plan(setting)


@pytest.mark.parametrize(
    "setting", ["", "on", "2s", "2/30", "30s/2s", "0s/1s", "2s/30s ", "-1s/2s"]
)
def test_invalid_settings(setting: str) -> None:
    """The message contains the value and a valid setting."""
    with pytest.raises(CaptureError, match="2s/30s"):
        gpu.start("spool", setting)


def test_a_window_lies_between_ends_of_steps(tmp_path: Path) -> None:
    """Its file contains the work within it, on the monotonic clock, in the right step; not the work
    before and after."""
    recorder.start(tmp_path, rank=2, role="rank")
    gpu.start(tmp_path, "1ms/1m", rank=2, activities=CPU)
    work()
    costs = [gpu.step(10)]
    times = []
    for step in (11, 12, 13):
        times.append(work())
        # the start of Kineto takes longer than the window, which would end with step 11
        if step == 12:
            while clock.monotonic_ns() - times[0][0] < 1_000_000:
                pass
        costs.append(gpu.step(step))
    stop_ns = gpu.stop()
    recorder.stop()

    (window,) = kineto.read_windows(tmp_path)
    facts = window.facts()
    found = as_kernels(window)
    last = facts.last_step
    assert (11, 0, 2, os.getpid(), "its time was over") == (
        facts.first_step,
        window.number,
        window.rank,
        window.pid,
        facts.ended_by,
    )
    assert list(range(11, last + 1)) == [step for _, _, step in found]
    slack_ns = 50_000
    for (begin_ns, end_ns), (start_ns, stop_at_ns, _) in zip(times, found, strict=False):
        assert begin_ns - slack_ns <= start_ns <= stop_at_ns <= end_ns + slack_ns
    assert window.uncertainty_ns is not None
    assert 0 == stop_ns
    spans = read_spool(tmp_path).spans.filter(kind="user", name=gpu.WINDOW_SPAN)
    assert [cost for cost in costs if cost] == [
        end - begin for begin, end in spans.select("start_ns", "end_ns").rows()
    ]
    assert 2 == len(spans)
    assert 0 < window.cost_ns <= sum(costs)


def test_the_file_says_which_thread_is_which(tmp_path: Path) -> None:
    """Kineto calls threads as `pthread_self()` does; those that Python knows have their system
    thread id beside."""
    gpu.start(tmp_path, "60m/60m", activities=CPU)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    gpu.step(0)
    thread.start()
    gpu.stop()
    ended.set()
    thread.join()
    (about,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.meta.json"))
    pairs = dict(about["threads"])
    assert (threading.get_native_id(), thread.native_id) == (
        pairs[about["thread"]],
        pairs[thread.ident],
    )
    (window,) = kineto.read_windows(tmp_path)
    assert threading.get_native_id() == window.loop_tid
    assert about["ready_ns"] <= about["ending_ns"] <= about["stopped_ns"]


def test_the_step_that_a_window_made_longer_is_known(tmp_path: Path) -> None:
    """The job is blocked between steps 10 and 11 and between those of the window's end: in the step
    that then begins."""
    recorder.start(tmp_path, rank=2, role="rank")
    gpu.start(tmp_path, "1ms/1m", activities=CPU)
    began = [step for step in range(10, 100_000) if gpu.step(step)][:2]
    recorder.stop()
    found = read_spool(tmp_path).spans.filter(kind="user", name=gpu.WINDOW_SPAN)["step"].to_list()
    assert [step + 1 for step in began] == found


SECOND_NS = 1_000_000_000


class Blocking:
    """A profile whose end blocks the job for the next of some times, on a clock that stands in for
    the monotonic one."""

    def __init__(self, costs_ns: Sequence[int], start_ns: int = 1_000 * SECOND_NS) -> None:
        self.now_ns, self.started_ns = start_ns, list[int]()
        self._costs = itertools.cycle(costs_ns)

    def __enter__(self) -> None:
        self.started_ns.append(self.now_ns)

    def __exit__(self, *_: object) -> None:
        self.now_ns += next(self._costs)

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}")


@pytest.fixture
def run_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Blocking, "gpu.Session"]]:
    """Run a job whose steps take a time each, and the ends of whose windows block it for a time
    each."""

    def run(
        setting: str, costs_ns: Sequence[int], step_ns: int, total_ns: int
    ) -> tuple[Blocking, gpu.Session]:
        chosen = gpu.plan(setting)
        assert chosen
        profile = Blocking(costs_ns)
        end_ns = profile.now_ns + total_ns
        with monkeypatch.context() as patches:
            patches.setattr(gpu.clock, "monotonic_ns", lambda: profile.now_ns)
            patches.setattr(gpu, "_new_profile", lambda _activities: profile)
            session = gpu.Session(str(tmp_path), chosen, 0, CPU)
            step = 0
            while profile.now_ns < end_ns:
                before_ns = profile.now_ns
                blocked_ns = session.step(step)
                assert blocked_ns == profile.now_ns - before_ns
                profile.now_ns += step_ns
                step += 1
            session.unpatch()
        return profile, session

    return run


PERIOD_NS = 30 * SECOND_NS


@pytest.mark.parametrize(
    ("cost_s", "expected"),
    [(0, 1), (0.15, 1), (0.16, 2), (0.3, 2), (0.411, 4), (0.663, 8), (1.297, 16), (10, 128)],
)
def test_windows_are_as_far_apart_as_they_cost(cost_s: float, expected: int) -> None:
    """A power of two of periods, of which the window blocks at most 0.5 %; never if all of the time
    is to be recorded."""
    cost_ns = round(cost_s * SECOND_NS)
    assert expected == gpu.Plan(2 * SECOND_NS, PERIOD_NS).periods(cost_ns)
    assert 1 == gpu.Plan(PERIOD_NS, PERIOD_NS).periods(cost_ns)


def test_windows_that_cost_much_are_left_out(run_windows: Any) -> None:
    """Of 0.67 s, as on an H100: one of eight periods, and the reason is noted, without a number
    that changes with each window."""
    profile, session = run_windows(
        "2s/30s", [670_000_000, 660_000_000], 20_000_000, 3600 * SECOND_NS
    )
    periods = [(at_ns - profile.started_ns[0]) // PERIOD_NS for at_ns in profile.started_ns]
    assert list(range(0, 120, 8)) == periods
    (note,) = session.notes
    assert (
        "the GPU was recorded less often, every 240 s instead of 30 s, since a window blocked the"
        " job for more than 0.6 s" == note
    )
    assert 15 * 7 == session.notes[note]
    assert session.cost_ns < 0.005 * 3600 * SECOND_NS


def test_windows_that_cost_little_are_all_recorded(run_windows: Any) -> None:
    """And with `all` those that cost much."""
    profile, session = run_windows("2s/30s", [150_000_000], 20_000_000, 600 * SECOND_NS)
    assert (20, {}) == (len(profile.started_ns), dict(session.notes))
    profile, session = run_windows("all", [670_000_000], 20_000_000, 60 * SECOND_NS)
    assert {} == dict(session.notes)
    assert len(profile.started_ns) >= 10


def test_a_job_that_ends_before_a_window_was_left_out_says_nothing(run_windows: Any) -> None:
    """All that was asked for was recorded."""
    _, session = run_windows("2s/30s", [2 * SECOND_NS], 20_000_000, 29 * SECOND_NS)
    assert {} == dict(session.notes)


costs = st.lists(st.integers(0, 5 * SECOND_NS), min_size=1, max_size=5)


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(costs_ns=costs, step_ms=st.sampled_from([90, 400, 3_000]))
def test_windows_cost_at_most_that_share_of_the_time(
    run_windows: Any, costs_ns: list[int], step_ms: int
) -> None:
    """Whatever each costs: of the time from the begin of its period to that of the next window's
    period. They keep their phase."""
    profile, _ = run_windows("2s/30s", costs_ns, step_ms * 1_000_000, 1800 * SECOND_NS)
    periods = [(at_ns - profile.started_ns[0]) // PERIOD_NS for at_ns in profile.started_ns]
    for cost_ns, period, following in zip(
        itertools.cycle(costs_ns), periods, periods[1:], strict=False
    ):
        assert cost_ns <= 0.005 * (following - period) * PERIOD_NS
        apart = gpu.Plan(2 * SECOND_NS, PERIOD_NS).periods(cost_ns)
        assert following % apart == 0
        assert following - period < 2 * apart + 1


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(costs_ns=st.tuples(*(st.integers(1_000_000, 3 * SECOND_NS) for _ in range(2))))
def test_ranks_whose_windows_cost_differently_meet(
    run_windows: Any, costs_ns: tuple[int, int]
) -> None:
    """The rank with fewer windows has all of them at the same time as the other one."""
    found = []
    for cost_ns in costs_ns:
        profile, _ = run_windows("2s/30s", [cost_ns], 400_000_000, 1800 * SECOND_NS)
        found.append({(at_ns - profile.started_ns[0]) // PERIOD_NS for at_ns in profile.started_ns})
    fewer, more = sorted(found, key=len)
    assert fewer <= more


def test_windows_back_to_back_miss_no_step(tmp_path: Path) -> None:
    """If the period is as long as the window, each window starts where the previous one ended."""
    gpu.start(tmp_path, "1ms/1ms", activities=CPU)
    for step in range(12):
        work()
        gpu.step(step)
    gpu.stop()
    windows = kineto.read_windows(tmp_path)
    assert len(windows) > 1
    assert list(range(1, 12)) == [step for window in windows for _, _, step in as_kernels(window)]
    assert "the process ended" in {window.ended_by for window in windows}


def test_a_profiler_of_the_job_takes_precedence(tmp_path: Path) -> None:
    """It records undisturbed; the events of our window until then are kept, and our next window
    starts after it."""
    gpu.start(tmp_path, "1ms/1ms", activities=CPU)
    gpu.step(0)
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
        gpu.step(1)
        work()
    assert 2 == sum(event.name == "aten::mm" for event in profiler.events())
    notes = gpu.notes()
    _until_a_window_is_open(2)
    work()
    gpu.step(1000)
    gpu.stop()
    windows = kineto.read_windows(tmp_path)
    assert ["the job started a profiler of its own"] == [window.ended_by for window in windows[:1]]
    assert (1, 1) == (len(as_kernels(windows[0])), len(as_kernels(windows[1])))
    assert {
        "a window ended early, because the job started a profiler of its own": 1,
        "a window was not recorded, because another profiler was active": 1,
    } == notes
    (notes_file,) = tmp_path.glob("gpu-*.json")
    assert notes.keys() == json.loads(notes_file.read_text())["notes"].keys()


def _until_a_window_is_open(step: int) -> None:
    while not gpu.step(step):
        pass


def test_a_profiler_that_warms_up_is_not_disturbed(tmp_path: Path) -> None:
    """From its warm-up to its end it uses Kineto, although torch does not report it."""
    gpu.start(tmp_path, "1ms/1ms", activities=CPU)
    gpu.step(0)
    schedule = torch.profiler.schedule(wait=0, warmup=2, active=2, repeat=1)
    seen = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profiler: seen.append(
            [event.name for event in profiler.events()].count("aten::mm")
        ),
    ) as profiler:
        for step in range(1, 5):
            work()
            gpu.step(step)
            profiler.step()
    assert [2] == seen
    assert gpu.notes()["a window was not recorded, because another profiler was active"] >= 1
    gpu.stop()
    assert 1 == len(kineto.read_windows(tmp_path))


def test_nothing_happens_when_it_is_off_or_another_profiler_is_expected(tmp_path: Path) -> None:
    """No file and no patch; the reason is kept, if there is one."""
    gpu.start(tmp_path, "off", activities=CPU)
    assert (0, {}) == (gpu.step(1), gpu.notes())
    gpu.start(tmp_path, "all", activities=CPU, environment={"NSYS_PROFILING_SESSION_ID": "1"})
    assert (0, {"nsys profiles this process": 1}) == (gpu.step(1), gpu.notes())
    gpu.stop()
    assert [f"gpu-{os.uname().nodename}-{os.getpid()}.json"] == [
        path.name for path in tmp_path.iterdir()
    ]


def test_a_job_without_cuda_has_no_windows_and_no_notes(tmp_path: Path) -> None:
    """A check would initialise CUDA, and children forked afterwards could not use it."""
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    gpu.start(tmp_path, "1ms/1ms")
    assert (0, {}, 0) == (gpu.step(0), gpu.notes(), gpu.stop())
    assert [] == list(tmp_path.iterdir())


def test_a_missing_spool_loses_windows_but_does_not_fail_the_job(tmp_path: Path) -> None:
    """After three failures no more windows are tried."""
    gpu.start(tmp_path / "gone", "1ms/1ms", activities=CPU)
    for step in range(100_000):
        gpu.step(step)
        if gpu.notes().get("no more windows after 3 failures"):
            break
    assert 1 == gpu.notes()["no more windows after 3 failures"]
    assert not (tmp_path / "gone").exists()


@pytest.mark.job
def test_a_forked_child_has_no_session(tmp_path: Path) -> None:
    """The window belongs to its parent."""
    gpu.start(tmp_path, "1ms/1ms", activities=CPU)
    gpu.step(0)
    child = os.fork()
    if not child:
        clean = (
            gpu.step(1) == 0
            and gpu.stop() == 0
            and "prepare_trace" not in torch.autograd.profiler.profile._prepare_trace.__qualname__
        )
        os._exit(
            0
            if clean or torch.autograd.profiler.profile._prepare_trace.__module__ != gpu.__name__
            else 1
        )
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    work()
    gpu.step(1)
    gpu.stop()
    assert 1 == len(as_kernels(kineto.read_windows(tmp_path)[0]))


def _run(program: str, spool: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **gpu.QUIET}
    return subprocess.run(
        [sys.executable, "-c", program, spool],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


@pytest.mark.job
def test_torch_is_never_imported(tmp_path: Path) -> None:
    """A process that does not use torch does not pay for its import."""
    program = (
        "import sys; from ioprof.instrument import gpu; gpu.start(sys.argv[1], 'all'); gpu.step(0);"
        " print('torch' in sys.modules)"
    )
    assert "False\n" == _run(program, tmp_path).stdout


@pytest.mark.job(every=4)
def test_a_killed_process_and_one_that_just_ends(tmp_path: Path) -> None:
    """The first leaves only the metadata of the open window, the second all of it; with `QUIET`,
    Kineto writes nothing."""
    program = """
import os, sys, torch
from ioprof.instrument import gpu
for window in (0, 1):
    if window == 0 or os.fork() == 0:
        gpu.start(sys.argv[1], "60m/60m", activities=("CPU",))
        gpu.step(4)
        torch.mm(torch.ones(100, 100), torch.ones(100, 100))
        gpu.step(5)
        if window:
            os.kill(os.getpid(), 9)
        gpu.stop()
    else:
        os.wait()
"""
    killed = _run(
        program.replace("(0, 1)", "(1,)").replace("window == 0 or os.fork() == 0", "True"),
        tmp_path / "",
    )
    ended = _run(program.replace("(0, 1)", "(0,)").replace("gpu.stop()", "pass"), tmp_path)
    assert (-signal.SIGKILL, 0) == (killed.returncode, ended.returncode), ended.stderr
    assert ("", "") == (killed.stderr, ended.stderr)
    windows = {window.ended_by: window for window in kineto.read_windows(tmp_path)}
    assert {None, "the process ended"} == windows.keys()
    assert {"the process ended during this window", "no trace of this window was written"} == set(
        +windows[None].damage
    )
    assert [5] == [step for _, _, step in as_kernels(windows["the process ended"])]
