"""Runs of several hosts: each records a part, and `ioprof gather` merges them; the clock error is
within the stated uncertainty."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from captures import PROGRAMS
from hypothesis import given
from hypothesis import strategies as st
from network_hosts import AHEAD_S, as_host
from polars.testing import assert_frame_equal
from temporary import temporary_folder

import ioprof
from ioprof.analysis.charge.blame import blame
from ioprof.analysis.ranks.stragglers import arrivals
from ioprof.errors import CommandError
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace
from ioprof.ingest.merging import merge_parts
from ioprof.instrument import preload
from ioprof.instrument.span import span
from ioprof.recording import pending_run
from ioprof.recording.parts import name_of_job, own_part, part_folder, parts_folder, whole_of

needs_library = pytest.mark.skipif(
    preload.library() is None, reason="the capture library is not built: no C compiler"
)
IOPROF: Final = [sys.executable, "-m", "ioprof"]
SECOND: Final = 1_000_000_000


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a task: spools under `folder`, and no variables of a launcher except the
    given ones."""
    spools = temporary_folder(folder / "spools")
    left_out = (
        "SLURM_",
        "OMPI_",
        "PMI_",
        "PMIX_",
        "MV2_",
        "PBS_",
        "LSB_",
        "JOB_ID",
        "RANK",
        "WORLD_SIZE",
        "TORCHELASTIC_",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {
        **kept,
        "TMPDIR": str(spools),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **more,
    }


def task(number: int, of: int, job: int = 77) -> dict[str, str]:
    """The variables that srun sets for a task."""
    return {
        "SLURM_PROCID": str(number),
        "SLURM_STEP_NUM_TASKS": str(of),
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
    }


def gather(*arguments: object, **how: Any) -> "subprocess.CompletedProcess[str]":
    """`ioprof gather`."""
    return subprocess.run(
        [*IOPROF, "gather", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        **how,
    )


# ------------------------------------------------------------------------------ two hosts, for real


def can_make_hosts(folder: Path) -> bool:
    """Whether this user and this kernel allow it."""
    try:
        line = [*as_host("elsewhere", folder, ahead_s=5), "hostname"]
        return (
            subprocess.run(line, capture_output=True, text=True, timeout=30).stdout == "elsewhere\n"
        )
    except OSError:
        return False


@dataclass(frozen=True)
class TwoHosts:
    """A job on two hosts: its parts, and the merged run."""

    folder: Path
    said: tuple[str, ...]
    """The output of each `ioprof record`."""
    gathered: "subprocess.CompletedProcess[str]"

    @property
    def parts(self) -> list[Trace]:
        return [Trace.load(self.folder / "run.parts" / name) for name in ("0-node-a", "1-node-b")]

    @property
    def run(self) -> Trace:
        return Trace.load(self.folder / "run")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> TwoHosts:
    """torchrun on two nodes, each under its own `ioprof record` with the same --out, merged."""
    if preload.library() is None:
        pytest.skip("the capture library is not built: no C compiler")
    folder = tmp_path_factory.mktemp("hosts")
    if not can_make_hosts(folder):
        pytest.skip(
            "no hosts can be made here: unshare with a time namespace needs root and Linux 5.6"
        )
    processes = [_record_node(folder, number, name) for number, name in enumerate(AHEAD_S)]
    said = tuple(process.communicate(timeout=200)[0] for process in processes)
    assert [0, 0] == [process.returncode for process in processes], "\n".join(said)
    # the first task has gathered both parts
    assert "complete" == Trace.load(folder / "run").run.status
    return TwoHosts(
        folder, said, gather(folder / "run", "--json", "--force", env=environment(folder))
    )


def _record_node(folder: Path, number: int, name: str) -> "subprocess.Popen[str]":
    port = 10_000 + os.getpid() % 20_000  # below the range of ephemeral ports
    nodes = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
    meet = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    job = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *nodes,
        *meet,
        str(PROGRAMS / "hooked_training.py"),
        "parallel",
    ]
    line = [
        *as_host(name, folder),
        *IOPROF,
        "record",
        "--quiet",
        "--out",
        str(folder / "run"),
        "--",
        *job,
    ]
    how: Any = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "env": environment(folder, **task(number, 2)),
    }
    return subprocess.Popen(line, **how)


@pytest.mark.system(every=4)
def test_each_host_makes_a_part_and_says_what_to_type(two_hosts: TwoHosts) -> None:
    """With the same --out, no host writes into the folder of another; the first merges the run when
    all have ended."""
    assert ["0-node-a", "1-node-b"] == sorted(
        path.name for path in (two_hosts.folder / "run.parts").iterdir()
    )
    for number, said in enumerate(two_hosts.said):
        assert f"part {number} of parts 0 to 1" in said
        assert f"ioprof gather {two_hosts.folder / 'run'}" in said
    assert 0 == two_hosts.gathered.returncode, two_hosts.gathered.stderr
    assert [] == list((two_hosts.folder / "spools").glob("ioprof-*"))


@pytest.mark.system(every=4)
def test_the_run_is_all_that_the_parts_are(two_hosts: TwoHosts) -> None:
    """Every span, sample and process once, with its host; both ranks, and the settings that both
    recorded."""
    run, parts = two_hosts.run, two_hosts.parts
    assert [0, 1] == run.ranks
    columns = [name for name in run.spans.columns if name not in ("start_ns", "end_ns", "file")]
    together = pl.concat(part.spans.select(columns) for part in parts)
    assert_frame_equal(run.spans.select(columns), together, check_row_order=False)
    assert sum(len(part.counters) for part in parts) == len(run.counters)
    assert sum(len(part.run.processes) for part in parts) == len(run.run.processes)
    assert ["node-a", "node-b"] == [host.name for host in run.run.hosts]
    assert {
        "ranks": 2,
        "workers": 1,
        "batch_size": 4,
        "backend": "gloo",
    }.items() <= run.run.config.to_dict().items()
    assert ("complete", 0) == (run.run.status, run.run.exit_code)
    assert [0, 1] == [part.part and part.part.number for part in run.run.parts]
    assert all("hooked_training.py parallel" in part.command for part in run.run.parts)


@pytest.mark.system
def test_the_hosts_clocks_are_off_by_no_more_than_is_said(two_hosts: TwoHosts) -> None:
    """One host is exactly 986,654 s ahead of the other, which no recording contains."""
    clocks = two_hosts.run.run.clocks
    (tie,) = clocks.ties
    assert ("node-b", "node-a", "messages and their collectives") == (tie.clock, tie.to, tie.method)
    at_its_reference = tie.offset_ns
    truth = (AHEAD_S["node-a"] - AHEAD_S["node-b"]) * SECOND
    assert abs(at_its_reference - truth) <= clocks.uncertainty_ns
    assert 0 < clocks.uncertainty_ns < SECOND // 2


@pytest.mark.system
def test_nobody_leaves_a_collective_before_the_last_has_come(two_hosts: TwoHosts) -> None:
    """Impossible times are not shown; the last rank is only named if the clocks are precise
    enough."""
    run = two_hosts.run
    together = run.spans.filter(pl.col("kind") == "comm").drop_nulls("step")
    found = together.group_by("step", "name").agg(
        pl.col("start_ns").max(), pl.col("end_ns").min(), pl.len()
    )
    slack = run.run.clocks.uncertainty_ns + 10_000
    assert 2 == found["len"].max()
    assert (found["end_ns"] + slack >= found["start_ns"]).all()
    arrived = arrivals(run)
    waited = (arrived["complete_ns"] - arrived["own_ns"]).to_numpy()
    assert ((waited == 0) | (waited > run.run.clocks.uncertainty_ns)).all()


@pytest.mark.system
def test_the_analysis_of_the_whole_adds_up(two_hosts: TwoHosts) -> None:
    """Exactly, for each rank and step; the output of gather agrees with the run folder."""
    steps = blame(two_hosts.run)
    assert {0: 12, 1: 12} == dict(steps.group_by("rank").len().rows())
    for row in steps.iter_rows(named=True):
        assert row["end_ns"] - row["start_ns"] == sum(row[f"{cause}_ns"] or 0 for cause in CAUSES)
    assert json.loads(two_hosts.gathered.stdout) == json.loads(
        (two_hosts.folder / "run" / "summary.json").read_text()
    )


@pytest.mark.system
def test_two_containers_of_one_host_have_one_clock(two_hosts: TwoHosts) -> None:
    """With the same boot id, as the namespaces of one kernel have, there is no uncertainty."""
    parts = [
        Trace(part.run.replace(clocks=part.run.clocks.replace(kernel="one")), part.spans)
        for part in two_hosts.parts
    ]
    clocks = merge_parts(parts, "run").run.clocks
    truth = (AHEAD_S["node-a"] - AHEAD_S["node-b"]) * SECOND
    assert (truth, 0) == (clocks.ties[0].offset_ns, clocks.uncertainty_ns)


@pytest.mark.system
def test_page_faults_are_on_the_hosts_clock(two_hosts: TwoHosts) -> None:
    """Their times are on the clock of the kernel, not of the namespace; in the run they agree with
    all other spans."""
    for part in two_hosts.parts:
        spans = part.spans.filter(pl.col("kind") == "fault")
        if not len(spans):
            continue
        others = part.spans.filter(pl.col("kind") != "fault")
        assert spans["start_ns"].min() >= others["start_ns"].min() - 60 * SECOND  # type: ignore[operator]
        assert spans["end_ns"].max() <= others["end_ns"].max() + 60 * SECOND  # type: ignore[operator]


@pytest.mark.system(every=4)
def test_a_part_that_is_missing_is_waited_for(two_hosts: TwoHosts, tmp_path: Path) -> None:
    """The launcher sets their number; to merge without the missing ones, the existing ones must be
    given."""
    shutil.copytree(
        two_hosts.folder / "run.parts" / "0-node-a", tmp_path / "run.parts" / "0-node-a"
    )
    ended = gather(tmp_path / "run.parts", env=environment(tmp_path))
    assert (2, 1) == (ended.returncode, len(ended.stderr.splitlines()))
    assert "there is no part 1" in ended.stderr
    going_on = gather(
        tmp_path / "run.parts" / "0-node-a",
        tmp_path / "run.parts" / "0-node-a",
        env=environment(tmp_path),
    )
    assert "--out RUN" in going_on.stderr
    named = gather(
        *(two_hosts.folder / "run.parts" / name for name in ("1-node-b", "0-node-a")),
        "--out",
        tmp_path / "by-name",
        "--json",
    )
    assert 0 == named.returncode, named.stderr
    assert_frame_equal(two_hosts.run.spans, Trace.load(tmp_path / "by-name").spans)


@pytest.mark.system
def test_a_run_that_was_gathered_is_not_overwritten(two_hosts: TwoHosts) -> None:
    """Like any other run; the parts remain until they are removed manually."""
    ended = gather(two_hosts.folder / "run")
    assert (2, True) == (ended.returncode, "--force" in ended.stderr)


# -------------------------------------------------------------------------------- where a part goes


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (task(1, 4), (1, 4, "SLURM_JOB_ID=77 step 0")),
        # the script of the job, which runs once
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),
        (task(0, 1), None),
        (task(4, 4), None),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", **task(0, 2)}, (1, 2, "SLURM_JOB_ID=77 step 0")),  # noqa: E501
        # mpirun -n 1 within a step
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", **task(0, 2)}, None),
        ({"PMI_SIZE": "2", "PMI_RANK": "0", "PBS_JOBID": "9.host"}, (0, 2, "PBS_JOBID=9.host")),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, (0, 2, None)),
        # torchrun
        ({"WORLD_SIZE": "4", "RANK": "3", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, (3, 4, None)),  # noqa: E501
        ({"JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "1", "LSB_JOBID": "5"}, (1, 2, "LSB_JOBID=5")),  # noqa: E501
        ({"WORLD_SIZE": "2", "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, (0, 2, None)),
        ({"PMI_SIZE": "two", "PMI_RANK": "0"}, None),
        ({"PMI_SIZE": "9" * 400, "PMI_RANK": "0"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_task_is_known_by_its_launchers_word(
    variables: dict[str, str], expected: tuple[Any, ...] | None
) -> None:
    """The numbers of srun and mpirun, those of mpirun first; a command that was started once is the
    whole run."""
    part = own_part(variables)
    assert expected == (None if part is None else (part.number, part.of, part.job))
    job = name_of_job(variables)
    assert job == (
        expected[2].replace("=", "-").replace(" ", "-") if expected and expected[2] else None
    )


@given(st.integers(0, 5), st.integers(0, 5), st.sampled_from(["run", "runs/a", "/tmp/x.y", "."]))
def test_no_two_tasks_share_a_folder(one: int, two: int, out: str) -> None:
    """The folder of the parts refers to the run."""
    folders = [
        part_folder(Path(out), part) for number in (one, two) if (part := own_part(task(number, 6)))
    ]
    assert (one == two) == (folders[0] == folders[1])
    assert Path(out).resolve() == whole_of(folders[0].parent) == whole_of(parts_folder(Path(out)))


@pytest.mark.job(every=4)
@needs_library
def test_two_recordings_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    """Hosts without a launcher and with the same --out at the same time: one records, the other is
    refused with the command to use."""
    line = [
        *IOPROF,
        "record",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
        "--",
        "cat",
        "/etc/passwd",
    ]
    how: Any = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": environment(tmp_path),
    }
    processes = [subprocess.Popen(line, **how) for _ in range(3)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [0, 2, 2] == sorted(process.returncode for process in processes), said
    assert 2 == sum("--out" in text for text in said)
    assert "complete" == Trace.load(tmp_path / "run").run.status
    assert [] == list((tmp_path / "spools").glob("ioprof-*"))


@pytest.mark.job
def test_who_comes_late_to_a_folder_leaves_the_run_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is delayed after finding the folder free while another one records into it, it is
    refused and removes nothing."""
    claim, out = pending_run._claim, tmp_path / "run"

    def late(folder: Path, *of_spool: object) -> None:
        monkeypatch.setattr(pending_run, "_claim", claim)
        with ioprof.profile(out), span("decode"):
            pass
        claim(folder, *of_spool)

    monkeypatch.setattr(pending_run, "_claim", late)
    with (
        pytest.raises(
            CommandError, match="exists; choose another --out, or replace it with --force"
        ),
        ioprof.profile(out),
    ):
        pass
    assert 1 == len(Trace.load(out).spans.filter(kind="decode"))
    assert not pending_run.is_pending(out)


@contextmanager
def recording(folder: Path, number: int, of: int) -> Iterator["subprocess.Popen[str]"]:
    """A part whose recording is in progress and has reads."""
    line = [
        *IOPROF,
        "record",
        "--quiet",
        "--out",
        str(folder / "run"),
        "--",
        sys.executable,
        "-c",
        "print(len(open('/etc/passwd').read()), flush=True); input()",
    ]
    how: Any = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "text": True,
        "env": environment(folder, **task(number, of)),
    }
    with subprocess.Popen(line, **how) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        if process.poll() is None:
            process.communicate("\n", timeout=60)


@pytest.mark.job(every=4)
@needs_library
def test_a_part_whose_ioprof_was_killed_is_completed(tmp_path: Path) -> None:
    """While it is recorded, gather refuses, and --force does not take its folder; afterwards gather
    completes and merges it."""
    ended = subprocess.run(
        [*IOPROF, "record", "--quiet", "--out", str(tmp_path / "run"), "--", "cat", "/etc/group"],
        env=environment(tmp_path, **task(0, 2)), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert 0 == ended.returncode, ended.stderr
    with recording(tmp_path, 1, 2) as process:
        waiting = gather(tmp_path / "run", env=environment(tmp_path))
        assert (2, True) == (
            waiting.returncode,
            f"recorded by process {process.pid}" in waiting.stderr,
        ), waiting.stderr
        host = os.uname().nodename
        own = [
            *IOPROF,
            "record",
            "--force",
            "--out",
            str(tmp_path / "run.parts" / f"1-{host}"),
            "--",
            "true",
        ]
        refused = subprocess.run(
            own, capture_output=True, text=True, timeout=60, env=environment(tmp_path)
        )
        assert (2, True) == (
            refused.returncode,
            f"process {process.pid} records into it" in refused.stderr,
        ), refused.stderr
        process.kill()
        process.wait()
    done = gather(tmp_path / "run", "--json", env=environment(tmp_path))
    assert 0 == done.returncode, done.stderr
    run = Trace.load(tmp_path / "run")
    assert {"/etc/passwd", "/etc/group"} <= set(run.files["path"].to_list())
    assert ("failed", 1) == (run.run.status, len(run.run.failures))
    assert f"(on {host}, task 1)" in run.run.failures[0].what
    assert 0 == run.run.clocks.uncertainty_ns  # two tasks of one host
    assert 1 == len(run.run.hosts)
