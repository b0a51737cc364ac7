"""CPU time that processes of a job get: what the sampler reads, what the analysis makes of it, and
what the verdict says."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import control_groups
import polars as pl
import pytest
import stored
from hypothesis import given
from hypothesis import strategies as st
from preload import needs_library
from repository import PROGRAMS
from timeline import pid, timeline
from told import summarise

from ioprof.analysis.cpu.cpu_time import cpu_evidence
from ioprof.format.run_record import CpuEvidence, CpuLimit, Doubt, Summary
from ioprof.format.schema import COUNTER_COLUMNS
from ioprof.format.series import find_series
from ioprof.format.trace import Trace, table_schema
from ioprof.instrument.samplers.cgroups import CpuLimits
from ioprof.instrument.samplers.groups import SchedulingGroups
from ioprof.instrument.samplers.processes import JobProcesses
from ioprof.instrument.samplers.threads import ThreadCounters, cpu_list
from ioprof.report.texts.cpu_statements import short_of_cores

SPIN: Final = ["sh", "-c", "while :; do :; done"]


@contextmanager
def spinning(count: int, **options: Any) -> Iterator[list[int]]:
    """Processes that use all CPU time that they can get."""
    started = [subprocess.Popen(SPIN, **options) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


# --------------------------------------------------------------------- run-queue delay and affinity


@pytest.mark.job
def test_two_processes_on_one_core_wait_for_it_in_turn() -> None:
    """Each runs for half of the time and waits for the other half, as the kernel counts it; both
    may use that core only."""
    core = min(os.sched_getaffinity(0))
    job = JobProcesses(os.getpid(), b"nothing")
    with spinning(2, preexec_fn=lambda: os.sched_setaffinity(0, {core})) as pids:
        time.sleep(0.5)
        before = [kernel_delay_s(number) for number in pids]
        readings, changed = job.read()
        after = [kernel_delay_s(number) for number in pids]
    by_pid = {number: values for (number, _), values in readings.items()}
    for number, least, most in zip(pids, before, after, strict=True):
        assert least - 1e-6 <= by_pid[number]["process.run_delay"] <= most + 1e-6
        assert 0.1 < by_pid[number]["process.run_delay"]
        # it has one thread
        assert by_pid[number]["process.run_delay"] == by_pid[number]["process.main_run_delay"]
        ran_s = by_pid[number]["process.cpu_user"] + by_pid[number]["process.cpu_system"]
        assert by_pid[number]["process.main_cpu"] == pytest.approx(ran_s, abs=0.05)
        assert 1 == by_pid[number]["process.cpus_allowed"]
    assert {str(core)} == {process.cpus for process in changed if process.pid in pids}


def kernel_delay_s(number: int) -> float:
    return int(Path(f"/proc/{number}/schedstat").read_text().split()[1]) / 1e9


def show_thread(proc: Path, process: int, thread: int, delay_ns: int) -> None:
    """Create the schedstat file of a thread."""
    folder = proc / str(process) / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"5 {delay_ns} 1\n")


def test_threads_that_ended_are_still_counted(tmp_path: Path) -> None:
    """Also where another thread of the process has got the id of one that ended: the sum never
    decreases."""
    counters = ThreadCounters(str(tmp_path), lambda _: {0}, 1)
    show_thread(tmp_path, 7, 7, 10_000)
    show_thread(tmp_path, 7, 8, 5_000)
    assert 15e-6 == pytest.approx(delay_of(counters, 2), abs=1e-9)
    show_thread(tmp_path, 7, 8, 1_000)  # a new one
    assert 16e-6 == pytest.approx(delay_of(counters, 2), abs=1e-9)
    (tmp_path / "7/task/8/schedstat").unlink()
    (tmp_path / "7/task/8").rmdir()
    assert 16e-6 == pytest.approx(delay_of(counters, 2), abs=1e-9)


def delay_of(counters: ThreadCounters, count: int) -> float:
    return counters.read({(7, 100): count})[7, 100]["process.run_delay"]


def test_many_threads_are_read_in_turn(tmp_path: Path) -> None:
    """No sample reads more than its share, and after as many samples as it takes all have been
    read."""
    counters = ThreadCounters(str(tmp_path), lambda _: {0}, 1, most_threads=4)
    for thread in range(10):
        show_thread(tmp_path, 7, 7 + thread, 1_000)
    assert [4e-6, 8e-6, 10e-6, 10e-6] == pytest.approx([delay_of(counters, 10) for _ in range(4)])


def test_threads_bound_to_a_core_each_may_use_all_of_them(tmp_path: Path) -> None:
    """OpenMP binds the main thread to the first core: the process may still use those of its other
    threads."""
    counters = ThreadCounters(str(tmp_path), lambda thread: {thread - 7}, 4)
    for thread in range(7, 10):
        show_thread(tmp_path, 7, thread, 0)
    assert 3 == counters.read({(7, 100): 3})[7, 100]["process.cpus_allowed"]
    assert {(7, 100): "0-2"} == counters.cpus


def test_a_changed_affinity_is_seen_within_five_samples(tmp_path: Path) -> None:
    """It is not read each time; but at once where there is another thread."""
    allowed = [{0, 1}, {0}]
    counters = ThreadCounters(str(tmp_path), lambda _: allowed[0], 4)
    show_thread(tmp_path, 7, 7, 0)

    def cpus(num_threads: int) -> float:
        return counters.read({(7, 100): num_threads})[7, 100]["process.cpus_allowed"]

    assert 2 == cpus(1)
    allowed.reverse()
    assert 1 == [cpus(1) for _ in range(5)][-1]
    allowed.reverse()
    show_thread(tmp_path, 7, 8, 0)
    assert 2 == cpus(2)


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cpus_can_be_read_back(cpus: set[int]) -> None:
    """The text has each number once, as a range or alone."""
    found: set[int] = set()
    for part in filter(None, cpu_list(cpus).split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert cpus == found


# ------------------------------------------------------------------------------------------- quotas


MOUNTS: Final = {
    1: (
        "30 25 0:26 / {point} rw - cgroup cgroup rw,cpu,cpuacct\n31 25 0:27 / /sys/fs/cgroup/memory"
        " rw - cgroup cgroup rw,memory\n"
    ),
    2: "30 25 0:26 {root} {point} rw - cgroup2 cgroup2 rw,nsdelegate\n",
}


def limits_of(tmp_path: Path, version: int, path: str, root: str = "/") -> CpuLimits:
    """The reader on a machine where process 7 is in the group `path`."""
    (tmp_path / "self").mkdir(exist_ok=True)
    (tmp_path / "self/mountinfo").write_text(
        MOUNTS[version].format(point=tmp_path / "cgroup", root=root)
    )
    (tmp_path / "7").mkdir(exist_ok=True)
    (tmp_path / "7/cgroup").write_text(
        {1: f"4:memory:/other\n3:cpu,cpuacct:{path}\n", 2: f"0::{path}\n"}[version]
    )
    return CpuLimits(str(tmp_path))


def show_group(folder: Path, **files: str) -> None:
    """Create the files of a control group; `_` stands for the dot in their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


@pytest.mark.parametrize("enabled", [True, False])
def test_groups_of_the_scheduler_are_control_groups_or_sessions(
    enabled: bool, tmp_path: Path
) -> None:
    """A control group with the CPU controller, of either version, or else the session."""
    show_group(tmp_path / "sys/kernel")
    (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text(f"{enabled:d}\n")
    show_group(tmp_path / "fs/cgroup/job/main", cpu_weight="100")
    seen = {
        7: ("4:memory:/x\n3:cpu,cpuacct:/\n", "/autogroup-1 nice 0\n"),
        8: ("4:memory:/x\n3:cpu,cpuacct:/\n", "/autogroup-2 nice 0\n"),
        9: ("4:memory:/y\n3:cpu,cpuacct:/pod\n", ""),
        10: ("0::/job/main/task\n", "/autogroup-1 nice 0\n"),
        11: ("0::/other\n", "/autogroup-1 nice 0\n"),  # the controller was not given to it
    }
    for number, (control, session) in seen.items():
        show_group(tmp_path / str(number), cgroup=control, autogroup=session)
    groups = SchedulingGroups(str(tmp_path), str(tmp_path))
    none = {(number, 1): 0.0 for number in seen}
    assert not groups.read({(7, 1): 0.0}, none)
    used = {number: {(number, 1): 6.0} for number in seen}
    found = groups.read(used[7], used[8] | used[9] | used[10] | used[11])
    expected = (3.0, 6.0) if enabled else (2.0, 12.0)  # without sessions 7, 8 and 11 are one
    assert expected == (found["groups.others"], found["groups.others_beside"])
    assert 1.0 == found["groups.own"]
    assert all(find_series(name) for name in found)
    show_group(tmp_path / "fs/cgroup", cpu_weight="100")  # as in a container
    assert "/" == SchedulingGroups(str(tmp_path), str(tmp_path))._find(11)
    later = groups.read({(7, 1): 9.0, (9, 2): 3.0}, used[8])
    assert 1.6 == later["groups.own"]  # 9 s in one, 3 s in another
    assert later["groups.others_beside"] > found["groups.others_beside"]


def test_a_quota_of_v1_is_read_in_cores(tmp_path: Path) -> None:
    """The series of the group have the units of the table; a group without a quota has none."""
    stat = "nr_periods 100\nnr_throttled 48\nthrottled_time 2500000000\n"
    show_group(
        tmp_path / "cgroup/job", cpu_cfs_quota_us="50000", cpu_cfs_period_us="100000", cpu_stat=stat
    )
    show_group(
        tmp_path / "cgroup", cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000", cpu_stat=stat
    )
    found = limits_of(tmp_path, 1, "/job").read([7])
    expected = {
        "cpu_quota": 0.5,
        "cpu_periods": 100,
        "cpu_throttled_periods": 48,
        "cpu_throttled_time": 2.5,
    }
    assert {f"cgroup./job.{name}": value for name, value in expected.items()} == found
    assert all(find_series(name) for name in found)


def test_a_quota_of_a_group_further_up_counts(tmp_path: Path) -> None:
    """As in a pod whose container has no limit of its own."""
    show_group(tmp_path / "cgroup/pod/container", cpu_max="max 100000", cpu_stat="nr_periods 0\n")
    stat = "usage_usec 7\nnr_periods 10\nnr_throttled 4\nthrottled_usec 300000\n"
    show_group(tmp_path / "cgroup/pod", cpu_max="200000 100000", cpu_stat=stat)
    found = limits_of(tmp_path, 2, "/pod/container").read([7])
    assert (2.0, 4, 0.3) == tuple(
        found[f"cgroup./pod.cpu_{name}"]
        for name in ("quota", "throttled_periods", "throttled_time")
    )


@pytest.mark.parametrize(
    ("path", "root"), [("/docker/a", "/docker/a"), ("/docker/a", "/docker/b"), ("/../..", "/")]
)
def test_in_a_container_the_mounted_group_is_its_own(tmp_path: Path, path: str, root: str) -> None:
    """Whatever path the kernel shows for the process: of the host, or outside of the namespace."""
    show_group(
        tmp_path / "cgroup",
        cpu_max="50000 100000",
        cpu_stat="nr_periods 2\nnr_throttled 1\nthrottled_usec 1\n",
    )
    assert 0.5 == limits_of(tmp_path, 2, path, root).read([7])["cgroup./.cpu_quota"]


def test_a_quota_that_is_set_later_is_found(tmp_path: Path) -> None:
    """Groups without a quota are examined again from time to time."""
    show_group(tmp_path / "cgroup/job", cpu_max="max 100000", cpu_stat="")
    limits = limits_of(tmp_path, 2, "/job")
    assert {} == limits.read([7])
    show_group(tmp_path / "cgroup/job", cpu_max="50000 100000")
    assert any(limits.read([]) for _ in range(20))


@pytest.mark.system
@pytest.mark.skipif(
    control_groups.missing("cpu") is not None, reason=str(control_groups.missing("cpu"))
)
def test_throttling_agrees_with_the_kernel() -> None:
    """A process that could use a whole core in a group that may use a fifth: throttled in most
    periods."""
    with control_groups.control_group("cpu") as group:
        control_groups.limit_cpu(group, 0.2, 20_000)
        with spinning(1, preexec_fn=group.join) as (spinner,):
            limits = CpuLimits()
            limits.read([spinner])
            time.sleep(0.3)
            before = periods(group)
            found = limits.read([])
            after = periods(group)
    name = f"cgroup./{group.path.name}"
    assert 0.2 == found[f"{name}.cpu_quota"]
    assert before <= (found[f"{name}.cpu_periods"], found[f"{name}.cpu_throttled_periods"]) <= after
    assert found[f"{name}.cpu_throttled_periods"] > 0.5 * found[f"{name}.cpu_periods"] > 0


def periods(group: control_groups.ControlGroup) -> tuple[int, int]:
    stat = dict(line.split() for line in group.read("cpu.stat").splitlines())
    return int(stat["nr_periods"]), int(stat["nr_throttled"])


# ----------------------------------------------------------------------------------------- analysis


DECODING: Final = """
    step       000000000011111111112222222222
    wait       00000000..11111111..22222222..
    compute    ........00........11........22
    fetch w0   000000000011111111112222222222
    decode w0  ##############################
"""
HOST: Final = None


def job(
    *series: tuple[int | None, str, float],
    allowed: str = "0-15",
    pools: dict[str, int] | None = None,
    drawing: str = DECODING,
    sampled_ns: int = 10 * 10**9,
    beside: Sequence[dict[str, Any]] = (),
) -> Trace:
    """A job whose only worker always decodes, on a host with 16 cores, with these values of series
    after 10 s."""
    records = [
        {
            "host": "node1",
            "pid": pid(0),
            "role": "rank",
            "rank": 0,
            "cpus_allowed": allowed,
            "first_ns": 0,
            "last_ns": 300,
        },
        {
            "host": "node1",
            "pid": pid(0, 0),
            "role": "worker",
            "rank": 0,
            "worker": 0,
            "cpus_allowed": allowed,
            "first_ns": 0,
            "last_ns": 300,
            "thread_pools": pools or {},
        },
        *beside,
    ]
    hosts = [{"name": "node1", "cpus": 16, "online_cpus": 16}]
    config = {"device": "cuda", "workers": 1, "batch_size": 4, "loader": "torch DataLoader"}
    trace = timeline(drawing, config=config, hosts=hosts, processes=records)
    rows = [
        (
            time_ns,
            "node1",
            None if of is None else 0,
            of,
            name,
            value if time_ns else value * begin,
            "",
        )
        for of, name, value in series
        for time_ns, begin in ((0, float(not name.endswith(CUMULATIVE))), (sampled_ns, 1.0))
    ]
    return Trace(
        trace.run,
        trace.spans,
        counters=pl.DataFrame(rows, schema=table_schema(COUNTER_COLUMNS), orient="row"),
    )


CUMULATIVE: Final = ("user", "system", "delay", "idle", "steal", "periods")


def used(
    of: int, cpu_s: float, delay_s: float, threads: int = 1, cores: int = 16
) -> list[tuple[int | None, str, float]]:
    """The series of a process that used CPU time and waited for it."""
    values = {
        "cpu_user": cpu_s,
        "cpu_system": 0.0,
        "run_delay": delay_s,
        "threads": threads,
        "cpus_allowed": cores,
    }
    return [(of, f"process.{name}", value) for name, value in values.items()]


RANK, WORKER = pid(0), pid(0, 0)
IDLE: Final = [(HOST, "cpu.user", 10.0), (HOST, "cpu.idle", 150.0)]


def said(*series: tuple[int | None, str, float], **more: Any) -> tuple[Summary, str, str]:
    """The summary, the verdict's text and the first advice."""
    found = summarise(job(*series, **more))
    return found, found.verdict.text, found.verdict.findings[0].action


def test_a_worker_that_decodes_beside_idle_cores_needs_more_workers() -> None:
    """Nothing limits its CPU time: the verdict is the one of a job that was not sampled."""
    found, text, advice = said(*IDLE, *used(RANK, 1.0, 0.1), *used(WORKER, 9.0, 0.1))
    assert found.cpu
    assert () == found.cpu.limits
    assert (16, 0.1 / 9.1) == pytest.approx(
        (found.cpu.worker_cores, found.cpu.worker_run_delay_ratio)
    )
    assert 0.9375 == found.cpu.idle_ratio
    assert text == summarise(job()).verdict.text
    assert advice.startswith("Use num_workers=15 instead of 1")


DELIVERING: Final = "step 0000000000\nwait 00000000..\nfetch w0 0\ncompute ........00"


def test_batches_may_be_late_because_their_worker_has_no_core() -> None:
    """Then it is not sure that they are too large to be sent."""
    for delay_s, doubts in ((9.0, (Doubt.CORES,)), (0.1, ())):
        found = summarise(
            job(*used(RANK, 1.0, 0.1), *used(WORKER, 1.0, delay_s), drawing=DELIVERING)
        )
        assert ("delivery", doubts) == (found.verdict.bound_by, found.verdict.doubts)


def test_a_process_that_was_sampled_at_its_start_alone_is_not_known() -> None:
    """Its CPU time is counted in steps of 10 ms: 0 of 17 ms is no worker that waits."""
    found = summarise(
        job(*IDLE, *used(RANK, 0.0, 0.0), *used(WORKER, 0.0, 0.011), sampled_ns=17_000_000)
    )
    assert found.cpu is None or found.cpu.worker_running_threads is None
    assert "a worker uses" not in " ".join(entry.action for entry in found.verdict.findings)


def test_workers_on_one_core_are_named_before_decode() -> None:
    """The affinity comes first, in text and advice, and more workers are not advised."""
    found, text, advice = said(
        *IDLE, *used(RANK, 1.0, 1.0), *used(WORKER, 5.0, 4.0, cores=1), allowed="3"
    )
    assert found.cpu
    assert (CpuLimit.WORKER_AFFINITY,) == found.cpu.limits
    assert "decode" == found.verdict.bound_by
    assert text.startswith(
        "Workers may use 1 of 16 cores (CPU affinity 3), and waited for a core 44% of the time"
    )
    assert "use more than 1 of the 16 cores" in advice
    assert not any("instead of 1" in action.action for action in found.verdict.findings)


def test_an_affinity_without_a_wait_is_not_blamed() -> None:
    """A worker on a core of its own that gets it whenever it can run."""
    found, _, advice = said(
        *IDLE, *used(RANK, 1.0, 0.1, cores=1), *used(WORKER, 9.0, 0.2, cores=1), allowed="3"
    )
    assert found.cpu
    assert () == found.cpu.limits
    assert advice.startswith("Use num_workers=15")


def test_a_quota_that_throttles_is_named() -> None:
    """With the share of its periods; one that never throttled is not."""

    def quota(throttled: float) -> list[tuple[int | None, str, float]]:
        values = {"cpu_quota": 0.5, "cpu_periods": 100.0, "cpu_throttled_periods": throttled}
        return [(HOST, f"cgroup./job.{name}", value) for name, value in values.items()]

    _, text, advice = said(*IDLE, *quota(48.0), *used(RANK, 1.0, 0.1), *used(WORKER, 4.0, 0.2))
    assert text.startswith(
        "The job's cgroup has a quota of 0.5 cores and was throttled in 48% of its periods."
    )
    assert advice.startswith("Raise the CPU quota of the job (0.5 of 16 cores")
    _, text, advice = said(*IDLE, *quota(2.0), *used(RANK, 1.0, 0.1), *used(WORKER, 4.0, 0.2))
    assert text.startswith("The accelerators were idle")
    assert advice.startswith("Use num_workers=15")


def test_threads_that_compete_are_named_with_their_library() -> None:
    """64 threads of OpenCV in a worker on 2 cores, of which 40 could run on average."""
    worker = used(WORKER, 18.0, 382.0, threads=66, cores=16)
    found, text, advice = said(
        *IDLE, *used(RANK, 1.0, 0.5), *worker, pools={"OpenCV": 64, "torch": 1}
    )
    assert found.cpu
    assert (CpuLimit.THREADS,) == found.cpu.limits
    assert text.startswith("64 threads of OpenCV in a process on 16 cores: 40 could run on average")
    assert "cv2.setNumThreads(0)" in advice


def test_sleeping_threads_are_no_fault() -> None:
    """A process with a large pool that has nothing to do."""
    worker = used(WORKER, 9.0, 0.5, threads=66)
    found, *_ = said(*IDLE, *used(RANK, 1.0, 0.5), *worker, pools={"OpenCV": 64})
    assert found.cpu
    assert (66, ()) == (found.cpu.most_threads, found.cpu.limits)


def test_busy_cores_are_not_shared_by_more_workers() -> None:
    """No core is idle and workers wait for one: the verdict stays and says so, and no advice is to
    change nothing."""
    busy = [(HOST, "cpu.user", 159.0), (HOST, "cpu.idle", 1.0)]
    found, _, _ = said(*busy, *used(RANK, 1.0, 0.5), *used(WORKER, 5.0, 4.0))
    assert found.cpu
    assert (CpuLimit.CORES,) == found.cpu.limits
    assert ["batches", CpuLimit.CORES] == [each.code for each in found.verdict.sentences]
    assert 16 == found.verdict.sentences[1].facts["cores"]
    assert ["decode_less"] == [each.code for each in found.verdict.findings]


def test_other_processes_that_use_the_cores_are_named() -> None:
    """Ten actors with several threads each, on 16 cores with a rank; another process of the job
    does nothing."""
    beside = [
        {"host": "node1", "pid": 50 + number, "role": "other", "first_ns": 0, "last_ns": 300}
        | {"program": "actor" if number else "xz"}
        for number in range(11)
    ]
    actors = [row for number in range(10) for row in used(50 + number, 15.0, 10.0, threads=3)]
    series = [*used(RANK, 5.0, 9.0), *used(WORKER, 1.0, 0.1), *actors, *used(60, 0.1, 0.0)]
    found = summarise(job(*IDLE, *series, beside=beside))
    assert found.cpu
    assert (CpuLimit.PROCESSES,) == found.cpu.limits
    assert (10, 15.0, 2.5) == (
        found.cpu.beside_processes,
        found.cpu.beside_cores,
        found.cpu.beside_threads,
    )
    assert found.verdict.sentences[0].code == CpuLimit.PROCESSES
    told = found.verdict.findings[0]
    assert ("cpu_processes", "xz, actor", 10) == (
        told.code,
        told.facts["programs"],
        told.facts["beside"],
    )
    assert told.facts["rank_delay"] == pytest.approx(9 / 14)
    assert ("xz", "actor") == found.cpu.beside_programs
    assert found.verdict.cpu_limits == found.cpu.limits


@pytest.mark.parametrize(
    ("ranks", "workers", "who"),
    [
        (0.3, 0.4, "Ranks and workers share the cores: ranks waited for one 30.0%, workers 40.0%"),
        (0.01, 0.4, "Workers waited for a core 40.0%"),
        (0.3, None, "Ranks waited for a core 30.0%"),
    ],
)
def test_who_waited_for_a_core_is_told(ranks: float, workers: float | None, who: str) -> None:
    """Both, where both did."""
    found = CpuEvidence(host="node1", rank_run_delay_ratio=ranks, worker_run_delay_ratio=workers)
    assert f"{who} of the time in which they could run." == short_of_cores(found)


def test_a_launcher_is_not_what_ranks_wait_for() -> None:
    """What another process of the job computed before the first step counts for nothing, nor less
    than half of what others took."""
    beside = [{"host": "node1", "pid": 50, "role": "other", "first_ns": 0, "last_ns": 300}]
    trace = job(
        *IDLE, *used(RANK, 5.0, 9.0), *used(WORKER, 1.0, 0.1), *used(50, 75.0, 10.0), beside=beside
    )
    last = pl.col("value").max().over("pid", "name")
    early = trace.counters.with_columns(
        value=pl.when(pl.col("pid") == 50).then(last).otherwise("value")
    )
    (host,) = trace.run.hosts
    found = [
        cpu_evidence(
            Trace(
                trace.run.replace(hosts=(host.replace(others_cpu_ratio=others),)),
                trace.spans,
                counters=counters,
            )
        )
        for others, counters in ((0.8, trace.counters), (0.8, early), (0.97, trace.counters))
    ]
    assert [(CpuLimit.PROCESSES,), (), ()] == [each.limits for each in found if each]


def test_a_job_with_a_quota_is_not_told_to_use_more_cores(tmp_path: Path) -> None:
    """It may not use those that it has."""
    run, _ = stored.replayed("cpu", "quota-of-half-a-core", tmp_path / "spool")
    verdict = run.summary.verdict
    codes = [each.code for each in (*verdict.findings, *verdict.candidates)]
    assert "quota" in " ".join(codes)
    assert "cores" not in codes


def test_a_job_that_was_not_sampled_has_no_evidence() -> None:
    """None, and not zeros."""
    assert cpu_evidence(job()) is None
    assert summarise(job()).cpu is None


@pytest.mark.parametrize(("throttled", "is_named"), [(12.0, False), (48.0, True)])
def test_storage_is_not_excused_by_a_little_throttling(throttled: float, is_named: bool) -> None:
    """A job that waits for reads is storage-bound, unless it was stopped for a good part of the
    time."""
    values = {"cpu_quota": 2.0, "cpu_periods": 100.0, "cpu_throttled_periods": throttled}
    quota = [(HOST, f"cgroup./job.{name}", value) for name, value in values.items()]
    series = [*IDLE, *quota, *used(RANK, 1.0, 0.1), *used(WORKER, 4.0, 0.2)]
    found = summarise(job(*series, drawing=DECODING.replace("decode w0 ", "read w0   ")))
    assert "storage" == found.verdict.bound_by
    assert is_named == ("quota" in found.verdict.text)


# -------------------------------------------------------------------------------------- a whole job


@pytest.mark.job(every=4)
@needs_library
def test_a_recorded_job_has_the_threads_that_it_has_alone(tmp_path: Path) -> None:
    """Asking libraries for the sizes of their pools starts no thread and changes no setting; the
    sizes are in the run."""
    pytest.importorskip("torch")
    alone = [sys.executable, str(PROGRAMS / "count_threads.py"), "8"]
    recorded = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
        "--",
        *alone,
    ]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
        for command in (alone, recorded)
    ]
    assert outputs[0] == outputs[1]
    processes = {process.role: process for process in Trace.load(tmp_path / "run").run.processes}
    assert (2, 1) == tuple(processes[role].thread_pools["torch"] for role in ("rank", "worker"))
    assert cpu_list(os.sched_getaffinity(0)) == processes["rank"].cpus_allowed
