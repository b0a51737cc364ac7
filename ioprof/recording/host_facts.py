"""Facts about this machine and this installation that every run keeps."""

import os
import platform
import resource
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil
import pynvml

from ioprof import __version__
from ioprof.format.run_record import HostRecord

_PACKAGES: Final = ("torch", "numpy", "pillow", "lmdb", "polars", "plotly", "nvidia-dali-cuda120")
_ENVIRONMENT: Final = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMPDIR",
    "SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NTASKS", "PBS_JOBID", "JOB_ID", "LSB_JOBID",
)  # fmt: skip
"""The only variables that a run keeps: others may hold secrets."""


def host_record() -> HostRecord:
    """Name, cores, memory, kernel and GPUs of this host."""
    return HostRecord(
        name=socket.gethostname(),
        cpus=len(os.sched_getaffinity(0)),
        online_cpus=os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        gpus=tuple(gpus()),
    )


class CpuMeter:
    """Measures how much of this host's CPU time other programs used while the meter ran."""

    def __init__(self) -> None:
        self._begin = _cpu_seconds()

    def others_ratio(self, children: Iterable[int | None] = ()) -> float:
        """Share, 0 to 1, of all CPU time since the meter was made that was neither idle nor used by
        this process and its children.

        Time that the hypervisor took away ("steal") counts as used by others. High: the run's rates
        depend on other programs. Children count once they were waited for: those of a process that
        was killed never are, and would count as others. `children` are own ones that still run, by
        pid; None: there is none such.
        """
        busy_s, own_s, all_s = (
            now - then for now, then in zip(_cpu_seconds(), self._begin, strict=True)
        )
        own_s += sum(_cpu_seconds_of(pid) for pid in children if pid is not None)
        return max(0.0, busy_s - own_s) / all_s if all_s > 0 else 0.0


def _cpu_seconds_of(pid: int) -> float:
    """CPU seconds that a process used so far."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system)


def _cpu_seconds() -> tuple[float, float, float]:
    """CPU seconds so far: busy (whole host), own, and all."""
    times = psutil.cpu_times()
    all_s = sum(
        getattr(times, name)
        for name in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    )
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return (
        all_s - times.idle - times.iowait,
        sum(usage.ru_utime + usage.ru_stime for usage in usages),
        all_s,
    )


def num_killed_for_memory() -> int | None:
    """Processes of this host that the kernel has killed for lack of memory since it was started, of
    all control groups (man 5 proc_vmstat, `oom_kill`). None: it does not count them.
    """
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


def gpus() -> list[str]:
    """Names of this host's NVIDIA GPUs; empty where there is no driver, or where it does not
    answer.
    """
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return names


def versions() -> dict[str, str | None]:
    """Versions of ioprof, Python and the libraries that a run depends on; null for one that is not
    installed.
    """
    return {
        "ioprof": __version__,
        "python": sys.version.split()[0],
        **{name: _version(name) for name in _PACKAGES},
    }


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the environment that a run keeps."""
    return {name: environment[name] for name in _ENVIRONMENT if name in environment}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
