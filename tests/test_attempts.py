"""The run folders of jobs that a scheduler starts again: no attempt is kept from training, and each
has a run of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import slurm_cluster
from hypothesis import given
from hypothesis import strategies as st
from jobs import wait_until
from preload import needs_library
from repository import PROGRAMS
from slurm_cluster import Slurm, slurm
from temporary import temporary_folder
from test_hosts import environment, task

import ioprof
from ioprof.format.trace import Trace
from ioprof.recording.attempts import usable_run_folder
from ioprof.recording.parts import Part, part_folder

IOPROF: Final = [sys.executable, "-m", "ioprof"]
PBS: Final = {"PBS_JOBID": "9.head"}


def make_run(folder: Path) -> None:
    """What an earlier attempt leaves."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")


def record(
    out: object, *command: str, cwd: Path, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """`ioprof record` as a task of a job."""
    line = [*IOPROF, "record", "--quiet", "--no-stacks", "--out", str(out), "--", *command]
    own = environment(cwd, **variables)
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=cwd, env=own)


# ----------------------------------------------------------------------------------------- the name


@pytest.mark.job
def test_nothing_changes_without_a_scheduler(tmp_path):
    """Somebody is there who can type another name."""
    make_run(tmp_path / "run")
    assert (tmp_path / "run", None) == usable_run_folder(tmp_path / "run", {"HOME": "/root"})
    ended = record("run", "touch", "started", cwd=tmp_path)
    assert 2 == ended.returncode
    assert not (tmp_path / "started").exists()


def test_a_first_attempt_has_the_name_that_was_given(tmp_path):
    """Of one task and of several, also where the folder is there and empty."""
    (tmp_path / "empty").mkdir()
    for variables in (
        PBS,
        {**PBS, "RANK": "1", "WORLD_SIZE": "2"},
        {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "0"},
    ):
        for name in ("run", "empty"):
            assert (tmp_path / name, None) == usable_run_folder(tmp_path / name, variables)


def test_a_later_attempt_is_numbered_by_the_scheduler(tmp_path):
    """Also where the attempt before left nothing, so that all tasks find the same."""
    out = tmp_path / "9"
    found, said = usable_run_folder(out, {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "2"})
    assert (
        tmp_path / "9-attempt3",
        f"{out}: the job was started again; this attempt is recorded into {found}",
    ) == (found, said)
    both = {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "3"}
    assert tmp_path / "9-attempt2.4" == usable_run_folder(out, both)[0]


@pytest.mark.job
def test_a_folder_that_is_there_is_no_reason_not_to_train(tmp_path):
    """The next free name is taken, and nothing that is there is touched, whatever it is."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    (tmp_path / "run-2").write_text("a file")
    (tmp_path / "run-3").symlink_to("nowhere")
    ended = record("run", "touch", "started", cwd=tmp_path, **PBS)
    assert 0 == ended.returncode, ended.stderr
    assert "run: exists; this attempt is recorded into run-4\n" in ended.stderr
    assert (tmp_path / "started").exists()
    assert "complete" == Trace.load(tmp_path / "run-4").run.status
    assert ("mine", "a file") == (
        (tmp_path / "run" / "thesis.tex").read_text(),
        (tmp_path / "run-2").read_text(),
    )


@pytest.mark.job
def test_force_still_replaces_an_earlier_run(tmp_path):
    """Of the same name, if it is a run; else another name is taken."""
    assert 0 == record("run", "true", cwd=tmp_path, **PBS).returncode
    assert (tmp_path / "run", None) == usable_run_folder(tmp_path / "run", PBS, force=True)
    (tmp_path / "run" / "thesis.tex").touch()
    assert tmp_path / "run-2" == usable_run_folder(tmp_path / "run", PBS, force=True)[0]


@given(st.integers(2, 5), st.integers(1, 4), st.data())
def test_tasks_of_an_attempt_agree_and_attempts_differ(num_tasks, num_attempts, data):
    """In whatever order they begin, and whether or not an attempt came to its whole run, where only
    the folders tell."""
    with tempfile.TemporaryDirectory() as name:
        folder, seen = Path(name), set()
        for _ in range(num_attempts):
            found = set()
            for number in data.draw(st.permutations(range(num_tasks))):
                variables = {**PBS, "RANK": str(number), "WORLD_SIZE": str(num_tasks)}
                out = usable_run_folder(folder / "run", variables)[0]
                make_run(part_folder(out, Part(number, num_tasks, None)))
                found.add(out)
            assert 1 == len(found)
            assert not found & seen
            seen |= found
            if data.draw(st.booleans()):
                make_run(*found)


# ----------------------------------------------------------------------- places that take no folder


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system without room."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.system(every=4)
def test_a_job_trains_where_its_folder_cannot_be_made(full, tmp_path):
    """On a full file system, and where a file is in the way: its run goes to the working
    directory."""
    (tmp_path / "file").write_text("mine")
    for out in (full / "runs" / "9", tmp_path / "file" / "9"):
        ended = record(out, "touch", "started", cwd=tmp_path, **PBS)
        assert 0 == ended.returncode, ended.stderr
        (tmp_path / "started").unlink()
        assert (
            f"{out}: no run folder can be made there; this attempt is recorded into 9"
            in ended.stderr
        )
    assert ["complete"] * 2 == [Trace.load(tmp_path / name).run.status for name in ("9", "9-2")]


@pytest.mark.system
def test_the_last_place_is_that_of_temporary_files(full, tmp_path, monkeypatch):
    """Where the working directory takes no folder either."""
    monkeypatch.chdir(full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert tmp_path / "9" == usable_run_folder(Path("runs/9"), PBS)[0]


# ------------------------------------------------------------------------------------- ways into it


@pytest.mark.job(every=4)
def test_the_built_in_job_and_a_profiled_block_start_again_too(tmp_path):
    """Both attempts of each train."""
    job = [
        "run",
        "--loader",
        "null",
        "--device",
        "emulated:h100",
        "--batch-size",
        "64",
        "--steps",
        "4",
        "--no-stacks",
    ]
    for variables in ({"SLURM_JOB_ID": "9"}, {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"}):
        own = environment(tmp_path, **variables)
        ended = subprocess.run(
            [*IOPROF, *job, "--out", "9"],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=own,
        )
        assert 0 == ended.returncode, ended.stderr
    assert ["complete"] * 2 == [
        Trace.load(tmp_path / name).run.status for name in ("9", "9-attempt2")
    ]
    block = "import ioprof\nwith ioprof.profile('9'): open('began', 'w')"
    ended = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=own,
        timeout=120,
    )
    assert 0 == ended.returncode, ended.stderr
    assert (tmp_path / "began").exists()
    assert "complete" == Trace.load(tmp_path / "9-attempt2-2").run.status


@pytest.mark.job(every=4)
def test_tasks_of_a_later_attempt_make_one_run(tmp_path):
    """The first of them gathers it under the name of the attempt."""
    for attempt in (0, 1):
        line = [*IOPROF, "record", "--quiet", "--no-stacks", "--out", "9", "--", "true"]
        own = [
            environment(tmp_path, **task(number, 2), SLURM_RESTART_COUNT=str(attempt))
            for number in range(2)
        ]
        tasks = [
            subprocess.Popen(line, cwd=tmp_path, env=each, stderr=subprocess.PIPE, text=True)
            for each in own
        ]
        said = [each.communicate(timeout=120)[1] for each in tasks]
        assert [0, 0] == [each.returncode for each in tasks], said
        assert attempt == "".join(said).count(
            "9: the job was started again; this attempt is recorded into 9-attempt2"
        )
    assert [2, 2] == [len(Trace.load(tmp_path / name).run.parts) for name in ("9", "9-attempt2")]


# ------------------------------------------------------------------------------------- a real Slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """One node of two tasks."""
    if (why := slurm_cluster.missing()) is not None:
        pytest.skip(why)
    with slurm(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def submit(cluster: Slurm) -> str:
    """The documented script for one's own training, of two tasks of one node."""
    train = f"{sys.executable} {PROGRAMS / 'train_until_requeued.py'} {cluster.folder}"
    export = (
        f"export TMPDIR={temporary_folder(cluster.folder / 'spools')}\nrm -f"
        f" {cluster.folder}/steps-0-*"
    )
    record = (
        f"srun {' '.join(IOPROF)} record --quiet --no-stacks --out runs/$SLURM_JOB_ID -- {train}"
    )
    job = cluster.submit(f"#SBATCH --ntasks=2 --requeue\n{export}\n{record}\n")
    wait_until(lambda: trains(cluster, 0) or cluster.state(job) == "FAILED")
    assert trains(cluster, 0), cluster.log(job)
    return job


def trains(cluster: Slurm, attempt: int) -> bool:
    """Whether both tasks of an attempt have made steps."""
    return all((cluster.folder / f"steps-{attempt}-{rank}").exists() for rank in range(2))


@pytest.mark.system
@needs_library
@pytest.mark.parametrize("how", ["requeue", "hold"])
def test_a_requeued_job_of_slurm_trains_again(cluster, how):
    """Both attempts train, and two runs stand there; a signal of scancel reaches the job."""
    job = submit(cluster)
    cluster("scancel", "--signal=USR1", job)
    wait_until(lambda: all((cluster.folder / f"usr1-0-{rank}").exists() for rank in range(2)))
    if how == "requeue":
        cluster("scontrol", "requeue", job)
    else:
        cluster("scontrol", "requeuehold", job)
        wait_until(lambda: cluster.state(job) in ("PENDING", "REQUEUE_HOLD"))
        cluster("scontrol", "release", job)
    wait_until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), 240)
    runs = cluster.folder / "runs"
    assert "COMPLETED" == cluster.state(job), cluster.log(job)
    assert [f"{job}-attempt2", f"{job}-attempt2.parts", f"{job}.parts"] == sorted(
        name for name in os.listdir(runs) if name.startswith(job) and name != job
    )
    second = ioprof.load(runs / f"{job}-attempt2")
    assert ("complete", 2) == (second.trace.run.status, len(second.trace.run.parts))
    first = runs / job
    if not first.exists():  # ioprof was killed, too, before it had gathered
        subprocess.run(
            [*IOPROF, "gather", str(first)],
            check=True,
            capture_output=True,
            env=cluster.environment,
        )
    assert 2 == len(Trace.load(first).run.parts)
