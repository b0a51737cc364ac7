"""Capture files: both writers write the bytes that FORMAT.md describes, and a process can end in
any way without losing one."""

import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captures import WRITERS, recorded, run_program, trace_of
from compiling import compiled, native_sources
from hypothesis import given
from hypothesis import strategies as st
from repository import NATIVE, PROGRAMS

from ioprof.format import layout, schema, wire_format
from ioprof.format.wire_format import SLOTS, WINDOW_CHUNKS
from ioprof.instrument import recorder, ring
from ioprof.instrument.span import emit, intern, span

writers = pytest.mark.parametrize("writer", WRITERS)

ROOM = {"native": 1, "python": WINDOW_CHUNKS}
"""Chunks that one thread can fill before the file has to grow."""


def the_file(folder: Path) -> bytes:
    """The bytes of the one capture file there."""
    (path,) = folder.glob("*.ring")
    return path.read_bytes()


# --------------------------------------------------------------------------------------- the format


def test_the_format_page_names_the_numbers() -> None:
    """Magic, kinds, sources and roles in FORMAT.md are those of the code; test_generated.py checks
    its tables and sizes."""
    text = (NATIVE / "FORMAT.md").read_text()
    assert f"`{wire_format.MAGIC.decode()}`" in text
    for numbered in (schema.KINDS, schema.SOURCES, schema.ROLES):
        first = 0 if numbered is schema.ROLES else 1
        assert " · ".join(f"{place} {word}" for place, word in enumerate(numbered, first)) in text


calls = st.lists(
    st.one_of(
        st.tuples(
            st.just("intern"),
            st.text(max_size=300) | st.sampled_from(["", "é" * 2176, "é" * 2177, "x" * 5000]),
        ),
        st.tuples(
            st.just("emit"),
            st.sampled_from([*schema.KINDS, "mine", "дело"]),
            st.integers(0, 2**62),
            st.none() | st.text(max_size=5),
            st.fixed_dictionaries(
                {},
                optional={
                    "step": st.integers(-(2**31), 2**31 - 1),
                    "batch": st.integers(-(2**63), 2**63 - 1),
                    "bytes": st.integers(-(2**63), 2**63 - 1),
                    "file": st.integers(-(2**31), 2**31 - 1),
                    "offset": st.integers(-(2**63), 2**63 - 1),
                    "stream": st.integers(-(2**15), 2**15 - 1),
                    "source": st.integers(0, 3),
                },
            ),
        ),
    ),
    max_size=40,
)


@given(calls=calls)
def test_both_writers_write_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Any]
) -> None:
    """For the same calls the files differ in nothing but the anchor, and how chunks are allotted:
    they are one format."""
    written, returned = [], []
    for native in WRITERS.values():
        folder = tmp_path_factory.mktemp("writer")
        with recorded(folder, native):
            returned.append([replay(call) for call in calls])
        written.append(without_placing(the_file(folder)))
    assert returned[0] == returned[1]
    assert written[0] == written[1]


def without_placing(data: bytes) -> bytes:
    """A file without its reading of the wall clock, the number of its chunks, and what makes a
    chunk a home."""
    start, end = wire_format.HEADER_BYTES, wire_format.HEADER_BYTES + wire_format.CHUNK_BYTES
    return data[:24] + data[32:64] + data[88 : start + 16] + data[start + 24 : end]


def replay(call: Any) -> int | None:
    """Make a call of the strategy above; times are given, so that they are the same for both
    writers."""
    if call[0] == "intern":
        return intern(call[1].replace("\0", "0"))
    _, kind, start_ns, name, fields = call
    emit(kind, start_ns, start_ns + 5, name, **fields)
    return None


@writers
def test_the_header_says_whose_file_it_is(writer: str, tmp_path: Path) -> None:
    """Process, parent, rank, role, worker, host and the reading of the wall clock are in the
    header, and `closed` at the end."""
    with recorded(tmp_path, WRITERS[writer], rank=3, role="worker", worker=2):
        assert 0 == np.frombuffer(the_file(tmp_path), layout.FILE_HEADER_DTYPE, 1)["closed"][0]
    header = np.frombuffer(the_file(tmp_path), layout.FILE_HEADER_DTYPE, 1)[0]
    assert (os.getpid(), os.getppid(), 3, 2, schema.ROLES.index("worker"), 1) == tuple(
        header[name] for name in ("pid", "parent_pid", "rank", "worker", "role", "closed")
    )
    assert os.uname().nodename.encode()[:64] == header["host"]
    assert header["anchor_before_ns"] <= header["anchor_after_ns"]
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(rf"{re.escape(os.uname().nodename)}-{os.getpid()}-\d+\.ring", path.name)
    assert 0o600 == path.stat().st_mode & 0o777


@writers
def test_a_file_is_its_header_and_whole_windows(writer: str, tmp_path: Path) -> None:
    """The file grows by real blocks: a hole could not be written to when the disk is full."""
    with recorded(tmp_path, WRITERS[writer]):
        for _ in range(SLOTS * WINDOW_CHUNKS + 1):
            emit("read", 1, 2)
    (path,) = tmp_path.iterdir()
    assert wire_format.HEADER_BYTES + 2 * ring.WINDOW_BYTES == path.stat().st_size
    assert path.stat().st_blocks * 512 >= path.stat().st_size


@writers
def test_long_recordings_hold_neither_memory_nor_descriptors(writer: str, tmp_path: Path) -> None:
    """What is full is not mapped any more, and no descriptor is kept: both limits are the job's
    too."""
    with recorded(tmp_path, WRITERS[writer]):
        for _ in range(6 * SLOTS * WINDOW_CHUNKS):
            emit("read", 1, 2)
        (path,) = tmp_path.iterdir()
        mapped = [
            line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line
        ]
        kept = [
            str(Path("/proc/self/fd", number).resolve()) for number in os.listdir("/proc/self/fd")
        ]
    assert len(mapped) <= 2  # the header and the current window
    # Python's mmap keeps one for each mapping
    assert kept.count(str(path)) <= (0 if writer == "native" else 2)


@writers
def test_a_replaced_file_is_not_written_to(writer: str, tmp_path: Path) -> None:
    """Somebody removes the file and makes another of that name: spans are lost and counted, the
    other file stays as it is."""
    with recorded(tmp_path, WRITERS[writer]):
        (path,) = tmp_path.iterdir()
        path.unlink()
        path.write_bytes(b"mine")
        for _ in range(ROOM[writer] * SLOTS + 10):
            emit("read", 1, 2)
        assert 10 == recorder.lost()
    assert b"mine" == path.read_bytes()


# ------------------------------------------------------------------------------------------ strings


@writers
@pytest.mark.parametrize(
    "text",
    [b"", b"x", b"x" * 56, b"x" * 57, b"/caf\xe9", "/数据/é".encode(), b"a\nb", b"x" * 4352],
    ids=lambda text: f"{len(text)} bytes",
)
def test_strings_come_back(writer: str, text: bytes, tmp_path: Path) -> None:
    """A path is its bytes, whatever they are, up to the longest that is kept; a table shows the
    rest as escapes."""
    with recorded(tmp_path, WRITERS[writer]):
        emit("read", 1, 2, file=intern(text))
    assert [text.decode(errors="backslashreplace")] == trace_of(tmp_path).files["path"].to_list()


@writers
@pytest.mark.parametrize(
    "text", ["x" * 4353, "é" * 3000, "x" + "é" * 3000, "字" * 3000, "x" + "字" * 3000, "😀" * 2000]
)
def test_overlong_strings_are_cut(writer: str, text: str, tmp_path: Path) -> None:
    """Beyond 4352 bytes a string is cut between characters, and ends in an ellipsis."""
    with recorded(tmp_path, WRITERS[writer]):
        emit("read", 1, 2, text)
    (name,) = trace_of(tmp_path).spans["name"].to_list()
    assert text.startswith(name[:-1])
    assert "…" == name[-1]
    assert 4352 - 3 <= len(name.encode()) <= 4352


@writers
def test_a_hundred_thousand_strings(writer: str, tmp_path: Path) -> None:
    """Every path has its own number, and its span finds it again."""
    with recorded(tmp_path, WRITERS[writer]):
        numbers = [intern(f"/data/train/n{place:08d}/image.JPEG") for place in range(100_000)]
        assert numbers == [
            intern(f"/data/train/n{place:08d}/image.JPEG") for place in range(100_000)
        ]
        for place in (0, 99_999):
            emit("read", 1, 2, step=place, file=numbers[place])
    assert list(range(100_000)) == numbers
    trace = trace_of(tmp_path)
    found = dict(trace.spans.join(trace.files, on="file").select("step", "path").iter_rows())
    assert {place: f"/data/train/n{place:08d}/image.JPEG" for place in (0, 99_999)} == found


@writers
def test_forgotten_strings_are_written_again(writer: str, tmp_path: Path) -> None:
    """What is known is bounded: a string may get a second number, and both mean the same file."""
    with recorded(tmp_path, WRITERS[writer]):
        first = intern("/again")
        for place in range(ring.KNOWN_STRINGS):
            intern(str(place))
        second = intern("/again")
        emit("read", 1, 2, file=first)
        emit("read", 3, 4, file=second)
    assert first != second
    assert [0, 0] == trace_of(tmp_path).spans["file"].to_list()


# ---------------------------------------------------------------- threads, forks, kills, full disks


@pytest.mark.job
@writers
def test_threads_record_side_by_side(writer: str, tmp_path: Path) -> None:
    """No span of eight threads is lost or torn, and each bears the thread that made it."""
    spans = 50_000 if writer == "native" else 2_000
    tids = [
        int(tid) for tid in run_program("many_threads.py", tmp_path, writer, 8, spans, 8).split()
    ]
    table = trace_of(tmp_path).spans
    expected = sorted(
        (tids[number], number, place) for number in range(8) for place in range(spans)
    )
    assert expected == table.select("tid", "step", "batch").sort("tid", "step", "batch").rows()


@pytest.mark.job
@pytest.mark.parametrize("sanitizer", ["none", "thread", "address,undefined"])
def test_threads_need_no_gil(sanitizer: str, tmp_path: Path) -> None:
    """The ring alone, as a C program: threads that run at the same time, and end and begin again,
    lose and tear nothing."""
    options = [] if sanitizer == "none" else [f"-fsanitize={sanitizer}"]
    program = compiled("ring_threads.c", tmp_path / "program", *native_sources("ring"), *options)
    (tmp_path / "spool").mkdir()
    threads, spans, rounds = 8, 500, 40
    numbers = (str(number) for number in (threads, spans, rounds))
    ended = subprocess.run(
        [program, tmp_path / "spool" / "a.ring", *numbers], capture_output=True, text=True
    )
    if "unexpected memory mapping" in ended.stderr:
        pytest.skip("the thread sanitizer cannot run under this kernel's address randomisation")
    assert (0, "") == (ended.returncode, ended.stderr)
    trace = trace_of(tmp_path / "spool")
    expected = [
        (number, place, f"/{number}")
        for number in range(threads * rounds)
        for place in range(spans)
    ]
    table = trace.spans.join(trace.files, on="file").select("step", "batch", "path", "tid")
    assert expected == table.select("step", "batch", "path").sort("step", "batch").rows()
    assert threads * rounds == len(table.select("step", "tid").unique())
    assert trace.run.processes[0].lost == 0


@pytest.mark.job
@writers
def test_short_lived_threads_share_chunks(writer: str, tmp_path: Path) -> None:
    """Ten thousand threads of one span each take over the chunks of those that ended: the file
    stays small."""
    tids = [
        int(tid) for tid in run_program("many_threads.py", tmp_path, writer, 10_000, 1, 4).split()
    ]
    assert (
        list(enumerate(tids)) == trace_of(tmp_path).spans.select("step", "tid").sort("step").rows()
    )
    assert len(the_file(tmp_path)) <= wire_format.HEADER_BYTES + 64 * wire_format.CHUNK_BYTES


@pytest.mark.job
@writers
def test_a_forked_child_leaves_its_parents_file_alone(writer: str, tmp_path: Path) -> None:
    """While threads record, children are forked: they record nothing until they start a file of
    their own."""
    made = int(run_program("fork_while_recording.py", tmp_path, writer, 20))
    trace = trace_of(tmp_path)
    assert made == trace.select(batch=0).spans.height
    assert 20 == trace.select(kind="wait").spans.height  # once each, by the parent
    assert [] == trace.select(kind="fetch").spans.rows()
    assert list(range(1, 21)) == trace.select(kind="decode").spans["batch"].sort().to_list()
    assert 21 == len({process.pid for process in trace.run.processes})
    assert all(process.closed for process in trace.run.processes)


@pytest.mark.job
@writers
def test_a_killed_process_leaves_every_span_it_finished(writer: str, tmp_path: Path) -> None:
    """SIGKILL at any moment: what the process had finished before is there, whole, with its paths;
    the file is not `closed`."""
    command = [sys.executable, str(PROGRAMS / "record_until_killed.py"), str(tmp_path), writer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [next(process.stdout) for _ in range(100)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout
    finished = int([line for line in said if line.endswith("\n")][-1])
    trace = trace_of(tmp_path)
    table = trace.spans.join(trace.files, on="file", how="left").sort("step")
    rows = table.select("step", "bytes", "path").rows()
    assert [(place, place, f"/data/{place}") for place in range(len(rows))] == rows
    # it may have gone on between its last words and the signal
    assert finished <= len(rows) <= finished + 300
    assert [False] == [process.closed for process in trace.run.processes]


@pytest.mark.system
@writers
def test_a_full_disk_costs_spans_and_not_the_job(
    writer: str, small_disk: Callable[[int], Path]
) -> None:
    """What finds no room is counted, what was written stays, and the job does not notice."""
    disk = small_disk(3 << 20)
    lost = int(run_program("no_room.py", disk, writer, 100_000, -1))
    trace = trace_of(disk)
    chunks = (3 << 20) // wire_format.CHUNK_BYTES - 1  # without the header
    # of a window a thread has only one, or all are full
    assert (chunks - WINDOW_CHUNKS + 1) * SLOTS == trace.spans.height
    assert 100_000 - trace.spans.height == lost
    assert [lost + 1] == [process.lost for process in trace.run.processes]


@pytest.mark.job
@writers
def test_a_limit_on_file_sizes_costs_spans_and_not_the_job(writer: str, tmp_path: Path) -> None:
    """RLIMIT_FSIZE: growing past it would raise SIGXFSZ, which kills; it is not tried."""
    lost = int(
        run_program(
            "no_room.py", tmp_path, writer, 50_000, wire_format.HEADER_BYTES + ring.WINDOW_BYTES
        )
    )
    assert 50_000 - ROOM[writer] * SLOTS == lost
    assert ROOM[writer] * SLOTS == trace_of(tmp_path).spans.height


@pytest.mark.job
@writers
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_worker_that_ends_normally_closes_its_file(
    writer: str, start_method: str, tmp_path: Path
) -> None:
    """Children of multiprocessing end by os._exit; their recording ends before, with
    multiprocessing's own finalizers."""
    run_program("loader_worker.py", tmp_path, writer, start_method)
    processes = trace_of(tmp_path).run.processes
    expected = [("rank", None, True, 0), ("worker", 0, True, 1), ("worker", 1, True, 1)]
    found = [(process.role, process.worker, process.closed, process.spans) for process in processes]
    assert expected == sorted(found, key=str)


@writers
def test_a_torn_span_is_not_there(writer: str, tmp_path: Path) -> None:
    """The count is stored after the slot: bytes beyond it do not count, whatever they are."""
    with recorded(tmp_path, WRITERS[writer]), span("read"):
        emit("decode", 1, 2)
        data = the_file(tmp_path)
    assert 1 == struct.unpack_from("<Q", data, wire_format.HEADER_BYTES + 8)[0]


@pytest.mark.job
def test_a_span_of_a_signal_handler_never_waits_for_the_span_that_it_interrupted(tmp_path):
    """The Python writer holds a lock while it takes a chunk: a handler that records meanwhile loses
    its span, and does not wait."""
    program = f"""
import os, signal, sys
from pathlib import Path
from ioprof.instrument import recorder, ring
from ioprof.instrument.span import span

def handler(*_):
    with span("decode"):
        pass

signal.signal(signal.SIGUSR1, handler)
claim = ring.Ring._claim
def interrupted(self):
    os.kill(os.getpid(), signal.SIGUSR1)
    return claim(self)
ring.Ring._claim = interrupted
recorder._native = None
recorder.start(Path({str(tmp_path)!r}))
for _ in range(3000):
    with span("read"):
        pass
print(recorder.lost())
recorder.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert "3" == done.stdout.strip()
