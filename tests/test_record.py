"""`ioprof record` and `ioprof gather`: any command, unchanged, and its run folder, whatever becomes
of either."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from jobs import wait_until
from preload import LIBRARY_HEADER_BYTES, check_counters, needs_library
from repository import PROGRAMS

import ioprof
from ioprof.format.trace import Trace

pytestmark = [pytest.mark.job, needs_library]
IOPROF = [sys.executable, "-m", "ioprof"]


def record(
    out: Path, *command: object, options: tuple[str, ...] = ("--quiet",), **how: Any
) -> "subprocess.CompletedProcess[str]":
    """`ioprof record` of a command."""
    line = [*IOPROF, "record", "--out", str(out), *options, "--", *map(str, command)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, **how)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 generated images in two classes."""
    from ioprof.converters import GenerateOptions, generate

    folder = tmp_path_factory.mktemp("tree") / "images"
    generate(folder, GenerateOptions(images=24, classes=2, workers=1))
    return folder


@pytest.fixture(scope="module")
def trained(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> "tuple[Trace, str]":
    """A training script with two workers, recorded, and what it printed."""
    out = tmp_path_factory.mktemp("trained") / "run"
    ended = record(out, sys.executable, PROGRAMS / "train_on_files.py", tree, 2, 12)
    assert 0 == ended.returncode, ended.stderr
    return ioprof.load(out).trace, ended.stdout


# ------------------------------------------------------------------------- the command is as it was


@pytest.mark.job(every=4)
def test_output_input_and_exit_code_are_the_commands(tmp_path: Path) -> None:
    """What it prints, on either stream, what it reads, and how it ends."""
    program = (
        "import sys; data = sys.stdin.read(); print(data.upper()); print('oh', file=sys.stderr);"
        " sys.exit(7)"
    )
    ended = record(tmp_path / "run", sys.executable, "-c", program, input="hello")
    assert (7, "HELLO\n") == (ended.returncode, ended.stdout)
    assert "oh" in ended.stderr
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert ("failed", 7) == (run["status"], run["exit_code"])


def test_the_environment_is_the_users(tmp_path: Path) -> None:
    """But for what recording needs there; nothing of it comes from a library that the launcher has
    loaded for itself."""
    given = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_PRELOAD", "PYTHONPATH", "_RJEM_MALLOC_CONF")
    }
    ended = record(tmp_path / "run", "env", "-0", env=given)
    found = dict(line.split("=", 1) for line in ended.stdout.split("\0") if line)
    added = {"LD_PRELOAD", "PYTHONPATH", "IOPROF_SPOOL", "IOPROF_GPU_WINDOW", "KINETO_LOG_LEVEL"}
    assert added == found.keys() - given.keys()
    assert given == {name: found[name] for name in given}


def test_a_command_that_is_killed_ends_as_in_a_shell(tmp_path: Path) -> None:
    """By the same signal, which a shell tells as 128 and its number; the run is there and says
    so."""
    ended = record(tmp_path / "run", "sh", "-c", "cat /etc/passwd >/dev/null; kill -9 $$")
    assert -signal.SIGKILL == ended.returncode
    assert (
        "was killed by SIGKILL"
        in json.loads((tmp_path / "run/run.json").read_text())["failures"][0]["what"]
    )


@pytest.mark.job(every=4)
def test_options_after_the_command_are_its_own(tmp_path: Path) -> None:
    """With and without `--`."""
    for dashes in (["--"], []):
        line = [
            *IOPROF,
            "record",
            "--out",
            str(tmp_path / f"run{len(dashes)}"),
            "--quiet",
            *dashes,
            "echo",
            "--out",
            "-n",
            "--help",
        ]
        assert (
            "--out -n --help\n"
            == subprocess.run(line, capture_output=True, text=True, check=True).stdout
        )


@pytest.mark.job(every=4)
def test_signals_reach_the_command(tmp_path: Path) -> None:
    """A scheduler's SIGUSR1 and SIGTERM are for the job; ioprof waits for what the job makes of
    them."""
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('usr1', flush=True))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    line = [
        *IOPROF,
        "record",
        "--out",
        str(tmp_path / "run"),
        "--quiet",
        "--",
        sys.executable,
        "-c",
        program,
    ]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
        assert "usr1\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert 5 == process.wait(60)
    assert "interrupted" == json.loads((tmp_path / "run/run.json").read_text())["status"]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [(["no-such-program-here"], 127, "no such program"), ([], 2, "Missing argument")],
)
def test_what_cannot_be_run_is_said_in_one_line(
    command: list[str], code: int, said: str, tmp_path: Path
) -> None:
    """Nothing is made of it."""
    ended = record(tmp_path / "run", *command)
    assert (code, 1) == (ended.returncode, len(ended.stderr.splitlines()))
    assert said in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.job(every=4)
def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    """Unless that is asked for; and the command is not even started."""
    assert 0 == record(tmp_path / "run", "true").returncode
    again = record(tmp_path / "run", "touch", tmp_path / "started")
    assert (2, False) == (again.returncode, (tmp_path / "started").exists())
    assert 0 == record(tmp_path / "run", "true", options=("--quiet", "--force")).returncode


# ---------------------------------------------------------------- what is seen of a training script


@pytest.mark.job(every=4)
def test_a_recorded_script_computes_the_same(trained: "tuple[Trace, str]", tree: Path) -> None:
    """Its samples, their order and its losses are those of the script alone, to the last digit."""
    alone = subprocess.run(
        [sys.executable, PROGRAMS / "train_on_files.py", tree, "2", "12"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert alone.stdout == trained[1]


@pytest.mark.job(every=4)
def test_every_read_of_every_image_is_seen(trained: "tuple[Trace, str]", tree: Path) -> None:
    """Each image was read as a whole, once in each epoch, by a worker, for the batch that was then
    waited for."""
    trace, _ = trained
    reads = (
        trace.spans.filter(pl.col("kind") == "read")
        .join(trace.files, on="file")
        .filter(pl.col("path").str.ends_with(".JPEG"))
    )
    sizes = {str(path): 2 * path.stat().st_size for path in tree.glob("*/*.JPEG")}
    assert sizes == dict(reads.group_by("path").agg(pl.col("bytes").sum()).iter_rows())
    waits = trace.spans.filter(pl.col("kind") == "wait")["batch"].drop_nulls()
    assert set(waits.to_list()) >= set(reads["batch"].to_list())
    assert None not in reads["batch"].to_list()


def test_bytes_seen_are_those_that_the_kernel_counted(trained: "tuple[Trace, str]") -> None:
    """99.9 % at least, but for what the dynamic linker read within itself: of the libraries of
    `numpy.random` in each worker."""
    processes = check_counters(trained[0], libraries=140)
    workers = [process.reads for process in processes if process.role == "worker"]
    assert 4 == len(workers)
    libraries = 9 * LIBRARY_HEADER_BYTES
    assert all(0.999 * reads.io_rchar - libraries <= reads.seen_bytes for reads in workers)


def test_steps_sum_to_their_time(trained: "tuple[Trace, str]") -> None:
    """To the nanosecond, as in the built-in job; and the script's own settings are known."""
    from ioprof.analysis.charge.blame import blame
    from ioprof.format.schema import CAUSES

    trace, _ = trained
    steps = blame(trace)
    assert 12 == len(steps)
    for row in steps.iter_rows(named=True):
        assert row["end_ns"] - row["start_ns"] == sum(row[f"{cause}_ns"] or 0 for cause in CAUSES)
    config = trace.run.config
    assert (1, 2, 4) == (config.ranks, config.workers, config.batch_size)


def test_processes_of_a_pipeline_are_all_seen(tmp_path: Path) -> None:
    """A shell and what it starts."""
    (tmp_path / "data").write_bytes(bytes(300_000))
    ended = record(
        tmp_path / "run",
        "bash",
        "-c",
        f"cat {tmp_path / 'data'} | wc -c; cp {tmp_path / 'data'} {tmp_path / 'copy'}",
    )
    assert "300000" == ended.stdout.strip()
    trace = ioprof.load(tmp_path / "run").trace
    reads = (
        trace.spans.filter(pl.col("kind") == "read")
        .join(trace.files, on="file")
        .filter(pl.col("path") == str(tmp_path / "data"))
    )
    assert 600_000 == reads["bytes"].sum()
    assert 2 == reads["pid"].n_unique()


# -------------------------------------------------------------------------- ioprof itself is killed


@pytest.fixture
def orphaned(tmp_path: Path) -> Iterator[Path]:
    """The run folder of a job whose ioprof was killed while it ran; the job has come to its end."""
    program = (
        "import sys, time; open('/etc/passwd').read(); print('ready', flush=True);"
        " sys.stdin.read(); open('/etc/group').read()"
    )
    line = [
        *IOPROF,
        "record",
        "--out",
        str(tmp_path / "run"),
        "--quiet",
        "--",
        sys.executable,
        "-c",
        program,
    ]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.kill()
        process.wait()
        process.stdin.close()  # the job reads on, undisturbed, to its end
        assert "" == process.stdout.read()
    yield tmp_path / "run"
    for spool in [
        json.loads(path.read_text())["spool"] for path in tmp_path.rglob("recording.json")
    ]:
        shutil.rmtree(spool, ignore_errors=True)


@pytest.mark.job(every=4)
def test_gather_completes_a_run_whose_ioprof_was_killed(orphaned: Path) -> None:
    """The job went on, all that it read is there, and the run says what is not known; then there is
    nothing left to gather."""
    ended = subprocess.run(
        [*IOPROF, "gather", str(orphaned), "--json"], capture_output=True, text=True, timeout=60
    )
    assert 0 == ended.returncode, ended.stderr
    trace = ioprof.load(orphaned).trace
    assert {"/etc/passwd", "/etc/group"} <= set(trace.files["path"].to_list())
    assert "failed" == trace.run.status
    assert any(
        "ioprof was killed" in said for said in json.loads(ended.stdout)["capture"]["not_seen"]
    )
    assert not (orphaned / "recording.json").exists()
    again = subprocess.run(
        [*IOPROF, "gather", str(orphaned)], capture_output=True, text=True, timeout=60
    )
    assert (2, 1) == (again.returncode, len(again.stderr.splitlines()))


def test_gather_waits_for_its_ioprof(tmp_path: Path) -> None:
    """A recording that is going on is not touched."""
    line = [*IOPROF, "record", "--out", str(tmp_path / "run"), "--quiet", "--", "sleep", "60"]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: (tmp_path / "run/recording.json").exists())
        ended = subprocess.run(
            [*IOPROF, "gather", str(tmp_path / "run")], capture_output=True, text=True, timeout=60
        )
        assert (2, True) == (ended.returncode, "still being recorded" in ended.stderr)
        process.terminate()
        process.wait()


@pytest.mark.parametrize("content", [None, "{}", "[]", '{"spool": "/nowhere"}', '{"spool": 5}'])
def test_gather_refuses_what_is_no_recording(content: str | None, tmp_path: Path) -> None:
    """One line, and nothing is made."""
    if content is not None:
        (tmp_path / "recording.json").write_text(content)
    ended = subprocess.run(
        [*IOPROF, "gather", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert (2, 1) == (ended.returncode, len(ended.stderr.splitlines())), ended.stderr
    assert set(os.listdir(tmp_path)) <= {"recording.json"}


def test_a_run_lies_within_the_time_of_its_command(tmp_path: Path) -> None:
    """Its zero is a time of this machine's one clock, between the launcher's start and its end."""
    before = time.monotonic_ns()
    assert 0 == record(tmp_path / "run", "cat", "/etc/passwd").returncode
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert before <= run["clocks"]["zero_monotonic_ns"] <= time.monotonic_ns()
