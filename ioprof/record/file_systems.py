"""What is known of file systems by the name of their type, as /proc/self/mountinfo has it."""

from typing import Final

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_OWN_BOOKS: Final = ("fuse", "gpfs", "beegfs", "virtiofs", "zfs")
_SHARED: Final = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "afs", "panfs", "wekafs", "pvfs2", "orangefs",
})  # fmt: skip


def is_in_memory(kind: str) -> bool:
    """Whether it keeps its files in the page cache alone: a read from it never needs a device."""
    return kind in _IN_MEMORY


def keeps_own_books(kind: str) -> bool:
    """Whether the kernel's counters of blocks and cached pages say nothing of it: where its bytes came from cannot be told."""
    return kind.startswith(_OWN_BOOKS)


def is_shared(kind: str) -> bool:
    """Whether other hosts see the same files: then this host's page cache is not the whole story, and locks are dear."""
    return kind in _SHARED or kind.startswith("fuse")
