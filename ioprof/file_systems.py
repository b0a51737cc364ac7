"""File systems: what is known of each type, and which type a path or a device number has.

The one table of types, `TYPES`, is used by the recorded job, by `ioprof.storage` and, generated as
`native/capture/file_system_table.h` by `python -m ioprof.native.generate`, by the capture library.

Sources: names of types as in /proc/self/mountinfo (man 5 proc_pid_mountinfo); magic numbers from
statfs(2) and include/uapi/linux/magic.h; FMODE_NOWAIT in the kernel's fs/*/file.c for
`answers_nowait`; the callers of `task_io_account_read` for `accounting`.
"""

import os
import select
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

Kind = Literal["local", "shared", "memory", "unknown"]
"""`local`: this host's own. `shared`: other hosts use the same servers, and rates vary with what
they do. `memory`: no storage."""

Place = Literal["block", "memory", "network", "overlay", "pool", "fuse"]
Accounting = Literal["blocks", "memory", "unreliable", "unknown"]


class FileSystemType(NamedTuple):
    """What holds for all file systems of a type."""

    place: Place
    """Where its files are stored: on block devices, in memory, on servers, in other folders
    (`overlay`), in a pool of devices that it manages itself and does not name (`pool`), or wherever
    a user-space program stores them (`fuse`)."""
    accounting: Accounting
    """What the kernel's block counters say of a thread's reads. `blocks`: they count what was
    fetched from storage, so a read that needed storage is recognised. `memory`: there is no storage
    below. `unreliable`: they count nothing, or cache hits too. `unknown`: not established."""
    answers_nowait: bool | None
    """Whether preadv2(RWF_NOWAIT) reads what is cached and says if that was all; None: depends on
    version and mount."""
    magic: int | None = None
    """`f_type` of statfs(2); several types may share one."""


FUSE_MAGIC: Final = 0x65735546
"""Of all types of the FUSE client: `fuse_statfs` (fs/fuse/inode.c) sets it, whatever the
transport."""


def _network(
    accounting: Accounting, answers_nowait: bool | None = False, magic: int | None = None
) -> FileSystemType:
    return FileSystemType("network", accounting, answers_nowait, magic)


def _block(
    accounting: Accounting, answers_nowait: bool | None = None, magic: int | None = None
) -> FileSystemType:
    return FileSystemType("block", accounting, answers_nowait, magic)


def _memory(magic: int) -> FileSystemType:
    return FileSystemType("memory", "memory", False, magic)


_FUSE: Final = FileSystemType("fuse", "unreliable", False, FUSE_MAGIC)
_DATA_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})

TYPES: Final[dict[str, FileSystemType]] = {
    "ext4": _block("blocks", True, 0xEF53),
    # ext2 and ext3: RWF_NOWAIT works where the ext4 driver serves them
    "ext3": _block("blocks", None, 0xEF53),
    "ext2": _block("blocks", None, 0xEF53),
    "xfs": _block("blocks", True, 0x58465342),
    "btrfs": _block("blocks", True, 0x9123683E),
    "f2fs": _block("blocks", None, 0xF2F52010),
    "squashfs": _block("blocks", False, 0x73717368),
    **dict.fromkeys(
        ("erofs", "bcachefs", "exfat", "iso9660", "jfs", "nilfs2", "ntfs", "ntfs3", "udf", "vfat"),
        _block("unknown"),
    ),
    # A FUSE file system on a block device of this host: registered with FS_REQUIRES_DEV
    # (fs/fuse/inode.c), so it is not shared.
    "fuseblk": _block("unreliable", False, FUSE_MAGIC),
    # counts a cached read as fetched
    "zfs": FileSystemType("pool", "unreliable", None, 0x2FC12FC1),
    "tmpfs": _memory(0x01021994),
    "devtmpfs": _memory(0x01021994),
    "ramfs": _memory(0x858458F6),
    "hugetlbfs": _memory(0x958458F6),
    "proc": _memory(0x9FA0),
    "sysfs": _memory(0x62656572),
    "debugfs": _memory(0x64626720),
    "tracefs": _memory(0x74726163),
    "cgroup": _memory(0x27E0EB),
    "cgroup2": _memory(0x63677270),
    "lustre": _network("blocks", magic=0x0BD00BD0),
    "nfs": _network("blocks", magic=0x6969),
    "nfs4": _network("blocks", magic=0x6969),
    "gpfs": _network("unreliable", magic=0x47504653),  # has a page pool of its own
    "beegfs": _network("unreliable", magic=0x19830326),  # counts a cached read as fetched
    # FUSE over virtqueues to a daemon on the virtual machine's host, which other guests and the
    # host itself share (Documentation/filesystems/virtiofs.rst, fs/fuse/virtio_fs.c).
    "virtiofs": _network("unreliable", magic=FUSE_MAGIC),
    **dict.fromkeys(
        ("9p", "afs", "ceph", "cifs", "orangefs", "panfs", "pvfs2", "smb3", "wekafs"),
        _network("unknown", None),
    ),
    "overlay": FileSystemType("overlay", "unknown", False),
}
"""Types by their names in mountinfo; `fuse` and `fuse.<subtype>` besides, see `type_of`."""

_SHARED_FUSE: Final = frozenset(
    {
        "afuse",
        "alluxio-fuse",
        "ceph-fuse",
        "cvmfs2",
        "cvmfs",
        "curlftpfs",
        "daos",
        "davfs",
        "dfuse",
        "gcsfuse",
        "glusterfs",
        "goofys",
        "httpfs",
        "juicefs",
        "lizardfs",
        "mfs",
        "moosefs",
        "mount-s3",
        "mountpoint-s3",
        "rclone",
        "s3fs",
        "s3ql",
        "seaweedfs",
        "sshfs",
        "weed",
    }
)
IMAGE_FUSE: Final = frozenset(
    {"archivemount", "erofsfuse", "fuse2fs", "fuseiso", "ratarmount", "squashfuse", "squashfuse_ll"}
)
"""FUSE programs that show the content of an image file on another file system, which decides their
speed."""

MOOSE_SOURCE: Final = "mfs#"
"""How MooseFS names what it mounted, `mfs#host:port/folder`; its mounts are plain `fuse`, without a
subtype."""


def type_of(file_system: str) -> FileSystemType | None:
    """What is known of a type, by its name in mountinfo, `fuse.sshfs` for instance; None for one
    that is not in the table.
    """
    name, dot, _ = file_system.partition(".")
    if name == "fuse":
        return _FUSE
    return TYPES.get(name if dot and name == "fuseblk" else file_system)


def subtype_of(file_system: str) -> str:
    """`sshfs` of `fuse.sshfs`; empty for FUSE without a subtype and for everything else."""
    name, _, subtype = file_system.partition(".")
    return subtype if name == "fuse" else ""


def is_shared_fuse(file_system: str, source: str) -> bool:
    """Whether a FUSE file system is known to store its files on servers; `source` is what was
    mounted.
    """
    return subtype_of(file_system) in _SHARED_FUSE or (
        file_system == "fuse" and source.startswith(MOOSE_SOURCE)
    )


def is_in_memory(file_system: str) -> bool:
    """Whether its data files are in the page cache alone, so that a read never needs a device."""
    return file_system in _DATA_IN_MEMORY


def has_unreliable_counters(file_system: str) -> bool:
    """Whether the kernel's counters of blocks and cached pages say nothing of it: the source of a
    read is then unknown.
    """
    known = type_of(file_system)
    return known is not None and known.accounting == "unreliable"


def is_shared(file_system: str) -> bool:
    """Whether other hosts may use the same files: then this host's page cache does not decide
    alone, and locks are expensive.

    True for every FUSE file system that is not on a block device, since most of those that hold
    datasets are remote.
    """
    known = type_of(file_system)
    return known is not None and known.place in ("network", "fuse")


# ---------------------------------------------------------------------------- which type a path has


def file_system_of(path: str) -> str:
    """Type of the file system that holds `path`; "" if that cannot be found out. Raises OSError."""
    return file_system_on(os.stat(path).st_dev)


def file_system_on(device: int) -> str:
    """Type of the file system with that device number (`st_dev`), e.g. `ext4`; "" if none is
    mounted that this process can see.
    """
    return _mounts.type_on(device)


class MountTable:
    """Types of the mounted file systems by device number, read again after a mount or unmount.

    The kernel gives the device number of an unmounted file system without a disk of its own to the
    next one, so that nothing may be remembered for longer.
    """

    def __init__(self, path: str = "/proc/self/mountinfo") -> None:
        self._path = path
        self._types: dict[int, str] = {}
        self._process = -1
        self._descriptor = -1

    def type_on(self, device: int) -> str:
        """The type that is mounted with that device number; "" for none."""
        if self._has_changed():
            self._types.clear()
        if (known := self._types.get(device)) is None:
            wanted = f"{os.major(device)}:{os.minor(device)}"
            known = self._types[device] = next(
                (kind for number, kind in self._mounted() if number == wanted), ""
            )
        return known

    def _has_changed(self) -> bool:
        """Whether the mounts have changed since the last call (man 5 proc_pid_mounts), which takes
        1 us; True at the first one.
        """
        if self._process != os.getpid():
            # A forked child opens its own, because each change is reported once per open file. The
            # parent's descriptor is not closed: its number may be another file's by now, where the
            # process has closed all that it found open.
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._descriptor = -1
            self._process = os.getpid()
            return True
        if self._descriptor < 0:
            return True
        poll = select.poll()  # a new one: a poll object must not be used by two threads at a time
        poll.register(self._descriptor, select.POLLPRI)
        return bool(poll.poll(0))

    def _mounted(self) -> Iterator[tuple[str, str]]:
        """Device number as `major:minor`, and type, of each mount."""
        try:
            with open(self._path, encoding="utf-8", errors="surrogateescape") as lines:
                for line in lines:
                    fields = line.split()
                    if "-" in fields[:-1] and len(fields) > 3:
                        yield fields[2], fields[fields.index("-") + 1]
        except OSError:
            return


_mounts: Final = MountTable()
