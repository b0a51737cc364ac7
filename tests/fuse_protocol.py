"""The protocol between the kernel and a file system in user space over /dev/fuse: <linux/fuse.h>,
version 7.31.

Only the part for a read-only file system.
"""

import os
import struct
from enum import IntEnum
from typing import Final

MINOR: Final = 31

IN_HEADER: Final = struct.Struct("=IIQQIIIHH")
"""length, opcode, unique, node, uid, gid, pid, extension length, padding"""

OUT_HEADER: Final = struct.Struct("=IiQ")
"""length, negative errno, unique"""

_ATTRIBUTES: Final = struct.Struct("=6Q10I")
_ENTRY: Final = struct.Struct("=4QII")
_ATTRIBUTE_TIME: Final = struct.Struct("=QII")
_OPENED: Final = struct.Struct("=QIi")
_READ: Final = struct.Struct("=QQIIQII")
_INIT_IN: Final = struct.Struct("=IIIII")
_INIT_OUT: Final = struct.Struct("=IIIIHHIIHHIIH22x")
_STATFS: Final = struct.Struct("=5Q4I24x")
_FORGET: Final = struct.Struct("=QQ")
_ENTRY_OF_FOLDER: Final = struct.Struct("=QQII")

ROOT: Final = 1
"""The node of the root (FUSE_ROOT_ID)."""

DIRECT_IO: Final = 1 << 0
KEEP_CACHE: Final = 1 << 1
"""Flags in the reply to OPEN (FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE)."""

_ASYNC_READ: Final = 1 << 0
_DO_READDIRPLUS: Final = 1 << 13
_ASYNC_DIO: Final = 1 << 15
_PARALLEL_DIROPS: Final = 1 << 18
_MAX_PAGES: Final = 1 << 22
_INIT_EXT: Final = 1 << 30
_DIRECT_IO_ALLOW_MMAP: Final = 1 << 36
_WANTED: Final = (
    _ASYNC_READ | _ASYNC_DIO | _PARALLEL_DIROPS | _MAX_PAGES | _INIT_EXT | _DIRECT_IO_ALLOW_MMAP
)
_BACKGROUND: Final = 256
"""Maximum number of concurrent readahead requests; the default of 12 would hide the number of
servers."""


class Opcode(IntEnum):
    """The requested operation."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    READLINK = 5
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    GETXATTR = 22
    LISTXATTR = 23
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    READDIRPLUS = 44
    LSEEK = 46
    STATX = 52


def init_reply(body: bytes, max_readahead: int, max_read: int, with_attributes: bool) -> bytes:
    """Negotiate the version; `with_attributes`: folders are listed by READDIRPLUS. Raises OSError
    if the kernel is too old."""
    major, minor, offered_readahead, flags, *flags2 = _INIT_IN.unpack_from(
        body.ljust(_INIT_IN.size, b"\0")
    )
    if (major, minor) < (7, MINOR):
        raise OSError(f"the kernel speaks FUSE {major}.{minor}, 7.{MINOR} is needed (Linux 5.4)")
    offered = flags | (flags2[0] << 32 if flags & _INIT_EXT else 0)
    agreed = offered & (_WANTED | (_DO_READDIRPLUS if with_attributes else 0))
    pages = -(-max_read // os.sysconf("SC_PAGE_SIZE"))
    return _INIT_OUT.pack(
        *(7, MINOR, min(max_readahead, offered_readahead), agreed & 0xFFFFFFFF),
        *(_BACKGROUND, _BACKGROUND, 4096, 1, pages, 0, agreed >> 32, 0, 0),
    )


def attributes(status: os.stat_result) -> bytes:
    """The attributes of a file (struct fuse_attr)."""
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    return _ATTRIBUTES.pack(
        *(status.st_ino, status.st_size, status.st_blocks),
        *(time // 10**9 & 0xFFFFFFFFFFFFFFFF for time in times),
        *(time % 10**9 for time in times),
        *(status.st_mode, min(status.st_nlink, 0xFFFFFFFF), status.st_uid, status.st_gid),
        *(
            os.minor(status.st_rdev) & 0xFF
            | os.major(status.st_rdev) << 8
            | (os.minor(status.st_rdev) & ~0xFF) << 12,
        ),
        *(status.st_blksize, 0),
    )


def entry(node: int, status: os.stat_result, remember_s: int) -> bytes:
    """The reply to LOOKUP: the node, and how long the kernel may cache it."""
    return _ENTRY.pack(node, 0, remember_s, remember_s, 0, 0) + attributes(status)


def no_entry() -> bytes:
    """In a listing with attributes: an entry without them."""
    return bytes(_ENTRY.size + _ATTRIBUTES.size)


def attribute_reply(status: os.stat_result, remember_s: int) -> bytes:
    """The reply to GETATTR."""
    return _ATTRIBUTE_TIME.pack(remember_s, 0, 0) + attributes(status)


def opened(handle: int, flags: int) -> bytes:
    """The reply to OPEN and OPENDIR."""
    return _OPENED.pack(handle, flags, 0)


def read_request(body: bytes) -> tuple[int, int, int]:
    """Handle, offset and size of READ, READDIR and READDIRPLUS."""
    handle, offset, size, *_ = _READ.unpack_from(body)
    return handle, offset, size


def handle_of(body: bytes) -> int:
    """The handle of RELEASE, RELEASEDIR and FLUSH."""
    (handle,) = struct.unpack_from("=Q", body)
    return int(handle)


def listed(inode: int, next_offset: int, mode: int, name: bytes) -> bytes:
    """One entry of a folder (struct fuse_dirent), padded to eight bytes."""
    packed = _ENTRY_OF_FOLDER.pack(inode, next_offset, len(name), mode >> 12) + name
    return packed + bytes(-len(packed) % 8)


def space(status: os.statvfs_result) -> bytes:
    """The reply to STATFS."""
    blocks = (status.f_blocks, status.f_bfree, status.f_bavail, status.f_files, status.f_ffree)
    return _STATFS.pack(*blocks, status.f_bsize, status.f_namemax, status.f_frsize, 0)


def forgotten(opcode: int, node: int, body: bytes) -> list[tuple[int, int]]:
    """Nodes and lookup counts to subtract, of FORGET and BATCH_FORGET."""
    if opcode == Opcode.FORGET:
        return [(node, struct.unpack_from("=Q", body)[0])]
    (count,) = struct.unpack_from("=I", body)
    return [_FORGET.unpack_from(body, 8 + place * _FORGET.size) for place in range(count)]


def extended_attribute(opcode: int, body: bytes) -> tuple[bytes, int]:
    """Name ("" for LISTXATTR) and maximum size of the reply (0: only its size is requested), of
    GETXATTR and LISTXATTR."""
    (size,) = struct.unpack_from("=I", body)
    return body[8:].partition(b"\0")[0] if opcode == Opcode.GETXATTR else b"", size


def size_of_attribute(size: int) -> bytes:
    """The reply if only the size is requested."""
    return struct.pack("=II", size, 0)
