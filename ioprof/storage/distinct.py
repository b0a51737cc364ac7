"""Whether files have their bytes on the disk to themselves: a copy that shares its extents is no second dataset for the disk.

Links of extents (reflinks of xfs and btrfs, and what a deduplicating program makes of equal files) are said by FIEMAP (kernel:
filesystems/fiemap). What a file system folds on its own, below the extents, is not to be seen from here: ZFS with `dedup=on`, VDO,
and servers of all kinds.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_FS_IOC_FIEMAP: Final = 0xC020660B  # <linux/fs.h>
_HEAD: Final = struct.Struct("<QQIIII")  # struct fiemap: start, length, flags, extents mapped, room for extents, reserved
_EXTENT: Final = struct.Struct("<QQQQQI12x")  # struct fiemap_extent: logical, physical, length, reserved twice, flags
_SYNC: Final = 1
_LAST, _SHARED = 1, 0x2000
_EXTENTS: Final = 64
_SAMPLE: Final = 64
_ALL: Final = (1 << 64) - 1
_FOLDING: Final = {"zfs": "ZFS may store equal blocks once (see: zfs get dedup)"}


@dataclass(frozen=True)
class Distinct:
    """What could be seen of a sample of files."""

    files: int
    bytes: int
    shared_bytes: int | None
    """Those of them that lie in an extent which another file has, too; null where the file system does not say, see `reason`."""
    reason: str | None

    def facts(self) -> dict[str, Any]:
        """For run.json."""
        return {"files": self.files, "bytes": self.bytes, "shared_bytes": self.shared_bytes, "reason": self.reason}


def distinct(paths: Sequence[str], file_system: str) -> Distinct:
    """Which part of some of these files, evenly spaced, has its place on the disk to itself; `file_system` is the type's name."""
    sample = paths[:: max(1, len(paths) // _SAMPLE)][:_SAMPLE]
    total = shared = 0
    try:
        for path in sample:
            found = _extents(path)
            total += sum(length for length, _ in found)
            shared += sum(length for length, flags in found if flags & _SHARED)
    except OSError as error:
        reason = f"{file_system or 'the file system'} does not say where its files lie ({error.strerror})"
        return Distinct(len(sample), 0, None, reason)
    folding = _FOLDING.get(file_system)
    return Distinct(len(sample), total, None if folding else shared, folding)


def _extents(path: str) -> list[tuple[int, int]]:
    """Length and flags of each extent of a file; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _mapped(descriptor)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    start, is_last = 0, False
    while not is_last:
        buffer = bytearray(_HEAD.pack(start, _ALL - start, _SYNC, 0, _EXTENTS, 0) + bytes(_EXTENTS * _EXTENT.size))
        fcntl.ioctl(descriptor, _FS_IOC_FIEMAP, buffer)
        count = min(_HEAD.unpack_from(buffer)[3], _EXTENTS)
        extents = [_EXTENT.unpack_from(buffer, _HEAD.size + number * _EXTENT.size) for number in range(count)]
        found += [(length, flags) for _, _, length, _, _, flags in extents]
        is_last = not extents or bool(extents[-1][5] & _LAST)
        if not is_last:
            end = extents[-1][0] + extents[-1][2]
            if end <= start:  # no answer of a file system in order
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            start = end
    return found
