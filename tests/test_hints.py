"""A mistake on the command line gets one line that is true, and what to type instead."""

import errno
import os
import subprocess
from pathlib import Path

import pytest
from sample_run import sample_run
from test_report import command

import ioprof
from ioprof.errors import CommandError
from ioprof.recording.lifecycle import Recording, initial_record


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run in a folder of runs."""
    folder = tmp_path / "runs" / "first"
    sample_run().trace.save(folder)
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """The one line of a command that ends with `code`."""
    assert code == command(*arguments)
    message = capsys.readouterr().err
    assert 1 == len(message.splitlines()), message
    return message


@pytest.mark.parametrize("verb", ["report", "open", "compare", "export", "whatif"])
def test_a_folder_of_data_is_never_proposed_as_a_run_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str
):
    """The proposed command writes elsewhere."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    more = {"compare": [tmp_path / "photos"], "export": ["--to", "chrome"]}.get(verb, [])
    message = refusal(capsys, verb, tmp_path / "photos", *more)

    assert "not an ioprof run (no run.json)" in message
    assert "ioprof record --out RUN -- COMMAND" in message


def test_the_runs_in_a_folder_are_named(capsys: pytest.CaptureFixture[str], run_folder: Path):
    """Of the folder above, and of a file in it."""
    assert f"ioprof report {run_folder}\n" in refusal(capsys, "report", run_folder.parent)
    assert f"ioprof report {run_folder}\n" in refusal(capsys, "report", run_folder / "run.json")


def test_a_script_is_no_run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Who reports a script wants to record it."""
    (tmp_path / "train.py").write_text("")
    message = refusal(capsys, "report", tmp_path / "train.py")
    assert f"ioprof record -- python {tmp_path}/train.py" in message


@pytest.mark.parametrize("name", ["./train.py", "train.py"])
@pytest.mark.parametrize("mode", [0o600, 0o700])
def test_a_script_without_its_interpreter_is_told_how_it_is_run(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mode: int,
):
    """Whether it may not be executed, or is not on the PATH: python runs both."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("train.py").chmod(mode)
    if (name, mode) == ("./train.py", 0o700):
        return
    code = 126 if name.startswith("./") else 127
    message = refusal(capsys, "record", "--out", "run", "--", name, code=code)
    assert f"ioprof record -- python {name}" in message
    assert not Path("run").exists()


def test_the_short_option_that_others_have_is_named(
    capsys: pytest.CaptureFixture[str], run_folder: Path
):
    """`-o` is `--out` here, also before a command that is recorded."""
    assert "--out" in refusal(capsys, "record", "-o", "x", "--", "true", code=127)
    assert "--out" in refusal(capsys, "run", "-o", "x")
    assert "--out" not in refusal(capsys, "report", "-o", "x")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "--workers", "eight"), "--workers eight: give a whole number"),
        (("run", "--workers", "1.5"), "--workers 1.5: give a whole number"),
        (("watch", "x", "--every", "soon"), "--every soon: give a number from 0.2 to 3600"),
        (("watch", "x", "--every", "0.1"), "--every 0.1: give a number from 0.2 to 3600"),
        (("demo", "--images", "2"), "--images 2: give a whole number, 8 or more"),
    ],
)
def test_a_value_of_the_wrong_kind(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
):
    """The option with the value that was given, and what it takes."""
    assert f"ioprof: {expected}" in refusal(capsys, *arguments)


def test_a_command_in_one_string_is_shown_as_words():
    """As a list it would be letters."""
    with pytest.raises(CommandError, match=r"\['python', 'train\.py', '--lr', '0\.1'\]"):
        ioprof.record("python train.py --lr 0.1")


@pytest.mark.parametrize("name", ["x.pftrace", "x.trace.json.gz", "x.spans.parquet"])
def test_the_name_of_a_file_says_its_format(run_folder: Path, tmp_path: Path, name: str):
    """`--to` need not repeat it; without an ending that is known, the format is asked for."""
    assert 0 == command("export", run_folder, tmp_path / name)
    assert (tmp_path / name).stat().st_size
    assert 2 == command("export", run_folder, tmp_path / "x.json")


@pytest.mark.job
def test_a_process_that_started_several_jobs_is_asked_which(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """The first process of the system has started every job, and is in none of them."""
    one = {"IOPROF_SPOOL": str(tmp_path / "one")}
    two = {"IOPROF_SPOOL": str(tmp_path / "two")}
    for each in (one, two):
        Path(each["IOPROF_SPOOL"]).mkdir()
    jobs = [subprocess.Popen(["sleep", "60"], env=each) for each in (one, two)]
    try:
        message = refusal(capsys, "watch", str(os.getpid()))
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert f"process {os.getpid()}: has started 2 recorded jobs" in message
    assert f"{tmp_path}/one" in message


@pytest.mark.system
def test_a_full_disk_is_named(tmp_path: Path, small_disk):
    """The run folder's disk where that is full, although the error has no file's name."""
    disk = small_disk(64 << 10)
    out = disk / "run"
    recording = Recording(out, False, initial_record(["true"], out, os.environ), os.environ)
    recording.__enter__()
    (disk / "rest").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(CommandError, match=f"{out}: No space left on device"):
        recording.__exit__(OSError, error, None)
