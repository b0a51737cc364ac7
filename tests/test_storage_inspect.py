"""`ioprof inspect` of any path, of a spool, and of the folder of a run that is not whole."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from made_datasets import made
from repository import ROOT
from sample_run import sample_run

from ioprof.cli import main
from ioprof.recording.lifecycle import Recording, initial_record
from ioprof.recording.run_folder import MARKER
from ioprof.recording.spool import JOB
from ioprof.storage import describe
from ioprof.storage.wording import plain


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A run that has begun, as its ioprof leaves it when it is killed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out = tmp_path / "run"
    return Recording(
        out, False, initial_record(["python", "train.py"], out, os.environ), os.environ
    ).__enter__()


def told(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[dict[str, Any], str]:
    """What `inspect` says as JSON, and the next command that it names."""
    assert 0 == main(["inspect", str(path), "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert 0 == main(["inspect", str(path)])
    return facts, capsys.readouterr().err.strip()


def test_a_path_is_said_to_be_what_it_lies_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A file and a folder of no one: the description of their storage, as data and as lines."""
    (tmp_path / "file").write_text("x")
    for path, kind in (
        (tmp_path / "file", "a file"),
        (tmp_path, "a folder, no dataset, run, or part of one"),
    ):
        facts, following = told(capsys, path)
        assert (kind, plain(describe(path))) == (facts["kind"], facts["storage"])
        assert f"next: ioprof doctor {path}" == following
    assert 0 == main(["inspect", str(tmp_path)])
    printed = capsys.readouterr().out
    assert f"{describe(tmp_path).file_system} at {describe(tmp_path).mount_point}" in printed


def test_a_dataset_says_what_it_lies_on(
    capsys: pytest.CaptureFixture[str], small_tree: Path, tmp_path: Path
) -> None:
    """In addition to its manifest."""
    dataset = made(small_tree, tmp_path / "dataset", layout="lmdb")
    facts, _ = told(capsys, dataset.path)
    assert ("dataset", "lmdb", plain(describe(dataset.path))) == (
        facts["kind"],
        facts["layout"],
        facts["storage"],
    )


def test_a_path_that_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In one line, with the name."""
    assert 2 == main(["inspect", str(tmp_path / "absent")])
    assert f"ioprof: {tmp_path / 'absent'}: No such file or directory" in capsys.readouterr().err


@pytest.mark.job
def test_a_spool_is_not_taken_for_a_conversion(
    capsys: pytest.CaptureFixture[str], recording: Recording, tmp_path: Path
) -> None:
    """Both keep a job.json. A spool says whose it is, and what makes a run folder of it."""
    facts, following = told(capsys, recording.spool)
    assert (
        "an unfinished recording (a spool)",
        "run",
        "python train.py",
        str(tmp_path / "run"),
    ) == tuple(facts[key] for key in ("kind", "name", "command", "out"))
    assert f"next: ioprof gather {recording.spool}" == following
    # its description is damaged, its capture files are what it is known by
    (recording.spool / JOB).write_text("{")
    (recording.spool / "node1-1.ring").write_bytes(b"")
    facts, following = told(capsys, recording.spool)
    assert ("an unfinished recording (a spool)", 1) == (facts["kind"], facts["processes"])
    assert "cannot be read" in facts["state"]


@pytest.mark.job
def test_the_folder_of_a_run_that_is_not_whole_names_its_spool(
    capsys: pytest.CaptureFixture[str], recording: Recording, tmp_path: Path
) -> None:
    """Where the capture files are, and that they can be gathered."""
    facts, following = told(capsys, tmp_path / "run")
    assert ("the folder of an unfinished run", str(recording.spool)) == (
        facts["kind"],
        facts["spool"],
    )
    assert facts["state"].startswith("not being recorded any more")
    assert f"next: ioprof gather {tmp_path / 'run'}" == following


_RECORDER: Final = """
import os
import sys
from pathlib import Path
from ioprof.recording.lifecycle import Recording, initial_record
out = Path(sys.argv[1])
recording = Recording(out, False, initial_record(["true"], out, os.environ), os.environ)
recording.__enter__()
print(recording.spool, flush=True)
input()
"""


@pytest.mark.job
def test_a_run_that_goes_on_is_said_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By the process that records it; killed, it is gone, and the run can be gathered."""
    command = [sys.executable, "-c", _RECORDER, str(tmp_path / "run"), "ioprof"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout
        spool = Path(os.fsdecode(launcher.stdout.readline()).strip())
        going_on, _ = told(capsys, spool)
        launcher.kill()
    assert f"still being recorded by process {launcher.pid}" in going_on["state"]
    assert told(capsys, spool)[0]["state"].startswith("not being recorded any more")


def test_what_a_conversion_left_is_still_that(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Known by what its job.json says, or by having no capture files."""
    (tmp_path / JOB).write_text(json.dumps({"layout": "lmdb", "split": "train"}))
    facts, following = told(capsys, tmp_path)
    assert ("an unfinished conversion, running or killed", "lmdb") == (
        facts["kind"],
        facts["layout"],
    )
    assert "next: ioprof convert imagenet --help" == following


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"launcher_pid": []}',
        b'{"capture": 3, "out": [1]}',
    ],
)
@pytest.mark.parametrize("name", [JOB, MARKER])
def test_a_damaged_description_is_no_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, name: str
) -> None:
    """For any content of the file that identifies the folder."""
    (tmp_path / name).write_bytes(data)
    facts, _ = told(capsys, tmp_path)
    assert facts["kind"]


def test_a_name_that_is_no_text_can_be_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Bytes that are no UTF-8, and characters that would act on a terminal."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[2J"))
    path.mkdir()
    assert 0 == main(["inspect", str(path)])
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert 0 == main(["inspect", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)


def test_a_run_is_described_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No braces, brackets or quotes of JSON, and no clocks in nanoseconds; --json has all."""
    sample_run().trace.save(tmp_path / "run")
    assert 0 == main(["inspect", str(tmp_path / "run")])
    text = capsys.readouterr().out
    assert "a run of ioprof" in text
    assert "ioprof run --device emulated:a100" in text
    assert not re.search(r"[{}\[\]\"]|_ns\b", text)
    assert 0 == main(["inspect", str(tmp_path / "run"), "--json"])
    assert "uncertainty_ns" in capsys.readouterr().out
