"""A limit for the memory of a job, its page cache included, so that "larger than memory" can be had on any machine.

What limits it is, in this order, the first that this process is permitted:

- cgroup v1: a group below the process's own, `memory.limit_in_bytes` (kernel: admin-guide/cgroup-v1/memory).
- cgroup v2: a group beside the process's own or above, where memory is delegated: `memory.max` (admin-guide/cgroup-v2). A group
  that holds processes delegates nothing, so the process's own is out of the question unless it is the root.
- the user's own systemd: a slice with `MemoryMax`, in which each process starts as a scope.

A page of a file is charged to the group that touched it first. What was cached before belongs to nobody's limit: evict it first.
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

PREFIX: Final = "ioprof-"
LEAST_BYTES: Final = 1 << 22
"""No process can start in less."""
MOST_BYTES: Final = 1 << 60
_PATIENCE_S: Final = 20


@dataclass(frozen=True)
class Wrapping:
    """How a process comes under the limit."""

    by: str
    """`cgroup v1`, `cgroup v2` or `systemd slice`."""
    name: str
    """Path of the group, or name of the slice."""
    start: str
    """Commands of a shell that put itself under the limit; what it runs by `exec "$@"` then is, too. Ends where exec begins."""
    prefix: str = ""
    """What stands between `exec` and the program."""

    def script(self, program: str) -> str:
        """A shell script that is `program`, under the limit."""
        begin = f"{self.start}\n" if self.start else ""
        return f'#!/bin/sh\n{begin}exec {self.prefix}{shlex.quote(program)} "$@"\n'


@dataclass(frozen=True)
class Group:
    """A control group that was made for one job."""

    folder: Path
    version: str

    @classmethod
    def made(cls, parent: Path, version: str, limit_bytes: int) -> "Group":
        """A new group below `parent`; raises OSError where that is not permitted."""
        group = cls(parent / own_name(), version)
        group.folder.mkdir()
        try:
            (group.folder / group._file("limit_in_bytes", "max")).write_text(str(limit_bytes))
            if version == "v2":
                with suppress(OSError):  # a kernel without swap accounting
                    (group.folder / "memory.swap.max").write_text("0")
            # Whether a process may move there is not to be seen from the modes of files: the way there counts, too.
            subprocess.run(["/bin/sh", "-c", group.wrapping.start], check=True, capture_output=True, timeout=_PATIENCE_S)
        except (OSError, subprocess.SubprocessError) as error:
            group.remove()
            raise OSError(_said(error)) from None
        return group

    @property
    def wrapping(self) -> Wrapping:
        """How a process comes into it."""
        start = f"echo $$ > {shlex.quote(str(self.folder / 'cgroup.procs'))} || exit 1"
        return Wrapping(f"cgroup {self.version}", str(self.folder), start)

    def facts(self) -> dict[str, Any]:
        """What the kernel counted; null for what this kernel does not count."""
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
        """Remove it, if nobody is in it any more."""
        with suppress(OSError):
            self.folder.rmdir()

    def _file(self, v1: str, v2: str) -> str:
        return f"memory.{v1 if self.version == 'v1' else v2}"

    def _number(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self.folder / name).read_text())
        return None

    def _field(self, name: str, key: str) -> int | None:
        with suppress(OSError, ValueError):
            return int(dict(line.split()[:2] for line in (self.folder / name).read_text().splitlines())[key])
        return None


@dataclass(frozen=True)
class Slice:
    """A slice of the user's own systemd."""

    name: str

    @classmethod
    def made(cls, limit_bytes: int) -> "Slice":
        """A new slice; raises OSError where the user has no systemd, or where that may not limit memory."""
        made = cls(f"{own_name()}.slice")
        try:
            _quietly("systemctl", "--user", "set-property", "--runtime", made.name, f"MemoryMax={limit_bytes}", "MemorySwapMax=0")
            _quietly(*shlex.split(made.wrapping.prefix), "/bin/true")
        except (OSError, subprocess.SubprocessError) as error:
            made.remove()
            raise OSError(_said(error)) from None
        return made

    @property
    def wrapping(self) -> Wrapping:
        """How a process comes into it: systemd-run moves itself, and then becomes the program."""
        prefix = f"systemd-run --user --scope --quiet --collect --slice={self.name} -- "
        return Wrapping("systemd slice", self.name, "", prefix)

    def facts(self) -> dict[str, Any]:
        """Nothing: the slice is gone with its last process, and with it what was counted."""
        return dict.fromkeys(("peak_bytes", "page_cache_bytes", "times_at_limit", "killed_for_memory"))

    def remove(self) -> None:
        """Remove it, and its setting."""
        with suppress(OSError, subprocess.SubprocessError):
            _quietly("systemctl", "--user", "revert", self.name)


@contextmanager
def memory_limit(limit_bytes: int, proc: str = "/proc") -> Iterator[Group | Slice]:
    """Something that limits a job's memory while the block lasts; `CommandError` says why nothing can, and what to type.

    What killed jobs of this machine left behind is removed first.
    """
    limited = _made(limit_bytes, proc)
    try:
        yield limited
    finally:
        limited.remove()


def own_name() -> str:
    """The name of this process's group: number and start of the process, so that nobody else bears it after its end."""
    return f"{PREFIX}{os.getpid()}-{_start_of(os.getpid())}"


def remove_left(parent: Path) -> list[str]:
    """Remove the groups of killed jobs below `parent`, and name them; those of jobs that run stay."""
    removed = []
    with suppress(OSError):
        for folder in sorted(parent.glob(f"{PREFIX}*-*")):
            pid, _, start = folder.name.removeprefix(PREFIX).partition("-")
            if pid.isdigit() and start.isdigit() and _start_of(int(pid)) != int(start):
                with suppress(OSError):
                    folder.rmdir()
                    removed.append(folder.name)
    return removed


def _made(limit_bytes: int, proc: str) -> Group | Slice:
    refused = []
    for version, parent in group_parents(proc):
        remove_left(parent)
        try:
            return Group.made(parent, version, limit_bytes)
        except OSError as error:
            refused.append(f"cgroup {version} {parent}: {error.strerror or error}")
    try:
        return Slice.made(limit_bytes)
    except OSError as error:
        refused.append(f"systemd-run --user: {error.strerror or error}")
    what = "; ".join(refused)
    less, command = f"sbatch --mem={limit_bytes >> 20}M", f"systemd-run --scope -p MemoryMax={limit_bytes} ioprof run ..."
    todo = f"leave --memory-limit out, and ask the scheduler for less ({less}) or start as root: {command}"
    raise CommandError(f"--memory-limit: memory cannot be limited here ({what}); {todo}")


def group_parents(proc: str = "/proc") -> Iterator[tuple[str, Path]]:
    """Version, and folder below which a group that limits memory can be made, best first; whether one may is not yet known."""
    mounts, own = _hierarchies(proc), _own_groups(proc)
    for kind, controllers, mount in mounts:
        if kind == "cgroup" and "memory" in controllers:
            yield "v1", _below(mount, own.get("memory", "/"))
    for kind, _, mount in mounts:
        if kind == "cgroup2":
            folder = _below(mount, own.get("", "/"))
            while True:
                if "memory" in _words(folder / "cgroup.subtree_control"):
                    yield "v2", folder
                if folder == mount or mount not in folder.parents:
                    break
                folder = folder.parent


def _hierarchies(proc: str) -> list[tuple[str, list[str], Path]]:
    found = []
    with suppress(OSError):
        for line in Path(proc, "self/mountinfo").read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            words = rest.split()
            if words and words[0] in ("cgroup", "cgroup2") and len(fields.split()) > 4:
                found.append((words[0], words[-1].split(","), Path(fields.split()[4])))
    return found


def _own_groups(proc: str) -> dict[str, str]:
    """Controller to path of this process's group; "" is that of cgroup v2 (man cgroups)."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path(proc, "self/cgroup").read_text(errors="replace").splitlines():
            if line.count(":") >= 2:
                _, controllers, path = line.split(":", 2)
                found |= dict.fromkeys(controllers.split(","), path)
    return found


def _below(mount: Path, group: str) -> Path:
    # In a container the path that the kernel names may lie outside of what is mounted: then the mount is the group.
    folder = mount / group.lstrip("/")
    return folder if folder.is_dir() else mount


def _words(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text().split()
    return []


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did (man proc_pid_stat, field 22); None if there is none."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return None


def _quietly(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)


def _said(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {error.returncode}"
    if isinstance(error, OSError):
        return f"{error.filename or ''} {error.strerror or error}".strip()
    return f"no answer for {_PATIENCE_S} s"
