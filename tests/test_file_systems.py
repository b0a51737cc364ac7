"""The table of file systems, and which type a device number has on mounts of this machine."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuse_server import fuse_server
from mounted import mounted

from ioprof.file_systems import (
    FUSE_MAGIC,
    TYPES,
    MountTable,
    file_system_of,
    file_system_on,
    has_unreliable_counters,
    is_in_memory,
    is_shared,
    type_of,
)

FUSE_TYPES = {"fuse", "fuse.sshfs", "fuseblk", "fuseblk.ntfs", "virtiofs"}


@contextmanager
def tmpfs(point: Path) -> Iterator[int]:
    """The device number of a tmpfs."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with mounted(point, "none", "-t", "tmpfs"):
        yield os.stat(point).st_dev


# ---------------------------------------------------------------------------------------- the table


def test_every_fuse_type_has_unreliable_counters() -> None:
    """The FUSE client counts no blocks, whatever the transport: user space, a block device, or the
    host of a virtual machine."""
    assert {("unreliable", False, FUSE_MAGIC)} == {
        known[1:] for name in FUSE_TYPES if (known := type_of(name))
    }
    assert FUSE_TYPES == set(filter(has_unreliable_counters, FUSE_TYPES))


def test_where_a_fuse_file_system_stores_its_files() -> None:
    """`fuseblk` is on a block device of this host; `virtiofs` is the folder of another machine;
    plain FUSE may be anything."""
    places = {
        "fuseblk": "block",
        "fuseblk.ntfs": "block",
        "virtiofs": "network",
        "fuse.sshfs": "fuse",
    }
    assert places == {name: known.place for name in places if (known := type_of(name))}
    assert ["virtiofs", "fuse.sshfs"] == [
        name for name in ("fuseblk", "fuseblk.ntfs", "virtiofs", "fuse.sshfs") if is_shared(name)
    ]


def test_data_in_memory() -> None:
    """Of the types without storage only those that hold users' files; proc and its like hold
    none."""
    in_memory = {name for name, known in TYPES.items() if known.accounting == "memory"}
    assert {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"} == set(filter(is_in_memory, TYPES))
    assert {"proc", "sysfs", "debugfs", "tracefs", "cgroup", "cgroup2"} == in_memory - set(
        filter(is_in_memory, TYPES)
    )


def test_an_unknown_type_is_neither_shared_nor_unreliable() -> None:
    """Nothing is claimed of a name that is not in the table."""
    assert (None, False, False, False) == (
        type_of("x"),
        is_shared("x"),
        is_in_memory("x"),
        has_unreliable_counters("x"),
    )


# ------------------------------------------------------------------------------------------- mounts


def test_a_mount_table_that_cannot_be_read_knows_no_type(tmp_path: Path) -> None:
    """As in a container without /proc."""
    assert "" == MountTable(str(tmp_path / "absent")).type_on(os.stat(tmp_path).st_dev)


def test_lines_of_mountinfo(tmp_path: Path) -> None:
    """The type is the word after the separate hyphen, with any number of optional fields before it;
    torn lines are skipped."""
    lines = [
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw",
        "2 1 0:30 / /a rw - fuse.sshfs host:/ rw",
        "3 1 0:31 /",
        "",
    ]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    table = MountTable(str(tmp_path / "mountinfo"))
    numbers = [os.makedev(8, 1), os.makedev(0, 30), os.makedev(0, 31)]
    assert ["ext4", "fuse.sshfs", ""] == [table.type_on(number) for number in numbers]


def test_a_number_that_is_nowhere_mounted_is_of_no_type() -> None:
    """Empty, which is no name of a type: the caller treats it as unknown."""
    assert ["", ""] == [file_system_on(os.makedev(4095, number)) for number in (0, 77)]


@pytest.mark.system
def test_a_number_is_not_remembered_beyond_its_mount(tmp_path: Path) -> None:
    """The kernel reuses the number of an unmounted file system: tmpfs has no storage, FUSE is
    unknown."""
    found = []
    (tmp_path / "served").mkdir()
    for _ in range(2):
        with tmpfs(tmp_path / "memory") as device:
            found += [(device, file_system_of(str(tmp_path / "memory")))]
        with fuse_server(tmp_path / "served") as served:
            found += [(os.stat(served.path).st_dev, file_system_of(str(served.path)))]
    assert ["tmpfs", "fuse", "tmpfs", "fuse"] == [kind.partition(".")[0] for _, kind in found]
    if len({device for device, _ in found}) == 4:
        pytest.skip("other mounts came between: no number was given again")


@pytest.mark.system
def test_threads_may_ask_at_once(tmp_path: Path) -> None:
    """As in a probe of a path; also during a mount."""
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(file_system_of, str(tmp_path)) for _ in range(2000)]
        with tmpfs(tmp_path / "memory"):
            asked += [threads.submit(file_system_of, str(tmp_path)) for _ in range(2000)]
    assert {file_system_of(str(tmp_path))} == {answer.result() for answer in asked}


@pytest.mark.system
@pytest.mark.alone  # a mount of another test would reuse the number
def test_a_fork_learns_of_mounts_for_itself(tmp_path: Path) -> None:
    """Parent and child each detect a change, whichever reads first."""
    ours, theirs = socket.socketpair()
    with ours, tmpfs(tmp_path / "memory") as device, theirs:
        assert "tmpfs" == file_system_on(device)
        child = os.fork()
        if child == 0:
            ours.close()
            known = file_system_on(device) == "tmpfs"
            theirs.send(b".")
            theirs.recv(1)  # end of file: the parent has unmounted
            os._exit(0 if known and file_system_on(device) == "" else 1)
        theirs.close()
        ours.recv(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert "" == file_system_on(device)
