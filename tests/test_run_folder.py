"""Where a run may be written: into nothing, or over what ioprof itself wrote, and never over
anything else."""

import json
import os
import subprocess
from pathlib import Path

import jobs
import pytest

from ioprof.errors import CommandError
from ioprof.format.schema import RUN_SCHEMA
from ioprof.recording.run_folder import begin_job_log, check_output, create_output

RUN = {
    "run.json": json.dumps({"schema": RUN_SCHEMA}),
    "spans.parquet": "",
    "report.html": "",
    ".spans.parquet.77.tmp": "",
}


def fill(folder, files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(out, force=True):
    """Why both the check before the job and the making of the folder refuse `out`."""
    before = names(out) if out.is_dir() else None
    with pytest.raises(CommandError) as checked:
        check_output(out, force)
    with pytest.raises(CommandError) as made:
        create_output(out, force)
    assert (str(checked.value), 2) == (str(made.value), made.value.exit_code)
    assert before == (names(out) if out.is_dir() else None)
    return str(made.value)


def test_an_earlier_run_is_replaced_by_force_only(tmp_path):
    """With --force the folder is as new: nothing of the earlier run is left, files of killed writes
    included."""
    out = fill(tmp_path / "run", RUN)
    assert "--force" in refused(out, force=False)

    create_output(out, force=True)

    assert [] == names(out)


def test_a_half_made_run_is_replaced_too(tmp_path):
    """A run that was killed has no run.json; the first line of its job.log says whose it is."""
    out = tmp_path / "run"
    create_output(out, force=False)
    begin_job_log(out)
    fill(out, {"steps.parquet": ""})
    assert "--force" in refused(out, force=False)

    create_output(out, force=True)

    assert [] == names(out)


def test_an_unfinished_recording_is_replaced_too(tmp_path):
    """ioprof was killed, and its run was not gathered: the marker says whose folder it is."""
    out = fill(tmp_path / "run", {"recording.json": '{"spool": "/tmp/ioprof-x", "host": "a"}'})
    assert "--force" in refused(out, force=False)

    create_output(out, force=True)

    assert [] == names(out)


@pytest.mark.parametrize(
    "files",
    [
        {"run.json": "{}"},
        {"run.json": '{"schema": "someone.else/1"}'},
        {"run.json": "[]"},
        {"run.json": "not JSON"},
        {"job.log": "Submitted batch job 42\n"},
        {"job.log": "", "report.html": ""},
        {"thesis.tex": "42"},
    ],
    ids=str,
)
def test_what_is_no_run_is_never_replaced(tmp_path, files):
    """Names that ioprof uses too prove nothing; --force does not help."""
    assert "not an ioprof run" in refused(fill(tmp_path / "folder", files))


@pytest.mark.parametrize(
    "name", ["thesis.tex", "report2.html", ".hidden", "spans.parquet.bak", ".spans.parquet.x.tmp"]
)
def test_what_lies_in_a_run_beside_its_files_is_kept(tmp_path, name):
    """A file that ioprof did not write is named, and nothing is deleted."""
    assert name in refused(fill(tmp_path / "run", {**RUN, name: "42"}))


def test_a_folder_with_the_name_of_a_file_is_kept(tmp_path):
    """ioprof writes files only."""
    fill(
        fill(tmp_path / "run", {"run.json": RUN["run.json"]}) / "report.html", {"thesis.tex": "42"}
    )

    assert "report.html" in refused(tmp_path / "run")


def test_an_empty_folder_is_adopted(tmp_path, monkeypatch):
    """The working directory itself, and a link to a folder: filled where they are, not made
    anew."""
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    monkeypatch.chdir(tmp_path / "here")
    number = Path().stat().st_ino

    create_output(Path(), force=False)
    create_output(tmp_path / "link", force=True)

    assert ([], number) == (names(tmp_path / "here"), (tmp_path / "here").stat().st_ino)
    assert (tmp_path / "link").is_symlink()


def test_a_link_to_nothing_is_refused(tmp_path):
    """Neither a folder nor a place for one."""
    (tmp_path / "link").symlink_to("gone")

    assert "is a broken link" in refused(tmp_path / "link")


@pytest.fixture
def read_only(tmp_path):
    """A folder that not even root may write to."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)], check=True)
    else:
        folder.chmod(0o500)
    yield folder
    if os.geteuid() == 0:
        subprocess.run(["umount", str(folder)], check=True)
    folder.chmod(0o700)


@pytest.mark.system
def test_a_place_that_cannot_be_written_to_is_refused_before_the_job(read_only):
    """The folder itself, and one that would have to be made in it."""
    assert "cannot be written to" in refused(read_only)
    assert "cannot be written to" in refused(read_only / "runs" / "first")


@pytest.mark.job
def test_a_name_that_is_not_utf8_is_refused_before_the_job(tmp_path):
    """Tables cannot be written to such a path: said before the job, in one line, not after it."""
    out = tmp_path / os.fsdecode(b"run-\xff")

    assert "UTF-8" in refused(out)
    finished = jobs.ioprof("run", "--loader", "null", "--steps", 1, "--out", out, cwd=tmp_path)
    assert (2, 1, "") == (finished.code, len(finished.err.splitlines()), finished.out)
    assert r"run-\xff" in finished.err
    assert not out.exists()
