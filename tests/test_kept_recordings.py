"""What was recorded is never lost to what comes after it: a run folder that cannot be made, a
recorder that fails, a second run."""

import gc
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from captures import PROGRAMS
from hooked import environment, run

from ioprof.analysis.capture import gaps
from ioprof.errors import CaptureError, CommandError
from ioprof.format.run_record import CaptureRecord, RunRecord
from ioprof.format.trace import Trace
from ioprof.ingest import read_spool
from ioprof.instrument import faults, recorder
from ioprof.instrument.span import span
from ioprof.recording.external_samplers import ExternalSamplers
from ioprof.recording.pending_run import PendingRun, interrupted_recording
from ioprof.recording.run_folder import MARKER
from ioprof.recording.spool import JOB
from ioprof.report.run import Run
from ioprof.report.texts.catalogue.answer import gap_texts

needs_faults: Final = pytest.mark.skipif(faults.refusal() is not None, reason=str(faults.refusal()))


# ----------------------------------------------------------------------------------- ioprof.profile

PROFILED: Final = """
import os, sys, torch, ioprof
sys.path.insert(0, {programs!r})
import hooked_training as jobs
out = {out!r}

def fill():
    file = os.open(os.path.join(os.path.dirname(out), "filler"), os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        os.close(file)

try:
    with ioprof.profile(out):
        model = torch.nn.Linear(64, 1)
        jobs.train(model, torch.utils.data.DataLoader(jobs.Numbers(48), 4), jobs.Descent(model.parameters(), 0.01))
        fill()
        {last}
except Exception as error:
    print(type(error).__name__, "|", error, "|", *getattr(error, "__notes__", []), flush=True)
print("lives on", flush=True)
sys.stdin.read()
"""  # noqa: E501


@contextmanager
def profiled(disk: Path, spools: Path, last: str) -> Iterator[str]:
    """What a script says whose run folder cannot be made, while it lives on."""
    spools.mkdir()
    program = PROFILED.format(programs=str(PROGRAMS), out=str(disk / "run"), last=last)
    how: Any = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": environment(None, TMPDIR=str(spools)),
    }
    with subprocess.Popen([sys.executable, "-c", program], **how) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "lives on\n" == process.stdout.readline()
        yield said
        process.communicate(timeout=60)


@pytest.mark.system(every=4)
@pytest.mark.parametrize(
    ("last", "status"), [("pass", "complete"), ("raise LookupError('mine')", "failed")]
)
def test_a_profile_whose_run_folder_cannot_be_made_is_kept(
    last: str, status: str, small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    """The disk of the run folder is full: the error says where the recording lies and what to type,
    and that works, at once.

    What the block itself raised is raised, with that as a note.
    """
    disk, spools = small_disk(1 << 20), tmp_path / "spools"
    with profiled(disk, spools, last) as said:
        kind, message, notes = said.split("|")
        assert ("LookupError " if status == "failed" else "CommandError ") == kind
        where = notes if status == "failed" else message
        (spool,) = spools.glob("ioprof-*")
        assert f"the capture files stay in {spool}" in where
        assert f"ioprof gather {disk / 'run'}" in where
        (disk / "filler").unlink()
        shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
        line = [
            sys.executable,
            "-m",
            "ioprof",
            "gather",
            str(disk / "run"),
            "--out",
            str(tmp_path / "elsewhere"),
            "--json",
        ]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert 0 == ended.returncode, ended.stderr
    trace = Trace.load(tmp_path / "elsewhere")
    assert (12, status) == (len(trace.spans.filter(kind="step")), trace.run.status)
    assert trace.run.capture.reads is False
    assert [] == list(spools.glob("ioprof-*"))


@pytest.mark.job(every=4)
def test_a_second_profile_is_as_the_first(tmp_path: Path) -> None:
    """However often a notebook records: nothing piles up in the process, and each run has its own
    steps, all of them."""
    program = f"""
import polars, sys, torch, ioprof  # polars: else the first recording loads it at its end, and the second observes it
sys.path.insert(0, {str(PROGRAMS)!r})
import hooked_training as jobs
from ioprof.instrument import recorder
from ioprof.instrument import hooks
sizes = []
for number in range(3):
    with ioprof.profile({str(tmp_path)!r} + f"/{{number}}"):
        model = torch.nn.Linear(64, 1)
        jobs.train(model, torch.utils.data.DataLoader(jobs.Numbers(48), 4), jobs.Descent(model.parameters(), 0.01))
        sizes.append((len(hooks.installed().patches._replaced), len(recorder._before_stop)))
print(sizes)
"""  # noqa: E501
    sizes = json.loads(
        run(["-c", program], None).splitlines()[-1].replace("(", "[").replace(")", "]")
    )
    assert sizes[0] == sizes[1] == sizes[2]
    assert [12, 12, 12] == [
        len(Trace.load(tmp_path / str(number)).spans.filter(kind="step")) for number in range(3)
    ]


# ------------------------------------------------------------------- a run folder that is not whole


def recorded_into(out: Path, force: bool = False) -> PendingRun:
    """A recording of one span, of which no run folder was made."""
    found = PendingRun(out, force, RunRecord(name="x", status="running"))
    found.begin()
    recorder.start(found.spool)
    with span("decode"):
        pass
    recorder.stop()
    return found


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted before"),
        (
            OSError(28, "No space left on device", "spans.parquet"),
            1,
            "spans.parquet: No space left",
        ),
        (CaptureError("what happened"), 1, "what happened (the capture"),
    ],
)
def test_whatever_goes_wrong_is_said_with_where_the_recording_is(
    error: BaseException, code: int, said: str, tmp_path: Path
) -> None:
    """One line, and the command that makes the run all the same."""
    found = recorded_into(tmp_path / "run")
    try:
        with pytest.raises(CommandError) as raised, found.kept():
            raise error
        assert (code, True) == (raised.value.exit_code, said in str(raised.value))
        assert f"ioprof gather {tmp_path / 'run'}" in str(raised.value)
        left = interrupted_recording(tmp_path / "run")
        assert (found.spool, "x") == (left.spool, left.run.name)
    finally:
        shutil.rmtree(found.spool)


def test_a_defect_keeps_its_traceback(tmp_path: Path) -> None:
    """With a note that says where the recording is."""
    found = recorded_into(tmp_path / "run")
    try:
        with pytest.raises(ZeroDivisionError) as raised, found.kept():
            raise ZeroDivisionError
        assert str(found.spool) in raised.value.__notes__[0]
    finally:
        shutil.rmtree(found.spool)


def test_a_recording_of_nothing_leaves_nothing(tmp_path: Path) -> None:
    """No process has recorded: neither spool nor marker stays, and the folder is free for the next
    try."""
    found = PendingRun(tmp_path / "run", False, RunRecord(name="x"))
    found.begin()
    with pytest.raises(CommandError, match=r"^gone$"), found.kept():
        raise CaptureError("gone")
    assert (False, []) == (found.spool.exists(), list((tmp_path / "run").iterdir()))


def test_a_folder_that_is_taken_stays_its_owners(tmp_path: Path) -> None:
    """Two hosts find it free and take it at once: one gets it, the other leaves no trace, and takes
    nothing away."""
    first = PendingRun(tmp_path / "run", False, RunRecord(name="x"))
    first.begin()
    try:
        marker = (tmp_path / "run" / MARKER).read_bytes()
        second = PendingRun(tmp_path / "other", False, RunRecord(name="y"))
        second.out = tmp_path / "run"
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with pytest.raises(CommandError, match="choose another --out"):
            second.begin()
        with pytest.raises(CommandError), second.kept():
            raise CaptureError("and then")
        assert marker == (tmp_path / "run" / MARKER).read_bytes()
        assert (True, "x") == (
            first.spool.is_dir(),
            json.loads((first.spool / JOB).read_bytes())["name"],
        )
    finally:
        shutil.rmtree(first.spool)


@pytest.mark.parametrize(
    "launcher", [None, [], [1], ["x", 5], [os.getpid(), None], [2**40, 5], 7, {"pid": 1}]
)
def test_a_recorder_that_is_not_known_to_live_is_taken_for_dead(
    launcher: Any, tmp_path: Path
) -> None:
    """A spool whose `job.json` was cut, or made by another version, can be gathered; a number given
    out again is nobody."""
    (tmp_path / JOB).write_text(json.dumps({"name": "x", "launcher": launcher}))
    assert (tmp_path, "x", None) == (
        (left := interrupted_recording(tmp_path)).spool,
        left.run.name,
        left.out,
    )


# ---------------------------------------------------------------------- the recorder of page faults


@pytest.mark.job
@needs_faults
def test_a_failure_of_the_fault_recorder_is_reported(tmp_path: Path) -> None:
    """The job continues, the rest of the recording is complete, and the report says since when page
    faults are missing and why."""
    reads = iter([b""])
    samplers = ExternalSamplers(
        lambda spool: faults.FaultRecorder(spool, read=lambda rings: next(reads))
    )
    spool = tmp_path / "spool"
    spool.mkdir()
    with samplers.recording(spool):
        ended = subprocess.run(
            [sys.executable, "-c", "import time; time.sleep(1.2); print('fine')"],
            capture_output=True,
            text=True,
        )
    assert "fine\n" == ended.stdout
    capture = samplers.add_to(CaptureRecord())
    assert capture.faults is not None
    assert "StopIteration" in str(capture.faults.error)
    trace = read_spool(spool, RunRecord(capture=capture))
    said = [
        sentence
        for sentence in gap_texts(gaps(trace))
        if "page faults are missing at its end" in sentence
    ]
    assert 1 == len(said)
    assert "the recorder failed after" in said[0]
    Run.of(trace)


@needs_faults
def test_a_fault_recorder_without_descriptors_leaves_nothing(tmp_path: Path) -> None:
    """With any number of descriptors that is too small: an error that says so, no file, and no open
    descriptor."""
    faults.FaultRecorder(tmp_path / ".").stop()
    (recorded,) = tmp_path.iterdir()
    recorded.unlink()
    gc.collect()  # which closes what other tests left open, as it would later on
    before, limits = os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_NOFILE)
    messages = []
    # free numbers may be below those of descriptors that are open
    for limit in range(3, limits[0]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
        try:
            faults.FaultRecorder(tmp_path).stop()
            break
        except CaptureError as error:
            messages.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (before, []) == (os.listdir("/proc/self/fd"), list(tmp_path.iterdir()))
    assert before == os.listdir("/proc/self/fd")
    assert all(
        re.search("page faults of mapped files cannot be recorded|Too many open files", message)
        for message in messages
    )
    assert any("Too many open files; see: ulimit -a" in message for message in messages)


@needs_faults
def test_a_fault_recorder_without_a_thread_leaves_nothing(tmp_path: Path) -> None:
    """The stack of the thread does not fit into the address space: an error that says so, no file,
    and no open descriptor."""
    before, stack_bytes = os.listdir("/proc/self/fd"), threading.stack_size(1 << 46)
    try:
        with pytest.raises(
            CaptureError,
            match="page faults of mapped files cannot be recorded: can't start new thread",
        ):
            faults.FaultRecorder(tmp_path)
    finally:
        threading.stack_size(stack_bytes)
    assert (before, []) == (os.listdir("/proc/self/fd"), list(tmp_path.iterdir()))
