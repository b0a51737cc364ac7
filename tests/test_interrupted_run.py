"""An `ioprof run` that is told to end, at any moment: no process is left, and nothing that was
recorded is lost."""

import ctypes
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from contextlib import contextmanager
from pathlib import Path

import jobs
import psutil
import pytest
from repository import PROGRAMS

from ioprof.converters import ConvertOptions, convert
from ioprof.format.trace import Trace
from ioprof.jobs.launch import failures, temporary_folder
from ioprof.recording.interrupts import count_interrupts
from ioprof.recording.run_folder import ANALYSIS_FILES, JOB_LOG, MARKER
from ioprof.recording.signal_forwarding import _Blocking
from ioprof.report.run import Run
from ioprof.train.config import JobConfig

ENDLESS = (
    "run",
    "--loader",
    "null",
    "--ranks",
    2,
    "--steps",
    100_000,
    "--batch-size",
    4,
    "--out",
    "run",
)
SHORT = ("run", "--loader", "null", "--steps", 8, "--batch-size", 4, "--out", "run")


def started_by(process):
    """All processes below one that runs."""
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


@pytest.mark.job(every=4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_scheduler_or_a_closing_terminal_ends_a_run_as_ctrl_c_does(tmp_path, number):
    """SIGTERM and SIGHUP: exit code 130, no process left, a report of the steps that were made."""
    with jobs.running(*ENDLESS, cwd=tmp_path, steps=5) as process:
        processes = started_by(process)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)

    assert 130 == process.returncode, err
    jobs.wait_until(lambda: not any(map(jobs.alive, processes)), seconds=10)
    trace = Trace.load(tmp_path / "run")
    assert ("interrupted", ()) == (trace.run.status, trace.run.failures)
    assert len(trace.spans.filter(kind="step")) >= 8


@pytest.mark.job(every=4)
def test_a_terminal_that_is_gone_costs_nothing_but_its_output(tmp_path):
    """The terminal closes: SIGHUP comes, and every write fails from then on; no process is left,
    and the run is there."""
    master, terminal = pty.openpty()

    def take_terminal():
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    where = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with jobs.running(
        *ENDLESS, cwd=tmp_path, steps=5, start_new_session=True, preexec_fn=take_terminal, **where
    ) as process:
        processes = started_by(process)
        os.close(terminal)
        os.close(master)
        process.wait(timeout=120)

    jobs.wait_until(lambda: not any(map(jobs.alive, processes)), seconds=10)
    assert "interrupted" == Trace.load(tmp_path / "run").run.status


@pytest.mark.job(every=4)
def test_a_reader_that_goes_away_costs_nothing_but_its_lines(tmp_path):
    """`ioprof run 2>&1 | head -1`: a line of progress that nobody reads is no reason to end a job,
    or to lose its run."""
    with jobs.started(*SHORT, cwd=tmp_path) as process:
        process.stderr.close()
        process.wait(timeout=120)

    assert (0, "complete") == (process.returncode, Trace.load(tmp_path / "run").run.status)


@pytest.mark.job(every=4)
@pytest.mark.parametrize("moment", ["config.json", "*-*.ring", "progress"])
def test_ctrl_c_while_a_run_starts_is_no_failure(tmp_path, moment):
    """Whenever it comes (launcher starting, ranks starting, first step), no rank is said to have
    failed."""
    with jobs.started(*ENDLESS, cwd=tmp_path) as process:
        jobs.wait_until(
            lambda: list(tmp_path.glob(f"tmp/ioprof-*/{moment}")) or process.poll() is not None
        )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)

    assert 130 == process.returncode, err
    run = Trace.load(tmp_path / "run").run
    assert ("interrupted", ()) == (run.status, run.failures)
    assert "rank" not in err


def test_failures_of_an_interrupted_run_are_those_that_the_end_did_not_cause(tmp_path):
    """A rank without a word, one that was killed, and one that lost its peers are listed in a
    failed run only."""
    outcomes = {
        0: "done",
        1: "data/a.JPEG: damaged; connection to the truth lost",
        3: "stopped",
        4: "RuntimeError: [gloo] Connection closed",
    }
    for rank, outcome in outcomes.items():
        (tmp_path / f"rank-{rank}.json").write_text(f'{{"rank": {rank}, "outcome": "{outcome}"}}')
    config = JobConfig(
        loader="null", device="cpu", ranks=6, batch_size=1, workers=0, steps=1, spool=tmp_path
    )

    assert [2, 1, 4, 5] == [
        entry.rank for entry in failures(config, {2: "SIGTERM"}, interrupted=False)
    ]
    assert [1] == [entry.rank for entry in failures(config, {2: "SIGTERM"}, interrupted=True)]


@contextmanager
def in_the_report(cwd):
    """A run that has written its steps, and not the report yet."""
    with jobs.started(*SHORT, cwd=cwd, program=PROGRAMS / "held_in_the_report.py") as process:
        jobs.wait_until(lambda: (cwd / "in the report").exists() or process.poll() is not None)
        yield process


@pytest.mark.job(every=4)
def test_ctrl_c_while_the_run_folder_is_made_waits_until_it_is(tmp_path):
    """The job is done: one signal ends ioprof after the run folder is whole, and says so by its
    exit code."""
    with in_the_report(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        (tmp_path / "go on").touch()
        _, err = process.communicate(timeout=120)

    assert (130, "complete") == (process.returncode, Trace.load(tmp_path / "run").run.status), err
    assert [] == list(tmp_path.glob("tmp/ioprof-*"))


@pytest.mark.job(every=4)
def test_two_signals_while_the_run_folder_is_made_leave_the_capture_files(tmp_path):
    """Whoever insists is obeyed, and told where the recording lies; the run folder has all that was
    recorded already."""
    with in_the_report(tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)

    (spool,) = tmp_path.glob("tmp/ioprof-*")
    # may be a link
    assert (130, True) == (
        process.returncode,
        str(spool.resolve()) in err.splitlines()[-1],
    ), err
    assert list(spool.glob("*.ring"))
    left = set(os.listdir(tmp_path / "run"))
    assert ({MARKER, JOB_LOG, "run.json"} <= left, set()) == (True, left & set(ANALYSIS_FILES))
    assert "Traceback" not in err


@pytest.mark.job(every=4)
def test_a_recording_whose_analysis_was_killed_is_analysed_when_it_is_reported(tmp_path):
    """As by a scheduler that waits only seconds: the host and its capture files may be gone, and
    the run folder is enough."""
    with in_the_report(tmp_path) as process:
        process.kill()
        process.wait()
    (spool,) = tmp_path.glob("tmp/ioprof-*")
    gathered = jobs.ioprof("gather", "run", "--out", "gathered", cwd=tmp_path)
    shutil.rmtree(spool, ignore_errors=True)
    reported = jobs.ioprof("report", "run", "--json", cwd=tmp_path)

    assert (0, 0) == (gathered.code, reported.code), gathered.err + reported.err
    assert (
        json.loads(reported.out)["steps"]
        == json.loads((tmp_path / "gathered" / "summary.json").read_text())["steps"]
    )
    assert 8 == Run.load(tmp_path / "run").summary.steps.count


def test_signals_are_counted_and_a_signal_that_was_ignored_stays_so():
    """`nohup` and a shell's `&` ignore signals for their programs; a terminal that closes sends
    SIGHUP twice and means it once."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    with count_interrupts() as interrupts:
        counts = []
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            counts.append(interrupts.count)
    assert [1, 1, 2, 3] == counts
    assert before == {number: signal.getsignal(number) for number in before}

    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with count_interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert 0 == interrupts.count
        assert signal.SIG_IGN == signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)


def call_back(function):
    """From native code, which loses what the function raises, as polars does."""
    ctypes.CFUNCTYPE(None)(function)()


def test_who_insists_is_obeyed_whatever_became_of_the_interrupt(monkeypatch):
    """Native code that calls back loses a KeyboardInterrupt, and raises what it makes of that;
    other errors stay what they are.

    Of the lost one nothing is printed, which would look like a defect.
    """

    def work(number):
        with interrupts.raising():
            call_back(lambda: os.kill(os.getpid(), number))
            raise TypeError

    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: lost.append(ignored.exc_type))
    with count_interrupts() as interrupts:
        with pytest.raises(TypeError):
            work(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            work(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with interrupts.raising():
            call_back(lambda: 1 / 0)
    assert (3, [ZeroDivisionError]) == (interrupts.count, lost)


@pytest.fixture
def ended():
    """The process id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.job
def test_a_process_whose_parent_died_before_it_could_ask_ends(ended, tmp_path):
    """The kernel tells only of deaths after the request, and the parent's own number says what came
    before."""
    asks = (
        "import sys; from ioprof.process import die_with_parent;"
        " die_with_parent(parent=int(sys.argv[1])); print('alive')"
    )
    outputs = [
        subprocess.run([sys.executable, "-c", asks, str(parent)], capture_output=True)
        for parent in (ended, os.getpid())
    ]
    assert [(-signal.SIGKILL, b""), (0, b"alive\n")] == [
        (process.returncode, process.stdout) for process in outputs
    ]


@contextmanager
def short_folder():
    """A folder with a path as short as a user's own, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def dataset(small_tree, tmp_path_factory):
    """A small dataset, since a loader with workers makes sockets."""
    folder = tmp_path_factory.mktemp("dataset") / "files"
    convert(small_tree, folder, ConvertOptions(layout="files", image="original"))
    return folder


@pytest.mark.job(every=4)
@pytest.mark.parametrize("end", ["complete", "failed"])
def test_a_run_leaves_no_temporary_file(dataset, end):
    """What torch, its launcher and multiprocessing put into TMPDIR goes away with the spool,
    however the job ends."""
    with short_folder() as folder:
        arguments = (
            "run",
            dataset,
            "--device",
            "cpu",
            "--ranks",
            2,
            "--batch-size",
            4,
            "--workers",
            1,
            "--out",
            "run",
        )
        with jobs.running(
            *arguments, "--steps", 5 if end == "complete" else 100_000, cwd=folder, steps=3
        ) as process:
            if end == "failed":
                os.kill(jobs.recorded_processes(folder)["worker", 1, 0], signal.SIGKILL)
            _, err = process.communicate(timeout=240)

        assert end == Trace.load(folder / "run").run.status, err
        assert [] == list((folder / "tmp").iterdir())


def test_the_jobs_temporary_folder_leaves_room_for_its_sockets():
    """Wherever the spool is, the kernel takes the name of a socket that multiprocessing makes; in
    the spool, if it does there."""
    with short_folder() as folder:
        places = []
        for length in range(45, 65):
            spool = folder / ("s" * (length - len(str(folder))))
            spool.mkdir()
            with temporary_folder(spool) as made:
                name = made / "pymp-12345678" / "listener-12345678"
                name.parent.mkdir()
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(name))
                places.append(made.parent == spool)
            assert not made.exists()
    assert [True] * 4 == places[:4]
    assert sorted(places, reverse=True) == places
    assert not places[-1]


@pytest.mark.job(every=4)
def test_a_run_in_a_deep_folder_comes_to_its_end(dataset, tmp_path):
    """TMPDIR may have a path as long as schedulers make them: too long for sockets, without which
    no worker's batch arrives."""
    deep = tmp_path / "local-scratch-of-the-job" / "user.12345678.node1234.cluster"
    deep.mkdir(parents=True)
    finished = jobs.ioprof(
        "run", dataset, "--steps", 3, "--batch-size", 4, "--workers", 1, "--out", "run", cwd=deep
    )
    assert (0, "complete") == (finished.code, Trace.load(deep / "run").run.status), finished.err
    assert [] == list((deep / "tmp").iterdir())


@pytest.mark.job
def test_a_process_that_sees_signals_of_the_group_is_ended_once():
    """Two handlers, one interrupting the other, may both end it: what has its descriptor since
    stays open."""
    process = _Blocking()
    process.end()
    read, write = os.pipe()
    process.end()
    os.fstat(read), os.fstat(write)
    os.close(read)
    os.close(write)
