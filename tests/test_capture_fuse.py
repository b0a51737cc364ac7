"""Recording a job whose data lies on FUSE, as on GlusterFS or a squashed image: all of it is seen,
and nothing is claimed of it."""

import json
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import polars as pl
import pytest
from captures import PROGRAMS
from fuse_server import Mounted, fuse_server
from preload import bytes_by_source

import ioprof
from ioprof.format.trace import Trace
from ioprof.instrument import preload
from ioprof.instrument.faults import refusal

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        preload.library() is None, reason="the capture library is not built: no C compiler"
    ),
]

LEAST = 0.999
LINKER_BYTES = 120_000
"""What the dynamic linker reads of the libraries of a process that loads torch: not to be seen from
within it."""
COUNT, SIZE = 24, 500_003


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MB in 24 images, so called."""
    root = tmp_path_factory.mktemp("folder")
    (root / "n01").mkdir()
    for number in range(COUNT):
        (root / f"n01/{number}.JPEG").write_bytes(np.random.default_rng(number).bytes(SIZE))
    return root


def recorded(out: Path, program: str, *arguments: object) -> Trace:
    """The trace of a program of `tests/programs`."""
    line = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--out",
        out,
        "--",
        sys.executable,
        PROGRAMS / program,
        *arguments,
    ]
    ended = subprocess.run(
        [str(word) for word in line], capture_output=True, text=True, timeout=240
    )
    assert 0 == ended.returncode, ended.stderr
    return ioprof.load(out).trace


def reads_below(trace: Trace, root: Path) -> pl.DataFrame:
    """The reads of what is mounted there."""
    files = trace.files.filter(pl.col("path").str.starts_with(f"{root}/"))
    return trace.spans.filter(pl.col("kind") == "read", pl.col("bytes") > 0).join(files, on="file")


def assert_all_is_seen(trace: Trace) -> None:
    """By the proc io counters of each process."""
    for process in trace.run.processes:
        reads = process.reads
        missing = reads.io_rchar - reads.seen_bytes
        assert 0 <= missing <= max((1 - LEAST) * reads.io_rchar, LINKER_BYTES), process


@pytest.mark.system(every=4)
@pytest.mark.parametrize("direct_io", [False, True], ids=["cached", "direct"])
def test_all_bytes_are_seen_and_their_source_is_unknown(
    direct_io: bool, folder: Path, tmp_path: Path
) -> None:
    """Twice, and the second time from the page cache where there is one: FUSE counts no blocks, and
    the report says so."""
    with fuse_server(folder, direct_io=direct_io, read_ms=1) as mounted:
        trace = recorded(tmp_path / "run", "read_twice.py", mounted.path)
        read_ratio = mounted.counters()["bytes"] / (COUNT * SIZE)
        assert read_ratio == 2 if direct_io else 1 <= read_ratio < 2
        assert {"unknown": 2 * COUNT * SIZE} == bytes_by_source(reads_below(trace, mounted.path))
    (process,) = trace.run.processes
    assert LEAST <= process.reads.seen_bytes / process.reads.io_rchar <= 1
    assert_it_is_reported(tmp_path / "run")


@pytest.mark.system(every=4)
def test_workers_of_a_loader_are_no_exception(folder: Path, tmp_path: Path) -> None:
    """Two epochs of two processes that torch's DataLoader keeps."""
    with fuse_server(folder, direct_io=True) as mounted:
        trace = recorded(tmp_path / "run", "read_by.py", "persistent", mounted.path)
        assert 2 * COUNT * SIZE == mounted.counters()["bytes"]
        assert {"unknown": 2 * COUNT * SIZE} == bytes_by_source(reads_below(trace, mounted.path))
    assert_all_is_seen(trace)


def assert_it_is_reported(run: Path) -> None:
    """As a number for machines, and to those who read: how much, why, and what to do about it."""
    storage = json.loads((run / "summary.json").read_text())["storage"]
    assert 2 * COUNT * SIZE == storage["bytes_unknown"]
    line = [sys.executable, "-m", "ioprof", "report", "--full", str(run)]
    shown = " ".join(
        subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    )
    assert "do not say whether memory served" in shown
    assert "sources unknown:" in shown
    assert "the file system does not say whether a read was served from memory" in shown.lower()
    assert (
        "compare a run on files that are not in memory with one on files just read" in shown.lower()
    )


def test_a_page_fault_says_that_the_server_was_asked(tmp_path: Path) -> None:
    """LMDB without readahead on FUSE: each major fault is one request, by the server's counters,
    and is called storage."""
    if reason := refusal():
        pytest.skip(reason)
    (tmp_path / "folder").mkdir()
    with (
        lmdb.open(str(tmp_path / "folder"), map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number in range(100):
            transaction.put(b"%08d" % number, bytes(5000))
    with fuse_server(tmp_path / "folder") as mounted:
        trace = recorded(tmp_path / "run", "read_lmdb.py", mounted.path)
        assert_each_fault_was_a_request(trace, mounted)


def assert_each_fault_was_a_request(trace: Trace, mounted: Mounted) -> None:
    files = trace.files.filter(pl.col("path") == f"{mounted.path}/data.mdb")
    faults = trace.spans.filter(pl.col("kind") == "fault").join(files, on="file")
    counters = mounted.counters()
    assert {"storage"} == set(faults["source"].to_list())
    assert faults["offset"].n_unique() == len(faults) >= 100
    # LMDB reads its two first pages by calls
    assert len(faults) <= counters["requests"]["READ"] <= len(faults) + 2
