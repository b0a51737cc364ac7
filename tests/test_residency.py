"""Page cache control: what is resident, by whom it may be asked, and getting files out and in.
Ground truth: what a read costs."""

import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ioprof.errors import CommandError
from ioprof.storage import residency as module
from ioprof.storage.residency import (
    PAGE_BYTES,
    CacheQueries,
    cached_pages,
    evict,
    mapping_processes,
    mincore_pages,
    proactive_reclaim,
    residency,
    warm,
)

SIZES = (1, 4096, 4097, 100_000, 3 << 20)
NOBODY = 65534


@pytest.fixture
def files(tmp_path):
    """Files of odd sizes, on a disk: what tmpfs holds cannot be evicted."""
    if file_system_of(tmp_path) in ("tmpfs", "overlay"):
        pytest.skip(
            f"the page cache of {file_system_of(tmp_path)} is not that of a disk; give pytest a"
            " --basetemp on a disk"
        )
    paths = [tmp_path / str(size) for size in SIZES]
    for path, size in zip(paths, SIZES, strict=True):
        path.write_bytes(os.urandom(size))
    return [str(path) for path in paths]


def file_system_of(path):
    return subprocess.run(
        ["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True
    ).stdout.strip()


def pages(size):
    return -(-size // PAGE_BYTES)


READER = """
import json, os, sys
from resource import RUSAGE_THREAD, getrusage

def fetched_bytes(path):
    before = getrusage(RUSAGE_THREAD).ru_inblock
    open(path, "rb").read()
    return 512 * (getrusage(RUSAGE_THREAD).ru_inblock - before)

fetched_bytes(os.__file__)  # the interpreter's own pages, which it may have to fetch to read anything
print(json.dumps([fetched_bytes(path) for path in sys.argv[1:]]))
"""  # noqa: E501


def bytes_fetched_by_reading(paths):
    """What the kernel fetches for a process to read each of these files as a whole: 0 if all of it
    is cached."""
    return json.loads(
        subprocess.run(
            [sys.executable, "-c", READER, *paths], capture_output=True, check=True
        ).stdout
    )


def warmed(paths):
    """The residency that is claimed of cold files when they were warmed, and what reading each of
    them costs directly after."""
    evict(paths)
    return warm(paths).ratio, bytes_fetched_by_reading(paths)


@pytest.mark.job
def test_what_is_evicted_is_fetched_again_and_what_is_warm_is_not(files):
    """The kernel's own count of fetched blocks agrees with the residency that is claimed, for dirty
    files, too."""
    start = residency(files)
    assert (len(files), sum(map(pages, SIZES)) * PAGE_BYTES) == (start.files, start.bytes)
    assert 1.0 == start.ratio  # just written

    assert (0.0, 0) == (evict(files).ratio, evict(files).unknown_files)
    assert [pages(size) * PAGE_BYTES for size in SIZES] == bytes_fetched_by_reading(files)

    # A kernel that reclaims idle memory may drop some in between, but hardly each time.
    assert (1.0, [0] * len(files)) in (warmed(files) for _ in range(10))


@pytest.mark.job
def test_a_part_of_a_file_is_counted_by_its_pages(files):
    """Reading one page of a large file makes that page resident, or what the kernel reads ahead of
    it."""
    path = files[-1]
    evict([path])
    with open(path, "rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(stream.fileno(), 1, 1 << 20)
    assert PAGE_BYTES == residency([path]).resident_bytes


@pytest.mark.job
def test_all_ways_of_asking_agree_for_the_owner(files, monkeypatch):
    """cachestat, mincore and probing see the same page cache."""

    def answers():
        with open(files[-1], "rb") as stream:
            number, size = stream.fileno(), SIZES[-1]
            asked = (
                cached_pages(number, 0, 0),
                mincore_pages(number, size),
                module._Files(CacheQueries())._by_nowait(number, pages(size), 16).resident,
            )
        return [answer for answer in asked if answer is not None]

    warm(files)
    assert {pages(SIZES[-1])} == set(answers())
    evict(files)
    assert {0} == set(answers())
    assert 0 == residency(files).resident_bytes, "probing left pages behind"


@pytest.mark.skipif(os.geteuid() != 0, reason="to be somebody else needs root")
def test_somebody_else_is_not_told_that_everything_is_resident():
    """Who neither owns a file nor may write it gets all ones from mincore, and cachestat refuses:
    neither becomes a claim."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o755)
        path = os.path.join(folder, "file")
        Path(path).write_bytes(os.urandom(3 << 20))
        evict([path])
        os.seteuid(NOBODY)
        try:
            found = evict([path])
        finally:
            os.seteuid(0)
        assert (0.0, {"RWF_NOWAIT sampled": 1}) == (found.ratio, found.methods)
        assert 0 == residency([path]).resident_bytes, "probing left pages behind"


class RefusedQueries(CacheQueries):
    """Every query is refused."""

    def resident_pages(self, descriptor):
        return None

    def may_use_mincore(self, descriptor, status):
        return False

    def is_cached(self, descriptor, place):
        raise OSError(95, "Operation not supported")


@pytest.mark.job
def test_unknown_residency_is_not_zero(files):
    """Where every query is refused there is no ratio, and a reason."""
    found = residency(files, queries=RefusedQueries())
    assert (None, len(files), 0) == (found.ratio, found.unknown_files, found.bytes)
    assert "neither owns nor may write" in found.reason
    assert (None, None) == (found.facts()["ratio"], found.facts()["resident_bytes"])


class OnGpfs(CacheQueries):
    """All files are on GPFS."""

    def file_system(self, device):
        return "gpfs"


@pytest.mark.job
def test_residency_on_gpfs_is_unknown(files):
    """A file system with its own cache has nothing in the page cache, which does not mean that its
    files are uncached."""
    found = residency(files, queries=OnGpfs())
    assert (None, True) == (found.ratio, "page pool" in found.reason)


@pytest.mark.job
def test_what_is_mapped_stays_and_who_maps_it_is_named(files):
    """Pages in a page table cannot be evicted; the processes are named."""
    path = files[-1]
    with (
        open(path, "rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert len(mapped[:]) == SIZES[-1]
        assert SIZES[-1] == evict([path]).resident_bytes
        assert {os.getpid(): Path("/proc/self/comm").read_text().strip()} == mapping_processes(
            [path]
        )
    assert 0 == evict([path]).resident_bytes
    assert {} == mapping_processes([path])


def test_many_files_are_all_seen(tmp_path):
    """More files than are in flight at a time, each counted once."""
    paths = [str(tmp_path / str(number)) for number in range(9000)]
    for path in paths:
        Path(path).write_bytes(b"x")
    seen = []
    found = residency(paths, seen.append)
    assert (9000, 9000 * PAGE_BYTES, 9000 * PAGE_BYTES) == (found.files, found.bytes, sum(seen))


@pytest.mark.parametrize("act", [residency, evict, warm])
def test_what_is_not_there_is_one_line(tmp_path, act):
    """A missing file, a folder and a pipe are refused or passed by, without a traceback and without
    waiting."""
    with pytest.raises(
        CommandError, match=r"missing: cannot be (opened|read) \(No such file or directory\)"
    ):
        act([str(tmp_path / "missing")])


def test_an_empty_list_and_an_empty_file_are_no_division(tmp_path):
    """Nothing is neither cold nor warm."""
    (tmp_path / "empty").touch()
    assert None is residency([]).ratio
    assert (None, 0) == (
        evict([str(tmp_path / "empty")]).ratio,
        evict([str(tmp_path / "empty")]).unknown_files,
    )


@pytest.mark.job
def test_hostile_maps_are_passed_over(tmp_path, files):
    """Lines of /proc/PID/maps that are not as expected name no file, and are no error."""
    (tmp_path / "proc" / "12").mkdir(parents=True)
    (tmp_path / "proc" / "12" / "maps").write_bytes(
        b"\xff\n7f-80 r--p 0 zz:1 5\n7f-80 r--p 0 08:\xff 5 /x\n\n7f-80 r--p 0 08:01 x\n"
    )
    assert {} == mapping_processes(files, proc=str(tmp_path / "proc"))


def test_the_structures_are_those_of_the_kernel():
    """<linux/mman.h>: struct cachestat_range is two, struct cachestat five 64-bit numbers."""
    assert (16, 40) == (ctypes.sizeof(module._Range), ctypes.sizeof(module._Cachestat))


def test_what_reclaims_idle_memory_is_found(tmp_path):
    """DAMON reclaims pages not accessed for a while: files do not stay cached. Any other state
    gives None."""
    assert None is proactive_reclaim(str(tmp_path))
    kdamond = tmp_path / "kernel/mm/damon/admin/kdamonds/0"
    scheme = kdamond / "contexts/0/schemes/0"
    scheme.mkdir(parents=True)
    for path, text in (
        (kdamond.parent / "nr_kdamonds", "1"),
        (scheme.parent / "nr_schemes", "1"),
        (scheme / "action", "stat"),
    ):
        path.write_text(f"{text}\n")
    (kdamond / "state").write_text("on\n")
    assert None is proactive_reclaim(str(tmp_path))
    (scheme / "action").write_text("pageout\n")
    assert "a pageout scheme" in proactive_reclaim(str(tmp_path))
    (kdamond / "state").write_text("off\n")
    assert None is proactive_reclaim(str(tmp_path))
    (kdamond.parent / "nr_kdamonds").write_text("99999999999\n")
    assert None is proactive_reclaim(str(tmp_path))
    (tmp_path / "module/damon_reclaim/parameters").mkdir(parents=True)
    (tmp_path / "module/damon_reclaim/parameters/enabled").write_text("Y\n")
    assert "damon_reclaim" in proactive_reclaim(str(tmp_path))
