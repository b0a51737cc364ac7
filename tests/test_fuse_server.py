"""The FUSE server for slow storage: correct data, requested delays, requested concurrency, and
removal at the end."""

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fuse_server as module
import numpy as np
import pytest
from fuse_server import Mounted, fuse_server
from hypothesis import given
from hypothesis import strategies as st
from jobs import alive, wait_until

pytestmark = pytest.mark.system

PROGRAM = Path(module.__file__)
SIZES = (0, 1, 4095, 4096, 4097, 131_072, 1_000_003)
LARGEST = SIZES[-1]

HOSTILE = (
    b"a b\ttab",
    b"new\nline",
    b"back\\slash \\040",
    b"not \xff\xfe UTF-8",
    b"-rf",
    b"'quoted\" $(x)",
    b"\x01\x7f",
    b"\xe2\x80\xaeright to left",
    b"x" * 255,
)
"""Names that a file may have (man 7 path_resolution: all bytes but / and 0)."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several sizes, random bytes."""
    root = tmp_path_factory.mktemp("served")
    for size in SIZES:
        (root / str(size)).write_bytes(np.random.default_rng(size).bytes(size))
    return root


@pytest.fixture(scope="module", params=[False, True], ids=["cached", "direct"])
def served(request: pytest.FixtureRequest, folder: Path) -> Iterator[Mounted]:
    """The same files through the server."""
    with fuse_server(folder, direct_io=request.param) as mounted:
        yield mounted


def mounts_at(place: Path) -> list[bytes]:
    """Lines of the mount table of the kernel, in which special bytes are octal escapes."""
    escaped = os.fsencode(place).replace(b"\\", b"\\134")
    for byte in b" \t\n":
        escaped = escaped.replace(bytes([byte]), b"\\%03o" % byte)
    return [
        line
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines()
        if line.split(b" ")[4] == escaped
    ]


def is_mounted(place: Path) -> bool:
    return bool(mounts_at(place))


def read_directly(mounted: Mounted, name: str, size: int, times: int) -> None:
    """This many sequential reads."""
    descriptor = os.open(mounted.path / name, os.O_RDONLY)
    try:
        for number in range(times):
            assert size == len(os.pread(descriptor, size, number * size))
    finally:
        os.close(descriptor)


# -------------------------------------------------------------------------------------------- exact


@given(
    size=st.sampled_from(SIZES),
    offset=st.integers(0, LARGEST + 10),
    length=st.integers(0, LARGEST + 10),
)
def test_any_part_of_a_file_is_that_of_the_folder(
    served: Mounted, folder: Path, size: int, offset: int, length: int
) -> None:
    """For any offset and length, also at and beyond the end, with the page cache and without."""
    descriptor = os.open(served.path / str(size), os.O_RDONLY)
    try:
        found = os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)
    assert (folder / str(size)).read_bytes()[offset : offset + length] == found


def test_a_mapped_file_is_that_of_the_folder(served: Mounted, folder: Path) -> None:
    """Like LMDB: a shared mapping for reading."""
    with (
        open(served.path / str(LARGEST), "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        assert (folder / str(LARGEST)).read_bytes() == mapped[:]


def test_names_kinds_and_attributes_are_those_of_the_folder(tmp_path: Path) -> None:
    """Any valid names, folders, links and special files; with and without caching of entries by the
    kernel."""
    root = tmp_path / "root"
    for name in map(os.fsdecode, HOSTILE):
        (root / name).mkdir(parents=True)
        (root / name / name).write_bytes(os.fsencode(name))
    (root / "link").symlink_to(os.fsdecode(b"no \xff where"))
    os.mkfifo(root / "fifo")
    for number in range(500):  # more than fits into one reply
        (root / f"{number}{'y' * 200}").touch()
    for remember_s in (0, 3600):
        with fuse_server(root, remember_s=remember_s) as mounted:
            assert listing(root) == listing(mounted.path)
            for name in map(os.fsdecode, HOSTILE):
                assert os.fsencode(name) == (mounted.path / name / name).read_bytes()


def listing(root: Path) -> list[tuple[object, ...]]:
    """All entries below a folder with their attributes."""
    found = []
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        target = path.readlink() if path.is_symlink() else None
        times = (status.st_mtime_ns, status.st_ctime_ns)
        found.append(
            (
                path.relative_to(root),
                status.st_mode,
                status.st_size,
                status.st_uid,
                status.st_nlink,
                *times,
                target,
            )
        )
    return found


def test_it_can_only_be_read(served: Mounted) -> None:
    """For all users including root."""
    for change in (
        lambda path: path.write_bytes(b""),
        Path.unlink,
        lambda path: path.rename(path.with_name("b")),
    ):
        with pytest.raises(OSError, match="Read-only") as refused:
            change(served.path / "4096")
        assert errno.EROFS == refused.value.errno


def test_an_extended_attribute_may_have_any_name(tmp_path: Path) -> None:
    """`user.lustre.lov` of the folder is `lustre.lov` of the mount, byte by byte: this simulates
    attributes of a cluster file system."""
    (tmp_path / "root").mkdir()
    path = tmp_path / "root/file"
    path.touch()
    value = bytes(range(256)) * 3
    try:
        os.setxattr(path, "user.lustre.lov", value)
    except OSError as error:
        pytest.skip(f"no extended attributes in {tmp_path}: {error.strerror}")
    with fuse_server(tmp_path / "root") as mounted:
        assert (
            value
            == os.getxattr(mounted.path / "file", "lustre.lov")
            == os.getxattr(mounted.path / "file", "user.lustre.lov")
        )
        assert ["user.lustre.lov"] == os.listxattr(mounted.path / "file")
        with pytest.raises(OSError, match="No data") as absent:
            os.getxattr(mounted.path / "file", "lustre.lma")
        assert errno.ENODATA == absent.value.errno


def test_the_kernel_says_what_it_is_told_to(folder: Path, tmp_path: Path) -> None:
    """Type, source and mount point of any network file system can be simulated in
    /proc/self/mountinfo."""
    place = tmp_path / "mount \\ \n point"
    place.mkdir()
    with fuse_server(folder, place, subtype="glusterfs", source="10.0.0.1:/a b\n\\040") as mounted:
        (line,) = mounts_at(place)
        assert b"" == (mounted.path / "0").read_bytes()
    assert [b"fuse.glusterfs", rb"10.0.0.1:/a\040b\012\134040"] == line.split(b" - ")[1].split(
        b" "
    )[:2]
    assert not is_mounted(place)


# --------------------------------------------------------------------------------------------- slow


def test_a_direct_read_is_one_request_of_its_size(folder: Path) -> None:
    """No caching and no readahead: the counters of the server equal those of the reader."""
    with fuse_server(folder, direct_io=True, max_read_bytes=65_536) as mounted:
        for size in (100, 4096, 50_000):
            read_directly(mounted, str(LARGEST), size, 20)
        books = mounted.counters()
    assert {"100": 20, "4096": 20, "50000": 20} == books["read_sizes"]
    assert (60, 20 * 54_196) == (books["requests"]["READ"], books["bytes"])


def test_a_cached_page_is_asked_for_once(folder: Path) -> None:
    """Until it is evicted; requests have the given maximum size."""
    with fuse_server(folder, max_read_bytes=8192) as mounted:
        path = mounted.path / str(LARGEST)
        for _ in range(3):
            path.read_bytes()
        books = mounted.counters()
        # another program may empty the page cache of the machine
        assert LARGEST <= books["bytes"] < 2 * LARGEST
        assert max(map(int, books["read_sizes"])) <= 8192
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        path.read_bytes()
        assert mounted.counters()["bytes"] >= 2 * LARGEST


def test_what_is_read_ahead_has_the_bound_that_was_given(folder: Path) -> None:
    """None at 0: the kernel reads single pages; also more than its default of 128 KiB."""
    largest = {}
    for readahead in (0, 16_384, 1 << 20):
        with fuse_server(folder, max_readahead_bytes=readahead, max_read_bytes=1 << 20) as mounted:
            with open(mounted.path / str(LARGEST), "rb", buffering=0) as file:
                while file.read(4096):
                    pass
            largest[readahead] = max(map(int, mounted.counters()["read_sizes"]))
    assert (4096, 16_384) == (largest[0], largest[16_384])
    assert largest[1 << 20] > 131_072


def test_each_request_waits_what_it_was_given(folder: Path) -> None:
    """n sequential requests take at least n times as long; requests without delay do not wait."""
    with fuse_server(
        folder, direct_io=True, read_ms=3, open_ms=20, metadata_ms=10, remember_s=0
    ) as mounted:
        before, began = mounted.counters()["requests"], time.monotonic()
        read_directly(mounted, "131072", 4096, 25)
        took = time.monotonic() - began
        after = mounted.counters()["requests"]
    made = {name: count - before.get(name, 0) for name, count in after.items()}
    assert (25, 1, 1) == (made["READ"], made["OPEN"], made["FLUSH"])
    metadata = sum(made.get(name, 0) for name in ("LOOKUP", "GETATTR", "FLUSH"))
    assert took >= 25 * 0.003 + 0.020 + metadata * 0.010
    assert metadata >= 2


def test_it_can_be_slowed_down_later(folder: Path) -> None:
    """So that a dataset can be read quickly before the test begins."""
    with fuse_server(folder, direct_io=True) as mounted:
        mounted.slow_down(read_ms=30)
        began = time.monotonic()
        read_directly(mounted, "131072", 4096, 5)
        assert time.monotonic() - began >= 5 * 0.030


@pytest.mark.parametrize(("threads", "expected"), [(3, 3), (16, 8)])
def test_requests_wait_side_by_side(folder: Path, threads: int, expected: int) -> None:
    """As many as there are readers, but at most the threads of the server, by its counters."""
    with fuse_server(folder, direct_io=True, threads=threads, read_ms=400) as mounted:
        for _ in range(5):  # on a loaded machine some may start only after others have finished
            readers = [
                threading.Thread(target=read_directly, args=(mounted, "131072", 4096, 1))
                for _ in range(8)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            if expected <= mounted.counters()["most_at_once"]:
                break
        assert expected == mounted.counters()["most_at_once"]


def test_all_readers_share_the_link(folder: Path) -> None:
    """Two at a time get no more bytes per second than one."""
    rate = 8_000_000
    with fuse_server(folder, direct_io=True, bytes_per_s=rate) as mounted:
        began = time.monotonic()
        readers = [
            threading.Thread(target=read_directly, args=(mounted, str(LARGEST), 100_000, 10))
            for _ in range(2)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        took = time.monotonic() - began
        assert 2_000_000 == mounted.counters()["bytes"]
    assert took >= 2_000_000 / rate


# ---------------------------------------------------------------------------------- gone at the end


def test_it_is_unmounted_when_the_test_fails(folder: Path, tmp_path: Path) -> None:
    """The error is that of the test."""
    with pytest.raises(ZeroDivisionError), fuse_server(folder, tmp_path):
        assert is_mounted(tmp_path) / 0
    assert not is_mounted(tmp_path)


def test_it_is_unmounted_when_a_file_is_left_open(folder: Path, tmp_path: Path) -> None:
    """Further reads fail and do not hang."""
    with fuse_server(folder, tmp_path, direct_io=True):
        left = os.open(tmp_path / "4096", os.O_RDONLY)
    try:
        assert not is_mounted(tmp_path)
        with pytest.raises(OSError, match=r"not connected|connection abort"):
            os.pread(left, 10, 0)
    finally:
        with suppress(OSError):  # the server is not notified
            os.close(left)


def test_it_is_unmounted_when_the_server_is_killed(folder: Path, tmp_path: Path) -> None:
    """The test fails."""
    with pytest.raises(AssertionError), fuse_server(folder, tmp_path) as mounted:
        os.kill(mounted._server.pid, signal.SIGKILL)
    assert not is_mounted(tmp_path)


def test_it_is_unmounted_when_the_test_is_killed(folder: Path) -> None:
    """SIGKILL of the process that started it; the folder created for the mount is removed too."""
    program = f"""
import sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
from pathlib import Path
from fuse_server import fuse_server
with fuse_server(Path({str(folder)!r})) as mounted:
    print(mounted._server.pid, mounted.path, flush=True)
    sys.stdin.read()
"""
    if reason := module.missing():
        pytest.skip(reason)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as test:
        assert test.stdout is not None
        server, place = test.stdout.readline().split()
        assert is_mounted(Path(place))
        test.kill()
    wait_until(lambda: not alive(int(server)), seconds=30)
    assert (False, False) == (is_mounted(Path(place)), Path(place).exists())


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "umount"])
def test_as_a_program_it_serves_until_it_is_told_to_end(
    how: str, folder: Path, tmp_path: Path
) -> None:
    """By a signal or an unmount; then it prints its counters."""
    if reason := module.missing():
        pytest.skip(reason)
    line = [sys.executable, PROGRAM, folder, tmp_path, "--read-ms", "1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert "until it is unmounted" in program.stdout.readline()
        assert 4096 == len((tmp_path / "4096").read_bytes())
        subprocess.run(
            ["umount", tmp_path], check=True
        ) if how == "umount" else program.send_signal(getattr(signal, how))
        assert 4096 == json.loads(program.stdout.readline())["bytes"]
        assert 0 == program.wait(30)
    assert not is_mounted(tmp_path)


def test_without_root_it_says_so(folder: Path) -> None:
    """The text is the reason of a skip."""
    code = "import os, fuse_server\nos.geteuid() or os.setuid(65534)\nprint(fuse_server.missing())"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=PROGRAM.parent, capture_output=True, text=True, check=True
    )
    assert "a FUSE server of our own needs root\n" == ended.stdout
