"""Slow storage on purpose: a throttled loop device. Needs root, loop devices and the blkio controller; says what is missing.

A rule of `blkio.throttle` on the loop device holds buffered readers to its rate, page-cache hits excepted (kernel documentation,
cgroup-v1/blkio-controller), because a read is submitted by the task that wants it.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BLKIO = Path("/sys/fs/cgroup/blkio")


@dataclass(frozen=True)
class ThrottledDisk:
    """A mounted ext4 file system on a loop device."""

    path: Path
    device: str
    group: Path

    def throttle(self, bytes_per_s: int) -> None:
        """Hold the readers of the group to that rate from now on; 0 lifts the rule."""
        number = Path("/sys/class/block", Path(self.device).name, "dev").read_text().strip()
        (self.group / "blkio.throttle.read_bps_device").write_text(f"{number} {bytes_per_s}\n")

    def join(self) -> None:
        """Put the calling process, and what it starts from now on, under the rule: for `preexec_fn`."""
        (self.group / "cgroup.procs").write_text(str(os.getpid()))


def missing() -> str | None:
    """What this machine lacks for a throttled disk; None if nothing."""
    if os.geteuid() != 0:
        return "a throttled disk needs root"
    if not (BLKIO / "blkio.throttle.read_bps_device").exists():
        return "a throttled disk needs the blkio controller of cgroup v1"
    for tool in ("losetup", "mkfs.ext4", "mount", "umount"):
        if not shutil.which(tool):
            return f"a throttled disk needs {tool}"
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "a throttled disk needs a free loop device"
    return None


@contextmanager
def throttled_disk(folder: Path, size_bytes: int = 256 << 20) -> Iterator[ThrottledDisk]:
    """A disk of that size, not throttled yet, unmounted and removed at the end."""
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with open(image, "wb") as stream:
        stream.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", str(image))
    device = _run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
    group = BLKIO / f"ioprof-test-{uuid.uuid4().hex[:8]}"
    try:
        Path("/sys/class/block", Path(device).name, "queue/read_ahead_kb").write_text("128")
        _run("mount", device, str(mount))
        group.mkdir()
        try:
            yield ThrottledDisk(mount, device, group)
        finally:
            _run("umount", str(mount))
    finally:
        _run("losetup", "--detach", device)
        if group.exists():
            group.rmdir()


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


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
