"""Simulated slow storage: a throttled disk, and a limit for the page cache. Both need root, and
report what is missing.

A rule of `blkio.throttle` (cgroup v1) or `io.max` (v2) on a loop device limits the rate of buffered
readers, page-cache hits excepted (kernel documentation, cgroup-v1/blkio-controller), because a read
is submitted by the task that reads. It passes requests in bursts: correct for bytes per second, but
not for the latency of a read, for which `fuse_server` exists.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import control_groups
import numpy as np
import pytest
from control_groups import ControlGroup, control_group

READ_AHEAD_KB: Final = 128
_MAKE: Final = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}
_LEAST_BYTES: Final = {"ext4": 1 << 20, "xfs": 320 << 20}
"""Minimum size of mkfs.xfs: 300 MiB."""


@dataclass(frozen=True)
class ThrottledDisk:
    """A mounted file system on a loop device."""

    path: Path
    device: str
    group: ControlGroup

    def throttle(self, bytes_per_s: int) -> None:
        """Limit the readers of the group to that rate from now on; 0 removes the limit."""
        if self.group.version == 1:
            self.group.write("blkio.throttle.read_bps_device", f"{self._number} {bytes_per_s}\n")
        else:
            self.group.write("io.max", f"{self._number} rbps={bytes_per_s or 'max'}\n")

    def join(self) -> None:
        """Throttle the calling process and its future children; for `preexec_fn`."""
        self.group.join()

    def read_bytes(self) -> int:
        """Bytes that the group has read from the device, by the counters of the kernel."""
        name = "blkio.throttle.io_service_bytes" if self.group.version == 1 else "io.stat"
        for line in self.group.read(name).splitlines():
            number, *words = line.replace("rbytes=", "Read ").split()
            if number == self._number and "Read" in words:
                return int(words[words.index("Read") + 1])
        return 0

    @property
    def _number(self) -> str:
        return Path("/sys/class/block", Path(self.device).name, "dev").read_text().strip()


@dataclass(frozen=True)
class BoundedMemory:
    """A group whose processes and page cache together stay below a limit."""

    limit_bytes: int
    group: ControlGroup

    def join(self) -> None:
        """Apply the limit to the calling process and its future children; for `preexec_fn`."""
        self.group.join()

    def most_used_bytes(self) -> int:
        """Peak memory of the group, including its page cache."""
        return int(
            self.group.read(
                "memory.max_usage_in_bytes" if self.group.version == 1 else "memory.peak"
            )
        )

    def cached_bytes(self) -> int:
        """Page cache charged to the group now."""
        wanted = "cache" if self.group.version == 1 else "file"
        sizes = dict(line.split() for line in self.group.read("memory.stat").splitlines())
        return int(sizes[wanted])


def missing(file_system: str = "ext4") -> str | None:
    """What this machine lacks for a throttled disk; None if nothing."""
    if os.geteuid() != 0:
        return "a throttled disk needs root"
    if reason := control_groups.missing("disk"):
        return reason
    for tool in ("losetup", _MAKE[file_system][0], "mount", "umount"):
        if not shutil.which(tool):
            return f"a throttled disk needs {tool}"
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "a throttled disk needs a free loop device"
    return None


@contextmanager
def throttled_disk(
    folder: Path, size_bytes: int = 256 << 20, file_system: str = "ext4", bytes_per_s: int = 0
) -> Iterator[ThrottledDisk]:
    """A disk of that size on a file in `folder`, throttled to that rate for processes that join it;
    0: not throttled yet.

    Skips the test if this is not permitted; unmounted and removed at the end, even if it is in use.
    """
    if reason := missing(file_system):
        pytest.skip(reason)
    with _loop_device(folder / "disk.img", max(size_bytes, _LEAST_BYTES[file_system])) as device:
        _run(*_MAKE[file_system], device)
        with _mounted(device, folder / "disk") as path, control_group("disk") as group:
            disk = ThrottledDisk(path, device, group)
            if bytes_per_s:
                disk.throttle(bytes_per_s)
            yield disk


@contextmanager
def bounded_memory(limit_bytes: int) -> Iterator[BoundedMemory]:
    """A group for child processes with a limit for memory and page cache. Skips the test if this is
    not permitted.

    A page is charged to the group that accessed it first: pages cached by others are not counted,
    so evict them before.
    """
    if reason := control_groups.missing("memory"):
        pytest.skip(reason)
    with control_group("memory") as group:
        group.write(
            "memory.limit_in_bytes" if group.version == 1 else "memory.max", str(limit_bytes)
        )
        yield BoundedMemory(limit_bytes, group)


def evict(folder: Path) -> None:
    """Write the files of `folder` back and drop them from the page cache."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextmanager
def in_memory(*places: Path) -> Iterator[None]:
    """Keep these files, and those of these folders, in the page cache by mlock, since a kernel that
    reclaims proactively evicts pages that have not been read for seconds. Skips the test if so much
    may not be locked."""
    paths = sorted(
        path
        for place in places
        for path in (place, *place.rglob("*"))
        if path.is_file() and path.stat().st_size
    )
    library = ctypes.CDLL(None, use_errno=True)
    files = [np.memmap(path, mode="r") for path in paths]
    for file in files:
        if library.mlock(ctypes.c_void_p(file.ctypes.data), ctypes.c_size_t(file.size)):
            pytest.skip(
                f"{file.filename} cannot be locked in memory: {os.strerror(ctypes.get_errno())}"
            )
    yield
    del file, files  # unmapping also unlocks


@contextmanager
def _loop_device(image: Path, size_bytes: int) -> Iterator[str]:
    """A loop device on a new file, with direct I/O, since data would otherwise be cached twice."""
    with open(image, "wb") as stream:
        stream.truncate(size_bytes)
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", str(image)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        image.unlink()
        pytest.skip(f"a loop device with direct I/O is refused: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        Path("/sys/class/block", Path(device).name, "queue/read_ahead_kb").write_text(
            str(READ_AHEAD_KB)
        )
        yield device
    finally:
        _run("losetup", "--detach", device)
        image.unlink()


@contextmanager
def _mounted(device: str, place: Path) -> Iterator[Path]:
    place.mkdir()
    try:
        _run("mount", device, str(place))  # a signal may end the wait for it when it is mounted
        yield place
    finally:
        if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode:
            subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)
        place.rmdir()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
