"""Jobs of several hosts and launchers: ranks find each other, clocks are compared, parts are
gathered."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from captures import PROGRAMS
from network_hosts import ADDRESSES, AHEAD_S, linked_hosts, on_host
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import ROOT
from temporary import temporary_folder

from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, empty_table
from ioprof.ingest.clocks.clock_messages import read_clock_messages
from ioprof.ingest.clocks.clock_offset import Clock, estimate_offset
from ioprof.instrument import preload
from ioprof.jobs.tasks import local_variables
from ioprof.model.extrapolation.whole import asked_of
from ioprof.report.run import Run
from ioprof.train.accelerators.emulated import gradient_buckets
from ioprof.train.accelerators.exchange import Exchange
from ioprof.train.devices import emulated_device
from ioprof.train.models import MODELS

IOPROF: Final = [sys.executable, "-m", "ioprof"]
RATE_MBIT: Final = 200.0
LATE_S: Final = 0.06
SECOND: Final = 1_000_000_000
LAUNCHERS: Final = (
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MV2_",
    "PBS_",
    "LSB_",
    "JSM_",
    "JOB_ID",
    "RANK",
    "WORLD_",
    "LOCAL_",
    "TORCHEL",
)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """That of a task: spools under `folder`, and no variables of a launcher but those that are
    given."""
    spools = temporary_folder(folder / "spools")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return {**kept, "TMPDIR": str(spools), "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}


def srun(number: int, of: int) -> dict[str, str]:
    """The variables of a task of srun, two tasks per host."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(number),
        "SLURM_STEP_NUM_TASKS": str(of),
        "SLURM_LOCALID": str(number % 2),
        "SLURM_NTASKS_PER_NODE": str(of // 2),
    }


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    """Two hosts with a link of so many megabits per second."""
    with linked_hosts(RATE_MBIT) as why:
        if why is not None:
            pytest.skip(why)
        yield


def start(line: list[str], variables: dict[str, str]) -> "subprocess.Popen[str]":
    """A task of a launcher."""
    how: Any = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "stdin": subprocess.DEVNULL,
    }
    return subprocess.Popen(line, env=variables, **how)


def ended(tasks: list["subprocess.Popen[str]"]) -> list[str]:
    """What the tasks printed; all must have ended well."""
    said = [task.communicate(timeout=240)[0] for task in tasks]
    assert [0] * len(tasks) == [task.returncode for task in tasks], "\n".join(said)
    return said


# ---------------------------------------------------------------------------------------- two hosts


@pytest.fixture(scope="module")
def four_ranks(hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of four ranks on two hosts, each rank a task of srun under `ioprof record`; the
    last one is slow."""
    if preload.library() is None:
        pytest.skip("the capture library is not built: no C compiler")
    folder = tmp_path_factory.mktemp("cluster")
    meet = {
        "MASTER_ADDR": ADDRESSES["node-a"],
        "MASTER_PORT": "29511",
        "GLOO_SOCKET_IFNAME": "link0",
    }
    job = [*IOPROF, "record", "--no-stacks", "--out", str(folder / "run"), "--", sys.executable]
    job += [str(PROGRAMS / "train_on_hosts.py"), "40", str(LATE_S)]
    nodes = ("node-a", "node-a", "node-b", "node-b")
    ended(
        [
            start([*on_host(node, folder), *job], environment(folder, **srun(rank, 4), **meet))
            for rank, node in enumerate(nodes)
        ]
    )
    return folder / "run"


@pytest.mark.system(every=3)
def test_the_first_task_gathers_what_all_hosts_recorded(four_ranks: Path) -> None:
    """One run of four ranks on two hosts, without another command."""
    run = Trace.load(four_ranks)
    assert [0, 1, 2, 3] == run.ranks
    assert ["node-a", "node-b"] == [host.name for host in run.run.hosts]
    assert ("complete", 4) == (run.run.status, len(run.run.parts))


@pytest.mark.system(every=3)
def test_clocks_are_compared_by_messages_and_their_error_is_within_the_uncertainty(
    four_ranks: Path,
) -> None:
    """One host is exactly 986,654 s ahead of the other, which no recording contains."""
    clocks = Trace.load(four_ranks).run.clocks
    ties = {tie.clock: tie for tie in clocks.ties}
    truth = (AHEAD_S["node-a"] - AHEAD_S["node-b"]) * SECOND
    far = [tie for name, tie in ties.items() if name and name.startswith("node-b")]
    assert far
    for tie in far:
        assert tie.method == "messages and their collectives"
        assert abs(tie.offset_ns - truth) <= tie.uncertainty_ns
        # 40 to 70 us were seen; a busy machine lengthens every round trip
        assert tie.uncertainty_ns <= 250_000


@pytest.mark.system(every=3)
def test_the_slow_rank_is_named(four_ranks: Path) -> None:
    """The others wait for rank 3 in the exchange, on whichever host they are."""
    summary = json.loads((four_ranks / "summary.json").read_text())
    (waited,) = [entry for entry in summary["steps"]["causes"] if entry["cause"] == "straggler"]
    assert waited["share"] > 0.3
    assert waited["details"][0]["name"].startswith("rank 3")


@on_a_quiet_machine
def test_an_all_reduce_has_the_bandwidth_of_the_link(hosts: None, tmp_path: Path) -> None:
    """`probe --network` in a task on each host: 2L(p-1)/p / t is within 15 % of what the link
    gives, printed by one task."""
    line = [*IOPROF, "probe", str(tmp_path), "--network", "--json"]
    tasks = [
        start([*on_host(node, tmp_path), *line], environment(tmp_path, **srun(rank, 2)))
        for rank, node in enumerate(AHEAD_S)
    ]
    first, second = ended(tasks)
    found = json.loads(first)
    assert "" == second
    assert (2, "gloo") == (found["ranks"], found["backend"])
    link = RATE_MBIT * 1e6 / 8
    with comparing_times():
        for kind in ("messages", "all_reduces"):
            assert 0.85 * link <= found[kind][-1]["bytes_per_s"] <= 1.05 * link, found


@pytest.mark.system(every=3)
def test_emulated_devices_of_two_hosts_exchange_at_one_time(hosts: None, tmp_path: Path) -> None:
    """Each host has a clock of its own, far from the other's; an exchange ends on both at once, and
    takes its scheme's time."""
    line = [
        *IOPROF,
        "run",
        "--loader",
        "null",
        "--device",
        "emulated:p100",
        "--batch-size",
        "8",
        "--steps",
        "12",
        "--no-stacks",
    ]
    line += ["--ranks-per-node", "1", "--out", str(tmp_path / "run")]
    ended(
        [
            start([*on_host(node, tmp_path), *line], environment(tmp_path, **srun(rank, 2)))
            for rank, node in enumerate(AHEAD_S)
        ]
    )
    trace = Trace.load(tmp_path / "run")
    assert ["node-a", "node-b"] == [host.name for host in trace.run.hosts]
    exchanges = (
        trace.spans.filter(
            pl.col("kind") == "comm", pl.col("name").cast(pl.String).str.starts_with("gradients")
        )
        .group_by("step", "name")
        .agg(
            pl.len(),
            pl.col("start_ns").max(),
            first_ns=pl.col("end_ns").min(),
            last_ns=pl.col("end_ns").max(),
            bytes=pl.col("bytes").first(),
        )
    )
    plan = Exchange("ring", 2, 1, emulated_device("emulated:p100", MODELS["resnet50"]).links)
    # of the device's own comparison of clocks, before the first step
    unsure_ns = trace.run.uncertainty_ns + 500_000
    assert 12 * len(gradient_buckets(MODELS["resnet50"].gradient_bytes)) == len(
        exchanges.filter(pl.col("len") == 2)
    )
    for _, _, _, start_ns, first_ns, last_ns, num_bytes in exchanges.iter_rows():
        assert last_ns - first_ns <= unsure_ns
        assert abs(first_ns - start_ns - plan.seconds(num_bytes) * SECOND) <= unsure_ns


# ---------------------------------------------------------------------------------------- launchers


def openmpi(number: int) -> dict[str, str]:
    """mpirun of Open MPI in a job of PBS."""
    mine = {"OMPI_COMM_WORLD_RANK": str(number), "OMPI_COMM_WORLD_LOCAL_RANK": str(number)}
    return {
        "PBS_JOBID": "9.head",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        **mine,
    }


def intel_mpi(number: int) -> dict[str, str]:
    """mpirun of Intel MPI or MPICH in a job of AGE, which was started by a step of one task."""
    mine = {"PMI_RANK": str(number), "MPI_LOCALRANKID": str(number)}
    return {"JOB_ID": "31", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", **mine}


def jsrun(number: int) -> dict[str, str]:
    """jsrun in a job of LSF."""
    mine = {"JSM_NAMESPACE_RANK": str(number), "JSM_NAMESPACE_LOCAL_RANK": str(number)}
    return {"LSB_JOBID": "5", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_LOCAL_SIZE": "2", **mine}


JOB: Final = [
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


@pytest.mark.system(every=3)
@pytest.mark.parametrize("launcher", [openmpi, intel_mpi, jsrun])
def test_each_task_is_a_rank(launcher: Any, tmp_path: Path) -> None:
    """Two tasks find each other without any address, and the first makes the run of both."""
    line = [*IOPROF, *JOB, "--out", str(tmp_path / "run")]
    first, second = ended(
        [start(line, environment(tmp_path, **launcher(number))) for number in range(2)]
    )
    run = Trace.load(tmp_path / "run")
    assert ([0, 1], 2, "complete") == (run.ranks, run.run.config.ranks, run.run.status)
    assert {0: 4, 1: 4} == dict(run.spans.filter(kind="step").group_by("rank").len().rows())
    assert ("What to change" in first, "What to change" in second) == (True, False)
    assert 1 == len({part.part.job for part in run.run.parts if part.part})


@pytest.mark.system(every=3)
def test_torchrun_starts_the_tasks(tmp_path: Path) -> None:
    """The real torchrun: its variables count, and its store is used."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
    ]
    ended(
        [start([*launcher, "ioprof", *JOB, "--out", str(tmp_path / "run")], environment(tmp_path))]
    )
    assert [0, 1] == Trace.load(tmp_path / "run").ranks


@pytest.mark.system(every=4)
def test_the_pods_of_the_example_for_kubernetes_are_gathered(tmp_path: Path) -> None:
    """The command of docs/clusters.md, as each of its pods starts it, but for names that only the
    cluster has."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    text = (ROOT / "docs" / "clusters.md").read_text()
    block = text.split("<!-- kubernetes -->")[1].split("<!-- end kubernetes -->")[0]
    job = yaml.safe_load(block.strip().removeprefix("```yaml").removesuffix("```"))
    [container] = job["spec"]["template"]["spec"]["containers"]
    train = tmp_path / "train.py"
    train.write_text(
        (PROGRAMS / "train_on_hosts.py")
        .read_text()
        .replace('"SLURM_PROCID"', '"RANK"')
        .replace('"SLURM_STEP_NUM_TASKS"', '"WORLD_SIZE"')
    )
    [command] = container["args"]
    for name, here in (
        ("torchrun", f"{sys.executable} -m torch.distributed.run"),
        ("/runs", str(tmp_path)),
        ("mine-0.mine", "127.0.0.1"),
        ("29500", str(free_port())),
        ("train.py", f"{train} 8 0"),
    ):
        assert name in command
        command = command.replace(name, here)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended(
        [
            start(
                [*container["command"], command],
                environment(tmp_path, JOB_COMPLETION_INDEX=str(index), PATH=path),
            )
            for index in range(job["spec"]["completions"])
        ]
    )
    gather = [*IOPROF, "gather", str(tmp_path / "mine.parts"), "--out", str(tmp_path / "mine")]
    ended([start(gather, environment(tmp_path))])
    run = Run.load(tmp_path / "mine")
    steps = run.trace.spans.filter(pl.col("kind") == "step").group_by("rank").len()
    assert {0: 8, 1: 8} == dict(steps.rows())


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _steps_made(folder: Path) -> list[int]:
    """By each task so far."""
    made = [path.stat().st_size for path in (folder / "spools").glob("ioprof-*/progress")]
    return sorted(made) if len(made) == 2 else []


@pytest.mark.system(every=3)
def test_a_lost_task_leaves_the_parts_of_the_others(tmp_path: Path) -> None:
    """The ioprof of one task is killed, and its rank with it; what both recorded until then is in
    the run."""
    line = [
        *IOPROF,
        *(part if part != "4" else "4000" for part in JOB),
        "--out",
        str(tmp_path / "run"),
    ]
    tasks = [start(line, environment(tmp_path, **openmpi(number))) for number in range(2)]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and _steps_made(tmp_path) < [5, 5]:
        time.sleep(0.1)
    made = _steps_made(tmp_path)
    tasks[1].send_signal(signal.SIGKILL)
    tasks[1].communicate(timeout=60)
    if made < [5, 5]:  # it would wait for minutes for a second rank
        tasks[0].kill()
    said = tasks[0].communicate(timeout=200)[0]
    assert made >= [5, 5], (made, said)
    assert 1 == tasks[0].returncode, said
    run = Trace.load(tmp_path / "run")
    assert ([0, 1], "failed", 2) == (run.ranks, run.run.status, len(run.run.parts))
    assert any("ioprof was killed" in failure.what for failure in run.run.failures)


@pytest.mark.system(every=3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks", "3"], "the launcher started 2 tasks, each a rank; leave --ranks out"),
        (["--loader", "files"], "several tasks cannot make one"),
        (["--global-batch-size", "7"], "give one of them, not both"),
    ],
)
def test_what_tasks_cannot_share_is_refused(
    options: list[str], message: str, tmp_path: Path
) -> None:
    """Before the job, by every task."""
    task = start(
        [*IOPROF, *JOB, "--out", str(tmp_path / "run"), *options],
        environment(tmp_path, **openmpi(0)),
    )
    said = task.communicate(timeout=60)[0]
    assert (2, True) == (task.returncode, message in said), said


@pytest.mark.system(every=3)
def test_local_ranks_are_those_of_the_launcher() -> None:
    """For the GPU that a rank takes."""
    assert (
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        == local_variables(openmpi(1))
        == local_variables(intel_mpi(1))
    )
    assert {"LOCAL_RANK": "1"} == local_variables({"SLURM_LOCALID": "1"})
    assert {} == local_variables({"SLURM_JOB_ID": "1"})


@pytest.mark.system(every=3)
@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_launchers_of_libraries_start_ranks(library: str, tmp_path: Path) -> None:
    """Lightning starts its script again, accelerate forks: both ranks are recorded, with all of
    their steps."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    line = [
        *IOPROF,
        "record",
        "--quiet",
        "--no-stacks",
        "--out",
        str(tmp_path / "run"),
        "--",
        sys.executable,
    ]
    said = ended(
        [start([*line, str(PROGRAMS / "train_launched.py"), library], environment(tmp_path))]
    )
    run = Trace.load(tmp_path / "run")
    assert ([0, 1], 2, "gloo") == (run.ranks, run.run.config.ranks, run.run.config.backend), said
    assert {0: 6, 1: 6} == dict(run.spans.filter(kind="step").group_by("rank").len().rows())


# ------------------------------------------------------------------------------------------- clocks


@pytest.mark.system(every=3)
def test_a_rank_that_ends_slowly_outlives_the_store(tmp_path: Path) -> None:
    """A thread that waited for the store while the interpreter ended would abort the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [*IOPROF, "record", "--quiet", "--out", "run", "--", "sh", "-c"]
    program = f"{sys.executable} {PROGRAMS / 'ends_apart.py'}"
    script = f"{program} 0 {port} & {program} 1 {port}; one=$?; wait $!; exit $((one + $?))"
    ended = subprocess.run(
        [*command, script],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert 0 == ended.returncode, ended.stderr


@pytest.mark.system(every=3)
def test_messages_bound_offset_and_drift(tmp_path: Path) -> None:
    """Round trips of any length over an hour, of clocks that drift by 20 ppm: the true offset is
    within the uncertainty."""
    drift, ahead, times = 20e-6, 10**15, []
    for number in range(61):
        at_ns = number * 60 * SECOND
        there_ns, back_ns = (
            40_000 + (number * 7919) % 3_000_000,
            50_000 + (number * 104_729) % 2_000_000,
        )
        times.append(
            (at_ns, round((at_ns + there_ns) * (1 + drift)) + ahead, at_ns + there_ns + back_ns)
        )
    line = {"host": "b", "kernel": "two", "shift_ns": 0}
    (tmp_path / "clocks-a-7.jsonl").write_text(
        "\n".join(json.dumps({**line, "messages": [each]}) for each in times) + "\n{"
    )
    (known,) = read_clock_messages(tmp_path)
    nothing = empty_table(SPAN_COLUMNS).with_columns(last_enter_ns=0, first_leave_ns=0)
    found = estimate_offset(
        Clock("a", kernel="one"), nothing, Clock("b", kernel="two"), nothing, known.times
    )
    assert ("a", "b", 61, "messages") == (known.by, known.host, found.messages, found.method)
    assert found.uncertainty_ns is not None
    for at_ns, _, _ in times:
        assert (
            abs(found.to_first(round(at_ns * (1 + drift)) + ahead) - at_ns)
            <= found.uncertainty_ns
            < 1_500_000
        )


@pytest.mark.system(every=3)
def test_nothing_is_predicted_unless_it_was_asked_for(tmp_path: Path) -> None:
    """A run without `--predict-epochs` has no prediction."""
    from timeline import timeline

    assert asked_of(Run.of(timeline("step 0000 1111\ncompute ..00 ..11"))) is None
