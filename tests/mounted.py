"""File systems created for a test: images on loop devices, overlays, and their mount table entries.
Needs root."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
IMAGE_BYTES: Final = 320 << 20  # the minimum for xfs


def missing(file_system: str) -> str | None:
    """Why that file system cannot be mounted here; None if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    tools = (MAKE[file_system][0], "losetup", "mount", "umount")
    absent = [tool for tool in tools if not shutil.which(tool)]
    if absent:
        return f"mounting {file_system} needs {absent[0]}"
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "no free loop device"
    return None


def made_image(path: Path, file_system: str) -> Path:
    """A sparse file with an empty file system."""
    with path.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([*MAKE[file_system], str(path)], check=True, capture_output=True)
    return path


@contextmanager
def mounted_image(image: Path, point: Path) -> Iterator[str]:
    """The loop device of an image that is mounted at `point`."""
    device = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=off", str(image)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    try:
        with mounted(point, device):
            yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextmanager
def mounted(point: Path, source: str, *options: str) -> Iterator[Path]:
    """Something mounted at `point`, e.g. `mounted(point, "none", "-t", "tmpfs")`."""
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", *options, source, str(point)], check=True, capture_output=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)
