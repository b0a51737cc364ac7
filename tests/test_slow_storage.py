"""Simulated slow storage: throttle and memory limit work, by the counters of the kernel, and leave
nothing behind."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import slow_storage
from slow_storage import BoundedMemory, bounded_memory, throttled_disk

pytestmark = pytest.mark.system

MIB = 1 << 20
DATA = np.random.default_rng(0).bytes(16 * MIB)

READ = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
while os.read(file, 65536):
    pass
"""


def read(path: Path, join: object) -> float:
    """Seconds that a child in a group takes to read a file, buffered and sequentially."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", READ, path], check=True, preexec_fn=join)  # type: ignore[call-overload]
    return time.monotonic() - began


@pytest.mark.system(every=4)
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_buffered_reader_gets_no_more_than_the_rate(file_system: str, tmp_path: Path) -> None:
    """The time has a lower bound, and by the counters of the kernel each byte was read from the
    device once."""
    rate = 8 * MIB
    with throttled_disk(tmp_path, file_system=file_system, bytes_per_s=rate) as disk:
        path = disk.path / "data"
        path.write_bytes(DATA)
        slow_storage.evict(disk.path)
        before = disk.read_bytes()
        took = read(path, disk.join)
        fetched = disk.read_bytes() - before
    assert len(DATA) <= fetched <= 1.05 * len(DATA)  # plus metadata of the file system
    assert took >= 0.8 * len(DATA) / rate  # the first slice is not delayed


def test_who_has_not_joined_is_not_throttled(tmp_path: Path) -> None:
    """Cached data is not throttled either: the counters of the group stay 0."""
    with throttled_disk(tmp_path, bytes_per_s=MIB) as disk:
        path = disk.path / "data"
        path.write_bytes(DATA)
        slow_storage.evict(disk.path)
        read(path, None)
        with slow_storage.in_memory(path):
            read(path, disk.join)
        assert disk.read_bytes() < MIB


def test_the_loop_device_reads_past_the_page_cache(tmp_path: Path) -> None:
    """Otherwise the image would be cached, and the throttled device could be as fast as memory."""
    with throttled_disk(tmp_path) as disk:
        assert (
            "1" == Path("/sys/class/block", Path(disk.device).name, "loop/dio").read_text().strip()
        )


def test_a_limit_of_memory_bounds_the_page_cache(tmp_path: Path) -> None:
    """A file of four times the limit is read completely, and its cached part stays below the
    limit."""
    limit = 48 * MIB
    path = tmp_path / "data"
    path.write_bytes(DATA * 12)
    slow_storage.evict(tmp_path)
    with bounded_memory(limit) as bound:
        read(path, bound.join)
        assert 0 < bound.cached_bytes() <= bound.most_used_bytes() <= limit
        assert 0 < resident_bytes(path) <= limit


def resident_bytes(path: Path) -> int:
    """Cached bytes, by fincore of util-linux."""
    if shutil.which("fincore") is None:
        pytest.skip("no fincore on this machine")
    shown = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", path],
        capture_output=True,
        text=True,
    )
    return int(shown.stdout)


def test_memory_of_a_process_counts_too(tmp_path: Path) -> None:
    """A process that allocates more than the limit is killed, and no other."""
    with bounded_memory(32 * MIB) as bound:
        ended = subprocess.run(
            [sys.executable, "-c", "x = bytearray(256 << 20)"],
            preexec_fn=bound.join,
            capture_output=True,
            text=True,
        )
    assert -9 == ended.returncode


class BrokenOffError(Exception):
    """Ways in which a test may end."""


def left_reading(
    bound_or_disk: BoundedMemory | slow_storage.ThrottledDisk, path: Path
) -> "subprocess.Popen[str]":
    """A child that has joined the group, holds a file open, and waits."""
    code = "import sys\nfile = open(sys.argv[1], 'rb')\nprint('open', flush=True)\nsys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], preexec_fn=bound_or_disk.join, text=True, **pipes
    )
    assert child.stdout is not None
    assert "open\n" == child.stdout.readline()
    return child


def test_nothing_stays_of_a_disk_though_the_test_fails(tmp_path: Path) -> None:
    """No mount, loop device, group or file, and no process of the group."""
    left = []
    with pytest.raises(BrokenOffError), throttled_disk(tmp_path, 16 * MIB) as disk:  # noqa: PT012 - the last line raises
        (disk.path / "data").touch()
        left += [disk, left_reading(disk, disk.path / "data")]
        raise BrokenOffError
    disk, child = left
    child.communicate()
    assert -9 == child.returncode
    assert [] == list(tmp_path.iterdir())
    assert not disk.group.path.exists()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert (
        str(tmp_path)
        not in subprocess.run(
            ["losetup", "--list"], capture_output=True, text=True, check=True
        ).stdout
    )


def test_nothing_stays_of_a_bound_though_the_test_fails(tmp_path: Path) -> None:
    """No group, and no process of it."""
    left = []
    with pytest.raises(BrokenOffError), bounded_memory(64 * MIB) as bound:  # noqa: PT012 - the last line raises
        (tmp_path / "data").touch()
        left += [bound, left_reading(bound, tmp_path / "data")]
        raise BrokenOffError
    bound, child = left
    child.communicate()
    assert (-9, False) == (child.returncode, bound.group.path.exists())


def test_without_root_it_says_so() -> None:
    """The text is the reason of a skip."""
    code = "import os, slow_storage, control_groups\nos.geteuid() or os.setuid(65534)\n"
    code += "print(slow_storage.missing())\nprint(control_groups.missing('memory'))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(slow_storage.__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a throttled disk needs root\na control group for memory needs root\n" == ended.stdout


def test_what_is_held_in_memory_is_not_evicted(tmp_path: Path) -> None:
    """posix_fadvise does not evict locked pages."""
    path = tmp_path / "data"
    path.write_bytes(DATA)
    slow_storage.evict(tmp_path)
    if resident_bytes(path):
        pytest.skip(f"no disk under {tmp_path}: its pages cannot be evicted")
    with slow_storage.in_memory(tmp_path):
        slow_storage.evict(tmp_path)
        assert len(DATA) == resident_bytes(path)
    slow_storage.evict(tmp_path)
    assert 0 == resident_bytes(path)
