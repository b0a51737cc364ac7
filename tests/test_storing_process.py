"""The process that stores a long job's run: what it stores is what the recorder would store, and
its loss costs nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest
from captures import chunk, header_bytes, record, string
from polars.testing import assert_frame_equal
from repository import PROGRAMS

from ioprof.format.run_files import SPANS
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import KINDS
from ioprof.format.trace import ROWS_IN_MEMORY, Trace
from ioprof.format.wire_format import SLOTS
from ioprof.recording import lifecycle, loaded_early
from ioprof.recording.command import record_command
from ioprof.recording.stored_run import store_run
from ioprof.recording.storing_process import PROGRAM, StoringProcess

CHUNKS: Final = 500
RECORD: Final = RunRecord(name="out", command="x", status="complete")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Reads and a step, more than are held in memory."""
    read, step = (KINDS.index(kind) + 1 for kind in ("read", "step"))
    reads = [
        record(
            kind=read,
            start_ns=at * 50,
            end_ns=at * 50 + at % 40,
            bytes=64,
            source=1 + at % 2,
            offset=0,
            file=0,
        )
        for at in range(SLOTS)
    ]
    folder = tmp_path / "spool"
    folder.mkdir()
    first = chunk(string(0, b"/a"), record(kind=step, start_ns=0, end_ns=90, step=0))
    (folder / "7.ring").write_bytes(
        header_bytes(writer=1, rank=0, rank_source=1) + first + CHUNKS * chunk(*reads)
    )
    return folder


@pytest.fixture
def storing(spool: Path) -> Iterator[StoringProcess]:
    """A process that was started."""
    found = StoringProcess(after_s=0.01, least_bytes=1)
    with found.starting(spool):
        until = time.monotonic() + 30
        while found._process is None and time.monotonic() < until:
            time.sleep(0.01)
    assert found._process is not None
    yield found
    found.close()


@pytest.mark.job(every=4)
def test_what_the_process_stores_is_what_its_recorder_would_store(
    spool: Path, storing: StoringProcess, tmp_path: Path
) -> None:
    """All files are the same, and what is known of the spans."""
    (out := tmp_path / "out").mkdir()
    (own := tmp_path / "own").mkdir()
    known = storing.store(spool, out, RECORD)
    assert known is not None
    expected, found = store_run(spool, own, RECORD), Trace.load_known(out, known)
    assert {path.name: path.read_bytes() for path in own.iterdir()} == {
        path.name: path.read_bytes() for path in out.iterdir()
    }
    assert CHUNKS * SLOTS + 1 == expected.num_spans == found.num_spans > ROWS_IN_MEMORY
    assert {"sums", "structure", "_parts"} <= found.__dict__.keys()
    assert_frame_equal(expected.sums, found.sums, check_row_order=False)
    assert_frame_equal(expected.structure, found.structure)
    bounds = [
        [(part.first_ns, part.last_ns, part.ranks) for part in trace._parts]
        for trace in (expected, found)
    ]
    assert bounds[0] == bounds[1]
    assert_frame_equal(expected.spans, found.spans)


@pytest.mark.job
def test_a_process_that_is_killed_leaves_nothing(
    spool: Path, storing: StoringProcess, tmp_path: Path
) -> None:
    """Then the recorder stores the run."""
    (out := tmp_path / "out").mkdir()
    assert storing._process is not None
    storing._process.kill()
    (out / f".{SPANS}.{storing._process.pid}.tmp").write_bytes(b"half")
    assert storing.store(spool, out, RECORD) is None
    assert [] == list(out.iterdir())


@pytest.mark.system(every=4)
def test_a_full_disk_is_said_by_the_recorder(
    spool: Path, storing: StoringProcess, small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    """The process leaves nothing there."""
    out = small_disk(64 << 10) / "run"
    out.mkdir()
    assert storing.store(spool, out, RECORD) is None
    assert [] == list(out.iterdir())


RECORDER: Final = """
import sys, time
from pathlib import Path
from ioprof.recording.storing_process import StoringProcess
storing = StoringProcess(0.01, 1)
with storing.starting(Path(sys.argv[1])):
    while storing._process is None:
        time.sleep(0.01)
    print(storing._process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.job(every=4)
@pytest.mark.parametrize("after_s", [0, 3])
def test_it_ends_with_its_recorder(spool: Path, after_s: float) -> None:
    """Also if that is killed, while the process loads or waits."""
    with subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(spool)], stdout=subprocess.PIPE
    ) as recorder:
        assert recorder.stdout is not None
        pid = int(recorder.stdout.readline())
        assert PROGRAM in psutil.Process(pid).cmdline()
        time.sleep(after_s)
        recorder.kill()
    until = time.monotonic() + 20
    while (
        psutil.pid_exists(pid)
        and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_little_is_stored_without_it(spool: Path) -> None:
    """A job that ends soon, or that recorded little, has no such process."""
    for storing in (StoringProcess(after_s=60), StoringProcess(after_s=0.01, least_bytes=1 << 40)):
        with storing.starting(spool):
            time.sleep(0.1)
        assert storing._process is None
        assert storing.store(spool, spool, RECORD) is None
        assert storing.pid is None


@pytest.mark.job(every=4)
@pytest.mark.parametrize("ends_early", [False, True])
def test_a_recording_that_has_it_is_whole(
    ends_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run folder has all that the command did, with the costs of recording, whether the process
    lives on or not.

    The process is no part of the job: it is not recorded.
    """
    stored: list[bytes | None] = []

    class Watched(StoringProcess):
        def store(self, spool: Path, out: Path, record: RunRecord) -> bytes | None:
            assert self._process is not None
            if ends_early:
                os.kill(self._process.pid, signal.SIGKILL)
            stored.append(super().store(spool, out, record))
            return stored[-1]

    monkeypatch.setattr(lifecycle, "StoringProcess", partial(Watched, 0.05, 0))
    (data := tmp_path / "data").write_bytes(bytes(1 << 20))
    command = [
        sys.executable,
        str(PROGRAMS / "read_at_rate.py"),
        str(data),
        "2000",
        "3",
        str(tmp_path / "end"),
    ]
    run = record_command(command, tmp_path / "run", dict(os.environ))
    assert [ends_early] == [known is None for known in stored]
    found = Trace.load(tmp_path / "run")
    assert 6000 == len(found.spans.filter(kind="read", bytes=64))
    assert run.trace.run == found.run
    assert found.run.capture.ns_per_cold_span is not None
    assert 1 == len(found.run.processes)


@pytest.mark.job
@pytest.mark.parametrize("is_allowed", [True, False])
def test_the_answer_waits_for_no_thread_that_yields(
    is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that still loads when the job ends has its cores again, or is not used."""
    ready, begun = os.pipe()

    def load() -> None:
        os.write(begun, b"x")
        threading.Event().wait()

    monkeypatch.setattr(loaded_early, "_BEGIN_S", 0.0)
    monkeypatch.setattr(loaded_early, "_load_libraries", load)
    if not is_allowed:
        monkeypatch.setattr(os, "sched_setscheduler", refuse)
    early = loaded_early.LoadedEarly(lambda _: policies_of(os.getpid()) != {POLICY}, lambda: None)
    os.read(ready, 1)
    try:
        made = early.make(RECORD)
        if made is not None:  # of another user than root it may be none
            assert is_allowed
            assert 0 == made.wait()
        elif is_allowed:
            assert os.geteuid()
    finally:
        early.close()
        os.close(ready)
        os.close(begun)
    assert not psutil.Process().children()


POLICY: Final = (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))


def policies_of(pid: int) -> set[tuple[int, int]]:
    """Policy and niceness of each thread."""
    threads = map(int, os.listdir(f"/proc/{pid}/task"))
    return {(os.sched_getscheduler(at), os.getpriority(os.PRIO_PROCESS, at)) for at in threads}


def refuse(*_: object) -> None:
    """As the kernel answers a user without rights."""
    raise PermissionError
