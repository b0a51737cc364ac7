"""Page faults of real jobs: each page read from the device is one span, of the right thread, file
and offset."""

import errno
import json
import math
import mmap
import os
import platform
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import polars as pl
import psutil
import pytest
import slow_storage
from jobs import wait_until
from preload import LIBRARY, needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS

from ioprof.format import perf
from ioprof.ingest.page_faults.faults import Faults, read_faults
from ioprof.instrument import faults, perf_events

REFUSAL = faults.refusal()
pytestmark = pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))

PAGES = 2000
"""Size in pages of the file that the jobs map."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file without pages in the page cache."""
    path = tmp_path / "data" / "a.bin"
    path.parent.mkdir()
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    return cold(path)


def cold(path: Path) -> Path:
    mounts = [
        part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)
    ]
    if max(mounts, key=lambda part: len(part.mountpoint)).fstype in {"tmpfs", "ramfs", "overlay"}:
        pytest.skip(f"no disk under {path.parent}: its pages cannot be evicted")
    slow_storage.evict(path.parent)
    return path


class Recorded:
    """A recorded job: its output, the facts of the recorder, and the contents of the perf file."""

    def __init__(
        self,
        spool: Path,
        *command: object,
        minor: bool | None = None,
        recording: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        spool.mkdir(exist_ok=True)
        recorder = faults.FaultRecorder(
            spool, minor=minor, **{"period_s": 0.05} | (recording or {})
        )
        try:
            self.ended = subprocess.run(
                list(map(str, command)),
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
                **options,
            )
        finally:
            self.facts = recorder.stop()
        self.paths: dict[bytes, int] = {}
        self.found = read(Path(self.facts["path"]), self.paths)

    @property
    def readers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ended.stdout.splitlines()]

    def of(self, path: Path) -> pl.DataFrame:
        """The faults of that file."""
        return self.found.spans.filter(pl.col("file") == self.paths.get(os.fsencode(path), -1))


def read(path: Path, paths: dict[bytes, int], *, is_whole: bool = True) -> Faults:
    found = read_faults(path, lambda name: paths.setdefault(name, len(paths)))
    assert not is_whole or {} == +found.damage
    return found


def touch(path: Path, how: str, pages: list[int], **options: Any) -> Recorded:
    command = [sys.executable, PROGRAMS / "touch_pages.py", path, how, *pages]
    return Recorded(path.parents[1] / "spool", *command, **options)


def some_pages(count: int) -> list[int]:
    return random.Random(0).sample(range(PAGES), count)


def touched(spans: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Process, thread and page of each fault."""
    return sorted(
        (row["pid"], row["tid"], row["offset"] // mmap.PAGESIZE)
        for row in spans.iter_rows(named=True)
    )


@pytest.mark.system
@pytest.mark.parametrize("how", ["plain", "threads", "forks", "exec"])
def test_each_cold_page_is_one_fault(data: Path, how: str) -> None:
    """Of the thread that touched it, whichever thread mapped it; as many as the kernel counted; no
    record is lost."""
    job = touch(data, how, some_pages(240))
    spans = job.of(data)
    assert sorted(
        (line["pid"], line["tid"], page) for line in job.readers for page in line["pages"]
    ) == touched(spans)
    assert 240 == sum(line["faults"] for line in job.readers)
    assert (0, None) == (job.facts["lost"], job.facts["error"])
    assert (
        job.found.facts.counted
        == job.found.facts.faults
        == len(job.found.spans) - job.found.facts.minor
    )


@pytest.mark.system
def test_a_fault_has_the_columns_of_all_spans(data: Path) -> None:
    """Source storage, one page, no batch, no name; faults of a thread do not overlap."""
    spans = touch(data, "plain", some_pages(20)).of(data)
    assert ["fault"] == spans["kind"].unique().to_list()
    assert (["storage"], [mmap.PAGESIZE]) == (
        spans["source"].unique().to_list(),
        spans["bytes"].unique().to_list(),
    )
    assert (
        20
        == spans["batch"].null_count()
        == spans["name"].null_count()
        == spans["rank"].null_count()
    )
    assert spans.select((pl.col("start_ns") <= pl.col("end_ns")).all()).item()
    blocked = spans.filter(pl.col("start_ns") < pl.col("end_ns")).sort("start_ns")
    assert (blocked["start_ns"][1:] >= blocked["end_ns"][:-1]).all()


@pytest.mark.system
def test_a_warm_file_has_none(data: Path) -> None:
    """Pages in the page cache need no device."""
    with slow_storage.in_memory(data):
        job = touch(data, "plain", some_pages(240))
    assert 0 == len(job.of(data))


@pytest.mark.system
def test_processes_have_their_executable_and_parent(data: Path) -> None:
    """The shell, its child processes and their parents are recorded without a library in them."""
    program = [
        sys.executable,
        str(PROGRAMS / "touch_pages.py"),
        str(data),
        "forks",
        *map(str, some_pages(30)),
    ]
    job = Recorded(
        data.parents[1] / "spool",
        "/bin/sh",
        "-c",
        '"$@"; true',
        "sh",
        *program,
        minor=False,
        env={},
    )
    processes = {row["pid"]: row for row in job.found.processes.iter_rows(named=True)}
    shell, python, *children = processes.values()
    assert (None, shell["pid"], [python["pid"]] * 3) == (
        shell["parent_pid"],
        python["parent_pid"],
        [child["parent_pid"] for child in children],
    )
    assert os.path.realpath("/bin/sh") == shell["executable"]
    assert os.path.realpath(sys.executable) == python["executable"]
    assert [(None, 10)] * 3 == [
        (child["executable"], len(job.of(data).filter(pid=child["pid"]))) for child in children
    ]
    assert all(
        row["faults"] == len(job.found.spans.filter(pid=pid)) for pid, row in processes.items()
    )
    assert all(row["ended"] and not row["left_at_exec"] for row in processes.values())


@pytest.mark.job
def test_each_program_is_recorded_whichever_comes_first(tmp_path: Path) -> None:
    """The kernel may exchange the events of a thread and of a program that it has just started;
    later ones are recorded as well."""
    missing = []
    for number in range(40):
        spool = tmp_path / str(number)
        spool.mkdir()
        recorder = faults.FaultRecorder(spool)
        started = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(4)]
        for pid in started:
            os.waitpid(pid, 0)
        found = read(Path(recorder.stop()["path"]), {}).processes
        missing += sorted(set(started) - set(found["pid"]))
    assert [] == missing


@pytest.mark.job
@needs_library
def test_processes_without_the_capture_library_are_known(tmp_path: Path) -> None:
    """A shell with the library, and a program that the shell starts without it."""
    script = "env -u LD_PRELOAD sleep 0; sleep 0; true"
    job = Recorded(
        tmp_path / "spool",
        "/bin/sh",
        "-c",
        script,
        env={"LD_PRELOAD": str(LIBRARY), "PATH": os.environ["PATH"]},
    )
    assert [("sh", True), ("sleep", False), ("sleep", True)] == job.found.processes.select(
        "name", "captured"
    ).rows()


@pytest.mark.system
@pytest.mark.parametrize(
    "name", [b"with space", b"two\nlines", b"not UTF-8 \xff\xfe", b"a,b\"c'", b"x" * 250]
)
def test_any_name_of_a_file_is_known(data: Path, name: bytes) -> None:
    """Paths are bytes."""
    path = Path(os.fsdecode(os.path.join(os.fsencode(data.parent), name)))
    data.rename(path)
    job = touch(path, "plain", some_pages(10))
    assert 10 == len(job.of(path))


@pytest.mark.system
def test_a_deleted_file_keeps_its_name(data: Path) -> None:
    """Its faults occur after the file was deleted."""
    job = touch(data, "deleted", some_pages(10))
    assert 10 == len(job.of(data))
    assert not data.exists()


@pytest.mark.system
def test_lmdb_reads_are_faults_of_its_file(tmp_path: Path) -> None:
    """All values are read from a cold environment: each page of the file once, as many as the
    process had faults."""
    folder = tmp_path / "data" / "lmdb"
    folder.mkdir(parents=True)
    with (
        lmdb.open(str(folder), map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number in range(200):
            transaction.put(b"%08d" % number, os.urandom(5000))
    path = cold(folder / "data.mdb")
    job = Recorded(tmp_path / "spool", sys.executable, PROGRAMS / "read_lmdb.py", folder)
    num_faults, num_bytes = map(int, job.ended.stdout.split())
    spans = job.of(path)
    assert (200 * 5000, len(spans)) == (num_bytes, spans["offset"].n_unique())
    # opening it reads the two meta pages, and the transaction the root
    assert num_faults <= len(spans) <= num_faults + 3
    assert num_faults >= 300  # two pages each; eviction may leave some
    assert spans["offset"].max() < path.stat().st_size


def read_slowly(
    tmp_path: Path,
    pages_per_s: int,
    how: str,
    pages: Iterable[int],
    *,
    minor: bool | None = None,
    after_s: float = 0,
    recording: dict[str, Any] | None = None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The faults of a program that touches these pages of a cold file on a throttled disk, and its
    own measurement."""
    if reason := slow_storage.missing():
        pytest.skip(reason)
    with slow_storage.throttled_disk(tmp_path, 32 << 20) as disk:
        path = disk.path / "data" / "a.bin"
        path.parent.mkdir()
        path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
        slow_storage.evict(path.parent)
        disk.throttle(pages_per_s * mmap.PAGESIZE)
        wait = ["sh", "-c", f'sleep {after_s}; exec "$@"', "sh"]
        command = [*wait, sys.executable, PROGRAMS / "touch_pages.py", path, how, *pages]
        job = Recorded(
            tmp_path / "spool", *command, minor=minor, recording=recording, preexec_fn=disk.join
        )
        spans, reader = job.of(path), job.readers[0]
        slow_storage.evict(path.parent)
    return spans, reader


@pytest.mark.system(every=4)
@pytest.mark.alone
def test_a_fault_lasts_as_long_as_the_thread_waited(tmp_path: Path) -> None:
    """On a disk that reads one page in 10 ms the faults add up to the time of the loop."""
    spans, reader = read_slowly(tmp_path, 100, "plain", some_pages(150))
    blocked_ns = spans.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert 150 == len(spans)
    assert 0.8 * reader["slept_ns"] <= blocked_ns <= reader["took_ns"]


@pytest.mark.system
@pytest.mark.alone
def test_a_sequential_reader_waits_in_minor_faults(tmp_path: Path) -> None:
    """It waits for readahead: few faults are major, but all together last as long as the reader
    waited."""
    spans, reader = read_slowly(tmp_path, PAGES, "stream", range(PAGES), minor=True)
    blocked_ns = spans.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert 2 * reader["faults"] < len(spans)
    assert 0.8 * reader["slept_ns"] <= blocked_ns <= reader["took_ns"]


def test_minor_faults_are_recorded_within_a_budget(tmp_path: Path) -> None:
    """For a second at the start, and while faults wait for storage; a burst is paid from a reserve,
    and too many only in part."""
    recorder = faults.FaultRecorder(tmp_path, period_s=60)
    events, second = recorder._minor, 1_000_000_000
    begun_ns = events.changed_ns
    too_many = events.RESERVE_NS // events.SAMPLE_NS + 1
    try:
        on = []
        for at_s, waits, minors in [
            (0.5, 0, 100),
            (2, 0, 200),  # no mapped file is read
            (3, 1, 300),  # one fault waited
            (7, 1, 400),
            (9, 1, 500),  # none for long
            (10, 2, 600),
            (11, 3, 600 + too_many),
            (11.5, 4, 600 + too_many),  # the reserve grows by 5 ms per second
            (13, 5, 600 + too_many),
        ]:
            events.decide(begun_ns + int(at_s * second), waits, minors, threads=1)
            on.append(events.is_on)
    finally:
        recorder.stop()
    assert [True, False, True, True, False, True, False, False, True] == on


def test_readahead_that_a_process_asked_for_enables_both_events(tmp_path: Path) -> None:
    """Once for each time that its file has: who touches the pages too early waits in minor faults,
    and none is major."""
    recorder = faults.FaultRecorder(tmp_path, period_s=60)
    try:
        seen = [recorder._sees_readahead()]
        for _ in range(2):
            (tmp_path / perf.READAHEAD).touch()
            seen += [recorder._sees_readahead(), recorder._sees_readahead()]
        late_ns = recorder._minor.changed_ns + 60_000_000_000
        recorder._minor.decide(late_ns, 0, 0, 1)
        recorder._switches.decide(late_ns, 0)
        assert recorder._minor.is_idle(late_ns)
        recorder._decide(late_ns + 1_000_000_000, faults.RecordSelector())
        states = recorder._minor.is_on, recorder._switches.is_on
    finally:
        recorder.stop()
    assert [False, True, False, True, False] == seen
    assert (True, True) == states


def test_a_job_that_starts_many_programs_has_the_optional_events_closed(tmp_path: Path) -> None:
    """Each of them would inherit one for every CPU."""
    recorder = faults.FaultRecorder(tmp_path, period_s=60)
    selector, second = faults.RecordSelector(), 1_000_000_000
    begun_ns = recorder._began_ns
    try:
        told = []
        for at_s, starts in [(1, 290), (50, 310), (51, 590), (60, 630)]:
            selector.starts = starts
            told.append(recorder._starts_many(selector, begun_ns + at_s * second))
        recorder._close_optional(begun_ns + 23 * second)
        events = recorder._minor, recorder._switches
        states = [(each.is_open, each.is_on) for each in events]
        decided = [
            recorder._minor.decide(begun_ns + 24 * second, 9, 0, 1),
            recorder._switches.decide(begun_ns + 24 * second, 9),
        ]
    finally:
        facts = recorder.stop()
    assert [False, False, False, True] == told
    assert ([(False, False)] * 2, [None, None], None) == (states, decided, facts["error"])


def test_switch_events_are_disabled_when_there_are_no_faults(tmp_path: Path) -> None:
    """Five seconds after the start, or after the last major fault; the next fault enables them
    again."""
    recorder = faults.FaultRecorder(tmp_path, period_s=60)
    events, second = recorder._switches, 1_000_000_000
    begun_s = events.changed_ns // second
    try:
        history = [(1, 0), (4, 3), (8, 3), (10, 3), (60, 3)]
        on = [events.decide((begun_s + at_s) * second, majors) for at_s, majors in history]
        assert 9 * second <= events.enabled_ns <= 11 * second
        on.append(events.decide((begun_s + 61) * second, 4))
    finally:
        recorder.stop()
    assert [None, None, None, False, None, True] == on


@pytest.mark.system
def test_faults_after_an_idle_time_have_no_duration(data: Path) -> None:
    """Until the recorder notices them; the file holds the switch states, and no fault is
    missing."""
    job = touch(data, "plain", some_pages(100), recording={"idle_ns": 0})
    assert 100 == len(job.of(data))
    spans = job.found.spans.filter(pl.col("start_ns") == pl.col("end_ns"))
    assert len(spans) == job.found.facts.unblocked + job.found.facts.unwatched
    records, _ = perf.read_records(Path(job.facts["path"]).read_bytes()[perf.HEADER_BYTES :])
    marks = records.take(records.types == perf.SWITCH_STATE).miscs.tolist()
    assert [0, 0] == marks[:2]  # before disabling and after
    assert [0, 0, 1] * (len(marks) // 3) == marks[: len(marks) // 3 * 3]


@pytest.mark.system
@on_a_quiet_machine
def test_the_first_fault_after_an_idle_time_is_noticed_soon(tmp_path: Path) -> None:
    """Before the period is over: only the faults of the first 0.3 s have no duration."""
    recording = {"idle_ns": 1_000_000_000, "period_s": 3.0}
    spans, reader = read_slowly(
        tmp_path, 100, "plain", some_pages(200), after_s=4, recording=recording
    )
    blocked_ns = spans.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert 200 == len(spans)
    with comparing_times():
        assert 0.7 * reader["slept_ns"] <= blocked_ns <= reader["took_ns"]


@pytest.mark.system
def test_without_optional_events_switches_are_always_recorded(data: Path) -> None:
    """By the events of major faults; only the cost is higher."""
    recording = {"idle_ns": 0, "open_optional": lambda attributes, cpu: (-1, errno.EMFILE)}
    job = touch(data, "plain", some_pages(100), recording=recording)
    assert 100 == len(job.of(data))
    assert (0, 0) == (job.found.facts.unwatched, job.found.facts.minor)
    assert 0 < job.facts["switches"]


# -------------------------------------------------------------------------------- ends of all kinds


@pytest.mark.system
def test_a_killed_job_loses_nothing(data: Path) -> None:
    """The file holds its faults before SIGKILL, and its end."""
    with pytest.raises(subprocess.CalledProcessError, match="SIGKILL"):
        touch(data, "killed", some_pages(50))
    found, paths = read_only_file(data.parents[1] / "spool")
    assert 50 == len(found.spans.filter(file=paths[os.fsencode(data)]))
    assert [True] == found.processes["ended"].to_list()


def read_only_file(spool: Path, *, is_whole: bool = True) -> tuple[Faults, dict[bytes, int]]:
    (path,) = spool.glob(f"*{perf.SUFFIX}")
    paths: dict[bytes, int] = {}
    return read(path, paths, is_whole=is_whole), paths


@contextmanager
def staying(*command: object) -> Iterator["subprocess.Popen[str]"]:
    """A program that has read its pages and keeps running."""
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


@pytest.mark.system
def test_a_recording_ends_before_its_job(data: Path) -> None:
    """Later faults of the job are not recorded, and its end is unknown."""
    spool = data.parents[1] / "spool"
    spool.mkdir()
    recorder = faults.FaultRecorder(spool)
    try:
        with staying(sys.executable, PROGRAMS / "touch_pages.py", data, "stays", *some_pages(50)):
            facts = recorder.stop()
    finally:
        recorder.stop()
    paths: dict[bytes, int] = {}
    found = read(Path(facts["path"]), paths)
    assert (50, [False]) == (
        len(found.spans.filter(file=paths[os.fsencode(data)])),
        found.processes["ended"].to_list(),
    )


@pytest.mark.system
def test_a_killed_recorder_leaves_a_file(data: Path) -> None:
    """It is not closed, but holds all copied records; the count of the kernel is unknown."""
    spool = data.parents[1] / "spool"
    spool.mkdir()

    def recorded(*, is_whole: bool) -> int:
        found, paths = read_only_file(spool, is_whole=is_whole)
        return len(found.spans.filter(file=paths.get(os.fsencode(data), -1)))

    command = [
        PROGRAMS / "record_faults.py",
        spool,
        sys.executable,
        PROGRAMS / "touch_pages.py",
        data,
        "stays",
        *some_pages(50),
    ]
    with staying(sys.executable, *command) as recorder:
        # the recorder may be writing a record
        wait_until(lambda: recorded(is_whole=False) == 50, seconds=20)
        recorder.kill()
    found, _ = read_only_file(spool)
    assert (False, None, 50) == (found.facts.closed, found.facts.counted, recorded(is_whole=True))


@pytest.mark.system
def test_lost_records_are_counted(data: Path) -> None:
    """Rings of one page that are read only at the end: the kernel counts all faults and the lost
    records."""
    ended = threading.Event()
    recorder = faults.FaultRecorder(
        data.parent,
        ring_bytes=mmap.PAGESIZE,
        read=lambda rings: perf_events.read_rings(rings) if ended.is_set() else b"",
    )
    try:
        command = [sys.executable, PROGRAMS / "touch_pages.py", data, "plain", *some_pages(300)]
        subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=True)
        ended.set()
    finally:
        facts = recorder.stop()
    found = read(Path(facts["path"]), {})
    assert facts["faults"] >= 300 > len(found.spans)
    assert found.facts.lost > 0
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    assert (release >= (6, 0)) == (facts["lost"] is not None)  # PERF_FORMAT_LOST
    lost = math.inf if facts["lost"] is None else facts["lost"]
    assert lost >= facts["faults"] - len(found.spans)


@pytest.mark.system
def test_a_full_disk_ends_the_file_and_not_the_job(data: Path) -> None:
    """The facts say what happened; the job continues."""
    recorder = faults.FaultRecorder(data.parent)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._writer._descriptor)
    os.close(full)
    try:
        command = [sys.executable, PROGRAMS / "touch_pages.py", data, "plain", *some_pages(50)]
        subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=True)
    finally:
        facts = recorder.stop()
    assert "No space left on device" in facts["error"]


def test_a_spool_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """With its name, and before a job runs; no descriptor stays open."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(faults.CaptureError, match=r"missing.*No such file"):
        faults.FaultRecorder(tmp_path / "missing")
    assert before == os.listdir("/proc/self/fd")


@pytest.mark.job
def test_a_forbidden_call_says_what_would_allow_it() -> None:
    """As in a container with the default seccomp filter."""
    ended = subprocess.run(
        [sys.executable, PROGRAMS / "without_perf_events.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "perf_event_open is forbidden" in ended.stdout
    assert "seccomp" in ended.stdout
