"""The files and block devices that a file system lies on: what is cached of them makes reads of it
no reads of storage.

A loop device reads its backing file through the page cache, unless it was set up with direct I/O; a
file system image of a FUSE program is a file too; and a few file systems (squashfs) read their
blocks through the page cache of the device.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ioprof.storage.blockdevices import BlockDevice
from ioprof.storage.description import FOLDER_ROLES, PathStorage


@dataclass(frozen=True)
class LowerFiles:
    """What lies below the file system of a path."""

    files: tuple[str, ...]
    """Backing files of loop devices, and images, that this user can open."""
    devices: tuple[str, ...]
    """Block devices that this user can open: usually root alone."""
    hidden: tuple[str, ...]
    """Files that cannot be opened here, and why."""


def lower_files(storage: PathStorage) -> LowerFiles:
    """The files and loop devices below the storage of a path, of all layers."""
    files: list[str] = []
    hidden: list[str] = []
    for path in dict.fromkeys(_files(storage)):
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                files.append(path)
        except OSError as error:
            hidden.append(f"{path}: {error.strerror}")
    devices = []
    for device in dict.fromkeys(f"/dev/{leaf.name}" for leaf in _loops(storage)):
        with suppress(OSError):
            os.close(os.open(device, os.O_RDONLY | os.O_CLOEXEC))
            devices.append(device)
    return LowerFiles(tuple(files), tuple(devices), tuple(hidden))


def evict_devices(devices: tuple[str, ...]) -> None:
    """Drop what is cached of block devices themselves, such as metadata; what is in use stays."""
    for device in devices:
        with suppress(OSError):
            descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _files(storage: PathStorage) -> Iterator[str]:
    for layer in storage.layers:
        if layer.role not in FOLDER_ROLES and Path(layer.storage.path).is_absolute():
            yield layer.storage.path
        yield from _files(layer.storage)


def _loops(storage: PathStorage) -> Iterator[BlockDevice]:
    for device in storage.devices:
        yield from (leaf for leaf in device.leaves if leaf.backing_file is not None)
    for layer in storage.layers:
        yield from _loops(layer.storage)
