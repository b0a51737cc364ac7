"""What is known of file systems by the name of their type, as /proc/self/mountinfo has it."""

import os
import select
from collections.abc import Iterator
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


def file_system_of(path: str) -> str:
    """Type of the file system that holds `path`; "" if that cannot be told. Raises OSError."""
    return file_system_on(os.stat(path).st_dev)


def file_system_on(device: int) -> str:
    """Type of the file system with that device number (`st_dev`), e.g. `ext4`; "" if none is mounted that this process can see.

    The number of an unmounted file system without a disk of its own is given to the next one: what is known is forgotten when the
    kernel says that something was mounted or unmounted.
    """
    if _mounts.have_changed():
        _types.clear()
    if (known := _types.get(device)) is None:
        wanted = f"{os.major(device)}:{os.minor(device)}"
        known = _types[device] = next((kind for number, kind in _mounted() if number == wanted), "")
    return known


_MOUNTS: Final = "/proc/self/mountinfo"
_types: Final[dict[int, str]] = {}


class _Mounts:
    """Asks the kernel whether the mounts have changed since it was last asked (man 5 proc_pid_mounts), which takes 1 us."""

    def __init__(self) -> None:
        self._process = -1
        self._descriptor = -1

    def have_changed(self) -> bool:
        """Also true the first time in a process."""
        if self._process != os.getpid():
            # Its own after a fork: each change is told once per open file. The parent's is not closed: the number may be another
            # file's by now, where the process has closed all that it found open.
            try:
                self._descriptor = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._descriptor = -1
            self._process = os.getpid()
            return True
        if self._descriptor < 0:
            return True
        poll = select.poll()  # a new one: two threads may not use one at a time
        poll.register(self._descriptor, select.POLLPRI)
        return bool(poll.poll(0))


_mounts: Final = _Mounts()


def _mounted() -> Iterator[tuple[str, str]]:
    """Device number as `major:minor`, and type, of each mount."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.split()
                if "-" in fields[:-1] and len(fields) > 3:
                    yield fields[2], fields[fields.index("-") + 1]
    except OSError:
        return
