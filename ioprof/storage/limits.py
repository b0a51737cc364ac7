"""A limit for the memory of a job including its page cache, so that a dataset can be larger than
memory on any machine.

The limit is set by the first of these that this process is permitted:

- cgroup v1: a group below the process's own, `memory.limit_in_bytes` (kernel:
  admin-guide/cgroup-v1/memory).
- cgroup v2: a sibling of the process's own group, or a group further up, where the memory
  controller is delegated: `memory.max` (admin-guide/cgroup-v2). A group that contains processes
  cannot delegate, so the process's own is excluded unless it is the root.
- the user's systemd instance: a slice with `MemoryMax`, in which each process starts as a scope.

A page of a file is charged to the group that touched it first. Pages that were cached before are
not charged to the new group: evict them first.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.storage.kernel_text import Unknown, read_bytes
from ioprof.storage.mounts import Mount, mount_in

PREFIX: Final = "ioprof-"
LEAST_BYTES: Final = 1 << 22
"""The minimum with which a process can start."""
MOST_BYTES: Final = 1 << 60
_TIMEOUT_S: Final = 20


@dataclass(frozen=True)
class ProcessWrapper:
    """How to start a process under the limit."""

    by: str
    """`cgroup v1`, `cgroup v2` or `systemd slice`."""
    name: str
    """Path of the group, or name of the slice."""
    start: str
    """Shell commands that put the shell itself under the limit; a program that it then starts by
    `exec` inherits it."""
    prefix: str = ""
    """Text between `exec` and the program."""

    def script(self, program: str) -> str:
        """A shell script that runs `program` under the limit."""
        begin = f"{self.start}\n" if self.start else ""
        return f'#!/bin/sh\n{begin}exec {self.prefix}{shlex.quote(program)} "$@"\n'


@dataclass(frozen=True)
class Group:
    """A control group that was created for one job."""

    folder: Path
    version: str

    @classmethod
    def create(cls, parent: Path, version: str, limit_bytes: int) -> "Group":
        """Create a group below `parent`; raises OSError where that is not permitted."""
        group = cls(parent / group_name(), version)
        group.folder.mkdir()
        try:
            (
                group.folder / ("memory.limit_in_bytes" if version == "v1" else "memory.max")
            ).write_text(str(limit_bytes))
            if version == "v2":
                with suppress(OSError):  # a kernel without swap accounting
                    (group.folder / "memory.swap.max").write_text("0")
            # File modes do not show whether a process may move there, since the permissions on the
            # whole path count: try it.
            subprocess.run(
                ["/bin/sh", "-c", group.wrapping.start],
                check=True,
                capture_output=True,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            group.remove()
            raise OSError(_error_text(error)) from None
        return group

    @property
    def wrapping(self) -> ProcessWrapper:
        """How to start a process in it."""
        start = f"echo $$ > {shlex.quote(str(self.folder / 'cgroup.procs'))} || exit 1"
        return ProcessWrapper(f"cgroup {self.version}", str(self.folder), start)

    def facts(self) -> dict[str, Any]:
        """The kernel's counters for run.json; None for those that this kernel does not have."""
        if self.version == "v1":
            return {
                "peak_bytes": self._number("memory.max_usage_in_bytes"),
                "page_cache_bytes": self._field("memory.stat", "cache"),
                "times_at_limit": self._number("memory.failcnt"),
                "killed_for_memory": self._field("memory.oom_control", "oom_kill"),
            }
        return {
            "peak_bytes": self._number("memory.peak"),
            "page_cache_bytes": self._field("memory.stat", "file"),
            "times_at_limit": self._field("memory.events", "max"),
            "killed_for_memory": self._field("memory.events", "oom_kill"),
        }

    def remove(self) -> None:
        """Remove the group, if it contains no processes."""
        with suppress(OSError):
            self.folder.rmdir()

    def _number(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self.folder / name).read_text())
        return None

    def _field(self, name: str, key: str) -> int | None:
        with suppress(OSError, ValueError):
            return int(
                dict(line.split()[:2] for line in (self.folder / name).read_text().splitlines())[
                    key
                ]
            )
        return None


@dataclass(frozen=True)
class Slice:
    """A slice of the user's systemd instance."""

    name: str

    @classmethod
    def create(cls, limit_bytes: int) -> "Slice":
        """Create a slice; raises OSError where the user has no systemd instance, or where it may
        not limit memory.
        """
        created = cls(f"{group_name()}.slice")
        properties = f"MemoryMax={limit_bytes}", "MemorySwapMax=0"
        try:
            _run_quietly(
                "systemctl", "--user", "set-property", "--runtime", created.name, *properties
            )
            _run_quietly(*shlex.split(created.wrapping.prefix), "/bin/true")
        except (OSError, subprocess.SubprocessError) as error:
            created.remove()
            raise OSError(_error_text(error)) from None
        return created

    @property
    def wrapping(self) -> ProcessWrapper:
        """How to start a process in it: systemd-run moves itself into a scope, and then executes
        the program.
        """
        prefix = f"systemd-run --user --scope --quiet --collect --slice={self.name} -- "
        return ProcessWrapper("systemd slice", self.name, "", prefix)

    def facts(self) -> dict[str, Any]:
        """None for all counters: systemd removes the slice, with its counters, when its last
        process ends.
        """
        return dict.fromkeys(
            ("peak_bytes", "page_cache_bytes", "times_at_limit", "killed_for_memory")
        )

    def remove(self) -> None:
        """Remove the slice and its properties."""
        with suppress(OSError, subprocess.SubprocessError):
            _run_quietly("systemctl", "--user", "revert", self.name)


@contextmanager
def memory_limit(limit_bytes: int, proc: str = "/proc") -> Iterator[Group | Slice]:
    """A memory limit for a job, removed at the end of the block; `CommandError` says why none is
    possible, and what to type.

    Groups of killed jobs are removed first.
    """
    limited = _create_limit(limit_bytes, proc)
    try:
        yield limited
    finally:
        limited.remove()


def group_name() -> str:
    """The name of this process's group: its pid and start time, which together are unique since the
    boot.
    """
    return f"{PREFIX}{os.getpid()}-{_start_time(os.getpid())}"


def remove_stale_groups(parent: Path) -> list[str]:
    """Remove the groups of killed jobs below `parent`, and return their names; those of running
    jobs stay.
    """
    removed = []
    with suppress(OSError):
        for folder in sorted(parent.glob(f"{PREFIX}*-*")):
            pid, _, start = folder.name.removeprefix(PREFIX).partition("-")
            if pid.isdigit() and start.isdigit() and _start_time(int(pid)) != int(start):
                with suppress(OSError):
                    folder.rmdir()
                    removed.append(folder.name)
    return removed


def _create_limit(limit_bytes: int, proc: str) -> Group | Slice:
    refused = []
    for version, parent in group_parents(proc):
        remove_stale_groups(parent)
        try:
            return Group.create(parent, version, limit_bytes)
        except OSError as error:
            refused.append(f"cgroup {version} {parent}: {error.strerror or error}")
    try:
        return Slice.create(limit_bytes)
    except OSError as error:
        refused.append(f"systemd-run --user: {error.strerror or error}")
    what = "; ".join(refused)
    less, command = (
        f"sbatch --mem={limit_bytes >> 20}M",
        f"systemd-run --scope -p MemoryMax={limit_bytes} ioprof run ...",
    )
    todo = (
        f"leave --memory-limit out, and request less from the scheduler ({less}) or start as root:"
        f" {command}"
    )
    raise CommandError(f"--memory-limit: memory cannot be limited here ({what}); {todo}")


def group_parents(proc: str = "/proc") -> Iterator[tuple[str, Path]]:
    """Version and folder below which a memory group could be created, best first; whether that is
    permitted is not checked.
    """
    mounts, own = _hierarchies(proc), _own_groups(proc)
    for mount in mounts:
        if mount.file_system == "cgroup" and "memory" in mount.options:
            yield "v1", _below(mount, own.get("memory", "/"))
    for mount in mounts:
        if mount.file_system == "cgroup2":
            folder = _below(mount, own.get("", "/"))
            while True:
                delegated = ""
                with suppress(OSError):
                    delegated = (folder / "cgroup.subtree_control").read_text()
                if "memory" in delegated.split():
                    yield "v2", folder
                if Path(mount.point) not in folder.parents:
                    break
                folder = folder.parent


def _hierarchies(proc: str) -> list[Mount]:
    data = read_bytes(Path(proc, "self/mountinfo"))
    mounts = () if isinstance(data, Unknown) else map(mount_in, data.split(b"\n"))
    return [mount for mount in mounts if mount and mount.file_system in ("cgroup", "cgroup2")]


def _own_groups(proc: str) -> dict[str, str]:
    """Controller to path of this process's group; "" is that of cgroup v2 (man cgroups)."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path(proc, "self/cgroup").read_text(errors="replace").splitlines():
            if line.count(":") >= 2:
                _, controllers, path = line.split(":", 2)
                found |= dict.fromkeys(controllers.split(","), path)
    return found


def _below(mount: Mount, group: str) -> Path:
    # In a container the path that the kernel reports may be outside of the mounted part: then the
    # mount point is the group.
    folder = Path(mount.point) / group.lstrip("/")
    return folder if folder.is_dir() else Path(mount.point)


def _start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (man proc_pid_stat, field 22); None if
    there is no such process.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        )
    return None


def _run_quietly(*command: str) -> None:
    subprocess.run(
        command, check=True, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
    )


def _error_text(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {error.returncode}"
    if isinstance(error, OSError):
        return f"{error.filename or ''} {error.strerror or error}".strip()
    return f"no answer for {_TIMEOUT_S} s"
