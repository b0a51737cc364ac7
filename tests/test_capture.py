"""The capture library sees what a job reads: all of it, from which file and where, and whether
storage had to deliver it."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from compiling import compiled
from preload import (
    LIBRARY,
    bytes_by_source,
    captured,
    check_counters,
    environment,
    hook_names,
    needs_library,
    reads_of,
    run_captured,
    run_python,
)

from ioprof.analysis.capture import capture

pytestmark = [pytest.mark.job, needs_library]

MIB = 1 << 20
BIG = 24 * MIB + 777


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 MiB and a little more, in the page cache."""
    path = tmp_path_factory.mktemp("big") / "big"
    path.write_bytes(np.random.default_rng(0).bytes(BIG))
    return path


def loop(path: Path, size: int = 65_536) -> str:
    return f"""
with open({str(path)!r}, "rb", buffering=0) as file:
    while file.read({size}):
        pass
"""


# ------------------------------------------------------------------------------------- completeness


def test_each_read_of_a_loop_is_a_span(big: Path, tmp_path: Path) -> None:
    """Each read of a file is a span with its bytes and its offset, one after the other; the open
    comes before."""
    run_python(tmp_path / "spool", loop(big))
    trace = captured(tmp_path / "spool")
    reads = reads_of(trace, big)
    size = BIG
    assert size == reads["bytes"].sum()
    assert list(range(0, size, 65_536)) == reads["offset"].to_list()
    opened = trace.spans.join(trace.files, on="file").filter(
        pl.col("kind") == "open", pl.col("path") == str(big), pl.col("name").is_null()
    )
    assert 1 == opened.height
    assert opened["end_ns"][0] <= reads["start_ns"].min()
    (process,) = check_counters(trace)
    assert process.closed


LIST = """
import os, sys
assert all(len(os.listdir(sys.argv[1])) == 5000 for _ in range(20))
open(sys.argv[2], "rb").read()
"""


def test_a_listing_is_timed_where_it_asks_the_kernel(big: Path, tmp_path: Path) -> None:
    """Twenty listings of 5,000 entries are some hundred calls of the kernel, whose time is there;
    what comes from the C library's buffer is not timed."""
    (folder := tmp_path / "many").mkdir()
    for number in range(5000):
        (folder / str(number)).touch()
    run_python(tmp_path / "spool", LIST, folder, big)
    trace = captured(tmp_path / "spool")
    (process,) = check_counters(trace)
    listed = trace.spans.filter(pl.col("kind") == "open", pl.col("name") == "readdir")
    assert 40 <= listed.height + (process.reads.short_calls or 0) < 20 * 5000 / 10
    assert listed.height > 0 or (process.reads.short_ns or 0) > 0


def numpy_arrays(big: Path, folder: Path) -> str:
    return f"""
import numpy
numpy.save({str(folder / "a.npy")!r}, numpy.zeros(3 << 20))
assert numpy.load({str(folder / "a.npy")!r}).shape == (3 << 20,)
assert numpy.fromfile({str(big)!r}, dtype=numpy.uint8).size == {BIG}
"""


def test_numpy_reads_through_copies_and_streams(big: Path, tmp_path: Path) -> None:
    """np.load and np.fromfile read by dup, fdopen and fread: all of it is seen, with the file's
    name."""
    run_python(tmp_path / "spool", numpy_arrays(big, tmp_path))
    trace = captured(tmp_path / "spool")
    # a seek to the end fills the stream's buffer
    assert BIG <= reads_of(trace, big)["bytes"].sum() <= BIG + 4096
    # the header twice
    assert (
        (3 << 23) + 128
        <= reads_of(trace, tmp_path / "a.npy")["bytes"].sum()
        <= (3 << 23) + 128 + 8192
    )
    check_counters(trace)


def test_a_tar_is_read_at_its_members_offsets(big: Path, tmp_path: Path) -> None:
    """tarfile moves about by seek: the offsets follow."""
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(big, "first")
        tar.add(big, "second")
    run_python(
        tmp_path / "spool",
        f"import tarfile\ntar = tarfile.open({str(archive)!r})\nassert"
        " tar.extractfile('second').read()",
    )
    trace = captured(tmp_path / "spool")
    reads = reads_of(trace, archive)
    assert BIG <= reads.filter(pl.col("offset") >= BIG)["bytes"].sum()
    check_counters(trace)


@pytest.mark.parametrize(
    "tool",
    [
        "cat {}",
        "cp {} {}.copy",
        "dd if={} of=/dev/null bs=64k status=none",
        "md5sum {}",
        "sort -o /dev/null {}",
    ],
)
def test_programs_without_python(tool: str, big: Path, tmp_path: Path) -> None:
    """read, copy_file_range and the streams of the C library: the file's bytes, once each."""
    words = tool.format(big, tmp_path / "big").split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} on this machine")
    run_captured(tmp_path / "spool", *words)
    trace = captured(tmp_path / "spool")
    assert BIG == reads_of(trace, big)["bytes"].sum()
    check_counters(trace)


@pytest.mark.parametrize("engine", ["psync", "pvsync2", "sync", "vsync", "posixaio"])
def test_fio_says_how_much_it_read(engine: str, big: Path, tmp_path: Path) -> None:
    """16 MiB by each of fio's ways to call the kernel."""
    if shutil.which("fio") is None:
        pytest.skip("no fio on this machine")
    job = [
        f"--ioengine={engine}",
        "--name=job",
        f"--filename={big}",
        "--rw=randread",
        "--bs=16k",
        "--size=16m",
    ]
    run_captured(
        tmp_path / "spool",
        "fio",
        *job,
        "--invalidate=0",
        "--thread",
        f"--output={tmp_path / 'out'}",
    )
    trace = captured(tmp_path / "spool")
    reads = reads_of(trace, big)
    assert 16 * MIB == reads["bytes"].sum()
    assert 1024 == reads["offset"].n_unique()


POOL = """
import multiprocessing, sys
def work(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(65536):
            pass
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    with multiprocessing.Pool(3) as pool:
        pool.map(work, [sys.argv[2]] * 6, chunksize=1)
"""


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_pool_that_is_terminated(start_method: str, big: Path, tmp_path: Path) -> None:
    """Workers ended by SIGTERM run no code at the end: all they read is recorded, and the parent's
    counters are its own."""
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    run_captured(tmp_path / "spool", sys.executable, program, start_method, big)
    trace = captured(tmp_path / "spool")
    assert 6 * BIG == reads_of(trace, big)["bytes"].sum()
    processes = check_counters(trace, libraries=40)
    workers = reads_of(trace, big)["pid"].unique().to_list()
    assert len(processes) > len(workers) >= 1
    assert 6 * BIG * 0.999 <= sum(process.reads.bytes for process in processes)


WAIT4 = {"x86_64": 61, "aarch64": 260}


@pytest.mark.skipif(platform.machine() not in WAIT4, reason="not known here: the number of wait4")
def test_a_child_whose_end_was_taken_past_the_hooks(big: Path, tmp_path: Path) -> None:
    """The kernel adds its counters to the parent's all the same, and its usage at the same moment,
    by which they are recognised."""
    program = f"""
import ctypes, os
def read(times):
    for _ in range(times):
        with open({str(big)!r}, "rb", buffering=0) as file:
            while file.read(65536):
                pass
if not (child := os.fork()):
    read(3)
    os._exit(0)
assert child == ctypes.CDLL(None).syscall({WAIT4.get(platform.machine())}, child, None, 0, None)
read(1)
"""
    run_python(tmp_path / "spool", program)
    trace = captured(tmp_path / "spool")
    assert 4 * BIG == reads_of(trace, big)["bytes"].sum()
    check_counters(trace)


def test_a_killed_worker_leaves_what_it_read(big: Path, tmp_path: Path) -> None:
    """SIGKILL while it reads: the spans are there, and a comparison of the counters from shortly
    before."""
    program = f"""
import os
print(os.getpid(), flush=True)
for number in range(10**9):
    file = open({str(big)!r}, "rb", buffering=0)
    while file.read(65536):
        pass
    print(number + 1, flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=environment(tmp_path / "spool"), stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        said = [next(worker.stdout) for _ in range(20)]
        worker.send_signal(signal.SIGKILL)
        said += worker.stdout
    trace = captured(tmp_path / "spool")
    (process,) = check_counters(trace)
    rounds = len([line for line in said if line.endswith("\n")]) - 1
    read = reads_of(trace, big)["bytes"].sum()
    assert rounds * BIG <= read <= (rounds + 1) * BIG
    assert not process.closed
    assert process.reads.io_rchar > MIB


def test_what_is_not_a_file_is_counted(tmp_path: Path) -> None:
    """Reads of devices and of pipes are in the tallies, so that they agree with the proc io
    counters; only pipes have spans."""
    run_captured(tmp_path / "spool", "sh", "-c", "head -c 5000000 /dev/zero | cat > /dev/null")
    trace = captured(tmp_path / "spool")
    assert 10_000_000 == sum(process.reads.bytes for process in trace.run.processes)
    assert {"pipe": 5_000_000} == bytes_by_source(trace.select(kind="read").spans)


def test_a_stripped_environment_is_completed(big: Path, tmp_path: Path) -> None:
    """A child that is started with an empty environment takes the library along nevertheless."""
    program = (
        f"import subprocess\nsubprocess.run(['cat', {str(big)!r}], env={{}}, check=True,"
        " stdout=subprocess.DEVNULL)"
    )
    run_python(tmp_path / "spool", program)
    trace = captured(tmp_path / "spool")
    assert big.stat().st_size == reads_of(trace, big)["bytes"].sum()
    assert [["python program"], []] == [
        list(process.reads.noted) for process in trace.run.processes
    ]


def test_a_child_that_opts_out_is_not_recorded(big: Path, tmp_path: Path) -> None:
    """A program may start another without recording it: IOPROF_SPOOL is there, and empty."""
    program = (
        f"import subprocess\nsubprocess.run(['cat', {str(big)!r}], env={{'IOPROF_SPOOL': ''}},"
        " stdout=subprocess.DEVNULL)"
    )
    run_python(tmp_path / "spool", program)
    assert 1 == len(captured(tmp_path / "spool").run.processes)


def test_raw_system_calls_are_said_where_they_read_much(big: Path, tmp_path: Path) -> None:
    """Of all of a file it is said; of its first bytes only in what reports leave out."""
    number = {"x86_64": 0, "aarch64": 63}[platform.machine()]
    for part, length in (("all", BIG), ("few", 100)):
        call = (
            f"ctypes.CDLL(None).syscall(ctypes.c_long({number}), file.fileno(), buffer,"
            f" ctypes.c_size_t({length}))"
        )
        program = (
            f"import ctypes\nfile, buffer = open({str(big)!r}, 'rb'),"
            f" ctypes.create_string_buffer({length})"
        )
        run_python(tmp_path / part, f"{program}\nassert {length} == {call}")
        found = capture(captured(tmp_path / part))
        raw = [
            [gap for gap in each if gap.code == "raw system calls"]
            for each in (found.gaps, found.negligible_gaps)
        ]
        assert ([1, 0] if part == "all" else [0, 1]) == [len(each) for each in raw], raw


def test_the_header_says_whose_file_it_is(tmp_path: Path) -> None:
    """Process, parent, rank by the best that the environment says, writer; the name of the file is
    that of all capture files."""
    said = run_python(
        tmp_path / "spool",
        "import os\nprint(os.getpid(), os.getppid())",
        RANK="3",
        SLURM_PROCID="7",
        SLURM_NTASKS="9",
    )
    trace = captured(tmp_path / "spool")
    (process,) = trace.run.processes
    assert said.split() == [str(process.pid), str(process.parent_pid)]
    assert 3 == process.rank
    assert "other" == process.role
    (path,) = (tmp_path / "spool").iterdir()
    assert re.fullmatch(rf"{re.escape(os.uname().nodename)}-{process.pid}-\d+\.ring", path.name)


def test_relative_paths_become_absolute(tmp_path: Path) -> None:
    """Whatever the working directory, and relative to an open folder."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("x" * 10)
    program = f"""
import os
os.chdir({str(tmp_path / "a")!r}); open("file").read()
os.chdir("../b"); open("./file").read()
folder = os.open({str(tmp_path / "a")!r}, os.O_RDONLY); os.read(os.open("file", os.O_RDONLY, dir_fd=folder), 5)
os.fchdir(folder); os.read(os.open("file", os.O_RDONLY), 3)
"""  # noqa: E501
    run_python(tmp_path / "spool", program)
    trace = captured(tmp_path / "spool")
    assert [3, 5, 10] == sorted(
        reads_of(trace, tmp_path / "a/file").filter(pl.col("bytes") > 0)["bytes"]
    )
    assert [10] == reads_of(trace, tmp_path / "b/file").filter(pl.col("bytes") > 0)[
        "bytes"
    ].to_list()


# ------------------------------------------------------------------------------- the library itself


def test_every_hook_is_exported_and_nothing_else() -> None:
    """The library interposes the functions of hooks.h and vfork, and exports no other name but the
    one by which NVTX finds a tool."""
    if shutil.which("nm") is None:
        pytest.skip("no nm on this machine")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    names = (line.split() for line in symbols.splitlines())
    # an absolute one is a version
    exported = {name.split("@")[0] for *_, kind, name in names if kind != "A"}
    assert {*hook_names(), "vfork", "InitializeInjectionNvtx2"} == exported


def test_the_library_needs_no_python() -> None:
    """It is loaded into any program, and must bring nothing along but the C library."""
    if shutil.which("ldd") is None:
        pytest.skip("no ldd on this machine")
    listed = subprocess.run(["ldd", LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = {Path(line.split()[0]).name.split(".so")[0] for line in listed.splitlines()}
    assert "libc" in needed
    assert set() == {name for name in needed if not name.startswith(("linux-vdso", "ld-linux"))} - {
        "libc",
        "libdl",
        "libpthread",
    }


def test_without_a_spool_nothing_is_recorded(big: Path, tmp_path: Path) -> None:
    """LD_PRELOAD alone records nothing and leaves no file."""
    changes = {**environment(tmp_path / "spool")}
    del changes["IOPROF_SPOOL"]
    subprocess.run(["cat", big], env=changes, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
    assert [tmp_path / "spool"] == list(tmp_path.iterdir())
    assert [] == list((tmp_path / "spool").iterdir())


def test_every_way_to_read(tmp_path: Path) -> None:
    """Twelve calls of a C program, 12,500 bytes in all, with the right offsets whatever moved the
    position."""
    program = compiled("capture_killers.c", tmp_path / "program")
    folder = tmp_path / "folder"
    folder.mkdir()
    run_captured(tmp_path / "spool", program, "every", folder)
    trace = captured(tmp_path / "spool")
    reads = reads_of(trace, folder / "every0")
    offsets = [0, 1000, 1000, 2000, 3000, 3000, 4000, 4000, 5000, 6000, 7000, 19000, 19500]
    assert offsets == reads["offset"].to_list()
    assert 12_500 == reads["bytes"].sum() == trace.run.processes[0].reads.io_rchar


REFUSED = """
import ctypes, os, sys
writev = ctypes.CDLL(None, use_errno=True).writev
reader, pipe = os.pipe()
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for descriptor, count in ((-1, 1), (pipe, 1), (pipe, -1), (pipe, 5000), (file, -1), (file, 5000)):
    print(writev(descriptor, ctypes.c_void_p(8), count), ctypes.get_errno())
"""


def test_what_the_kernel_refuses_to_write_is_not_looked_at(tmp_path: Path) -> None:
    """Addresses and counts of parts that are none, of a pipe, and counts of a file's."""
    command = [sys.executable, "-c", REFUSED, str(tmp_path / "file")]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert alone == run_captured(tmp_path / "spool", *command)
