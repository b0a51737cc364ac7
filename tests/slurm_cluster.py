"""A real Slurm of one node on this host: munged, slurmctld and slurmd with a configuration of their
own, while a block runs."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs import wait_until

PROGRAMS: Final = ("munged", "slurmctld", "slurmd")
_CONFIGURATION: Final = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
KillWait=20
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# A requeued job is not started before the credential of its last attempt has expired: after 120 s
# by default.


@dataclass(frozen=True)
class Slurm:
    """The cluster; its commands run in `folder`."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, *words: object) -> str:
        """What one of Slurm's commands prints."""
        line = [str(word) for word in words]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=60, cwd=self.folder, env=self.environment
        )
        assert 0 == done.returncode, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str) -> str:
        """Submit a script to sbatch; the number of the job. Its output goes to NUMBER.log."""
        path = self.folder / f"script-{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}")
        return self("sbatch", "--parsable", "--open-mode=append", "--output", "%j.log", path)

    def state(self, job: str) -> str:
        """Of a job: PENDING, RUNNING, COMPLETED, ..."""
        words = self("scontrol", "show", "job", job).split()
        return next(word for word in words if word.startswith("JobState=")).partition("=")[2]

    def log(self, job: str) -> str:
        """The output of all attempts of a job."""
        path = self.folder / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""


def missing() -> str | None:
    """Why there can be no Slurm here."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)}: not installed (apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "the daemons of Slurm need root"


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """A cluster whose files are in `folder`; its daemons end with the block, and the jobs with
    them."""
    place, work = folder / "slurm", folder / "work"
    for each in (place, place / "state", place / "node", work):
        each.mkdir(parents=True)
    place.chmod(0o755)  # munged refuses a socket that not all can reach
    ports = _free_ports()
    names = {
        "host": socket.gethostname(),
        "folder": place,
        "controller_port": ports[0],
        "node_port": ports[1],
    }
    configuration = place / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(**names))
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "SBATCH"))
    }
    cluster = Slurm(work, {**kept, "PATH": _path(), "SLURM_CONF": str(configuration)})
    key = place / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = [f"--{name}-file={place}/munge.{name}" for name in ("key", "pid", "seed", "log")]
    with ExitStack() as daemons:
        daemons.enter_context(
            _daemon(
                cluster,
                "munged",
                "--foreground",
                "--force",
                f"--socket={place}/munge.socket",
                *files,
            )
        )
        wait_until((place / "munge.socket").exists, 20)
        daemons.enter_context(_daemon(cluster, "slurmctld", "-D", "-i", "-f", configuration))
        daemons.enter_context(
            _daemon(cluster, "slurmd", "-D", "-f", configuration, "-N", socket.gethostname())
        )
        wait_until(lambda: "idle" in _answer(cluster, "sinfo", "--noheader", "--format=%T"), 60)
        try:
            yield cluster
        finally:
            for job in _answer(cluster, "squeue", "--noheader", "--format=%i").split():
                _answer(cluster, "scancel", job)
            wait_until(lambda: not _answer(cluster, "squeue", "--noheader", "--format=%i"), 60)


def _answer(cluster: Slurm, *words: str) -> str:
    """What a command prints, also while no controller answers yet."""
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cluster.folder,
        env=cluster.environment,
    )
    return done.stdout.strip()


@contextmanager
def _daemon(cluster: Slurm, *words: object) -> Iterator[None]:
    with (cluster.folder.parent / "slurm" / f"{words[0]}.out").open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in words], stdout=output, stderr=output, env=cluster.environment
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports() -> list[int]:
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
