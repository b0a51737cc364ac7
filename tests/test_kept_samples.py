"""`record --keep`: samples, stacks and page faults of the window are those of a full recording;
their files are bounded."""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from captures import allocated_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import ioprof as run_ioprof
from jobs import start, wait_until
from perf_files import PAGE, ended, fork, header, mapping, minor, named, record, sample, switch
from repository import PROGRAMS
from strategies import examples

from ioprof import clock
from ioprof.format import perf
from ioprof.format.stack_format import (
    CODE_RECORD,
    SAMPLES_RECORD,
    STACK_FORMAT,
    STACK_RECORD,
    TEXT_RECORD,
)
from ioprof.format.trace import Trace
from ioprof.ingest import appended_files, read_spool
from ioprof.ingest.appended_files import KEPT_SUFFIX, AppendedFile, Fold, read_appended
from ioprof.ingest.counters import fold_counters, read_counters
from ioprof.ingest.page_faults.fault_state import ENDED_NS
from ioprof.ingest.page_faults.faults import Faults, fold_faults, read_faults
from ioprof.ingest.spool_copy import copy_spool
from ioprof.ingest.stacks import fold_stacks, read_stacks
from ioprof.instrument.host import host
from ioprof.instrument.samplers.file import SampleFile
from ioprof.instrument.samplers.processes import JobProcess
from ioprof.instrument.samplers.readings import Readings
from ioprof.recording.keeping import Keeper
from ioprof.recording.run_folder import MARKER

FILE = 0x7F00_0000_0000
FRACTION = 1000
"""Places where a file is cut are in thousandths of its length."""
cuts = st.lists(st.integers(0, FRACTION), min_size=1, max_size=4).map(sorted)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any part is dropped, however small."""
    monkeypatch.setattr(appended_files, "LEAST_BYTES", 1)


def dropped(path: Path, data: bytes, fold: Fold, places: list[int], header_bytes: int = 0) -> int:
    """Write the data up to each place in turn, and drop all that is there; the rest follows. Where
    the rest begins."""
    path.with_name(path.name + KEPT_SUFFIX).unlink(missing_ok=True)
    file, end = AppendedFile(path, fold, header_bytes), 0
    for number, place in enumerate(places):
        end = header_bytes + (len(data) - header_bytes) * place // FRACTION
        with open(path, "r+b" if number else "wb") as writing:
            writing.seek(0, os.SEEK_END)
            writing.write(data[writing.tell() : end])
        file.look(2 * number, 0)
        if file.look(2 * number + 1, 2 * number + 1):
            file.drop()
    with open(path, "r+b") as writing:
        writing.seek(end)
        writing.write(data[end:])
    return read_appended(path, header_bytes).start


# ----------------------------------------------------------------------------------- sampled series

NOISE = [b"}\n", b"[1,2]\n", b'{"lost": 3}\n', b'{"note": "x"}\n']
readings = st.dictionaries(
    st.sampled_from([(None, "a"), (7, "a"), (7, "b"), (8, "a")]),
    st.integers(0, 2) | st.floats(0, 1e18),
    max_size=4,
)


def _by_subject(values: dict[Any, float]) -> Readings:
    found: dict[Any, dict[str, float]] = {}
    for (pid, name), value in values.items():
        found.setdefault((pid, 0), {})[name] = value
    return found


@pytest.mark.job
@pytest.mark.usefixtures("small_parts")
@settings(max_examples=examples(100))
@given(
    samples=st.lists(st.tuples(st.integers(0, 2), readings), min_size=1, max_size=25),
    noise=st.lists(
        st.tuples(
            st.integers(0, 25),
            st.sampled_from([b"}\n", b"[1,2]\n", b'{"lost": 3}\n', b'{"note": "x"}\n']),
        ),
        max_size=2,
    ),
    places=cuts,
)
def test_series_of_the_window_are_those_of_a_full_recording(
    tmp_path_factory: pytest.TempPathFactory,
    samples: list[Any],
    noise: list[tuple[int, bytes]],
    places: list[int],
) -> None:
    """Whatever was dropped when, and whatever ended, began again, or was lost."""
    folder = tmp_path_factory.mktemp("series")
    file = SampleFile(str(folder), "node1", 1.0)
    for number, (group, values) in enumerate(samples):
        if number % 3 == 0:
            file.process(
                number,
                JobProcess(
                    7 + number % 2, 1, f"program {number}", "0-3", sees_spool=number % 2 == 0
                ),
            )
        file.sample(
            number * 10,
            group,
            _by_subject({(pid, f"{group}{name}"): each for (pid, name), each in values.items()}),
        )
    file.close()
    (path,) = folder.glob("counters-*")
    lines = path.read_bytes().splitlines(keepends=True)
    for place, line in noise:
        lines.insert(1 + place, line)
    path.write_bytes(data := b"".join(lines))
    full = read_counters(folder)
    start = dropped(path, data, fold_counters, places)
    found = read_counters(folder)
    before = [
        json.loads(line)[0]
        for line in data[:start].splitlines()
        if line.startswith(b"[") and line != b"[1,2]"
    ]
    since_ns = max(before, default=-1) + 1

    def window(table: pl.DataFrame) -> pl.DataFrame:
        return table.filter(pl.col("time_ns") >= since_ns).sort(table.columns)

    assert window(full.table).equals(window(found.table))
    assert (full.processes, full.damaged, full.lost, set(full.notes)) == (
        found.processes,
        found.damaged,
        found.lost,
        set(found.notes),
    )


# ------------------------------------------------------------------------------------------- stacks


def _stack_file(steps: list[tuple[int, int]]) -> bytes:
    """Samples of ten stacks in two threads each; a stack is written before its first sample, as is
    a thread."""

    def text(**value: object) -> bytes:
        data = json.dumps(value).encode()
        return struct.pack("<II", TEXT_RECORD, len(data)) + data

    found, known = (
        [text(format=STACK_FORMAT, host="node1", pid=1, package="/ioprof")],
        set[object](),
    )
    for number, (target, stack) in enumerate(steps):
        if ("target", target) not in known:
            found.append(text(target=target, pid=100 + target, version="3.11", time_ns=number))
        if stack not in known:
            name = b"/train.py"
            code = struct.pack("<IiIIII", stack, stack + 1, 1, len(name), 1, 4) + name + b"main"
            found.append(struct.pack("<II", CODE_RECORD, len(code)) + code)
            found.append(struct.pack("<IIIIi", STACK_RECORD, 12, stack, stack, -1))
        known |= {("target", target), stack}
        found.append(struct.pack("<IIQII", SAMPLES_RECORD, 16, number, target, stack))
    return b"".join(found)


@pytest.mark.usefixtures("small_parts")
@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=40),
    places=cuts,
)
def test_stacks_of_the_window_are_those_of_a_full_recording(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], places: list[int]
) -> None:
    """A stack that was written before the window is still known in it."""
    folder, data = tmp_path_factory.mktemp("stacks"), _stack_file(steps)
    path = folder / "stacks-node1-1.bin"
    path.write_bytes(data)
    full, _ = read_stacks(folder, [])
    assert len(full) == len(steps)
    dropped(path, data, fold_stacks, places)
    found, damaged = read_stacks(folder, [])
    assert not damaged
    kept = full.filter(pl.col("time_ns") >= len(full) - len(found))
    assert kept.select(pl.exclude("stack"), pl.col("stack").cast(pl.String)).equals(
        found.select(pl.exclude("stack"), pl.col("stack").cast(pl.String))
    )


# -------------------------------------------------------------------------------------- page faults


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Records of living processes in the order of time: all kinds, with pauses up to those after
    which readahead is forgotten."""
    time, history = 1, [named(1, b"python", pid=pid) for pid in range(10, 14)]
    threads = dict.fromkeys(range(10, 14), 1)
    for _ in range(draw(st.integers(1, 40))):
        alive = [pid for pid, number in threads.items() if number]
        if not alive:
            break
        time += draw(
            st.sampled_from(
                [1, 10, perf.MINOR_CPU_NS, perf.FAULT_CPU_NS // 2, ENDED_NS // 3, ENDED_NS]
            )
        )
        pid = draw(st.sampled_from(alive))
        what = draw(
            st.sampled_from(
                [
                    "out",
                    "in",
                    "fault",
                    "minor",
                    "minor",
                    "map",
                    "fork",
                    "exit",
                    "exec",
                    "lost",
                    "state",
                ]
            )
        )
        if what in ("fault", "minor"):
            history += (
                [switch(time, "out", pid=pid), switch(time + 3, "in", pid=pid)]
                if draw(st.booleans())
                else []
            )
            touch = sample if what == "fault" else minor
            time += 5
            history.append(touch(time, FILE + draw(st.integers(0, 4)) * PAGE, pid=pid))
        elif what == "map":
            path = draw(
                st.sampled_from(
                    [b"/data", b"/more", b"//anon", b"/spool/x.ring", b"/ioprof/_capture.so"]
                )
            )
            history.append(
                mapping(time, FILE + draw(st.integers(0, 2)) * PAGE, 3 * PAGE, 0, path, pid=pid)
            )
        elif what == "fork":
            child = draw(st.sampled_from([pid, *sorted(threads.keys() - alive)]))
            threads[child] += 1
            history += [
                fork(time, child, pid),
                *([switch(time, "in", pid=child)] if child != pid else []),
            ]
            # what a thread that had this number before waited for is not taken for its own
            time += 2 * perf.FAULT_CPU_NS
        elif what == "exit":
            threads[pid] -= 1
            history.append(ended(time, pid))
        elif what == "exec":
            history.append(named(time, b"program", pid=pid, executed=True))
        elif what == "lost":
            history.append(record(perf.LOST, 0, struct.pack("<QQIIQ", 1, 2, pid, pid, time)))
        elif what == "state":
            kind = draw(st.sampled_from([perf.SWITCH_STATE, perf.MINOR_STATE]))
            history.append(perf.state_record(kind, draw(st.booleans()), 1, time))
        else:
            history.append(switch(time, what, pid=pid))
    return history


def _read(path: Path) -> Faults:
    ids: dict[bytes, int] = {b"/data": 0, b"/more": 1, b"/ioprof/_capture.so": 2}
    return read_faults(path, lambda name: ids.get(name, 9))


@pytest.mark.job(every=4)
@pytest.mark.usefixtures("small_parts")
@settings(max_examples=examples(300))
@given(history=histories(), places=cuts)
def test_faults_of_the_window_are_those_of_a_full_recording(
    tmp_path_factory: pytest.TempPathFactory, history: list[bytes], places: list[int]
) -> None:
    """Spans that began in the window are the same, and what is counted is of all of the job: also
    of what was dropped."""
    path = tmp_path_factory.mktemp("faults") / "node1-1-1.perf"
    data = header() + b"".join(history)
    path.write_bytes(data)
    full = _read(path)
    start = dropped(path, data, fold_faults, places, perf.HEADER_BYTES)
    records, _ = perf.read_records(data[perf.HEADER_BYTES : start])
    since_ns = int(records.times.max(initial=0)) + 1
    found = _read(path)
    assert full.spans.filter(pl.col("start_ns") >= since_ns).equals(
        found.spans.filter(pl.col("start_ns") >= since_ns)
    )
    assert full.facts == found.facts
    assert +full.damage == +found.damage
    lasting = full.processes.filter((pl.col("last_ns") >= since_ns) | ~pl.col("captured"))
    assert lasting.filter(~pl.col("captured")).equals(found.processes.filter(~pl.col("captured")))
    last = full.processes.filter(pl.col("last_ns") >= since_ns)
    assert last.equals(found.processes.filter(pl.col("last_ns") >= since_ns))


# ------------------------------------------------------------------------------------------- damage


@pytest.mark.usefixtures("small_parts")
@settings(max_examples=examples(100))
@given(data=st.data())
def test_any_bytes_can_be_dropped(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Neither a damaged file nor a damaged state raises."""
    folder = tmp_path_factory.mktemp("damaged")
    kinds: list[tuple[str, Fold, int, Callable[[], Any]]] = [
        ("counters-node1-1.jsonl", fold_counters, 0, lambda: read_counters(folder)),
        ("stacks-node1-1.bin", fold_stacks, 0, lambda: read_stacks(folder, [])),
        (
            "node1-1-1.perf",
            fold_faults,
            perf.HEADER_BYTES,
            lambda: _read(folder / "node1-1-1.perf"),
        ),
    ]
    name, fold, header_bytes, read = data.draw(st.sampled_from(kinds))
    path = folder / name
    content = bytearray(
        header() + b"".join(data.draw(histories()))
        if header_bytes
        else _stack_file([(0, 1), (1, 2)])
    )
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] ^= data.draw(st.integers(1, 255))
    dropped(path, bytes(content), fold, data.draw(cuts), header_bytes)
    read()
    kept = path.with_name(name + KEPT_SUFFIX)
    if kept.exists():
        state = bytearray(kept.read_bytes())
        for place in data.draw(st.lists(st.integers(0, len(state) - 1), max_size=4)):
            state[place] ^= data.draw(st.integers(1, 127))
        kept.write_bytes(state)
        read()
        fold(bytes(content[:header_bytes]), bytes(state), b"", b"/")


def test_a_state_that_is_damaged_is_said(tmp_path: Path, small_parts: None) -> None:
    """What is left is read, and the damage counted."""
    path = tmp_path / "counters-node1-1.jsonl"
    lines = [
        {"format": "ioprof.spool.counters/1", "host": "node1"},
        {"series": 1, "name": "a", "unit": "", "pid": None},
    ]
    data = "".join(
        json.dumps(line) + "\n" for line in [*lines, [1, 0, [1, 5], []], [2, 0, [1, 6], []]]
    ).encode()
    assert 0 < dropped(path, data, fold_counters, [900])
    assert 0 == read_counters(tmp_path).damaged
    path.with_name(path.name + KEPT_SUFFIX).write_bytes(b"nonsense")
    assert read_counters(tmp_path).damaged >= 1


# ----------------------------------------------------------------------------------- all of a spool


def test_files_take_what_the_window_takes(tmp_path: Path) -> None:
    """Ten windows take as much as two, and a copy has the same series, without the holes."""
    keep_ns, spool = 20_000_000_000, tmp_path / "spool"
    spool.mkdir()
    keeper, file, sizes = Keeper(spool, keep_ns), SampleFile(str(spool), "node1", 1.0), []
    (path,) = spool.glob("counters-*")
    base_ns = 1 << 40
    for second in range(200):
        for part in range(40):  # 4 KB per second, as of a job with many processes
            values = {f"series {number}": float(second * 40 + part + number) for number in range(5)}
            file.sample(
                base_ns + second * 1_000_000_000 + part * 20_000_000, 0, {(None, 0): values}
            )
        if second % 2 == 1:
            keeper.drop_old(base_ns + (second + 1) * 1_000_000_000)
            sizes.append(allocated_bytes([path, path.with_name(path.name + KEPT_SUFFIX)]))
    file.close()
    written = path.stat().st_size
    window = written / 200 * (20 + 20 / 64 + 2)  # it looks every 2 s
    assert max(sizes[20:]) < window + appended_files.LEAST_BYTES + 4 * PAGE < written / 3
    copy = tmp_path / "copy"
    copy.mkdir()
    copy_spool(spool, copy, host())
    assert allocated_bytes(copy.glob("counters-*")) <= max(sizes)
    own, copied = read_counters(spool), read_counters(copy)
    assert 0 == own.damaged
    assert own.table.equals(copied.table)
    first_ns, last_ns = own.table["time_ns"].min(), own.table["time_ns"].max()
    assert isinstance(first_ns, int)
    assert isinstance(last_ns, int)
    assert last_ns - first_ns >= keep_ns - 1_000_000_000


@pytest.mark.job(every=4)
def test_samples_of_a_real_job_are_dropped_while_it_is_watched_and_killed(tmp_path: Path) -> None:
    """Series and stacks are dropped while `watch` looks; a snapshot and, after a kill of ioprof,
    the run have the window."""
    job = [sys.executable, PROGRAMS / "step_until.py", "enough"]
    recording = start("record", "--keep", "5s", "--out", "run", "--", *job, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "run" / MARKER).exists() or recording.poll() is not None)
    watching = start("watch", "run", "--every", "1", cwd=tmp_path)
    try:
        wait_until(
            lambda: all(
                list(tmp_path.glob(f"tmp/ioprof-*/{kind}*{KEPT_SUFFIX}"))
                for kind in ("counters", "stacks")
            )
        )
        snapped = run_ioprof("snapshot", recording.pid, "--out", "now", cwd=tmp_path)
        assert 0 == snapped.code, snapped.err
        assert watching.poll() is None
    finally:
        os.kill(recording.pid, signal.SIGKILL)
        (tmp_path / "enough").touch()
        recording.communicate()
    printed, messages = watching.communicate(timeout=120)
    assert 0 == watching.returncode, messages
    assert "next: ioprof gather" in messages
    assert printed.count("\n") > 1
    gathered = run_ioprof("gather", "run", cwd=tmp_path)
    assert 0 == gathered.code, gathered.err
    for name in ("now", "run"):
        trace = Trace.load(tmp_path / name)
        sampled = trace.run.capture.sampled
        assert sampled is not None
        assert (0, (), True) == (
            sampled.lost,
            trace.run.capture.damaged,
            trace.run.whole_job is not None,
        )
        for table in (trace.counters, trace.stacks):
            first_ns, last_ns = table["time_ns"].min(), table["time_ns"].max()
            assert isinstance(first_ns, int)
            assert isinstance(last_ns, int)
            assert 0 < last_ns - first_ns < 6e9
        assert any(
            "step_until.py" in stack for stack in trace.stacks["stack"].cast(pl.String).unique()
        )


ONE_SPAN = """
import sys
from pathlib import Path
from ioprof.instrument import recorder
from ioprof.instrument.span import span
recorder.start(Path(sys.argv[1]))
with span("read"):
    pass
"""


@pytest.mark.job
def test_processes_that_have_ended_leave_no_files(tmp_path: Path) -> None:
    """Each worker of each epoch has files of its own: they go with its spans, but not what one says
    of the whole job."""
    keep_ns, stems = 5_000_000_000, []
    for text in ('{"host": "h", "pid": 1, "thread_pools": {"torch": 1}}\n', '{"batch_size": 8}\n'):
        before = set(tmp_path.glob("*.ring"))
        subprocess.run([sys.executable, "-c", ONE_SPAN, tmp_path], check=True)
        (path,) = set(tmp_path.glob("*.ring")) - before
        stems.append(path.stem.rpartition("-")[0])
        (tmp_path / f"facts-{stems[-1]}.jsonl").write_text(text)
        (tmp_path / f"counters-{stems[-1]}.jsonl").write_text(
            '{"format": "ioprof.spool.counters/1", "host": "h"}\n'
        )
    keeper = Keeper(tmp_path, keep_ns)
    keeper.drop_old(clock.monotonic_ns())
    assert 2 == len(list(tmp_path.glob("counters-*")))
    keeper.drop_old(clock.monotonic_ns() + keep_ns + 1_000_000_000)
    left = {each.name for each in tmp_path.iterdir() if not each.name.startswith("kept.")}
    assert {f"facts-{stems[1]}.jsonl"} == left
    found = read_spool(tmp_path)
    assert found.run.whole_job is not None
    assert (2, 8) == (found.run.whole_job.spans, found.run.config.batch_size)
