"""Reads by io_uring: each has its file, offset and bytes, however its ring is made and entered, or
the ring is noted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from compiling import compiled, native_sources
from preload import bytes_by_source, captured, needs_library, reads_of, run_captured

pytestmark = [needs_library, pytest.mark.job]

BLOCK = 4096
BLOCKS = 1000
FOLLOWED = ("single", "liburing", "vectors", "fixed", "numbers", "batches")
"""Parts of the program: liburing by one request or 32, by readv, of a registered file; and by
system calls of the C library."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("uring_reads.c", tmp_path_factory.mktemp("uring") / "program", "-luring")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(BLOCKS * BLOCK))
    return path


def run(program: Path, part: str, data: Path, spool: Path) -> None:
    """Runs it under the library, which must change nothing of what it reads."""
    ended = subprocess.run([program, part, data], capture_output=True, text=True)
    if ended.returncode == 77:
        pytest.skip("this kernel refuses io_uring")
    assert (0, f"{BLOCKS * BLOCK}\n") == (ended.returncode, ended.stdout), ended.stderr
    assert run_captured(spool, program, part, data) == ended.stdout


@pytest.mark.parametrize("part", FOLLOWED)
def test_every_request_is_a_read(part: str, program: Path, data: Path, tmp_path: Path) -> None:
    """With its file, offset and bytes, each once; the file was just written and is in memory."""
    run(program, part, data, tmp_path / "spool")
    trace = captured(tmp_path / "spool")
    reads = reads_of(trace, data)
    assert reads["offset"].to_list() == [block * BLOCK for block in range(BLOCKS)]
    assert reads["bytes"].to_list() == [BLOCK] * BLOCKS
    assert (reads["end_ns"] >= reads["start_ns"]).all()
    assert "storage" not in bytes_by_source(reads)
    assert "io_uring" not in trace.run.processes[0].reads.noted


def test_threads_have_rings_of_their_own(program: Path, data: Path, tmp_path: Path) -> None:
    """Four threads at a time: each request is a read of the thread that made it."""
    assert run_captured(tmp_path / "spool", program, "threads", data) == f"{4 * BLOCKS * BLOCK}\n"
    trace = captured(tmp_path / "spool")
    by_thread = reads_of(trace, data).group_by("tid").agg(pl.col("offset"), pl.col("bytes").sum())
    assert by_thread["bytes"].to_list() == [BLOCKS * BLOCK] * 4
    assert all(
        sorted(each) == list(range(0, BLOCKS * BLOCK, BLOCK)) for each in by_thread["offset"]
    )
    assert "io_uring" not in trace.run.processes[0].reads.noted


@pytest.mark.parametrize("part", ["single", "batches"])
def test_what_the_kernel_fetched_was_fetched_by_these_reads(
    part: str, program: Path, data: Path, tmp_path: Path
) -> None:
    """Of an evicted file nothing is left that would have come by mapped files."""
    descriptor = os.open(data, os.O_RDONLY)
    os.fsync(descriptor)
    subprocess.run([program, part, data], capture_output=True)  # the program itself is in memory
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    assert run_captured(tmp_path / "spool", program, part, data) == f"{BLOCKS * BLOCK}\n"
    (process,) = captured(tmp_path / "spool").run.processes
    fetched = process.reads.io_read_bytes
    if not fetched:
        pytest.skip("the file system of this folder has no block device")
    assert process.reads.fetched_bytes == pytest.approx(fetched, rel=0.05)


def test_what_is_past_the_cache_came_from_storage(
    program: Path, data: Path, tmp_path: Path
) -> None:
    """O_DIRECT."""
    try:
        os.close(os.open(data, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system of this folder has no O_DIRECT")
    run(program, "direct", data, tmp_path / "spool")
    reads = reads_of(captured(tmp_path / "spool"), data)
    assert bytes_by_source(reads) == {"storage": BLOCKS * BLOCK}


def test_a_ring_that_the_kernel_polls_is_noted(program: Path, data: Path, tmp_path: Path) -> None:
    """IORING_SETUP_SQPOLL: the job does not enter the kernel to submit."""
    run(program, "poll", data, tmp_path / "spool")
    (process,) = captured(tmp_path / "spool").run.processes
    assert process.reads.noted == ("io_uring",)


def test_entries_that_are_built_into_a_program_are_noted(data: Path, tmp_path: Path) -> None:
    """fio makes its ring by the C library and enters it by instructions of its own: what the kernel
    took is more than what was seen."""
    if shutil.which("fio") is None:
        pytest.skip("no fio on this machine")
    job = ["fio", "--ioengine=io_uring", "--name=job", f"--filename={data}", "--rw=read"]
    job += ["--size=1m", f"--output={tmp_path / 'out'}"]
    if subprocess.run(job, capture_output=True).returncode:
        pytest.skip("this kernel refuses io_uring")
    run_captured(tmp_path / "spool", *job)
    trace = captured(tmp_path / "spool")
    noted = {word for process in trace.run.processes for word in process.reads.noted}
    assert "io_uring" in noted or reads_of(trace, data)["bytes"].sum() == 1 << 20


def test_a_child_does_not_follow_its_parents_ring(tmp_path: Path) -> None:
    """A ring without requests, in a parent and its forked child, is said of neither."""
    program = """
import ctypes, os
library = ctypes.CDLL(None, use_errno=True)
ring = library.syscall(425, 8, ctypes.create_string_buffer(120))
if ring < 0: raise SystemExit(77)
child = os.fork()
open("/proc/self/stat").read()
if child: os.waitpid(child, 0)
os.close(ring)
"""
    if subprocess.run([sys.executable, "-c", program]).returncode == 77:
        pytest.skip("this kernel refuses io_uring")
    run_captured(tmp_path / "spool", sys.executable, "-c", program)
    trace = captured(tmp_path / "spool")
    assert not any("io_uring" in process.reads.noted for process in trace.run.processes)
    assert trace.spans.filter(pl.col("kind") == "read")["bytes"].sum()


@pytest.mark.job(every=4)
def test_sanitizers_find_nothing(data: Path, tmp_path: Path) -> None:
    """Hooks and program in one, checked for wrong addresses and undefined behaviour."""
    options = ["-fsanitize=address,undefined", "-ftls-model=initial-exec", "-fvisibility=hidden"]
    options += [*native_sources("ring", "capture"), "-luring"]
    program = compiled("uring_reads.c", tmp_path / "program", *options)
    for part in (*FOLLOWED, "threads", "poll"):
        spool = tmp_path / f"spool {part}"
        spool.mkdir()
        changes = {**os.environ, "IOPROF_SPOOL": str(spool)}
        ended = subprocess.run([program, part, data], env=changes, capture_output=True, text=True)
        if ended.returncode == 77:
            pytest.skip("this kernel refuses io_uring")
        assert (0, "") == (ended.returncode, ended.stderr), part
        assert part == "poll" or captured(spool).spans.height >= BLOCKS
