"""What breaks programs that a library stands in front of: none of it does here, and what can be seen is seen."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from preload import (
    LIBRARY,
    NATIVE,
    captured,
    compiled,
    environment,
    needs_library,
    reads_of,
    run_captured,
    run_python,
)

pytestmark = needs_library

PARTS = ("errno", "special", "many", "storm", "position", "fork", "vfork", "streams", "every")


@pytest.fixture(scope="module")
def killers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that checks for itself that it gets what it would get without the library."""
    return compiled("capture_killers.c", tmp_path_factory.mktemp("killers") / "program")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.mark.parametrize("part", PARTS)
def test_a_program_gets_what_it_would_get(part: str, killers: Path, folder: Path, tmp_path: Path) -> None:
    """errno, positions, locks, seals, modes, many descriptors, threads, forks and streams; the bytes that it read are all seen."""
    subprocess.run([killers, part, folder], check=True)
    run_captured(tmp_path / "spool", killers, part, folder)
    for process in captured(tmp_path / "spool").run["processes"]:
        assert process["lost"] == 0
        assert abs(process["reads"]["io_rchar"] - process["reads"]["seen_bytes"]) <= process["reads"]["io_rchar"] // 1000 + 8


@pytest.mark.parametrize("part", PARTS)
def test_without_nowait_it_is_the_same(part: str, killers: Path, folder: Path, tmp_path: Path) -> None:
    """Where a file system has no RWF_NOWAIT, reads go the other way."""
    run_captured(tmp_path / "spool", killers, part, folder, IOPROF_CAPTURE_NOWAIT="off")


def test_a_ring_that_nobody_saw_being_made(killers: Path, folder: Path, tmp_path: Path) -> None:
    """io_uring by system calls of its own: the descriptor is there at the end, and noted."""
    if "open" not in run_captured(tmp_path / "spool", killers, "ring", folder):
        pytest.skip("this kernel refuses io_uring")
    assert ["io_uring"] == captured(tmp_path / "spool").run["processes"][0]["reads"]["noted"]


def test_each_thread_reads_its_own_file(killers: Path, folder: Path, tmp_path: Path) -> None:
    """Eight threads close and reopen: no read is told of another thread's file, though they share the descriptors' numbers."""
    run_captured(tmp_path / "spool", killers, "storm", folder)
    trace = captured(tmp_path / "spool")
    for number in range(8):
        reads = reads_of(trace, folder / f"storm{number}").filter(pl.col("bytes") > 0)
        assert 400 * 10_007 == reads["bytes"].sum()
        assert 1 == reads["tid"].n_unique()
        assert {0, 5000, 10_000} == set(reads["offset"])


def test_children_are_told_in_files_of_their_own(killers: Path, folder: Path, tmp_path: Path) -> None:
    """Forked while eight threads read: each child's file has its reads, also of what it inherited, with name and offset."""
    run_captured(tmp_path / "spool", killers, "fork", folder)
    trace = captured(tmp_path / "spool")
    (parent,) = {process["parent_pid"] for process in trace.run["processes"]} & {p["pid"] for p in trace.run["processes"]}
    children = [process["pid"] for process in trace.run["processes"] if process["parent_pid"] == parent]
    assert 20 == len(children)
    for child in children:
        inherited = reads_of(trace, folder / "fork0").filter(pl.col("pid") == child, pl.col("bytes") == 100)
        assert [10] == inherited["offset"].to_list()


def test_a_vfork_child_leaves_the_parents_books_alone(killers: Path, folder: Path, tmp_path: Path) -> None:
    """It closes and moves descriptors of its own; the parent's reads go on being told of the right file and place."""
    run_captured(tmp_path / "spool", killers, "vfork", folder)
    trace = captured(tmp_path / "spool")
    (process,) = trace.run["processes"]
    assert process["closed"]
    assert list(range(0, 510, 10)) == reads_of(trace, folder / "vfork0")["offset"].to_list()


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
    assert [True] == [process["closed"] for process in trace.run["processes"]]


# ------------------------------------------------------------------------------------------------ spools


def test_an_unwritable_spool_stops_nothing(tmp_path: Path) -> None:
    """Nothing is recorded, nothing is said, nothing fails."""
    assert "fine\n" == run_captured(tmp_path / "spool", "echo", "fine", IOPROF_SPOOL="/no/such/folder")
    assert "3\n" == run_python(tmp_path / "spool", "print(len(open('/proc/self/comm').read()[:3]))", IOPROF_SPOOL="relative")


def test_a_full_spool_costs_spans_and_not_the_job(killers: Path, folder: Path, small_disk: Callable[[int], Path]) -> None:
    """What finds no room is counted as lost; the program reads on."""
    full_disk = small_disk(300_000)  # one file's header and first window, and little more
    run_captured(full_disk, killers, "storm", folder)
    (process,) = captured(full_disk).run["processes"]
    assert process["lost"] > 0
    assert process["spans"] > 0
    with suppress(OSError), open(full_disk / "filler", "wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    run_captured(full_disk, killers, "vfork", folder)  # no room for a file at all


# ------------------------------------------------------------------------------------------------ programs that it does not reach


def test_an_empty_environment(tmp_path: Path) -> None:
    """env -i takes nothing along: the child is not seen, and runs."""
    assert "fine\n" == run_captured(tmp_path / "spool", "env", "-i", shutil.which("echo"), "fine")
    (process,) = captured(tmp_path / "spool").run["processes"]
    assert ["exec without capture"] == process["reads"]["noted"]


def test_a_static_program(tmp_path: Path) -> None:
    """It has no dynamic loader to load anything: it runs as ever."""
    source = tmp_path / "static.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("fine"); return 0; }\n')
    if (
        shutil.which("cc") is None
        or subprocess.run(["cc", "-static", source, "-o", tmp_path / "static"], capture_output=True).returncode
    ):
        pytest.skip("the C compiler makes no static programs here")
    assert "fine\n" == run_captured(tmp_path / "spool", tmp_path / "static")
    assert [] == list((tmp_path / "spool").iterdir())


def test_a_setuid_program(killers: Path, tmp_path: Path) -> None:
    """The loader refuses the library for a program that gains rights; that program runs."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    program = Path(shutil.copy(killers, tmp_path / "setuid"))
    program.chmod(0o4755)
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (tmp_path, folder):
        path.chmod(0o777)
    command = ["setpriv", "--reuid=65534", "--clear-groups", program, "errno", folder]
    ended = subprocess.run(command, env=environment(tmp_path / "spool"), capture_output=True, text=True)
    assert 0 == ended.returncode, ended.stderr


def preloadable(name: str) -> Path:
    found = [path for place in ("/usr/lib", "/usr/lib64", "/lib") for path in Path(place).rglob(name)]
    if not found:
        pytest.skip(f"no {name} on this machine")
    return found[0]


@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_another_allocator(ours_first: bool, killers: Path, folder: Path, tmp_path: Path) -> None:
    """jemalloc, preloaded too, opens and reads files before any constructor has run."""
    both = [str(LIBRARY), str(preloadable("libjemalloc.so.2"))]
    preload = ":".join(both if ours_first else reversed(both))
    run_captured(tmp_path / "spool", killers, "storm", folder, LD_PRELOAD=preload)
    assert 400 * 10_007 == reads_of(captured(tmp_path / "spool"), folder / "storm0")["bytes"].sum()


# ------------------------------------------------------------------------------------------------ checked by others


def wrapped() -> list[str]:
    """Options that put every hook in front of the program's own calls only, and not of the thread sanitizer's."""
    names = re.findall(r"^HOOK\([^,]+?, (\w+),", (NATIVE / "hooks.h").read_text(), flags=re.MULTILINE)
    return ['-DHOOK_NAME(name)="__wrap_" name', *(f"-Wl,--wrap={name}" for name in names)]


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """Hooks and program in one, checked: no race, no wrong address, no undefined behaviour."""
    options = [
        f"-fsanitize={sanitizer}",
        "-ftls-model=initial-exec",
        "-fvisibility=hidden",
        f"-I{NATIVE}",
        str(NATIVE / "capture.c"),
    ]
    program = compiled("capture_killers.c", tmp_path / "program", *options, *(wrapped() if sanitizer == "thread" else []))
    for part in PARTS:
        (tmp_path / part).mkdir()
        spool = tmp_path / f"spool {part}"
        spool.mkdir()
        changes = {**os.environ, "IOPROF_SPOOL": str(spool)}
        ended = subprocess.run([program, part, tmp_path / part], env=changes, capture_output=True, text=True, errors="replace")
        if "unexpected memory mapping" in ended.stderr:
            pytest.skip("the thread sanitizer cannot run under this kernel's address randomisation")
        assert (0, "") == (ended.returncode, ended.stderr), part
        assert captured(spool).spans.height > 0


CPYTHON_TESTS = ("test_fileio", "test_file", "test_bufio", "test_tempfile", "test_posix", "test_fcntl", "test_mmap")


def test_pythons_own_tests_end_the_same(tmp_path: Path) -> None:
    """The interpreter's tests of files and descriptors give the same results with and without the library."""
    if subprocess.run([sys.executable, "-c", "import test.test_fileio"], capture_output=True).returncode:
        pytest.skip("this Python came without its tests")
    command = [sys.executable, "-m", "test", "-j2", *CPYTHON_TESTS]
    results = []
    for changes in (dict(os.environ), environment(tmp_path / "spool")):
        ended = subprocess.run(command, env=changes, capture_output=True, text=True, cwd=tmp_path)
        results.append(sorted(re.findall(r"^ +(test_\w+)|^(Result: \w+)|run=([\d,]+)", ended.stdout, flags=re.MULTILINE)))
    assert len(results[0]) > 1
    assert results[0] == results[1]
