"""Uncommon ways to read and to become another program, under the capture library; and the clock of
its spans."""

import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from compiling import compiled
from preload import (
    captured,
    check_counters,
    environment,
    needs_library,
    reads_of,
    run_captured,
    run_python,
)

from ioprof.ingest import read_spool

pytestmark = [pytest.mark.job, needs_library]

SIZE = 40_000

CLOCK_ERROR_NS = 100
"""How far the library's times may be from the kernel's clock, which it asks once in a
millisecond."""


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of `other_ways.c`."""
    return compiled("other_ways.c", tmp_path_factory.mktemp("ways") / "other_ways")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of `SIZE` bytes."""
    path = tmp_path / "data"
    path.write_bytes(bytes(SIZE))
    return path


def test_what_is_spliced_is_a_span_and_is_in_no_counter(
    ways: Path, data: Path, tmp_path: Path
) -> None:
    """The kernel does not count what splice moves, so that the tallies must not either."""
    run_captured(tmp_path / "spool", ways, "splice", data)
    trace = captured(tmp_path / "spool")
    assert 1 + SIZE == reads_of(trace, data)["bytes"].sum()
    (process,) = check_counters(trace)
    assert process.reads.seen_bytes < SIZE


@pytest.mark.parametrize("way", ["popen", "system"])
def test_a_shell_that_reads_on_moves_the_position(
    way: str, ways: Path, data: Path, tmp_path: Path
) -> None:
    """A child that has the same descriptor reads a quarter: the parent's last read begins behind
    it."""
    run_captured(tmp_path / "spool", ways, way, data)
    reads = reads_of(captured(tmp_path / "spool"), data).filter(pl.col("bytes") > 1)
    assert [(0, SIZE // 2), (SIZE // 2, SIZE // 4), (SIZE // 4 * 3, SIZE // 4)] == reads.select(
        "offset", "bytes"
    ).rows()


@pytest.mark.parametrize("way", ["execl", "execlp"])
def test_listed_arguments_arrive_and_the_next_program_is_seen(
    way: str, ways: Path, data: Path, tmp_path: Path
) -> None:
    """`cat FILE FILE` by exec with a list of arguments: both programs, one process, are seen to the
    end."""
    printed = run_captured(tmp_path / "spool", ways, way, data)
    trace = captured(tmp_path / "spool")
    assert 2 * SIZE == len(printed)
    assert 1 + 2 * SIZE == reads_of(trace, data)["bytes"].sum()
    (process,) = check_counters(trace, libraries=3)
    assert process.closed


def test_a_program_with_an_environment_of_its_own_is_seen(
    ways: Path, data: Path, tmp_path: Path
) -> None:
    """`execle` with an empty environment: it gets what recording needs, and nothing else."""
    ended = subprocess.run(
        [ways, "execle", data], env=environment(tmp_path / "spool"), capture_output=True
    )
    trace = captured(tmp_path / "spool")
    assert (0, 2 * SIZE) == (ended.returncode, len(ended.stdout))
    assert 1 + 2 * SIZE == reads_of(trace, data)["bytes"].sum()
    (process,) = trace.run.processes
    assert () == process.reads.noted
    assert process.closed


BRACKETED = """
import array, os, sys, time
file, now, took = os.open(sys.argv[1], os.O_RDONLY), time.monotonic_ns, array.array("q")
end = now() + 300_000_000
while (before := now()) < end:
    os.pread(file, 100, 0)
    took.extend((before, now()))
open(sys.argv[2], "wb").write(took.tobytes())
"""


def test_times_are_the_monotonic_clocks(data: Path, tmp_path: Path) -> None:
    """Each of some 100,000 reads lies between two looks at the kernel's clock, also a while after
    the library last asked for it."""
    run_python(tmp_path / "spool", BRACKETED, data, tmp_path / "brackets")
    reads = read_spool(tmp_path / "spool")
    brackets = np.frombuffer((tmp_path / "brackets").read_bytes(), np.int64).reshape(-1, 2)
    spans = reads_of(reads, data).sort("start_ns")
    began = reads.run.clocks.zero_monotonic_ns
    starts, ends = spans["start_ns"].to_numpy() + began, spans["end_ns"].to_numpy() + began
    assert len(brackets) == len(spans)
    assert 0 <= (starts - brackets[:, 0]).min() + CLOCK_ERROR_NS
    assert 0 <= (brackets[:, 1] - ends).min() + CLOCK_ERROR_NS
    assert 0 <= (ends - starts).min()
