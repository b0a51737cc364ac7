"""Reading whole files: the bytes are the file's, and what is no regular file is refused by name.
Mapped files: the source."""

import errno
import mmap
import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import slow_storage
from captures import recorded, trace_of
from fuse_server import fuse_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ioprof.format.schema import READAHEAD
from ioprof.instrument.mapped import fault_in
from ioprof.instrument.span import intern
from ioprof.loaders.file_reading import LARGEST_FILE, read_file


@given(st.binary(max_size=20_000))
def test_a_read_returns_the_files_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """Whatever the file holds, and though it is opened without waiting."""
    path = tmp_path_factory.mktemp("file") / "a.JPEG"
    path.write_bytes(data)
    assert data == read_file(str(path))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.timeout(30)  # a FIFO without a writer would be waited for, for ever
@pytest.mark.parametrize("make", [fifo, unix_socket, device, folder])
def test_what_is_no_file_is_refused(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a socket, a device, a folder: an error at once, which names the path and says what is
    wrong with it."""
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    make(Path("a.JPEG"))
    with pytest.raises(OSError, match="not a regular file") as refused:
        read_file("a.JPEG")
    assert "a.JPEG" == refused.value.filename


def test_a_file_too_large_for_an_image_is_refused(tmp_path: Path) -> None:
    """Before any memory is taken for it; the error names the file and its size."""
    path = tmp_path / "a.JPEG"
    with open(path, "wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(OSError, match="1,073,741,825 bytes") as refused:
        read_file(str(path))
    assert (errno.EFBIG, str(path)) == (refused.value.errno, refused.value.filename)


@pytest.mark.system
def test_a_page_fault_says_it_also_on_fuse(tmp_path: Path) -> None:
    """Where the kernel counts a major fault the server was asked, and where it counts none and
    nobody waited it was not."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "spool").mkdir()
    (tmp_path / "folder/data.mdb").write_bytes(bytes(1 << 20))
    asked = []
    with (
        fuse_server(tmp_path / "folder", read_ms=1) as mounted,
        open(mounted.path / "data.mdb", "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        recorded(tmp_path / "spool", native=False),
    ):
        mapped.madvise(mmap.MADV_RANDOM)
        for place in (0, 500_000, 0, 500_000):
            fault_in(
                lambda place=place: memoryview(mapped)[place : place + 100], file=intern("data.mdb")
            )
            asked.append(mounted.counters()["requests"]["READ"])
    assert [1, 2, 2, 2] == asked
    faults = trace_of(tmp_path / "spool").spans.filter(kind="fault").sort("start_ns")
    assert ["storage", "storage", "page_cache", "page_cache"] == faults["source"].to_list()


@pytest.mark.system
@given(places=st.lists(st.integers(0, 299), min_size=1, max_size=12), announce=st.booleans())
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bytes_of_a_map_are_those_that_the_device_delivered(
    slow_map: tuple[slow_storage.ThrottledDisk, Path], places: list[int], announce: bool
) -> None:
    """Whatever is read ahead: what spans have from storage is what the kernel fetched, and the
    values are whole."""
    disk, path = slow_map
    slow_storage.evict(disk.path)
    with tempfile.TemporaryDirectory() as spool:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
            recorded(Path(spool), native=False),
        ):
            if announce:
                mapped.madvise(mmap.MADV_RANDOM)
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
            for number, place in enumerate(places):
                at = place * 20_000

                def begin(at: int = at) -> None:
                    os.posix_fadvise(file.fileno(), at, 10_000, os.POSIX_FADV_WILLNEED)

                fault_in(
                    lambda at=at: memoryview(mapped)[at : at + 10_000],
                    file=intern(str(number)),
                    announce=begin if announce else None,
                )
            fetched = (resource.getrusage(resource.RUSAGE_THREAD).ru_inblock - before) * 512
        trace = trace_of(Path(spool))
    spans = trace.spans.filter(pl.col("kind").is_in(["read", "fault"]))
    waits = (pl.col("name").cast(pl.String) == READAHEAD).fill_null(value=False)
    stored = spans.filter(pl.col("source") == "storage")["bytes"].sum()
    assert fetched <= stored <= fetched + len(places)
    assert fetched > 0
    wanted = spans.filter(~waits).group_by("file").agg(pl.col("bytes").sum())["bytes"]
    assert wanted.len() == len(places)
    assert wanted.min() >= 10_000
    assert wanted.max() < 10_000 + 2 * 4096 if announce else wanted.max() == 10_000


@pytest.fixture(scope="module")
def slow_map(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[slow_storage.ThrottledDisk, Path]]:
    """A file of 6 MB on a disk that can be evicted."""
    with slow_storage.throttled_disk(tmp_path_factory.mktemp("disk"), 32 << 20) as disk:
        path = disk.path / "data.mdb"
        path.write_bytes(os.urandom(6_000_000))
        yield disk, path
