"""Jobs that read mapped files: what page faults fetched and how long they took, and what is said
where that is not known."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import slow_storage
from hypothesis import given
from hypothesis import strategies as st
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS
from timeline import pid, timeline
from told import summarise

from ioprof.analysis.reads.storage_bytes import by_process
from ioprof.format.trace import Trace
from ioprof.ingest.page_faults.mapped_bytes import AROUND_BYTES, _divide, _divide_near
from ioprof.instrument.faults import refusal
from ioprof.report.run import Run
from ioprof.report.texts.caveats import caveats
from ioprof.report.texts.statements import statements

needs_faults = pytest.mark.skipif(refusal() is not None, reason=str(refusal()))

RATE = 6 << 20


def make(folder: Path, way: str) -> None:
    command = [sys.executable, PROGRAMS / "make_ways_of_reading.py", folder, way]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=100)


def record(out: Path, disk: slow_storage.ThrottledDisk, *command: object) -> tuple[Run, str]:
    words = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--out",
        out,
        "--",
        sys.executable,
        *command,
    ]
    ended = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=120, preexec_fn=disk.join
    )
    assert 0 == ended.returncode, ended.stderr
    return Run.load(out), ended.stdout


@needs_library
@needs_faults
@pytest.mark.parametrize("way", ["memmap_at_random", "shared_library"])
@on_a_quiet_machine
def test_faults_of_the_training_process_last_as_long_as_it_waited(way: str, tmp_path: Path) -> None:
    """On a slow disk: their time is that of the reads, and the file is named.

    The bytes of the process are exact. Their division among files follows the time, so that a part
    may be counted for libraries which the job read in the same second.
    """
    with slow_storage.throttled_disk(tmp_path, 64 << 20) as disk:
        make(disk.path, way)
        slow_storage.evict(disk.path)
        disk.throttle(RATE)
        before = disk.read_bytes()
        run, said = record(
            tmp_path / "run", disk, PROGRAMS / "train_on_mapped.py", disk.path, way, 0, 40
        )
        device = disk.read_bytes() - before
        path = disk.path / way
    faults = (
        run.trace.spans.filter(pl.col("kind") == "fault")
        .join(run.trace.files, on="file")
        .filter(pl.col("path") == str(path))
    )
    took_s = (faults["end_ns"] - faults["start_ns"]).sum() / 1e9
    with comparing_times():
        assert 0.7 * float(said) <= took_s <= 1.02 * float(said)
    assert 0.6 * device <= faults["bytes"].sum() <= 1.1 * device
    assert str(path) in {read.path for read in run.summary.storage.slowest}


@pytest.mark.system(every=4)
@needs_library
@needs_faults
def test_workers_that_are_never_major_are_timed(tmp_path: Path) -> None:
    """A worker reads a mapped file in order: few of its faults are major, but all bytes and nearly
    all of the time are seen."""
    with slow_storage.throttled_disk(tmp_path, 64 << 20) as disk:
        make(disk.path, "memmap_in_order")
        slow_storage.evict(disk.path)
        disk.throttle(RATE)
        program = [
            PROGRAMS / "ways_of_reading.py",
            "all",
            Path(disk.device).name,
            disk.path,
            "memmap_in_order",
        ]
        run, said = record(tmp_path / "run", disk, *program)
    line = json.loads(said)
    (each,) = [each for (_, pid), each in by_process(run.trace).items() if pid == line["pid"]]
    faults = run.trace.spans.filter(pl.col("kind") == "fault", pl.col("pid") == line["pid"])
    assert abs(each.by_calls + each.by_faults - line["device"]) <= 0.02 * line["device"] + (
        160 << 10
    )
    assert line["device"] / RATE * 0.8 <= (faults["end_ns"] - faults["start_ns"]).sum() / 1e9


@pytest.mark.system(every=4)
@needs_library
def test_without_page_faults_the_report_says_how_much_was_not_timed(tmp_path: Path) -> None:
    """Where perf events are forbidden: in the capture's facts, a caveat, and the verdict; not the
    reads' own ratio."""
    with slow_storage.throttled_disk(tmp_path, 64 << 20) as disk:
        make(disk.path, "memmap_at_random")
        slow_storage.evict(disk.path)
        program = [PROGRAMS / "train_on_mapped.py", disk.path, "memmap_at_random", 1, 40]
        before = disk.read_bytes()
        run, _ = record(tmp_path / "run", disk, *program)
        device = disk.read_bytes() - before
    assert device > 8 << 20
    hidden = Run.of(run.trace.select(pl.col("kind") != "fault"))
    found = hidden.summary.capture
    # and what libraries the job read
    assert -0.02 * device <= found.mapped_bytes_untimed - device <= 0.02 * device + (64 << 20)
    assert "came by mapped files and were not timed" in hidden.summary.verdict.text
    assert "data not timed" in [caveat.name for caveat in caveats(hidden.summary)]
    assert found.storage_coverage_ratio < 0.5


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(0, 1 << 24))
def test_faults_share_what_was_fetched_within_their_bounds(more: list[int], fetched: int) -> None:
    """Each has whole pages, at least one and no more than it can have; in sum as fetched, to a
    page, where the bounds allow it."""
    page = np.full(len(more), 4096)
    reach = page * (1 + np.array(more))
    shares = _divide(fetched, page, page, reach)
    assert (shares % page == 0).all()
    assert (shares >= page).all()
    expected = min(max(fetched, int(page.sum())), int(reach.sum()))
    assert expected - 4096 < shares.sum() <= expected


def test_one_fault_of_a_large_file_does_not_get_what_many_of_a_small_one_fetched() -> None:
    """What is left when each has what is near it goes to all alike, however much of a file lies
    behind a fault."""
    page = np.full(71, 4096)
    reach = np.full(71, 3 * AROUND_BYTES)
    reach[70] = 300 << 20
    fetched = 70 * 2 * AROUND_BYTES
    shares = _divide_near(fetched, page, page, np.minimum(reach, AROUND_BYTES), reach)
    assert shares.sum() <= fetched
    assert shares[70] <= 4 * AROUND_BYTES
    assert shares[:70].sum() >= 0.95 * fetched
    everything = _divide_near(400 << 20, page, page, np.minimum(reach, AROUND_BYTES), reach)
    assert (everything == reach).all()


def test_faults_whose_reach_ends_within_a_page_get_what_they_can_have() -> None:
    """A file ends within a page, so that whole pages never fill the reach of its last fault,
    whatever is left."""
    page, reach = np.array([4096, 4096]), np.array([10 * 4096 + 100, 3 * AROUND_BYTES + 1])
    shares = _divide_near(1 << 30, page, page, np.minimum(reach, AROUND_BYTES), reach)
    assert (shares <= reach).all()
    assert shares.sum() >= reach.sum() - 2 * 4096


MB = 1_000_000


def importing(of_imports: int, untimed: int) -> Trace:
    """A rank that imports a library while the kernel fetches so many bytes, 1 MB of them by a read
    and 1 MB by a recorded fault.

    `untimed`: bytes that the kernel fetched for it in its whole life besides these 2 MB.
    """
    drawing = f"""
        phase       name=zarr {of_imports}B  ####..........
        read main   1000000B                 .##...........
        fault main  1000000B                 ...#..........
        step                                 ......00001111
        wait                                 ......00..11..
        read w0     3000000B                 .....##...#...
        compute                              ........00..11
    """
    reads = {"io_read_bytes": 2 * MB + untimed, "fetched_bytes": MB}
    worker = {"io_read_bytes": 6 * MB, "fetched_bytes": 6 * MB}
    processes = [{"host": "node1", "pid": pid(0), "role": "rank", "rank": 0, "reads": reads}]
    processes.append(
        {
            "host": "node1",
            "pid": pid(0, 0),
            "role": "worker",
            "rank": 0,
            "worker": 0,
            "reads": worker,
        }
    )
    trace = timeline(drawing, processes=processes)
    name = (
        pl.when(pl.col("kind") == "phase")
        .then(pl.lit("import zarr", trace.spans.schema["name"]))
        .otherwise("name")
    )
    return Trace(trace.run, trace.spans.with_columns(name=name), trace.files)


@pytest.mark.parametrize(
    ("of_imports", "imports"), [(22 * MB, 20), (7 * MB, 5), (0, 0), (200 * MB, 20)]
)
def test_bytes_of_libraries_at_their_import_are_not_called_data(
    of_imports: int, imports: int
) -> None:
    """Of 20 MB without a time those that were fetched while modules were imported are said apart,
    and are no reason for doubt."""
    trace = importing(of_imports, 20 * MB)
    summary = summarise(trace)
    found = summary.capture
    assert (20 * MB, imports * MB) == pytest.approx(
        (found.mapped_bytes_untimed, found.mapped_bytes_imports), abs=4096
    )
    [line] = [entry.text for entry in statements(summary) if entry.label == "capture"]
    assert (f"{imports} MB came by mapped files while modules were imported" in line) == (
        imports > 0
    )
    assert (f"{20 - imports} MB came by mapped files and were not timed" in line) == (imports < 20)
    assert ("not timed" in summary.verdict.text) == (imports < 20)
    assert min(of_imports, 22 * MB) == by_process(trace)["node1", pid(0)].during_imports
    assert ("data not timed" in [caveat.name for caveat in caveats(summary)]) == (imports < 20)
