"""Whether files share extents on the disk: a copy that shares its extents is not a second dataset
for the disk.

FIEMAP shows shared extents (reflinks of xfs and btrfs, also those made by deduplication programs;
kernel: filesystems/fiemap). Block deduplication below the extents is not visible: ZFS with
`dedup=on`, VDO, and servers of all kinds.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_FS_IOC_FIEMAP: Final = 0xC020660B  # <linux/fs.h>
# struct fiemap: start, length, flags, extents mapped, room for extents, reserved
_HEAD: Final = struct.Struct("<QQIIII")
# struct fiemap_extent: logical, physical, length, reserved twice, flags
_EXTENT: Final = struct.Struct("<QQQQQI12x")
_SYNC: Final = 1
_LAST, _SHARED = 1, 0x2000
_EXTENTS: Final = 64
_SAMPLE: Final = 64
_ALL: Final = (1 << 64) - 1
_DEDUPLICATING: Final = {"zfs": "ZFS may store equal blocks once (see: zfs get dedup)"}


@dataclass(frozen=True)
class ExtentSharing:
    """Shared extents in a sample of files."""

    files: int
    bytes: int
    shared_bytes: int | None
    """Bytes in extents that another file has too; None where the file system does not report them,
    see `reason`."""
    reason: str | None

    def facts(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "files": self.files,
            "bytes": self.bytes,
            "shared_bytes": self.shared_bytes,
            "reason": self.reason,
        }


def extent_sharing(paths: Sequence[str], file_system: str) -> ExtentSharing:
    """The shared extents of an evenly spaced sample of these files; `file_system` is the name of
    its type.
    """
    sample = paths[:: max(1, len(paths) // _SAMPLE)][:_SAMPLE]
    total = shared = 0
    try:
        for path in sample:
            found = _extents(path)
            total += sum(length for length, _ in found)
            shared += sum(length for length, flags in found if flags & _SHARED)
    except OSError as error:
        refusal = (
            f"{file_system or 'the file system'} does not report the extents of its files"
            f" ({error.strerror})"
        )
        return ExtentSharing(len(sample), 0, None, refusal)
    reason = _DEDUPLICATING.get(file_system)
    return ExtentSharing(len(sample), total, None if reason else shared, reason)


def _extents(path: str) -> list[tuple[int, int]]:
    """Length and flags of each extent of a file; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _query_extents(descriptor)
    finally:
        os.close(descriptor)


def _query_extents(descriptor: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    start, is_last = 0, False
    while not is_last:
        buffer = bytearray(
            _HEAD.pack(start, _ALL - start, _SYNC, 0, _EXTENTS, 0) + bytes(_EXTENTS * _EXTENT.size)
        )
        fcntl.ioctl(descriptor, _FS_IOC_FIEMAP, buffer)
        count = min(_HEAD.unpack_from(buffer)[3], _EXTENTS)
        extents = [
            _EXTENT.unpack_from(buffer, _HEAD.size + number * _EXTENT.size)
            for number in range(count)
        ]
        found += [(length, flags) for _, _, length, _, _, flags in extents]
        is_last = not extents or bool(extents[-1][5] & _LAST)
        if not is_last:
            end = extents[-1][0] + extents[-1][2]
            if end <= start:  # an inconsistent answer
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            start = end
    return found
