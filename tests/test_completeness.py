"""`ioprof record` with third-party libraries: every byte that the kernel counted is recorded, or
every page."""

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import slow_storage
from made_datasets import made
from preload import check_counters, needs_library
from repository import PROGRAMS

import ioprof
from ioprof.format.trace import Trace
from ioprof.instrument.faults import refusal

pytestmark = needs_library
needs_faults = pytest.mark.skipif(refusal() is not None, reason=str(refusal()))
PAGE = 4096
NEEDS = {
    "dali": "nvidia.dali",
    "dali-mmap": "nvidia.dali",
    "webdataset": "webdataset",
    "h5py": "h5py",
    "parquet": "pyarrow.parquet",
}


def need(how: str) -> None:
    """Skip if the library of that reader is not installed."""
    if how in NEEDS:
        pytest.importorskip(
            NEEDS[how], reason=f"{NEEDS[how]} is not installed", exc_type=ImportError
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 generated images in three classes: 5 MB."""
    from ioprof.converters import GenerateOptions, generate

    return generate(
        tmp_path_factory.mktemp("tree") / "images", GenerateOptions(images=48, classes=3, workers=1)
    ).path


def in_hdf5(tree: Path, folder: Path) -> None:
    """One data set per image."""
    import h5py
    import numpy as np

    with h5py.File(folder / "images.h5", "w") as file:
        for path in sorted(tree.glob("*/*.JPEG")):
            file[path.stem] = np.frombuffer(path.read_bytes(), np.uint8)


def in_parquet(tree: Path, folder: Path) -> None:
    """One row per image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [path.read_bytes() for path in sorted(tree.glob("*/*.JPEG"))]
    pq.write_table(pa.table({"image": images}), folder / "images.parquet", compression=None)


def in_tars(tree: Path, folder: Path) -> None:
    """Shards in the format of ioprof."""
    made(tree, folder / "tars", layout="webdataset")


PACKED: dict[str, Callable[[Path, Path], None]] = {
    "h5py": in_hdf5,
    "parquet": in_parquet,
    "webdataset": in_tars,
}


def record(out: Path, *command: object, **variables: str) -> tuple[Trace, str]:
    """The trace of a command that succeeds, and its output."""
    line = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", out, "--", *command]
    changed = {**os.environ, **variables}
    ended = subprocess.run(
        [str(word) for word in line], capture_output=True, text=True, timeout=120, env=changed
    )
    assert 0 == ended.returncode, ended.stderr
    return ioprof.load(out).trace, ended.stdout


def read_by(out: Path, how: str, path: Path, **variables: str) -> tuple[Trace, int]:
    """The trace of a program that reads `path`, and the number of bytes that it reports."""
    trace, said = record(out, sys.executable, PROGRAMS / "read_by.py", how, path, **variables)
    return trace, int(said)


def bytes_of(trace: Trace, folder: Path, kind: str) -> int:
    """The bytes of reads or faults of files below a folder."""
    files = trace.files.filter(pl.col("path").str.starts_with(f"{folder}/"))
    return int(trace.spans.filter(pl.col("kind") == kind).join(files, on="file")["bytes"].sum())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.JPEG"))


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    ("how", "epochs"),
    [("spawn", 1), ("persistent", 2), ("dali", 1), ("webdataset", 1), ("h5py", 1), ("parquet", 1)],
)
def test_every_byte_of_a_library_that_reads_is_seen(
    how: str, epochs: int, tree: Path, tmp_path: Path
) -> None:
    """As many bytes as the library returned, and 99.9 % of those that the kernel counted, in every
    process of the job."""
    need(how)
    folder = tree
    if how in PACKED:
        folder = tmp_path / "packed"
        folder.mkdir()
        PACKED[how](tree, folder)
    trace, handed_out = read_by(tmp_path / "run", how, folder)
    assert size_of(tree) * epochs == handed_out
    assert bytes_of(trace, folder, "read") >= handed_out
    check_counters(trace, libraries=140)


@pytest.mark.job(every=4)
def test_every_byte_is_seen_beside_another_allocator(tree: Path, tmp_path: Path) -> None:
    """A job that preloads jemalloc still does, and all its reads are recorded."""
    allocator = ctypes.util.find_library("jemalloc")
    if allocator is None:
        pytest.skip("no jemalloc on this machine")
    program = """
import sys
print(sum(len(open(path, 'rb').read()) for path in sys.argv[1:]), 'jemalloc' in open('/proc/self/maps').read())
"""  # noqa: E501
    images = sorted(tree.glob("*/*.JPEG"))
    trace, said = record(
        tmp_path / "run", sys.executable, "-c", program, *images, LD_PRELOAD=allocator
    )
    assert [str(size_of(tree)), "True"] == said.split()
    assert size_of(tree) == bytes_of(trace, tree, "read")
    check_counters(trace, libraries=40)


@pytest.mark.system(every=4)
@needs_faults
def test_a_library_that_maps_is_seen_by_its_faults(tree: Path, tmp_path: Path) -> None:
    """Cold LMDB: pages of its file, each within it, all from storage; no bytes by read calls."""
    path = made(tree, tmp_path / "base", layout="lmdb").data_path
    slow_storage.evict(path)
    trace, handed_out = read_by(tmp_path / "run", "lmdb", path)
    assert handed_out >= size_of(tree)
    files = trace.files.filter(pl.col("path") == f"{path}/data.mdb")
    faults = trace.spans.filter(pl.col("kind") == "fault").join(files, on="file")
    assert {"storage"} == set(faults["source"].to_list())
    size = (path / "data.mdb").stat().st_size
    assert all(0 <= offset < size and offset % PAGE == 0 for offset in faults["offset"])
    assert bytes_of(trace, path, "read") < size / 10


@pytest.mark.system(every=4)
@needs_faults
def test_fio_maps_and_every_page_is_told(tmp_path: Path) -> None:
    """fio's mmap engine accesses each page of a cold file once, in random order: the recorded bytes
    equal those it reports."""
    if shutil.which("fio") is None:
        pytest.skip("no fio on this machine")
    size, path = 16 << 20, tmp_path / "data" / "mapped"
    path.parent.mkdir()
    path.write_bytes(os.urandom(size))
    slow_storage.evict(path.parent)
    job = [
        "fio",
        "--name=job",
        "--ioengine=mmap",
        f"--filename={path}",
        "--rw=randread",
        "--bs=4k",
        f"--size={size}",
        "--thread",
    ]
    trace, said = record(tmp_path / "run", *job, "--output-format=json")
    (counted,) = json.loads(said)["jobs"]
    faults = trace.spans.filter(pl.col("kind") == "fault").join(
        trace.files.filter(pl.col("path") == str(path)), on="file"
    )
    assert size == counted["read"]["io_bytes"] == faults["bytes"].sum()
    assert list(range(0, size, PAGE)) == sorted(faults["offset"])
    assert {"storage"} == set(faults["source"])
    assert 0 == bytes_of(trace, path.parent, "read")


@pytest.mark.system(every=4)
@needs_faults
def test_files_that_are_mapped_and_fetched_ahead_are_told_by_what_was_fetched(
    tree: Path, tmp_path: Path
) -> None:
    """DALI's default reader reads a whole mapping by madvise, so no fault waits: the pages of each
    file are recorded once, as a read of that file from storage."""
    need("dali-mmap")
    slow_storage.evict(tree)
    trace, handed_out = read_by(tmp_path / "run", "dali-mmap", tree)
    assert size_of(tree) == handed_out
    sizes = {str(path): path.stat().st_size for path in tree.glob("*/*.JPEG")}
    mapped = trace.spans.filter(pl.col("kind") == "open", pl.col("name") == "mmap").join(
        trace.files, on="file"
    )
    assert sizes == dict(
        mapped.filter(pl.col("path").str.ends_with(".JPEG")).select("path", "bytes").iter_rows()
    )
    ahead = trace.spans.filter(pl.col("kind") == "read", pl.col("name") == "madvise").join(
        trace.files, on="file"
    )
    assert {("storage", 0)} == set(ahead.select("source", "offset").iter_rows())
    assert {path: -(-size // PAGE) * PAGE for path, size in sizes.items()} == dict(
        ahead.select("path", "bytes").iter_rows()
    )
    counted = sum(process.reads.io_read_bytes for process in trace.run.processes)
    assert ahead["bytes"].sum() <= counted  # which has the pages of libraries, too


@pytest.mark.system(every=4)
def test_what_is_in_memory_is_not_fetched_ahead(tree: Path, tmp_path: Path) -> None:
    """The same again: mapped, and nothing from storage."""
    need("dali-mmap")
    with slow_storage.in_memory(tree):
        trace, handed_out = read_by(tmp_path / "run", "dali-mmap", tree)
    assert size_of(tree) == handed_out
    assert (
        0
        == trace.spans.filter(pl.col("kind") == "read", pl.col("name") == "madvise")["bytes"].sum()
    )
