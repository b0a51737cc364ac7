"""CPU limits of the control groups that the processes of the job are in, and how often the kernel
enforced them.

A group with a quota may run for that time in each period, on all CPUs together; when it is used up,
all its threads stop until the next period. A limit of a group further up holds as well, so each
group up to the root of what is mounted here is read.

- cgroup v1: `cpu.cfs_quota_us`, `cpu.cfs_period_us`, `cpu.stat`
  (Documentation/scheduler/sched-bwc.rst)
- cgroup v2: `cpu.max`, `cpu.stat` (Documentation/admin-guide/cgroup-v2.rst)
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ioprof.instrument.samplers.readings import read_bytes

_LOOKS_AGAIN_AFTER: Final = 10
"""Samples after which a group without a quota is examined again."""


@dataclass(frozen=True)
class _Mount:
    version: int
    root: str
    """The group that the mount point shows; `/` unless it is the mount of a container."""
    point: str


@dataclass(frozen=True)
class _Group:
    version: int
    folder: str
    name: str
    """Its path in the hierarchy, as far as it is visible here."""


class CpuLimits:
    """Reads quota and throttling of the groups of the job's processes that have a quota."""

    def __init__(self, proc: str = "/proc", read_file: Callable[[str], bytes] = read_bytes) -> None:
        self._proc, self._read_file = proc, read_file
        self._mounts = self._find_mounts()
        self._groups: dict[_Group, bool] = {}
        """All groups of the job, and whether each has a quota."""
        self._samples = 0

    def read(self, new: Iterable[int]) -> dict[str, float]:
        """The current values; `new` are processes that are new or run another program, whose start
        may have moved them.
        """
        for pid in new:
            for group in self._groups_of(pid):
                self._groups.setdefault(group, self._quota(group) is not None)
        self._samples += 1
        if self._samples % _LOOKS_AGAIN_AFTER == 0:
            self._groups = {group: self._quota(group) is not None for group in self._groups}
        found: dict[str, float] = {}
        for group, has_quota in self._groups.items():
            if has_quota:
                found |= self._values(group)
        return found

    def _find_mounts(self) -> dict[int, _Mount]:
        """The hierarchies that control CPU time, by version (man proc_pid_mountinfo)."""
        found: dict[int, _Mount] = {}
        with suppress(OSError, IndexError):
            for line in (
                self._read_file(f"{self._proc}/self/mountinfo")
                .decode(errors="replace")
                .splitlines()
            ):
                before, _, after = line.partition(" - ")
                _, _, _, root, point, *_ = before.split()
                kind, _, options = after.split(" ", 2)
                if kind == "cgroup2":
                    found.setdefault(2, _Mount(2, root, point))
                elif kind == "cgroup" and "cpu" in options.split(","):
                    found.setdefault(1, _Mount(1, root, point))
        return found

    def _groups_of(self, pid: int) -> list[_Group]:
        """The groups that a process is in, up to the root; of v1 if that controls CPU time here
        (man cgroups).
        """
        try:
            lines = (
                self._read_file(f"{self._proc}/{pid}/cgroup").decode(errors="replace").splitlines()
            )
        except OSError:
            return []
        paths = {}
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                paths[2] = path
            elif "cpu" in controllers.split(","):
                paths[1] = path
        version = 1 if 1 in paths and 1 in self._mounts else 2
        if version not in paths or version not in self._mounts:
            return []
        mount = self._mounts[version]
        root = mount.root.rstrip("/")
        path = paths[version]
        # A container without a namespace of its own sees the path of the host, below which nothing
        # is mounted.
        inside = path[len(root) :] if path == root or path.startswith(f"{root}/") else ""
        parts = [part for part in inside.split("/") if part and part != ".."]
        paths_up = ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]
        return [
            _Group(version, f"{mount.point}/{part}".rstrip("/"), f"/{part}") for part in paths_up
        ]

    def _quota(self, group: _Group) -> float | None:
        """In CPUs; None: no limit."""
        with suppress(OSError, ValueError, ZeroDivisionError):
            if group.version == 2:
                quota, period = self._read_file(f"{group.folder}/cpu.max").split()
            else:
                quota, period = (
                    self._read_file(f"{group.folder}/cpu.cfs_{name}_us")
                    for name in ("quota", "period")
                )
            return int(quota) / int(period) if quota != b"max" and int(quota) > 0 else None
        return None

    def _values(self, group: _Group) -> dict[str, float]:
        found: dict[str, float] = {}
        if (quota := self._quota(group)) is not None:
            found["cpu_quota"] = quota
        with suppress(OSError, ValueError):
            stat = dict(
                line.split() for line in self._read_file(f"{group.folder}/cpu.stat").splitlines()
            )
            time_s = (
                int(stat[b"throttled_usec"]) / 1e6
                if b"throttled_usec" in stat
                else int(stat.get(b"throttled_time", 0)) / 1e9
            )
            found |= {
                "cpu_periods": int(stat.get(b"nr_periods", 0)),
                "cpu_throttled_periods": int(stat.get(b"nr_throttled", 0)),
                "cpu_throttled_time": time_s,
            }
        return {f"cgroup.{group.name}.{name}": value for name, value in found.items()}
