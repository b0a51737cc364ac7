"""Creates control groups for tests, with cgroup v1 or v2; they are removed with all processes in
them."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_GRACE_S: Final = 10.0

_NAMES: Final = {"memory": ("memory", "memory"), "disk": ("blkio", "io"), "cpu": ("cpu", "cpu")}
"""Names of the controllers in v1 and v2."""


@dataclass(frozen=True)
class ControlGroup:
    """An existing group, empty at first."""

    path: Path
    version: int

    def join(self) -> None:
        """Move the calling process and its future children into the group; for `preexec_fn`."""
        self.write("cgroup.procs", str(os.getpid()))

    def processes(self) -> list[int]:
        """The processes in it."""
        return [int(word) for word in self.read("cgroup.procs").split()]

    def read(self, name: str) -> str:
        """One of its files."""
        return (self.path / name).read_text()

    def write(self, name: str, text: str) -> None:
        """Set one of its files; raises OSError if the kernel refuses."""
        (self.path / name).write_text(text)


def limit_cpu(group: ControlGroup, cores: float, period_us: int = 100_000) -> None:
    """Let a group of the controller "cpu" use so many cores of CPU time, which it also gets on a
    busy machine."""
    quota_us = round(cores * period_us)
    if group.version == 1:
        group.write("cpu.shares", "262144")
        group.write("cpu.cfs_period_us", str(period_us))
        group.write("cpu.cfs_quota_us", str(quota_us))
    else:
        group.write("cpu.weight", "10000")
        group.write("cpu.max", f"{quota_us} {period_us}")


def missing(controller: str) -> str | None:
    """Why a group of that controller ("memory", "disk", "cpu") cannot be created here; None if it
    can."""
    if os.geteuid() != 0:
        return f"a control group for {controller} needs root"
    if _home(controller) is None:
        return (
            f"no cgroup controller for {controller} can be used here: neither"
            f" {' of v1 nor '.join(_NAMES[controller])} of v2"
        )
    return None


@contextmanager
def control_group(controller: str) -> Iterator[ControlGroup]:
    """A new group, with limits below those of this process."""
    home = _home(controller)
    assert home is not None, missing(controller)
    parent, version = home
    group = ControlGroup(parent / f"ioprof-test-{uuid.uuid4().hex[:8]}", version)
    group.path.mkdir()
    try:
        yield group
    finally:
        _end_all(group)
        _remove(group)


def _home(controller: str) -> tuple[Path, int] | None:
    """The folder for new groups, and the version."""
    first, second = _NAMES[controller]
    if (_ROOT / first / "cgroup.procs").exists():
        own = _ROOT / first / _own_group(first).lstrip("/")
        return (own if own.exists() else _ROOT / first), 1
    # A v2 group with processes cannot have child groups with controllers: ours becomes a sibling.
    own = _ROOT / _own_group("").lstrip("/")
    for place in own.parents if own != _ROOT else [_ROOT]:
        with suppress(OSError):
            if second in (place / "cgroup.subtree_control").read_text().split():
                return place, 2
        if place == _ROOT:
            break
    return None


def _own_group(controller: str) -> str:
    """The group of this process, relative to the mount of the controller (man 7 cgroups,
    /proc/PID/cgroup); "" is v2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _end_all(group: ControlGroup) -> None:
    deadline = time.monotonic() + _GRACE_S
    while (left := group.processes()) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _remove(group: ControlGroup) -> None:
    with suppress(OSError):  # remaining pages would keep the removed group in the kernel
        (
            group.write("memory.force_empty", "0")
            if group.version == 1
            else group.write("memory.reclaim", "1T")
        )
    deadline = time.monotonic() + _GRACE_S
    while True:
        try:
            return group.path.rmdir()
        except OSError:  # the last process is still exiting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
