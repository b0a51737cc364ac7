"""Reading Python stacks of other processes."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreters import interpreters
from repository import PROGRAMS

from ioprof.clock import monotonic_ns
from ioprof.errors import CaptureError
from ioprof.format.stack_format import STACK_FORMAT, TEXT_RECORD
from ioprof.ingest.stacks import instruction_lines, read_stacks
from ioprof.stacks import StackSampler
from ioprof.stacks.elf import symbol_addresses
from ioprof.stacks.interpreters import Interpreter, Interpreters
from ioprof.stacks.layouts import FIXED, layout_of
from ioprof.stacks.library import Reader, TargetState, is_built, read_memory
from ioprof.stacks.sampler import _Target

pytestmark = pytest.mark.skipif(
    not is_built(), reason="the library that reads stacks is not built: no C compiler"
)

OTHER_PYTHONS = "IOPROF_OTHER_PYTHONS"
"""An environment variable: further interpreters to test with, separated by colons."""
MINORS = ("3.11", "3.12", "3.13", "3.14")


def interpreter(minor: str) -> str:
    """An interpreter of that version; skips the test where there is none."""
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    named = [
        path
        for path in os.environ.get(OTHER_PYTHONS, "").split(":")
        if Path(path).name == f"python{minor}"
    ]
    found = next(iter(named), None) or interpreters().get((3, int(minor.partition(".")[2])))
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no python{minor}; name one in {OTHER_PYTHONS}")
    return str(found)


@contextmanager
def program(
    name: str, *arguments: str, python: str = sys.executable
) -> Iterator["subprocess.Popen[str]"]:
    """A program that has said that it is ready; killed in the end."""
    with subprocess.Popen(
        [python, str(PROGRAMS / name), *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "ready\n" == process.stdout.readline()
            yield process
        finally:
            process.kill()


def sampled(
    pid: int, folder: Path, period_ns: int = 1_000_000, seconds: float = 0.3
) -> tuple[list[str], TargetState]:
    """The stacks of the main thread of a process, one per sample, and what became of it."""
    path = folder / f"stacks-here-{pid}.bin"
    with path.open("wb", buffering=0) as file:
        for text in (
            {"format": STACK_FORMAT, "host": "here", "pid": 1, "package": "/nowhere"},
            {"target": 0, "pid": pid},
        ):
            data = json.dumps(text).encode()
            file.write(struct.pack("<II", TEXT_RECORD, len(data)) + data)
        reader = Reader(file.fileno())
        found, thread = Interpreters(read_memory).find(pid)
        reader.add(0, pid, thread, found.layout.frames.words(found.code_type), 1)
        reader.watch_lock(0, found.lock(pid, read_memory))
        reader.run(monotonic_ns() + int(seconds * 1e9), period_ns)
        state = reader.state(0)
        reader.close()
    table, damaged = read_stacks(folder, [])
    assert [] == damaged
    return table["stack"].to_list(), state


def marked_lines(name: str) -> dict[str, int]:
    """The numbers of the lines of a program, by the comment that each ends with."""
    lines = (PROGRAMS / name).read_text().splitlines()
    return {
        line.partition("  # ")[2]: number for number, line in enumerate(lines, 1) if "  # " in line
    }


# ------------------------------------------------------------------------------------------ reading


@pytest.mark.system(every=4)
@pytest.mark.parametrize("minor", MINORS)
def test_the_stack_of_a_process_is_read(minor: str, tmp_path: Path) -> None:
    """Every frame with file, line and function: those of functions, methods, generators, and those
    that were called from C."""
    file, line = PROGRAMS / "deep_stack.py", marked_lines("deep_stack.py")
    with program("deep_stack.py", "sleep", python=interpreter(minor)) as process:
        stacks, state = sampled(process.pid, tmp_path)
        status = Path(f"/proc/{process.pid}/status").read_text()
    expected = [
        ("module", "<module>"),
        ("sorted", "outermost"),
        ("from C", "Callable.__call__"),
        ("next", "größe"),
        ("generator", "generator"),
        ("sleep", "innermost"),
    ]
    # it had not gone to sleep yet
    stacks = [stack for stack in stacks if not stack.endswith(f":{line['ready']}:innermost")]
    assert {"\n".join(f"{file}:{line[mark]}:{function}" for mark, function in expected)} == set(
        stacks
    )
    assert state.samples >= len(stacks) > 50
    assert 0 == state.torn
    assert "TracerPid:\t0\n" in status  # nothing traces it, so nothing stops it


@pytest.mark.system(every=4)
@pytest.mark.parametrize("minor", MINORS)
def test_a_stack_that_changes_is_read_as_it_was_or_not_at_all(minor: str, tmp_path: Path) -> None:
    """A thread that calls a function ten million times a second: each sample is a stack that it can
    have."""
    with program("deep_stack.py", "call", python=interpreter(minor)) as process:
        stacks, state = sampled(process.pid, tmp_path, period_ns=200_000, seconds=1.0)
    innermost = {
        tuple(frame.rsplit(":", 1)[1] for frame in stack.split("\n"))[5:] for stack in stacks
    }
    assert innermost <= {("innermost",), ("innermost", "small")}
    assert state.torn < 0.2 * state.samples


@pytest.mark.system(every=4)
@pytest.mark.parametrize("minor", MINORS)
def test_who_holds_the_interpreter_lock_is_sampled(minor: str, tmp_path: Path) -> None:
    """The thread that computes while the main thread waits for the lock after each pause; nobody
    where none computes."""
    file, line = PROGRAMS / "hold_lock.py", marked_lines("hold_lock.py")
    for holds, name in ((True, "hold"), (False, "sleep")):
        folder = tmp_path / name
        folder.mkdir()
        with program("hold_lock.py", name, python=interpreter(minor)) as process:
            sampled(process.pid, folder, seconds=0.5)
            table, _ = read_stacks(folder, [])
        others = table.filter(table["tid"] != process.pid)
        main = table.filter(table["tid"] == process.pid)
        if not holds:
            assert others.is_empty()
            continue
        assert len(others) > 20
        assert 1 == others["tid"].n_unique()
        waiting = main.join(others, on="time_ns", how="semi")["stack"].unique().to_list()
        places = {stack.split("\n")[-1] for stack in waiting}
        # it had not begun to pause yet
        assert {f"{file}:{line['pause']}:main"} == places - {f"{file}:{line['ready']}:<module>"}
        holding = others["stack"].to_list()
        innermost = [stack.rsplit("\n", 1)[-1].rsplit(":", 1)[-1] for stack in holding]
        assert innermost.count("compute") + innermost.count("square") > 0.5 * len(innermost)
        # no hooks wrote its name
        assert all(stack.startswith("<thread>:0:thread ") for stack in holding)


@pytest.mark.system
def test_a_forked_process_is_found_by_what_is_known_of_its_parent() -> None:
    """The interpreter of a fork is at the same address, its main thread another one of the
    kernel's."""
    interpreters, (release, wait), (began, begin) = Interpreters(read_memory), os.pipe(), os.pipe()
    known, _ = interpreters.find(os.getpid())
    if (child := os.fork()) == 0:
        os.close(wait)
        os.write(begin, b"!")
        os.read(release, 1)
        os._exit(0)
    os.close(begin)
    try:
        os.read(began, 1)  # its interpreter knows by then that it is another process
        found, thread = interpreters.find(child)
        assert known == found
        assert thread
    finally:
        for pipe in (wait, release, began):
            os.close(pipe)
        os.waitpid(child, 0)


@pytest.mark.system
def test_a_thread_that_has_not_begun_is_not_taken_for_the_main_one() -> None:
    """Until it runs, its state has the number of the thread that made it, and stands before that
    one's."""
    layout, pid, interpreter, new, main = FIXED[3, 11], 77, 0x1000, 0x2000, 0x3000
    words = {0x100 + layout.interpreters_head: interpreter, interpreter + layout.threads_head: new}
    for thread, following in ((new, main), (main, 0)):
        words |= {
            thread + layout.thread_interpreter: interpreter,
            thread + layout.frames.thread_native_id: pid,
        }
        words[thread + layout.thread_next] = following
    found = Interpreter(runtime=0x100, code_type=0, version=0x030B07F0, layout=layout)

    def read(_: int, address: int, size: int) -> bytes:
        return b"".join(
            words.get(place, 0).to_bytes(8, "little") for place in range(address, address + size, 8)
        )

    assert main == found.main_thread(pid, read)
    assert found.main_thread(78, read) is None
    assert [(new, pid), (main, pid)] == found.threads(pid, read)


def test_the_threads_of_a_process_are_found() -> None:
    """Those that Python made or that came to it, by the kernel's numbers of them."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        found, main = Interpreters(read_memory).find(os.getpid())
        states = found.threads(os.getpid(), read_memory)
        assert {thread.native_id for thread in threads} <= {number for _, number in states}
        assert (main, os.getpid()) in states
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_threads_of_a_rank_are_sampled_while_there_are_no_workers(tmp_path: Path) -> None:
    """New ones are noticed, those that ended are left alone, and all of them while a worker process
    makes batches."""
    sampler, end = StackSampler(tmp_path, "here", tmp_path), threading.Event()
    rank, worker = (_Target(tmp_path / role, os.getpid(), role) for role in ("rank", "worker"))

    def found(*live: _Target) -> set[int | None]:
        sampler._live, sampler._roles_ns = list(live), 0
        sampler._look()
        return {each.tid for each in rank.threads}

    threads = [threading.Thread(target=end.wait) for _ in range(3)]
    threads[0].start()
    assert threads[0].native_id not in found(rank)  # the process itself is found first
    assert threads[0].native_id in found(rank)
    for thread in threads[1:]:
        thread.start()
    numbers = {thread.native_id for thread in threads}
    assert numbers <= found(rank)
    assert set() == found(rank, worker)
    assert numbers <= found(rank)
    end.set()
    for thread in threads:
        thread.join()
    assert not numbers & found(rank)
    sampler.stop()


@pytest.mark.system(every=4)
@pytest.mark.parametrize("minor", MINORS)
def test_a_thread_is_sampled_until_it_ends(minor: str, tmp_path: Path) -> None:
    """Its samples have its number; what takes the memory of its state later is not taken for it."""
    line = marked_lines("end_threads.py")
    path = tmp_path / "stacks-here-1.bin"
    with (
        subprocess.Popen(
            [interpreter(minor), str(PROGRAMS / "end_threads.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        path.open("wb", buffering=0) as file,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        thread = int(process.stdout.readline())
        found, _ = Interpreters(read_memory).find(process.pid)
        states = dict(map(reversed, found.threads(process.pid, read_memory)))  # type: ignore[arg-type]
        texts = (
            {"format": STACK_FORMAT, "host": "here", "pid": 1, "package": "/nowhere"},
            {"target": 0, "pid": process.pid, "tid": thread},
        )
        for text in texts:
            data = json.dumps(text).encode()
            file.write(struct.pack("<II", TEXT_RECORD, len(data)) + data)
        reader = Reader(file.fileno())
        words = found.layout.frames.words(found.code_type)
        reader.add(0, process.pid, states[thread], words, 1, thread)
        # a number that this state does not have
        reader.add(1, process.pid, states[thread], words, 1, thread + 1)
        reader.run(monotonic_ns() + 300_000_000, 1_000_000)
        alive, other = reader.state(0), reader.state(1)
        process.stdin.write("end\n")  # one thread after another begins and ends from now on
        process.stdin.flush()
        assert "ended\n" == process.stdout.readline()
        reader.run(monotonic_ns() + 300_000_000, 1_000_000)
        ended = reader.state(0)
        reader.close()
        process.kill()
    assert (False, True, True) == (alive.failed, other.failed, ended.failed)
    assert 0 == other.samples
    assert alive.samples > 50
    table, damaged = read_stacks(tmp_path, [])
    assert [] == damaged
    assert {thread} == set(table["tid"].to_list())
    stacks = table["stack"].to_list()
    assert any(f"end_threads.py:{line['wait']}:early" in stack for stack in stacks)
    assert not any("later" in stack for stack in stacks)


@pytest.mark.job
def test_a_program_without_an_interpreter_is_named() -> None:
    """A process that is no Python has no stacks, and the error says so."""
    with subprocess.Popen(["sleep", "60"]) as process:
        with pytest.raises(CaptureError, match="has no Python interpreter"):
            Interpreters(read_memory).find(process.pid)
        process.kill()


@pytest.mark.system
def test_a_process_that_may_not_be_read_is_an_error() -> None:
    """The kernel's refusal is a `PermissionError`, and a process that has ended a
    `ProcessLookupError`."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    interpreters = Interpreters(read_memory)
    found, thread = interpreters.find(os.getpid())
    if (child := os.fork()) == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            read_memory(os.getppid(), thread, 8)
        except OSError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    assert 1 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # EPERM
    with pytest.raises(ProcessLookupError):
        found.main_thread(child, read_memory)


@pytest.mark.job
def test_wrong_offsets_give_no_stack(tmp_path: Path) -> None:
    """Whatever the memory of a process holds, reading it crashes nothing, and a stack that makes no
    sense is dropped."""
    draw = random.Random(1)
    with (
        program("deep_stack.py", "sleep") as process,
        (tmp_path / "out").open("wb", buffering=0) as file,
    ):
        reader = Reader(file.fileno())
        found, thread = Interpreters(read_memory).find(process.pid)
        words = found.layout.frames.words(found.code_type)
        for number in range(300):
            changed = list(words)
            for _ in range(draw.randint(1, 3)):
                place = draw.randrange(1, len(words))
                changed[place] = draw.choice([draw.randrange(0, 249), 8 * draw.randrange(0, 32)])
            reader.add(number, process.pid, thread + 8 * draw.randrange(-8, 8), tuple(changed), 1)
        reader.run(monotonic_ns() + 300_000_000, 1_000_000)
        states = [reader.state(number) for number in range(300)]
        assert sum(state.torn > 0 and not state.samples for state in states) > 200
        with pytest.raises(OSError, match="layout"):
            reader.add(300, process.pid, thread, (*words[:10], 1000, *words[11:]), 1)
        reader.close()


@pytest.mark.system(every=4)
@pytest.mark.parametrize("minor", ["3.11", "3.12"])
def test_fixed_layouts_are_those_of_the_headers(minor: str, tmp_path: Path) -> None:
    """The offsets of a version that does not describe itself, as its own headers have them."""
    where = "import sysconfig; print(sysconfig.get_paths()['include'])"
    include = Path(
        subprocess.run(
            [interpreter(minor), "-c", where], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    compiler = shutil.which("cc")
    if compiler is None or not (include / "internal" / "pycore_frame.h").exists():
        pytest.skip(f"there are no headers of Python {minor}, or there is no C compiler")
    binary = tmp_path / "offsets"
    folders = [f"-I{include}", f"-I{include / 'internal'}"]
    subprocess.run(
        [compiler, *folders, str(PROGRAMS / "frame_offsets.c"), "-o", str(binary)], check=True
    )
    printed = subprocess.run(
        [str(binary)], capture_output=True, text=True, check=True
    ).stdout.split()
    layout = FIXED[3, int(minor.removeprefix("3."))]
    threads = (
        layout.interpreters_head,
        layout.threads_head,
        layout.thread_next,
        layout.thread_interpreter,
        layout.frames.thread_native_id,
        layout.lock,
    )
    own = layout.frames
    frames = (
        own.thread_frame,
        own.cframe_frame,
        own.frame_previous,
        own.frame_code,
        own.frame_instruction,
        own.frame_owner,
        own.code_filename,
        own.code_qualname,
        own.code_linetable,
        own.code_firstlineno,
        own.code_instructions,
        own.text_ascii,
        own.text_compact,
    )
    assert list(map(str, threads + frames)) == printed


@pytest.mark.parametrize(
    ("version", "runtime", "words"),
    [
        (0x030A0DF0, bytes(1024), "keeps its frames in a way"),
        (0x030F00F0, bytes(1024), "keeps its frames in a way"),
        (0x030D00F0, bytes(1024), "does not begin with a description"),
        (
            0x030D00F0,
            b"xdebugpy" + struct.pack("<QQ", 0x030D00F0, 1) + bytes(1000),
            "free-threaded",
        ),
        (
            0x030D00F0,
            b"xdebugpy" + struct.pack("<QQ", 0x030D00F0, 0) + bytes(1000),
            "in a way that this version",
        ),
    ],
)
def test_an_interpreter_that_is_not_known_is_named(
    version: int, runtime: bytes, words: str
) -> None:
    """A Python whose stacks cannot be read is an error that names its version, never a guess."""
    with pytest.raises(CaptureError, match=words):
        layout_of(version, runtime)


@pytest.mark.job
def test_symbols_are_found_in_libraries_only(tmp_path: Path) -> None:
    """A file that is no ELF has no symbols, and a truncated one neither."""
    text = tmp_path / "text"
    text.write_text("no library")
    assert {} == symbol_addresses(text, ["main"])
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME") or "")
    program = library if library.is_file() else Path(sys.executable).resolve()
    assert {"Py_Version", "_PyRuntime"} == symbol_addresses(
        program, ["Py_Version", "_PyRuntime", "no_such"]
    ).keys()
    (tmp_path / "cut").write_bytes(program.read_bytes()[:5000])
    assert {} == symbol_addresses(tmp_path / "cut", ["Py_Version"])


def test_line_tables_are_decoded_as_python_does() -> None:
    """The line of every instruction of every function of some modules is the one that Python itself
    says."""

    def codes(code: types.CodeType) -> Iterator[types.CodeType]:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from codes(constant)

    for name in ("argparse", "dataclasses", "typing", "inspect"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        for code in codes(compile(Path(spec.origin).read_text(), spec.origin, "exec")):
            lines, last = [], code.co_firstlineno
            for line, *_ in code.co_positions():
                last = last if line is None else line
                lines.append(last)
            assert lines == instruction_lines(code.co_linetable, code.co_firstlineno), (
                code.co_qualname
            )


def lines_one_by_one(table: bytes, first_line: int) -> list[int]:
    """As the format is described, one entry after the other."""
    line, shown, lines = first_line, first_line, list[int]()
    for head, *following in re.findall(rb"[\x80-\xff][\x00-\x7f]*", table):
        code = head >> 3 & 15
        if code in (13, 14):
            length = next((place for place, byte in enumerate(following[:6], 1) if byte < 64), 6)
            number = sum((byte & 63) << 6 * place for place, byte in enumerate(following[:length]))
            line += -(number >> 1) if number & 1 else number >> 1
        line += {11: 1, 12: 2}.get(code, 0)
        shown = shown if code == 15 else line
        lines += [shown] * ((head & 7) + 1)
    return lines


@given(st.lists(st.integers(0x80, 0xFF) | st.integers(0, 0x7F)), st.integers(-1, 1 << 31))
def test_any_bytes_are_a_line_table(table: list[int], first_line: int) -> None:
    """Also those of a damaged file: bytes before the first entry, and after a number, say
    nothing."""
    assert lines_one_by_one(bytes(table), first_line) == instruction_lines(bytes(table), first_line)


@pytest.mark.job
def test_a_file_of_samples_may_be_cut_anywhere(tmp_path: Path) -> None:
    """A launcher that was killed leaves samples that can be read, and the loss is named."""
    (tmp_path / "whole").mkdir()
    with program("deep_stack.py", "sleep") as process:
        stacks, _ = sampled(process.pid, tmp_path / "whole")
    data = next((tmp_path / "whole").glob("stacks-*.bin")).read_bytes()
    for length in [*range(0, len(data), len(data) // 40), len(data) - 1]:
        (tmp_path / "stacks-cut.bin").write_bytes(data[:length])
        table, damaged = read_stacks(tmp_path, [])
        assert len(table) <= len(stacks)
        assert len(damaged) <= 1
    changed = bytearray(data)
    for place in range(0, len(data), 7):
        changed[place] ^= 0x55
    (tmp_path / "stacks-cut.bin").write_bytes(changed)
    assert read_stacks(tmp_path, [])[1]


def test_sampling_ends_when_the_folder_changes(tmp_path: Path) -> None:
    """A new process of the job makes a file there, and is sampled from then on; without one nothing
    interrupts the sampling."""
    with (tmp_path / "stacks.bin").open("wb", buffering=0) as file:
        reader, folder = Reader(file.fileno()), os.fsencode(tmp_path)
        began_ns = monotonic_ns()
        reader.run(began_ns + 500_000_000, 20_000_000, folder, os.stat(folder).st_mtime_ns)
        assert monotonic_ns() - began_ns >= 500_000_000
        changed_ns = os.stat(folder).st_mtime_ns
        maker = threading.Timer(0.3, (tmp_path / "new.ring").touch)
        maker.start()
        began_ns = monotonic_ns()
        reader.run(began_ns + 60_000_000_000, 20_000_000, folder, changed_ns)
        maker.join()
        assert 300_000_000 <= monotonic_ns() - began_ns < 30_000_000_000
        reader.stop()
        assert 0 == reader.run(monotonic_ns() + 60_000_000_000, 20_000_000)
        reader.close()
