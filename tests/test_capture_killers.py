"""What can break programs whose functions a library interposes: nothing breaks here, and all that
can be seen is recorded."""

import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from compiling import built_statically, compiled, native_sources
from preload import (
    LIBRARY,
    captured,
    check_counters,
    environment,
    hook_names,
    needs_library,
    reads_of,
    run_captured,
    run_python,
)

pytestmark = needs_library

PARTS = {
    "errno": 2,
    "special": 10,
    "many": 15_000,
    "storm": 8 * 400 * 10_007,
    "position": 12 * 1000 * 5000 + 4 * 64,
    "fork": None,
    "vfork": 510,
    "streams": None,
    "every": 12_500,
}
"""The parts of the program, and how many bytes each is written to read; None: that depends on the
machine."""


@pytest.fixture(scope="module")
def killers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that checks for itself that it gets what it would get without the library."""
    return compiled("capture_killers.c", tmp_path_factory.mktemp("killers") / "program")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.mark.job
@pytest.mark.parametrize("nowait", ["on", "off"])
@pytest.mark.parametrize("part", PARTS)
def test_a_program_gets_what_it_would_get(
    part: str, nowait: str, killers: Path, folder: Path, tmp_path: Path
) -> None:
    """errno, positions, locks, seals, modes, many descriptors, threads, forks and streams; the
    bytes that it read are all seen.

    Also where reads go another way, because the file system has no RWF_NOWAIT.
    """
    subprocess.run([killers, part, folder], check=True, stdout=subprocess.DEVNULL)
    run_captured(tmp_path / "spool", killers, part, folder, IOPROF_CAPTURE_NOWAIT=nowait)
    processes = check_counters(captured(tmp_path / "spool"))
    assert PARTS[part] in (None, sum(process.reads.seen_bytes for process in processes))


@pytest.mark.job
def test_a_file_behind_70_000_others(killers: Path, folder: Path, tmp_path: Path) -> None:
    """As many files may be open, and the next one is recorded with its name and all its bytes."""
    others = int(run_captured(tmp_path / "spool", killers, "many", folder))
    trace = captured(tmp_path / "spool")
    check_counters(trace)
    assert [0, 5000, 10_000] == reads_of(trace, folder / "many0").filter(pl.col("bytes") > 0)[
        "offset"
    ].to_list()
    if others < 70_000:
        pytest.skip(
            f"right behind {others:,}; more than {others + 100:,} may not be open here (ulimit"
            " -Hn), by this user"
        )


@pytest.mark.job
def test_a_ring_that_nobody_saw_being_made(killers: Path, folder: Path, tmp_path: Path) -> None:
    """io_uring by system calls of its own: the descriptor is there at the end, and noted."""
    if "open" not in run_captured(tmp_path / "spool", killers, "ring", folder):
        pytest.skip("this kernel refuses io_uring")
    assert ["io_uring"] == list(captured(tmp_path / "spool").run.processes[0].reads.noted)


@pytest.mark.job
def test_each_thread_reads_its_own_file(killers: Path, folder: Path, tmp_path: Path) -> None:
    """Eight threads close and reopen: no read is attributed to another thread's file, though they
    share descriptor numbers."""
    run_captured(tmp_path / "spool", killers, "storm", folder)
    trace = captured(tmp_path / "spool")
    for number in range(8):
        reads = reads_of(trace, folder / f"storm{number}").filter(pl.col("bytes") > 0)
        assert 400 * 10_007 == reads["bytes"].sum()
        assert 1 == reads["tid"].n_unique()
        assert {0, 5000, 10_000} == set(reads["offset"])


@pytest.mark.job
def test_children_have_capture_files_of_their_own(
    killers: Path, folder: Path, tmp_path: Path
) -> None:
    """Forked while eight threads read: each child's file has its reads, also of what it inherited,
    with name and offset."""
    run_captured(tmp_path / "spool", killers, "fork", folder)
    trace = captured(tmp_path / "spool")
    (parent,) = {process.parent_pid for process in trace.run.processes} & {
        p.pid for p in trace.run.processes
    }
    children = [process.pid for process in trace.run.processes if process.parent_pid == parent]
    assert 20 == len(children)
    for child in children:
        inherited = reads_of(trace, folder / "fork0").filter(
            pl.col("pid") == child, pl.col("bytes") == 100
        )
        assert [10] == inherited["offset"].to_list()


@pytest.mark.job
def test_a_vfork_child_changes_nothing_of_the_parent(
    killers: Path, folder: Path, tmp_path: Path
) -> None:
    """It closes and moves descriptors of its own; the parent's reads are still recorded with the
    right file and offset."""
    run_captured(tmp_path / "spool", killers, "vfork", folder)
    trace = captured(tmp_path / "spool")
    (process,) = trace.run.processes
    assert process.closed
    assert list(range(0, 510, 10)) == reads_of(trace, folder / "vfork0")["offset"].to_list()


@pytest.mark.job
def test_python_starts_programs_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    """subprocess uses vfork: a failed exec neither ends nor blinds the recording."""
    (folder / "data").write_bytes(b"x" * 1000)
    program = f"""
import subprocess
for _ in range(3):
    try:
        subprocess.Popen(["/no/such/program"])
    except FileNotFoundError:
        pass
    assert len(open({str(folder / "data")!r}, "rb").read()) == 1000
"""
    run_python(tmp_path / "spool", program)
    trace = captured(tmp_path / "spool")
    assert 3000 == reads_of(trace, folder / "data")["bytes"].sum()
    assert [True] == [process.closed for process in trace.run.processes]


# ------------------------------------------------------------------------------------------- spools


@pytest.mark.job
def test_an_unwritable_spool_stops_nothing(tmp_path: Path) -> None:
    """Nothing is recorded, nothing is said, nothing fails."""
    assert "fine\n" == run_captured(
        tmp_path / "spool", "echo", "fine", IOPROF_SPOOL="/no/such/folder"
    )
    assert "3\n" == run_python(
        tmp_path / "spool",
        "print(len(open('/proc/self/comm').read()[:3]))",
        IOPROF_SPOOL="relative",
    )


@pytest.mark.system
def test_a_full_spool_costs_spans_and_not_the_job(
    killers: Path, folder: Path, small_disk: Callable[[int], Path]
) -> None:
    """What finds no room is counted as lost; the program reads on."""
    full_disk = small_disk(300_000)  # one file's header and first window, and little more
    run_captured(full_disk, killers, "storm", folder)
    (process,) = captured(full_disk).run.processes
    assert process.lost > 0
    assert process.spans > 0
    with suppress(OSError), open(full_disk / "filler", "wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    run_captured(full_disk, killers, "vfork", folder)  # no room for a file at all


# ------------------------------------------------------------------ programs that it does not reach


@pytest.mark.job
def test_an_empty_environment(tmp_path: Path) -> None:
    """env -i keeps what recording needs, and the program runs."""
    assert "fine\n" == run_captured(tmp_path / "spool", "env", "-i", shutil.which("echo"), "fine")
    assert all(() == process.reads.noted for process in captured(tmp_path / "spool").run.processes)


@pytest.mark.job
def test_a_static_program(tmp_path: Path) -> None:
    """It has no dynamic loader to load anything: it runs as ever."""
    text = '#include <stdio.h>\nint main(void) { puts("fine"); return 0; }\n'
    assert "fine\n" == run_captured(tmp_path / "spool", built_statically(text, tmp_path / "static"))
    assert [] == list((tmp_path / "spool").iterdir())


@pytest.mark.job
def test_who_starts_a_static_program_says_so(tmp_path: Path) -> None:
    """By exec, in a child of vfork, and found in PATH."""
    program = built_statically("int main(void) { return 0; }\n", tmp_path / "static")
    text = (
        "import os, subprocess, sys\nsubprocess.run(sys.argv[1:])\nos.execvp('static', ['static'])"
    )
    run_python(tmp_path / "spool", text, program, PATH=f"{tmp_path}:{os.environ['PATH']}")
    trace = captured(tmp_path / "spool")
    (process,) = trace.run.processes
    started = trace.spans.filter(pl.col("name") == "static program").join(trace.files, on="file")
    assert "exec without capture" in process.reads.noted
    assert [str(program), "static"] == started["path"].to_list() or 2 == len(started)


NOBODY = 65_534


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter and write to, with one for files and one for the spool."""
    with tempfile.TemporaryDirectory(prefix="ioprof-test-") as name:
        for path in (Path(name), Path(name, "folder"), Path(name, "spool")):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        yield Path(name)


@pytest.mark.job
@pytest.mark.parametrize(("mode", "runs_as", "seen_bytes"), [(0o755, NOBODY, 2), (0o4755, 0, 0)])
def test_a_setuid_program(
    mode: int, runs_as: int, seen_bytes: int, killers: Path, public: Path
) -> None:
    """The loader refuses the library for a program that gains rights: it runs, and is not seen;
    without the bit it is."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    if os.statvfs(public).f_flag & os.ST_NOSUID:
        pytest.skip(f"programs under {public.parent} gain no rights: it is mounted with nosuid")
    program = Path(shutil.copy(killers, public / "program"))
    program.chmod(mode)
    words = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", program, "errno", public / "folder"]
    run_captured(public / "spool", *words)
    assert runs_as == (public / "folder" / "errno0").stat().st_uid
    assert (
        seen_bytes
        == reads_of(captured(public / "spool"), public / "folder" / "errno0")["bytes"].sum()
    )


@pytest.mark.job
@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_another_allocator(
    ours_first: bool, killers: Path, folder: Path, tmp_path: Path
) -> None:
    """jemalloc, preloaded too, opens and reads files before any constructor has run."""
    allocator = ctypes.util.find_library("jemalloc")
    if allocator is None:
        pytest.skip("no jemalloc on this machine")
    both = [str(LIBRARY), allocator]
    preload = ":".join(both if ours_first else reversed(both))
    run_captured(tmp_path / "spool", killers, "storm", folder, LD_PRELOAD=preload)
    trace = captured(tmp_path / "spool")
    check_counters(trace)
    assert 400 * 10_007 == reads_of(trace, folder / "storm0")["bytes"].sum()


# -------------------------------------------------------------------------------- checked by others


def wrapped() -> list[str]:
    """Options that put every hook in front of the program's own calls only, and not of the thread
    sanitizer's."""
    return ['-DHOOK_NAME(name)="__wrap_" name', *(f"-Wl,--wrap={name}" for name in hook_names())]


@pytest.mark.system(every=3)
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """Hooks and program in one, checked: no race, no wrong address, no undefined behaviour."""
    options = [
        f"-fsanitize={sanitizer}",
        "-ftls-model=initial-exec",
        "-fvisibility=hidden",
        *native_sources("ring", "capture"),
    ]
    program = compiled(
        "capture_killers.c",
        tmp_path / "program",
        *options,
        *(wrapped() if sanitizer == "thread" else []),
    )
    for part in PARTS:
        (tmp_path / part).mkdir()
        spool = tmp_path / f"spool {part}"
        spool.mkdir()
        changes = {**os.environ, "IOPROF_SPOOL": str(spool)}
        ended = subprocess.run(
            [program, part, tmp_path / part],
            env=changes,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if "unexpected memory mapping" in ended.stderr:
            pytest.skip("the thread sanitizer cannot run under this kernel's address randomisation")
        assert (0, "") == (ended.returncode, ended.stderr), part
        assert captured(spool).spans.height > 0


CPYTHON_TESTS = (
    "test_io",
    "test_os",
    "test_fileio",
    "test_file",
    "test_bufio",
    "test_tempfile",
    "test_posix",
    "test_fcntl",
    "test_mmap",
)
LEFT_OUT = ("*_interrupted_write_*", "*_reentrant_write_*", "*test_utime_current*")
"""The first two wait a second each for a signal to arrive in a write, which is not hooked. The last
fails, with and without the library, where the machine takes more than 50 ms from one call to the
next."""


def start_pythons_tests(folder: Path, variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Python's tests of files and descriptors; the result of each goes into `results.xml` in the
    folder."""
    folder.mkdir()
    command = [sys.executable, "-m", "test", "--junit-xml", folder / "results.xml", *CPYTHON_TESTS]
    command += [word for pattern in LEFT_OUT for word in ("-i", pattern)]
    silent = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    return subprocess.Popen(list(map(str, command)), env=variables, cwd=folder, **silent)


def results_of(folder: Path) -> dict[str, str]:
    """How each test ended, by its name."""
    cases = ElementTree.parse(folder / "results.xml").iter("testcase")
    return {
        case.get("name", ""): " ".join([case.get("result", ""), *(child.tag for child in case)])
        for case in cases
    }


@pytest.mark.system(every=3)
def test_pythons_own_tests_end_the_same(tmp_path: Path) -> None:
    """The interpreter's tests of files and descriptors give the same results with and without the
    library."""
    if subprocess.run(
        [sys.executable, "-c", "import test.test_fileio"], capture_output=True
    ).returncode:
        pytest.skip("this Python came without its tests")
    places = {
        tmp_path / "bare": dict(os.environ),
        tmp_path / "captured": environment(tmp_path / "spool"),
    }
    jobs = [start_pythons_tests(folder, variables) for folder, variables in places.items()]
    for job in jobs:
        job.wait(timeout=240)
    bare, hooked = map(results_of, places)
    assert 1000 < len(bare)
    assert bare == hooked
    assert captured(tmp_path / "spool").spans.height > 1000
