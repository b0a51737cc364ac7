"""The capture library knows where bytes came from: as many from storage as the device says that it
gave."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest
from preload import bytes_by_source, captured, environment, needs_library, reads_of, run_python

from ioprof.storage.residency import evict as evict_all

pytestmark = [pytest.mark.system(every=3), needs_library]

MIB = 1 << 20
SIZE = 32 * MIB
WRONG = 0.01
"""The part of a file's bytes whose source may be wrong."""

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
kinds = pytest.mark.parametrize("kind", MAKE)

WAYS = {
    "as it is": {},
    "not watched": {"IOPROF_CAPTURE_WATCH": "off"},  # as with a C library before glibc 2.35
    "no nowait": {"IOPROF_CAPTURE_NOWAIT": "off"},  # as on a file system that does not know it
}
"""How the library finds out."""


@dataclass(frozen=True)
class LoopDisk:
    """A mounted file system on a loop device, `loop0`."""

    path: Path
    device: str

    def read_bytes(self) -> int:
        """What the device has given so far (kernel documentation, admin-guide/iostats: the third
        number, in sectors of 512)."""
        return int(Path("/sys/class/block", self.device, "stat").read_text().split()[2]) * 512

    def read_ahead(self, num_bytes: int) -> None:
        """Fetch so much at once for who reads in order; btrfs has a setting of its own."""
        own = [
            path.parents[1] / "bdi"
            for path in Path("/sys/fs/btrfs").glob(f"*/devices/{self.device}")
        ]
        (place,) = own or [Path("/sys/class/block", self.device, "bdi")]
        (place / "read_ahead_kb").write_text(str(num_bytes // 1024))


@contextmanager
def loop_disk(folder: Path, kind: str) -> Iterator[LoopDisk]:
    """A file system of its own."""
    image, mount = folder / "image", folder / "disk"
    if os.geteuid() != 0:
        pytest.skip("a loop device needs root")
    if shutil.which(MAKE[kind][0]) is None:
        pytest.skip(f"no {MAKE[kind][0]} on this machine")
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(400 * MIB)
    subprocess.run([*MAKE[kind], image], check=True, capture_output=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"{kind} cannot be mounted: {mounted.stderr.strip()}")
    try:
        (device,) = [
            part.device
            for part in psutil.disk_partitions(all=True)
            if part.mountpoint == str(mount)
        ]
        yield LoopDisk(mount, Path(device).name)
    finally:
        subprocess.run(["umount", mount], check=True)


def evict(path: Path, start: int, length: int) -> None:
    """Drop a part of a file from the page cache; 0 is all that follows. What shares a large folio
    with the rest stays."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


READERS = {
    "in order": "while os.read(file, 131072): pass",
    "small, in order": "while os.read(file, 5000): pass",
    "small, by readv": "part = [bytearray(5000)]\nwhile os.readv(file, part): pass",
    "at once": "os.read(file, size + 1)",
    "at random": (
        """
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # otherwise a read finds what an earlier one elsewhere had fetched ahead
for place in random.Random(0).sample(range(size // 65536), size // 65536):
    os.pread(file, 65536, place * 65536)"""  # noqa: E501
    ),
    "by a stream": "import numpy; numpy.fromfile(sys.argv[1], dtype=numpy.uint8)",
}

STATES = {"cold": (0, 1), "warm": (1, 1), "first half cold": (0, 0.5), "second half cold": (0.5, 1)}
"""What is dropped from the page cache: from where to where in the file."""


@dataclass(frozen=True)
class Read:
    """Bytes of one file, read once: what the device gave, and what was recorded as from storage."""

    device: int
    storage: int


def read_once(disk: LoopDisk, path: Path, reader: str, spool: Path, **way: str) -> Read:
    """Reads a file; all of its bytes are recorded, once."""
    size = path.stat().st_size
    before = disk.read_bytes()
    program = (
        "import os, sys, random\nfile = os.open(sys.argv[1], os.O_RDONLY)\nsize ="
        f" {size}\n{READERS[reader]}"
    )
    run_python(spool, program, path, **way)
    device = disk.read_bytes() - before
    found = bytes_by_source(reads_of(captured(spool), path))
    assert size == sum(found.values())
    return Read(device, found.get("storage", 0))


def read_in_state(
    state: str, disk: LoopDisk, path: Path, reader: str, spool: Path, **way: str
) -> Read:
    """The same of a file that is partly in the page cache; again where the kernel took of it before
    it was read."""
    size = path.stat().st_size
    start, end = (int(size * part) for part in STATES[state])
    for attempt in range(5):
        evict(path, 0, 0)
        path.read_bytes()
        if start < end:
            evict(path, start, end - start)
        found = read_once(disk, path, reader, spool.with_name(f"{spool.name} {attempt}"), **way)
        if abs(found.device - (end - start)) < size / 4:
            return found
    pytest.fail(f"the file was never in the state that was asked for: {found}")


@pytest.mark.system(every=4)
@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
@kinds
def test_cold_and_warm_bytes_are_distinguished(kind: str, way: str, tmp_path: Path) -> None:
    """As many bytes are from storage as the device gave, but for 1 % of the file, in any order of
    reads and whatever was cached."""
    found = {}
    with loop_disk(tmp_path, kind) as disk:
        disk.read_ahead(131_072)
        path = disk.path / "data"
        path.write_bytes(np.random.default_rng(1).bytes(SIZE))
        for reader, state in [(reader, state) for reader in READERS for state in STATES]:
            found[reader, state] = read_in_state(
                state, disk, path, reader, tmp_path / f"{reader} {state}", **WAYS[way]
            )
    assert {} == {
        case: each for case, each in found.items() if abs(each.device - each.storage) > WRONG * SIZE
    }


@pytest.mark.parametrize("reader", ["at random", "in order", "at once"])
@pytest.mark.parametrize("way", WAYS)
@kinds
def test_holes_in_a_cached_file_are_no_larger_than_they_are(
    kind: str, way: str, reader: str, tmp_path: Path
) -> None:
    """Single pages that are missing here and there, as after memory was short: they are fetched,
    and not all of the reads that meet them."""
    pages = np.random.default_rng(1).choice(SIZE // 4096, 160, replace=False)
    with loop_disk(tmp_path, kind) as disk:
        disk.read_ahead(131_072)
        path = disk.path / "data"
        path.write_bytes(np.random.default_rng(1).bytes(SIZE))
        evict(path, 0, 0)
        path.read_bytes()
        for page in pages.tolist():
            evict(path, page * 4096, 4096)
        found = read_once(disk, path, reader, tmp_path / "spool", **WAYS[way])
    assert abs(found.device - found.storage) <= WRONG * SIZE


@pytest.mark.parametrize("reader", ["small, in order", "small, by readv"])
@pytest.mark.parametrize("way", WAYS)
@kinds
def test_what_an_unexpected_miss_fetches_is_recorded(
    kind: str, way: str, reader: str, tmp_path: Path
) -> None:
    """Small reads that find the first half cached, and then windows of 4 MiB that last for 800
    reads each: all are from the device.

    One may be missed, which the kernel fetched ahead on another occasion, such as a page that it
    had taken back.
    """
    window = 4 * MIB  # as btrfs has it by itself
    with loop_disk(tmp_path, kind) as disk:
        disk.read_ahead(window)
        path = disk.path / "data"
        path.write_bytes(np.random.default_rng(1).bytes(2 * SIZE))
        found = read_in_state(
            "second half cold", disk, path, reader, tmp_path / "spool", **WAYS[way]
        )
    assert found.device - window - WRONG * SIZE <= found.storage <= found.device + WRONG * SIZE


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_reader_begins_anew(way: str, tmp_path: Path) -> None:
    """What its parent had fetched, and that all of the parent's last reads were cached, says
    nothing of a child's reads."""
    with loop_disk(tmp_path, "ext4") as disk:
        disk.read_ahead(131_072)
        paths = [disk.path / "of the parent", disk.path / "of the child"]
        for path in paths:
            path.write_bytes(np.random.default_rng(1).bytes(8 * MIB))
            evict(path, 0, 0)
        program = """
import os, sys
def read(path):
    file = os.open(path, os.O_RDONLY)
    while os.read(file, 65536): pass
read(sys.argv[1])
read(sys.argv[1])
child = os.fork()
if not child:
    read(sys.argv[2])
    os._exit(0)
os.waitpid(child, 0)
"""
        run_python(tmp_path / "spool", program, *paths, **WAYS[way])
    trace = captured(tmp_path / "spool")
    found = [bytes_by_source(reads_of(trace, path)) for path in paths]
    assert [{"storage": 8 * MIB, "page_cache": 8 * MIB}, {"storage": 8 * MIB}] == found


AHEAD = {
    "readahead": (
        "import ctypes\nctypes.CDLL(None, use_errno=True).readahead(file, ctypes.c_long(0),"
        " ctypes.c_size_t(MIB))"
    ),
    "fadvise": "os.posix_fadvise(file, 0, MIB, os.POSIX_FADV_WILLNEED)",
}


@pytest.mark.parametrize("call", AHEAD)
@pytest.mark.parametrize("way", WAYS)
@kinds
def test_readahead_is_recorded_when_it_is_read(
    kind: str, way: str, call: str, tmp_path: Path
) -> None:
    """It is in memory by then, but for this descriptor's sake: all that the device gave is from
    storage."""
    with loop_disk(tmp_path, kind) as disk:
        disk.read_ahead(MIB)
        path = disk.path / "data"
        path.write_bytes(np.random.default_rng(1).bytes(8 * MIB))
        evict(path, 0, 0)
        before = disk.read_bytes()
        program = f"""
import os, sys, time
MIB = 1 << 20
file = os.open(sys.argv[1], os.O_RDONLY)
{AHEAD[call]}
time.sleep(0.3)
for _ in range(4):
    os.read(file, MIB // 4)
"""
        run_python(tmp_path / "spool", program, path, **WAYS[way])
        device = disk.read_bytes() - before
    found = bytes_by_source(reads_of(captured(tmp_path / "spool"), path))
    assert device >= MIB
    assert {"storage": MIB} == found


def loop(path: Path) -> str:
    return f"""
with open({str(path)!r}, "rb", buffering=0) as file:
    while file.read(65536):
        pass
"""


def test_what_has_no_storage_below_it_is_from_memory(tmp_path: Path) -> None:
    """tmpfs and proc."""
    memory = Path("/dev/shm")
    if (
        "tmpfs"
        != subprocess.run(["stat", "-fc%T", memory], capture_output=True, text=True).stdout.strip()
    ):
        pytest.skip(f"no tmpfs at {memory}")
    path = memory / f"ioprof-test-{os.getpid()}"
    path.write_bytes(b"x" * 100_000)
    try:
        run_python(tmp_path / "spool", loop(path) + loop(Path("/proc/version")))
    finally:
        path.unlink()
    trace = captured(tmp_path / "spool")
    assert {"page_cache": 100_000} == bytes_by_source(reads_of(trace, path))
    assert {"page_cache": len(Path("/proc/version").read_bytes())} == bytes_by_source(
        reads_of(trace, "/proc/version")
    )


def test_direct_reads_are_from_storage(tmp_path: Path) -> None:
    """O_DIRECT goes past the page cache, also where the data is in it."""
    path = tmp_path / "data"
    path.write_bytes(b"x" * MIB)
    program = f"""
import mmap, os
try:
    file = os.open({str(path)!r}, os.O_RDONLY | os.O_DIRECT)
except OSError:
    raise SystemExit("none")
os.readv(file, [mmap.mmap(-1, {MIB})])
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path / "spool"),
        capture_output=True,
        text=True,
    )
    if ended.stderr.strip() == "none":
        pytest.skip("this file system has no O_DIRECT")
    assert (0, "") == (ended.returncode, ended.stderr)
    assert {"storage": MIB} == bytes_by_source(reads_of(captured(tmp_path / "spool"), path))


IN_ONE = (
    "for path in sys.argv[1:]:\n    with open(path, 'rb', buffering=0) as file:\n       "
    " file.read()"
)
IN_PARTS = (
    "for path in sys.argv[1:]:\n    with open(path, 'rb', buffering=0) as file:\n        while"
    " file.read(20_000): pass"
)


@pytest.mark.parametrize("reader", [IN_ONE, IN_PARTS], ids=["in one", "in parts"])
@pytest.mark.parametrize("way", WAYS)
def test_a_disk_that_answers_at_once_is_storage(way: str, reader: str, tmp_path: Path) -> None:
    """Small cold files on this machine's own disk: it may be done before a reader waits for it, as
    a virtual one often is, whose host has the data in memory. What the process had read before, of
    its libraries, was cached."""
    folder = tmp_path / "files"
    folder.mkdir()
    paths = [folder / f"{number:02}" for number in range(64)]
    for number, path in enumerate(paths):
        path.write_bytes(np.random.default_rng(number).bytes(100_000 + 1_000 * number))
    size = sum(path.stat().st_size for path in paths)
    if evict_all([*map(str, paths)]).resident_bytes > size / 2:
        pytest.skip(f"no disk under {tmp_path}: its pages cannot be evicted")
    found = []
    for turn in range(4):
        # a page in use may stay
        assert evict_all([*map(str, paths)]).resident_bytes < WRONG * size / 2
        spool = tmp_path / f"spool{turn}"
        run_python(spool, f"import sys\n{reader}", *paths, **WAYS[way])
        trace = captured(spool)
        found.append(bytes_by_source(pl.concat([reads_of(trace, path) for path in paths])))
    assert [size] * len(found) == [sum(each.values()) for each in found]
    assert [] == [each for each in found if each.get("storage", 0) < (1 - WRONG) * size]


RANGES = {
    "in order with gaps": "range(0, size, 40_000)",
    "at random": "random.Random(0).sample(range(0, size, 40_000), -(-size // 40_000))",
}


@pytest.mark.parametrize("order", RANGES)
@pytest.mark.parametrize("way", WAYS)
def test_ranges_of_a_cold_file_are_from_storage(way: str, order: str, tmp_path: Path) -> None:
    """Each is read by a descriptor of its own, as readers of shards do: what readahead for one
    range fetched of the next ones was fetched for this process, and is from storage when it is
    read. A second pass is from the page cache."""
    with loop_disk(tmp_path, "ext4") as disk:
        disk.read_ahead(131_072)
        path = disk.path / "data"
        path.write_bytes(np.random.default_rng(1).bytes(SIZE))
        evict(path, 0, 0)
        program = f"""
import os, sys, random
size = os.path.getsize(sys.argv[1])
for turn in range(2):
    for place in {RANGES[order]}:
        file = os.open(sys.argv[1], os.O_RDONLY)
        os.pread(file, 24, place)
        os.pread(file, 20_000, place + 24)
        os.close(file)
"""
        before = disk.read_bytes()
        run_python(tmp_path / "spool", program, path, **WAYS[way])
        device = disk.read_bytes() - before
    trace = captured(tmp_path / "spool")
    found = bytes_by_source(reads_of(trace, path))
    once = sum(found.values()) / 2
    (process,) = trace.run.processes
    assert abs(process.reads.fetched_bytes - device) <= 0.02 * device
    assert found.get("storage", 0) <= device + WRONG * once
    assert abs(found.get("storage", 0) - once) <= 0.05 * once
