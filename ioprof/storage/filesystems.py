"""What is known of file systems by their type: where their files lie, and what they say of a read.

The capture library (native/files.h) and `ioprof.record.reads` act on the same facts; a test holds them together. Sources: the
kernel's fs/*/file.c for FMODE_NOWAIT, `task_io_account_read` and its callers, and man proc_pid_mountinfo for the types' names.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["local", "shared", "memory", "unknown"]
"""`local`: this host's own. `shared`: other hosts use the same servers, and rates vary with what they do. `memory`: no storage."""

Place = Literal["block", "memory", "network", "overlay", "own", "fuse"]
Books = Literal["blocks", "memory", "own", "other"]


@dataclass(frozen=True)
class FileSystemType:
    """What holds for all file systems of a type."""

    place: Place
    """Where its files lie: on block devices, in memory, on servers, in other folders (`overlay`), in devices that it manages
    itself and does not name (`own`), or wherever its program says (`fuse`)."""
    books: Books
    """`blocks`: the kernel counts what a thread's reads fetched, so that a read that needed storage can be told. `memory`: there is
    nothing to fetch. `own`: does not count, or counts hits too. `other`: not established."""
    answers_nowait: bool | None
    """Whether preadv2(RWF_NOWAIT) reads what is cached and says if that was all; None: depends on version and mount."""


_BLOCKS: Final = FileSystemType("block", "blocks", True)
_MEMORY: Final = FileSystemType("memory", "memory", False)
_NETWORK: Final = FileSystemType("network", "other", None)
_COUNTED: Final = FileSystemType("network", "blocks", False)
_OWN_BOOKS: Final = FileSystemType("network", "own", False)

TYPES: Final[dict[str, FileSystemType]] = {
    **dict.fromkeys(("ext4", "xfs", "btrfs"), _BLOCKS),
    **dict.fromkeys(("ext2", "ext3", "f2fs"), FileSystemType("block", "blocks", None)),  # ext2 and ext3: as the driver has it
    "squashfs": FileSystemType("block", "blocks", False),
    **dict.fromkeys(
        ("erofs", "bcachefs", "exfat", "iso9660", "jfs", "nilfs2", "ntfs", "ntfs3", "udf", "vfat"),
        FileSystemType("block", "other", None),
    ),
    "fuseblk": FileSystemType("block", "own", False),
    "zfs": FileSystemType("own", "own", None),
    **dict.fromkeys(("tmpfs", "ramfs", "hugetlbfs", "devtmpfs"), _MEMORY),
    **dict.fromkeys(("proc", "sysfs", "debugfs", "tracefs", "cgroup", "cgroup2"), _MEMORY),
    **dict.fromkeys(("lustre", "nfs", "nfs4"), _COUNTED),
    **dict.fromkeys(("gpfs", "beegfs"), _OWN_BOOKS),
    "virtiofs": FileSystemType("network", "own", False),  # FUSE, spoken to the hypervisor's host
    **dict.fromkeys(("9p", "afs", "ceph", "cifs", "orangefs", "panfs", "pvfs2", "smb3", "wekafs"), _NETWORK),
    "overlay": FileSystemType("overlay", "other", False),
}
"""Types by their names in mountinfo; `fuse` and `fuse.<subtype>` besides, see `type_of`."""

FUSE: Final = FileSystemType("fuse", "own", False)

_SHARED_FUSE: Final = frozenset(
    {
        "afuse", "alluxio-fuse", "ceph-fuse", "cvmfs2", "cvmfs", "curlftpfs", "daos", "davfs", "dfuse", "gcsfuse", "glusterfs",
        "goofys", "httpfs", "juicefs", "lizardfs", "mfs", "moosefs", "mount-s3", "mountpoint-s3", "rclone", "s3fs", "s3ql",
        "seaweedfs", "sshfs", "weed",
    }
)  # fmt: skip
IMAGE_FUSE: Final = frozenset({"archivemount", "erofsfuse", "fuse2fs", "fuseiso", "ratarmount", "squashfuse", "squashfuse_ll"})
"""FUSE programs that show what is in a file of another file system, on which their speed depends."""

MOOSE_SOURCE: Final = "mfs#"
"""How MooseFS names what it mounted, `mfs#host:port/folder`; its mounts are plain `fuse`, without a subtype."""


def type_of(file_system: str) -> FileSystemType | None:
    """What is known of a type; None for one that is not in the table."""
    return FUSE if file_system == "fuse" or file_system.startswith("fuse.") else TYPES.get(file_system)


def subtype_of(file_system: str) -> str:
    """`sshfs` of `fuse.sshfs`; empty for FUSE without a subtype and for everything else."""
    name, _, subtype = file_system.partition(".")
    return subtype if name == "fuse" else ""


def is_shared_fuse(file_system: str, source: str) -> bool:
    """Whether a FUSE file system is known to keep its files on servers."""
    return subtype_of(file_system) in _SHARED_FUSE or (file_system == "fuse" and source.startswith(MOOSE_SOURCE))
