"""Which file system a device number stands for, on mounts of this machine."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuse_server import fuse_server
from mounted import mounted

from ioprof.file_systems import file_system_of, file_system_on


@contextmanager
def tmpfs(point: Path) -> Iterator[int]:
    """The device number of a file system in memory."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with mounted(point, "none", "-t", "tmpfs"):
        yield os.stat(point).st_dev


def test_a_number_that_is_nowhere_mounted_is_of_no_type() -> None:
    """Empty, which no file system is called: whoever asks goes on as if it were unknown."""
    assert ["", ""] == [file_system_on(os.makedev(4095, number)) for number in (0, 77)]


def test_a_number_is_not_remembered_beyond_its_mount(tmp_path: Path) -> None:
    """The kernel gives the number of what is unmounted to the next one: tmpfs has no storage, and FUSE does not say."""
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


def test_threads_may_ask_at_once(tmp_path: Path) -> None:
    """As those that probe a path do; also while something is mounted."""
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(file_system_of, str(tmp_path)) for _ in range(2000)]
        with tmpfs(tmp_path / "memory"):
            asked += [threads.submit(file_system_of, str(tmp_path)) for _ in range(2000)]
    assert {file_system_of(str(tmp_path))} == {answer.result() for answer in asked}


@pytest.mark.alone  # another test's mount would get the number that is free again
def test_a_fork_learns_of_mounts_for_itself(tmp_path: Path) -> None:
    """Parent and child each hear of a change, whoever asks first."""
    ours, theirs = socket.socketpair()
    with ours, tmpfs(tmp_path / "memory") as device, theirs:
        assert "tmpfs" == file_system_on(device)
        child = os.fork()
        if child == 0:
            ours.close()
            known = file_system_on(device) == "tmpfs"
            theirs.send(b".")
            theirs.recv(1)  # the end: the parent has unmounted
            os._exit(0 if known and file_system_on(device) == "" else 1)
        theirs.close()
        ours.recv(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert "" == file_system_on(device)
