"""Invalid input gets a one-line message, exit code 2 or 1, no traceback, and leaves no output that
looks complete."""

import shutil
import subprocess
import tempfile

import jobs
import pytest
import torch

from ioprof.cli import main
from ioprof.converters import ConvertOptions, convert
from ioprof.format.trace import Trace
from ioprof.recording.run_folder import ANALYSIS_FILES, RUN_FILES


@pytest.fixture(scope="module")
def dataset(small_tree, tmp_path_factory):
    """A small LMDB dataset; tests damage copies of it."""
    folder = tmp_path_factory.mktemp("dataset") / "lmdb"
    convert(small_tree, folder, ConvertOptions(layout="lmdb", image="original"))
    return folder


@pytest.fixture
def spoiled(dataset, tmp_path):
    """A copy of the dataset for the test to damage."""
    return shutil.copytree(dataset, tmp_path / "spoiled")


def refusal(capsys, *arguments: object, code: int = 2) -> str:
    """The single line that a refused command prints."""
    assert code == main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert (1, "") == (len(lines), printed.out), printed
    assert "Traceback" not in lines[0]
    return lines[0]


def test_a_run_refuses_what_is_not_a_dataset(capsys, tmp_path):
    """A missing path and a folder without manifest: the reason, and the command to use."""
    (tmp_path / "empty").mkdir()

    assert "no such folder" in refusal(
        capsys, "run", tmp_path / "missing", "--out", tmp_path / "run"
    )
    assert "no dataset.json" in refusal(
        capsys, "run", tmp_path / "empty", "--out", tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.job
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ranks", 0), "--ranks"),
        (("--ranks", "two"), "--ranks"),
        (("--steps", 0), "--steps"),
        (("--batch-size", -1), "--batch-size"),
        (("--loader", "ffcv"), "choose one of null, files, lmdb"),
        (("--loader", "files"), "use --loader lmdb"),
        (("--device", "emulated:tpu"), "emulated:a100"),
        (("--device", "abacus"), "emulated:a100"),
        (("--steps", 3, "--epochs", 1), "not both"),
        (("--ranks", 100000), "fewer --ranks"),
        (("--loader", "null", "--workers", 2), "leave --workers out"),
    ],
)
def test_a_run_refuses_options_that_make_no_sense(capsys, dataset, tmp_path, arguments, words):
    """A wrong option is named, with valid values."""
    assert words in refusal(capsys, "run", dataset, *arguments, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.job
def test_a_run_on_a_device_that_is_not_there_is_refused_before_it_starts(capsys, dataset, tmp_path):
    """If torch finds no GPU, `--device cuda` is refused with the available devices; the demo
    refuses it too."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")

    assert "choose --device cpu" in refusal(
        capsys, "run", dataset, "--device", "cuda", "--out", tmp_path / "run"
    )
    assert "choose --device cpu" in refusal(
        capsys, "demo", "--device", "cuda", "--out", tmp_path / "demo"
    )
    assert [] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.job
def test_a_run_never_overwrites(capsys, dataset, tmp_path):
    """An existing output is refused; one that is not a run is refused even with --force."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"schema": "ioprof.run/1"}')
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("42")
    (tmp_path / "file").write_text("")

    assert "--force" in refusal(capsys, "run", dataset, "--out", tmp_path / "run")
    assert "not an ioprof run" in refusal(
        capsys, "run", dataset, "--force", "--out", tmp_path / "precious"
    )
    assert "is a file" in refusal(capsys, "run", dataset, "--out", tmp_path / "file")
    assert "is not a folder" in refusal(capsys, "run", dataset, "--out", tmp_path / "file" / "run")
    assert "42" == (tmp_path / "precious" / "thesis.tex").read_text()


@pytest.mark.job
def test_a_run_refuses_a_corrupt_lmdb(capsys, spoiled, tmp_path):
    """An environment that is not LMDB, or is truncated, is refused before a rank starts: missing
    pages would cause SIGBUS."""
    data = next(spoiled.rglob("data.mdb"))
    whole = data.read_bytes()

    data.write_bytes(whole[: len(whole) // 2])
    assert "cut short" in refusal(capsys, "run", spoiled, "--out", tmp_path / "run")
    data.write_bytes(b"\0" * len(whole))
    assert "not an LMDB environment" in refusal(capsys, "run", spoiled, "--out", tmp_path / "run")
    data.unlink()
    assert "missing" in refusal(capsys, "run", spoiled, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.job(every=4)
def test_a_run_on_a_damaged_record_fails_in_one_line_that_names_it(small_tree, tmp_path):
    """An image damaged after conversion fails the job, names its file, and leaves a run that says
    `failed`."""
    convert(small_tree, tmp_path / "data", ConvertOptions(layout="files", image="original"))
    victim = sorted((tmp_path / "data").rglob("*.JPEG"))[0]
    victim.write_bytes(victim.read_bytes()[:200])

    finished = jobs.ioprof(
        "run", "data", "--epochs", 1, "--batch-size", 2, "--out", "run", cwd=tmp_path
    )

    assert 1 == finished.code
    assert victim.name in finished.err
    assert "Traceback" not in finished.out + finished.err


@pytest.mark.system(every=4)
@pytest.mark.parametrize(("room", "is_recorded"), [(1 << 14, False), (1 << 17, True)])
def test_a_run_on_a_full_disk_leaves_nothing_that_looks_whole(
    dataset, tmp_path, small_disk, room, is_recorded
):
    """If the disk is too full for the run folder, the job ends with one line, and the capture files
    are kept.

    The folder has all that was recorded, or nothing of it; and nothing of an analysis that did not
    fit.
    """
    disk = small_disk(room)
    finished = jobs.ioprof(
        "run", dataset, "--steps", 3, "--batch-size", 4, "--out", disk / "run", cwd=tmp_path
    )

    assert 1 == finished.code
    assert "No space left on device" in finished.err.splitlines()[-1]
    assert "Traceback" not in finished.out + finished.err
    left = {path.name for path in (disk / "run").iterdir()}
    assert ({"job.log", "recording.json"}, is_recorded) == (
        left - set(RUN_FILES),
        "run.json" in left,
    )
    if is_recorded:
        assert (set(), "complete") == (
            left & set(ANALYSIS_FILES),
            Trace.load(disk / "run").run.status,
        )
    else:
        assert {"job.log", "recording.json"} == left
    assert list(tmp_path.glob("tmp/ioprof-*/*.ring"))


@pytest.mark.system
def test_a_run_without_room_for_its_recording_does_not_begin(
    capsys, dataset, tmp_path, small_disk, monkeypatch
):
    """A run that cannot record is refused before it starts, with the variable to set."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk(300_000)))

    assert "set TMPDIR" in refusal(capsys, "run", dataset, "--out", tmp_path / "run", code=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.system(every=4)
def test_a_temporary_folder_that_fills_up_costs_no_run(dataset, tmp_path, small_disk):
    """After its start the job needs no more disk space: spans that do not fit are counted as lost,
    and the run is complete."""
    disk = small_disk(64 << 20)
    arguments = ("run", dataset, "--steps", 300, "--batch-size", 4, "--out", tmp_path / "run")
    with jobs.running(*arguments, cwd=disk, steps=3) as process:
        # until the disk is full
        subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'rest'}", "bs=64k"], capture_output=True)
        _, err = process.communicate(timeout=240)

    assert (0, "complete") == (process.returncode, Trace.load(tmp_path / "run").run.status), err
    assert f"spans were lost: the disk of {disk}/tmp was full while the job ran" in err
    assert [] == list(disk.glob("tmp/ioprof-*"))


def test_reports_refuse_what_is_not_a_run(capsys, tmp_path):
    """report and compare name the folder and how to record a run; damaged tables are named."""
    (tmp_path / "empty").mkdir()

    assert "no such run folder" in refusal(capsys, "report", tmp_path / "missing")
    assert "no run.json" in refusal(capsys, "report", tmp_path / "empty")
    assert "no run.json" in refusal(capsys, "compare", tmp_path / "empty", tmp_path / "empty")
    (tmp_path / "empty" / "run.json").write_text('{"schema": "ioprof.run/1"}')
    assert "spans.parquet" in refusal(capsys, "report", tmp_path / "empty")
    (tmp_path / "empty" / "spans.parquet").write_bytes(b"PAR1 is not enough")
    assert "damaged" in refusal(capsys, "report", tmp_path / "empty")


def test_a_command_that_does_not_exist_is_refused(capsys):
    """An unknown command or option gives one line too."""
    assert "frobnicate" in refusal(capsys, "frobnicate")
    assert "--frobnicate" in refusal(capsys, "run", "--frobnicate")
