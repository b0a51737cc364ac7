"""What `ioprof record` sees of libraries that nobody here wrote: every byte that the kernel counted, or every page."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from captures import PROGRAMS
from made_datasets import made

import ioprof
from ioprof.record import preload
from ioprof.record.faults import refusal
from ioprof.trace import Trace

pytestmark = pytest.mark.skipif(preload.library() is None, reason="the capture library is not built: no C compiler")
LEAST = 0.999
LINKER_BYTES = 120_000
"""What the dynamic linker reads of the libraries of a process that loads torch or DALI: not to be seen from within it."""
PAGE = 4096
NEEDS = {"dali": "nvidia.dali", "dali-mmap": "nvidia.dali", "webdataset": "webdataset"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 generated images in three classes: 5 MB."""
    from ioprof.converters import GenerateOptions, generate

    return generate(tmp_path_factory.mktemp("tree") / "images", GenerateOptions(images=48, classes=3, workers=1)).path


def recorded(out: Path, how: str, path: Path) -> tuple[Trace, int]:
    """The trace of a program that reads `path`, and how many bytes it says it was given."""
    program = [sys.executable, PROGRAMS / "read_by.py", how, path]
    line = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", out, "--", *program]
    ended = subprocess.run([str(word) for word in line], capture_output=True, text=True, timeout=120)
    assert 0 == ended.returncode, ended.stderr
    return ioprof.load(out), int(ended.stdout)


def bytes_of(trace: Trace, folder: Path, kind: str) -> int:
    """What reads or faults of files below a folder moved."""
    files = trace.files.filter(pl.col("path").str.starts_with(f"{folder}/"))
    return int(trace.spans.filter(pl.col("kind") == kind).join(files, on="file")["bytes"].sum())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.JPEG"))


def evict(folder: Path) -> None:
    """Ask the kernel to forget what it has of these files; what is mapped or dirty stays."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize(("how", "epochs"), [("spawn", 2), ("persistent", 2), ("dali", 1), ("webdataset", 1)])
def test_every_byte_of_a_library_that_reads_is_seen(how: str, epochs: int, tree: Path, tmp_path: Path) -> None:
    """As many as were handed out, and 99.9 % of what the kernel counted, in every process of the job."""
    if how in NEEDS:
        pytest.importorskip(NEEDS[how], reason=f"{NEEDS[how]} is not installed", exc_type=ImportError)
    path = made(tree, tmp_path / "tars", layout="webdataset").data_path if how == "webdataset" else tree
    folder = path.parent if path.is_file() else path
    trace, handed_out = recorded(tmp_path / "run", how, folder)
    assert size_of(tree) * epochs == handed_out
    assert bytes_of(trace, folder, "read") >= handed_out
    for process in trace.run["processes"]:
        missing = process["reads"]["io_rchar"] - process["reads"]["seen_bytes"]
        assert 0 <= missing <= max((1 - LEAST) * process["reads"]["io_rchar"], LINKER_BYTES), process


@pytest.mark.skipif(refusal() is not None, reason=str(refusal()))
def test_a_library_that_maps_is_seen_by_its_faults(tree: Path, tmp_path: Path) -> None:
    """LMDB, cold: pages of its file, each within it, all from storage; and none of it was read by a call."""
    path = made(tree, tmp_path / "base", layout="lmdb").data_path
    evict(path)
    trace, handed_out = recorded(tmp_path / "run", "lmdb", path)
    assert handed_out >= size_of(tree)
    files = trace.files.filter(pl.col("path") == f"{path}/data.mdb")
    faults = trace.spans.filter(pl.col("kind") == "fault").join(files, on="file")
    assert {"storage"} == set(faults["source"].to_list())
    size = (path / "data.mdb").stat().st_size
    assert all(0 <= offset < size and offset % PAGE == 0 for offset in faults["offset"])
    assert bytes_of(trace, path, "read") < size / 10


def test_files_that_are_mapped_and_fetched_ahead_are_told_by_their_mappings(tree: Path, tmp_path: Path) -> None:
    """DALI's default reader has the kernel fetch all of a mapping by madvise: no fault waits, but file and length are known."""
    pytest.importorskip(NEEDS["dali-mmap"], reason="DALI is not installed", exc_type=ImportError)
    trace, handed_out = recorded(tmp_path / "run", "dali-mmap", tree)
    assert size_of(tree) == handed_out
    mapped = trace.spans.filter(pl.col("kind") == "open", pl.col("name") == "mmap").join(trace.files, on="file")
    found = dict(mapped.filter(pl.col("path").str.ends_with(".JPEG")).select("path", "bytes").iter_rows())
    assert {str(path): path.stat().st_size for path in tree.glob("*/*.JPEG")} == found
