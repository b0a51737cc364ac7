"""Sampling a real job: the series agree with the kernel and psutil, and survive a kill of the
launcher."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import polars as pl
import psutil
import pytest
from repository import ROOT

from ioprof import clock
from ioprof.format.series import SERIES, find_series
from ioprof.ingest.counters import Counters, read_counters
from ioprof.instrument.samplers import Sampler
from ioprof.instrument.samplers.gpus import GpuCounters
from ioprof.instrument.samplers.host import HostCounters
from ioprof.instrument.samplers.processes import JobProcesses
from ioprof.instrument.samplers.readings import HOST, read_bytes

READER: Final = ROOT / "tests" / "programs" / "read_then_wait.py"
LAUNCHER: Final = ROOT / "tests" / "programs" / "sample_and_wait.py"
READ_BYTES, READS = 100_000, 37
PATIENCE_S: Final = 20.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(READ_BYTES))
    return path


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def eventually(true: Callable[[], Any]) -> Any:
    """Wait until `true` returns a true value and return that; fails after a timeout."""
    end = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < end, "timeout"
        time.sleep(0.01)
    return found


def values(counters: Counters, name: str, pid: int | None = None) -> list[float]:
    """The values of one series in the order of their times."""
    of_pid = pl.col("pid").is_null() if pid is None else pl.col("pid") == pid
    return counters.table.filter(pl.col("name") == name, of_pid).sort("time_ns")["value"].to_list()


def reader(data: Path, **options: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-S", str(READER), str(data), str(READ_BYTES), str(READS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def end(job: "subprocess.Popen[bytes]") -> None:
    assert job.stdin
    assert job.stdout
    job.stdin.close()
    job.stdout.close()
    job.wait(PATIENCE_S)


# --------------------------------------------------------------------------------------- a real job


@pytest.mark.job
def test_the_last_sample_of_a_process_agrees_with_the_kernel(data: Path, spool: Path) -> None:
    """For a process that has finished its reads and waits, the series end at exactly the values of
    /proc and psutil."""
    # takes its last sample while the process waits
    with (
        reader(data) as job,
        Sampler(str(spool), period_s=0.02),
    ):
        assert job.stdout
        assert b"read\n" == job.stdout.readline()
        process = psutil.Process(job.pid)
        eventually(lambda: process.status() == psutil.STATUS_SLEEPING)
        io, threads, cpu = process.io_counters(), process.num_threads(), process.cpu_times()
        eventually(
            lambda: values(read_counters(spool), "process.rchar", job.pid)[-1:] == [io.read_chars]
        )
    pid = job.pid
    found = read_counters(spool)
    assert READ_BYTES * READS <= io.read_chars
    assert (io.read_chars, io.read_count) == (
        values(found, "process.rchar", pid)[-1],
        values(found, "process.syscr", pid)[-1],
    )
    assert (io.read_bytes, io.write_bytes) == (
        values(found, "process.read_bytes", pid)[-1],
        values(found, "process.write_bytes", pid)[-1],
    )
    assert threads == values(found, "process.threads", pid)[-1]
    assert (cpu.user, cpu.system) == (
        values(found, "process.cpu_user", pid)[-1],
        values(found, "process.cpu_system", pid)[-1],
    )
    assert 0 == found.damaged


@pytest.mark.job
def test_the_io_counters_of_the_launcher_include_short_lived_processes(
    data: Path, spool: Path
) -> None:
    """The kernel adds the bytes of a reaped child to its parent, so the series of the launcher
    include all of them."""
    program = f"cat {data} > /dev/null; (cat {data} > /dev/null); exec cat {data}"
    ended = subprocess.run(
        [sys.executable, "-c", _SAMPLED_ONCE, str(spool), program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    read = values(read_counters(spool), "process.rchar", int(ended.stdout))
    assert 3 * READ_BYTES <= read[-1] - read[0]


_SAMPLED_ONCE: Final = """
import os, subprocess, sys
from ioprof.instrument.samplers import Sampler
with Sampler(sys.argv[1], period_s=3600.0) as sampler:  # only a first and a last sample
    while not sampler.facts()["samples"]:
        pass
    subprocess.run(["sh", "-c", sys.argv[2]], stdout=subprocess.DEVNULL, check=True)
print(os.getpid())
"""


def relatives(pid: int) -> set[int]:
    """A process and all its descendants."""
    return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}


@pytest.mark.job
def test_descendants_are_found_and_other_processes_are_not(data: Path, spool: Path) -> None:
    """Children of children belong to the job, and so does a process without its parent that has the
    marker."""
    job = JobProcesses(os.getpid(), b"IOPROF_SPOOL=" + os.fsencode(spool))
    marked = {**os.environ, "IOPROF_SPOOL": str(spool)}
    orphan_and_child = (
        f"(setsid sleep {PATIENCE_S} & echo $!) ; sleep {PATIENCE_S} & echo $!; read line; kill $!"
    )
    with subprocess.Popen(
        ["sh", "-c", orphan_and_child], env=marked, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout
        orphan, child = int(shell.stdout.readline()), int(shell.stdout.readline())
        eventually(lambda: psutil.Process(orphan).name() == "sleep")
        assert psutil.Process(orphan).ppid() not in (shell.pid, os.getpid())
        strangers = (
            {process.pid for process in psutil.process_iter()}
            - relatives(shell.pid)
            - relatives(os.getpid())
            - {orphan}
        )
        ours = {os.getpid(), shell.pid, child, orphan}
        eventually(lambda: ours <= {pid for pid, _ in job.read()[0]})
        readings, seen = job.read()
        os.kill(orphan, signal.SIGKILL)
        end(shell)
    pids = {pid for pid, _ in readings}
    assert ours <= pids  # other tests may have left helpers of multiprocessing
    assert not pids & strangers
    assert ours.isdisjoint(process.pid for process in seen)  # each is returned once, when it is new


@pytest.mark.job
def test_a_process_that_ended_has_no_sample_even_before_it_is_reaped() -> None:
    """The counters of a zombie are final, and unreadable for other users: its series end."""
    job = JobProcesses(os.getpid(), b"nothing")
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        readings, _ = job.read()
    assert child.pid not in {pid for pid, _ in readings}


def show(
    proc: Path,
    pid: int,
    parent: int = 1,
    start: int = 100,
    num_bytes: int = 4096,
    environment: bytes = b"A=1\0",
) -> None:
    """Create the files of a process in /proc."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    stat = (
        f"{pid} (a (b) c) S {parent} 7 7 0 -1 0 0 0 1 0 5 6 0 0 20 0 1 0 {start} {num_bytes} 10 "
        + "0 " * 30
    )
    (proc / str(pid) / "stat").write_text(stat)
    (proc / str(pid) / "environ").write_bytes(environment)
    (proc / str(pid) / "status").write_text(f"Name:\ta (b) c\nTgid:\t{pid}\n")


def test_a_reused_pid_is_a_new_subject(tmp_path: Path) -> None:
    """A process is identified by pid and start time: the next process with the same pid has its own
    series."""
    job = JobProcesses(7, b"nothing", str(tmp_path))
    show(tmp_path, 7, start=100)
    before, first = job.read()
    show(tmp_path, 7, start=200)
    after, second = job.read()
    assert [(7, 100)] == list(before)
    assert [(7, 200)] == list(after)
    assert ["a (b) c", "a (b) c"] == [seen.command for seen in (*first, *second)]


def test_a_pid_of_another_process_may_be_reused_by_the_job(tmp_path: Path) -> None:
    """If the pid was reused since the last sample, it is another process, which may belong to the
    job."""
    proc, later = tmp_path / "proc", tmp_path / "later"
    show(proc, 7)
    show(proc, 9)
    show(later, 9, parent=7, start=200)
    job = JobProcesses(7, b"nothing", str(proc))
    assert {(7, 100)} == job.read()[0].keys()
    shutil.rmtree(proc / "9")
    (later / "9").rename(proc / "9")
    assert {(7, 100), (9, 200)} == job.read()[0].keys()


def test_a_process_within_an_execve_is_examined_again(tmp_path: Path) -> None:
    """Its environment is empty for a moment, so it may have the marker; other processes are
    examined only once."""
    read: list[str] = []

    def read_file(path: str) -> bytes:
        read.append(path)
        return read_bytes(path)

    job = JobProcesses(7, b"MARK=1", str(tmp_path), read_file)
    show(tmp_path, 7)
    show(tmp_path, 8, environment=b"")
    show(tmp_path, 9)
    show(tmp_path, 10, num_bytes=0, environment=b"")
    assert {(7, 100)} == job.read()[0].keys()
    show(tmp_path, 8, environment=b"A=1\0MARK=1\0")
    read.clear()
    assert {(7, 100), (8, 100)} == job.read()[0].keys()
    assert {"7", "8"} == {name for path in read if (name := Path(path).parent.name).isdigit()}


def test_processes_are_listed_again_when_there_is_a_new_one(tmp_path: Path) -> None:
    """When the kernel has assigned another pid; the end of a process is noticed without a new
    list."""
    job = JobProcesses(7, b"nothing", str(tmp_path))
    (tmp_path / "loadavg").write_text("0.00 0.01 0.05 1/123 9\n")
    show(tmp_path, 7)
    show(tmp_path, 9, parent=7)
    assert {(7, 100), (9, 100)} == job.read()[0].keys()
    show(tmp_path, 11, parent=7)
    shutil.rmtree(tmp_path / "9")
    assert {(7, 100)} == job.read()[0].keys()
    (tmp_path / "loadavg").write_text("0.00 0.01 0.05 1/123 11\n")
    assert {(7, 100), (11, 100)} == job.read()[0].keys()


def test_a_process_that_is_just_being_made_is_found_by_the_next_list(tmp_path: Path) -> None:
    """Its pid is assigned before it is there. A thread has a pid of its own, and is no process."""
    job = JobProcesses(7, b"nothing", str(tmp_path))
    (tmp_path / "loadavg").write_text("0.00 0.01 0.05 1/123 9\n")
    show(tmp_path, 7)
    job.read()
    (tmp_path / "loadavg").write_text("0.00 0.01 0.05 1/123 11\n")
    show(tmp_path, 10, parent=7)
    (tmp_path / "10/status").write_text("Name:\tthread\nTgid:\t7\nPid:\t10\n")
    assert {(7, 100)} == job.read()[0].keys()
    show(tmp_path, 11, parent=7)
    assert {(7, 100), (11, 100)} == job.read()[0].keys()
    # the kernel begins with low pids again
    (tmp_path / "loadavg").write_text("0.00 0.01 0.05 1/123 8\n")
    show(tmp_path, 8, parent=11)
    shutil.rmtree(tmp_path / "10")  # a list of all has no threads
    assert {(7, 100), (8, 100), (11, 100)} == job.read()[0].keys()


def test_a_child_of_a_marked_process_belongs_to_the_job(tmp_path: Path) -> None:
    """Even if it removed the marker and both are found in the same sample."""
    job = JobProcesses(7, b"MARK=1", str(tmp_path))
    show(tmp_path, 7)
    show(tmp_path, 9, environment=b"MARK=1\0")
    show(tmp_path, 8, parent=9)
    assert {(7, 100), (8, 100), (9, 100)} == job.read()[0].keys()


@pytest.mark.job
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to start a process of another user")
def test_a_process_of_another_user_is_sampled_except_for_its_reads(spool: Path) -> None:
    """If /proc/PID/io is not readable, the other series exist, and the process is counted."""
    program = _AS_NOBODY.format(root=str(ROOT))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert 0 == ended.returncode, ended.stderr
    found = json.loads(ended.stdout)
    assert 1 == found["refused"]
    assert "process.rss" in found["names"]
    assert "process.rchar" not in found["names"]


_AS_NOBODY: Final = """
import json, os, subprocess, sys
sys.path.insert(0, {root!r})
from ioprof.instrument.samplers.processes import JobProcesses
child = subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
os.setuid(65534)
job = JobProcesses(os.getpid(), b"nothing")
job.read()
readings, _ = job.read()
names = next(list(values) for (pid, _), values in readings.items() if pid == child.pid)
print(json.dumps({{"refused": job.io_refused - (not os.access("/proc/self/io", os.R_OK)), "names": names}}))
child.stdin.close()
child.wait()
"""  # noqa: E501


# ----------------------------------------------------------------------------------------- the host


def test_host_counters_lie_between_two_readings_of_psutil() -> None:
    """Cumulative counters of CPU, disks and networks, read by another library before and after."""

    def of_psutil() -> dict[str, float]:
        times = psutil.cpu_times()
        found = {
            "cpu.user": times.user + times.nice,
            "cpu.system": times.system,
            "cpu.idle": times.idle,
            "cpu.steal": times.steal,
        }
        for name, disk in psutil.disk_io_counters(perdisk=True, nowrap=False).items():
            found |= {
                f"disk.{name}.reads": disk.read_count,
                f"disk.{name}.read_bytes": disk.read_bytes,
            }
            found |= {
                f"disk.{name}.write_bytes": disk.write_bytes,
                f"disk.{name}.busy_time": disk.busy_time / 1e3,
            }
        for name, net in psutil.net_io_counters(pernic=True, nowrap=False).items():
            found |= {
                f"network.{name}.received_bytes": net.bytes_recv,
                f"network.{name}.sent_bytes": net.bytes_sent,
            }
        return found

    before, readings, after = of_psutil(), HostCounters().read()[HOST], of_psutil()
    compared = before.keys() & readings.keys()
    assert {"cpu.user", "cpu.idle"} <= compared
    assert {} == {
        name: readings[name]
        for name in compared
        if not before[name] - 0.011 <= readings[name] <= after[name] + 0.011
    }


def test_unavailable_host_counters_are_noted_once(tmp_path: Path) -> None:
    """Without pressure files (an old kernel, psi=0) there are no such series, one note for each,
    and no second attempt."""
    proc = tmp_path / "proc"
    (proc / "net").mkdir(parents=True)
    for name in ("stat", "meminfo", "vmstat", "diskstats", "net/dev"):
        shutil.copyfile(f"/proc/{name}", proc / name)
    host = HostCounters(str(proc), str(tmp_path / "sys"))
    readings = host.read()[HOST]
    host.read()
    assert {"cpu", "memory", "vm"} <= {name.split(".")[0] for name in readings}
    assert "pressure" not in {name.split(".")[0] for name in readings}
    assert [f"{proc}/pressure/{what} is not sampled" for what in ("io", "cpu", "memory")] == [
        note.split(":")[0] for note in host.notes
    ]


def test_partitions_and_compressed_memory_are_no_disks(tmp_path: Path) -> None:
    """Requests of a partition are counted in its disk; stacked devices are included, devices
    without requests are not."""
    proc, sys_folder = tmp_path / "proc", tmp_path / "sys"
    proc.mkdir()
    used = "4 0 16 3 2 0 8 1 1 5 9"
    lines = [
        f"259 0 nvme0n1 {used}",
        f"259 1 nvme0n1p1 {used}",
        f"253 0 dm-0 {used}",
        f"252 0 zram0 {used}",
        "7 0 loop0 " + "0 " * 11,
    ]
    (proc / "diskstats").write_text("\n".join(lines))
    (sys_folder / "class/block/nvme0n1p1").mkdir(parents=True)
    (sys_folder / "class/block/nvme0n1p1/partition").write_text("1")
    found = HostCounters(str(proc), str(sys_folder)).disks()
    assert {"nvme0n1", "dm-0"} == {name.split(".")[1] for name in found}
    assert (8192, 0.003, 4096, 1) == tuple(
        found[f"disk.dm-0.{what}"]
        for what in ("read_bytes", "read_time", "write_bytes", "in_flight")
    )


def test_infiniband_counts_in_words_of_four_bytes(tmp_path: Path) -> None:
    """The traffic of a port in sysfs, converted to bytes."""
    counters = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("250\n")
    (counters / "port_xmit_data").write_text("3\n")
    found = HostCounters(sys=str(tmp_path)).read()[HOST]
    assert (1000, 12) == (
        found["infiniband.mlx5_0.1.received_bytes"],
        found["infiniband.mlx5_0.1.sent_bytes"],
    )


# --------------------------------------------------------------------------------------------- GPUs


class _RefusedError(Exception): ...


class _NotSupportedError(_RefusedError): ...


def fake_nvml(**answers: Any) -> SimpleNamespace:
    """A replacement for `pynvml` with one GPU and the given return values; tests/gpu tests a real
    GPU."""

    def answer(what: str, default: Any) -> Callable[..., Any]:
        def ask(*_: Any) -> Any:
            given = answers.get(what, default)
            if isinstance(given, Exception):
                raise given
            return given

        return ask

    defaults = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "gpu",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1 << 30),
        "nvmlDeviceGetPowerUsage": 350_500,
        "nvmlDeviceGetClockInfo": 1410,
        "nvmlDeviceGetPcieThroughput": 1_500,
    }
    constants = {"NVML_CLOCK_SM": 1, "NVML_PCIE_UTIL_RX_BYTES": 1, "NVML_PCIE_UTIL_TX_BYTES": 0}
    errors = {"NVMLError": _RefusedError, "NVMLError_NotSupported": _NotSupportedError}
    return SimpleNamespace(
        **{name: answer(name, default) for name, default in defaults.items()}, **constants, **errors
    )


def test_gpu_series_have_the_units_of_the_table() -> None:
    """Milliwatts and kilobytes per second become watts and bytes per second."""
    expected = {
        "gpu0.utilisation": 97.0,
        "gpu0.memory_used": float(1 << 30),
        "gpu0.power": 350.5,
        "gpu0.sm_clock": 1410.0,
        "gpu0.pcie_received": 1.5e6,
        "gpu0.pcie_sent": 1.5e6,
    }
    assert {HOST: expected} == GpuCounters(fake_nvml()).read()


def test_unsupported_gpu_counters_are_dropped() -> None:
    """A partition of a GPU has no utilisation; a query that fails with another error is
    repeated."""
    nvml = fake_nvml(
        nvmlDeviceGetUtilizationRates=_NotSupportedError(),
        nvmlDeviceGetPowerUsage=_RefusedError("busy"),
    )
    gpus = GpuCounters(nvml)
    assert not {"gpu0.utilisation", "gpu0.power"} & gpus.read()[HOST].keys()
    nvml.nvmlDeviceGetUtilizationRates = nvml.nvmlDeviceGetPowerUsage = lambda _: 1000
    assert "gpu0.utilisation" not in gpus.read()[HOST]
    assert 1.0 == gpus.read()[HOST]["gpu0.power"]


@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_no_gpu_is_no_error(where: str) -> None:
    """No driver, no device, no permission: no series, and a note with the reason."""
    gpus = GpuCounters(fake_nvml(**{where: _RefusedError("no such thing")}))
    assert {} == gpus.read()
    assert ["no such thing"] == [note.rpartition(": ")[2] for note in gpus.notes]
    gpus.close()


# --------------------------------------------------------------------------------------- the thread


def test_every_series_that_is_written_is_defined(spool: Path) -> None:
    """Names and units of a real recording are those of the table; every entry has a meaning, and
    patterns do not overlap."""
    with Sampler(str(spool), period_s=0.05) as sampler:
        eventually(lambda: sampler.facts()["samples"] >= 2)
    pairs = read_counters(spool).table.select("name", "unit").unique().rows()
    assert {"cpu.user", "process.rchar", "sampler.cpu"} <= {name for name, _ in pairs}
    assert [] == [
        (name, unit)
        for name, unit in pairs
        if (series := find_series(name)) is None or series.unit != unit
    ]
    assert all(series.meaning.endswith(".") and series.unit for series in SERIES.values())
    assert find_series("disk.vda.speed") is None
    assert SERIES["network.{interface}.sent_bytes"] is find_series("network.eth0.100.sent_bytes")


def test_times_are_on_the_clock_of_spans(spool: Path) -> None:
    """Samples lie between clock readings before and after, and cumulative series never decrease."""
    before = clock.monotonic_ns()
    with Sampler(str(spool), period_s=0.02) as sampler:
        eventually(lambda: sampler.facts()["samples"] >= 5)
    after = clock.monotonic_ns()
    table = read_counters(spool).table
    assert before <= table["time_ns"].min()
    assert table["time_ns"].max() <= after
    growing = [
        name
        for name in table["name"].unique()
        if (series := find_series(name)) and series.cumulative and name != "cpu.iowait"
    ]
    for name in growing:  # iowait may decrease (man proc_stat)
        for part in table.filter(pl.col("name") == name).partition_by("pid"):
            assert part.sort("time_ns")["value"].is_sorted(), name


def test_the_cost_of_sampling_is_measured_and_limited(spool: Path) -> None:
    """The CPU time of the thread is measured by the kernel, is in the facts, and an expensive
    sample extends the period."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    with Sampler(str(spool), period_s=0.001) as sampler:
        eventually(lambda: sampler.facts()["samples"] >= 5)
    now, facts = resource.getrusage(resource.RUSAGE_SELF), sampler.facts()
    assert 0 < facts["cpu_s"] <= now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    assert 0.001 < facts["longest_period_s"]
    assert facts == json.loads(json.dumps(facts))
    assert round(facts["cpu_s"], 6) >= values(read_counters(spool), "sampler.cpu")[-1]


def test_a_sampler_leaves_nothing_behind(spool: Path) -> None:
    """No thread and no descriptor, whether it was started or not; even the shortest job has a
    sample."""
    read_counters(spool)  # its imports may keep threads and descriptors
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    Sampler(str(spool)).stop()
    with Sampler(str(spool), period_s=3600.0) as sampler:
        pass
    assert before == (set(os.listdir("/proc/self/fd")), threading.active_count())
    assert 1 <= sampler.facts()["samples"]
    assert socket.gethostname() in set(read_counters(spool).table["host"])


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """The only error that a sampler raises, since it could record nothing."""
    with pytest.raises(OSError, match="No such file"):
        Sampler(str(tmp_path / "absent"))


@pytest.mark.job(every=4)
def test_a_killed_launcher_leaves_its_samples(data: Path, spool: Path) -> None:
    """SIGKILL loses at most the line that was being written."""
    command = [sys.executable, str(LAUNCHER), str(spool), str(data), str(READ_BYTES), str(READS)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout
        job = int(launcher.stdout.readline())
        eventually(
            lambda: values(read_counters(spool), "process.rchar", job)[-1:] > [READ_BYTES * READS]
        )
        launcher.kill()
    eventually(lambda: not psutil.pid_exists(job))  # its standard input has ended
    found = read_counters(spool)
    assert 1 >= found.damaged
    assert READ_BYTES * READS <= values(found, "process.rchar", job)[-1]
    assert job in {process.pid for process in found.processes}
