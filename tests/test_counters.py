"""The sample file and its reader: written values are read back, and no file contents make the
reader fail."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from repository import ROOT

from ioprof.format.schema import COUNTER_COLUMNS
from ioprof.format.series import COUNTER_FORMAT
from ioprof.format.trace import table_schema
from ioprof.ingest.counters import read_counters
from ioprof.instrument.samplers.file import SampleFile
from ioprof.instrument.samplers.readings import HOST, Readings


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


@st.composite
def sampled(draw: st.DrawFn) -> list[Readings]:
    """Values of a source over several samples: subjects and series appear, stay, change, disappear
    and reappear."""
    subjects = st.sampled_from([HOST, (7, 1), (7, 2), (8, 1)])
    names = st.sampled_from(["process.rss", "process.rchar", "process.threads"])
    amounts = st.integers(0, 2).map(float)
    one = st.dictionaries(subjects, st.dictionaries(names, amounts))
    return [
        reading
        for reading in draw(st.lists(one, max_size=8))
        if len({pid for pid, _ in reading}) == len(reading)
    ]


def interpolated(rows: list[tuple[int, float]], time_ns: int) -> float | None:
    """The value interpolated linearly between rows; None outside of them."""
    times, found = zip(*sorted(rows), strict=True)
    return float(np.interp(time_ns, times, found)) if times[0] <= time_ns <= times[-1] else None


@given(sampled(), st.sets(st.integers(0, 7)))
def test_every_sample_can_be_read_back(samples: list[Readings], lost: set[int]) -> None:
    """Round trip: at the time of each sample a series has the sampled value, also if the file omits
    it as unchanged.

    Only samples that could not be written are missing, and they do not affect others.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = SampleFile(folder, "node1", 1.0)
        descriptor = file._descriptor
        for number, readings in enumerate(samples):
            file._descriptor = -1 if number in lost else descriptor
            file.sample(10 * number, 0, readings)
        file._descriptor = descriptor
        file.close()
        assert len(lost & set(range(len(samples)))) == file.lost
        table = read_counters(Path(folder)).table
    for number, readings in enumerate(samples):
        if number in lost:
            continue
        rows = table.filter(pl.col("time_ns") == 10 * number)
        found = {(row["pid"], row["name"]): row["value"] for row in rows.to_dicts()}
        expected = {
            (pid, name): value
            for (pid, _), series in readings.items()
            for name, value in series.items()
        }
        assert found.items() <= expected.items()
        for (pid, name), value in expected.items() - found.items():
            series = table.filter(
                pl.col("name") == name,
                pl.col("pid").is_null() if pid is None else pl.col("pid") == pid,
            )
            assert value == interpolated(series.select("time_ns", "value").rows(), 10 * number)


@pytest.mark.job
def test_a_full_spool_loses_lines_and_says_so(tmp_path: Path, spool: Path) -> None:
    """After a line that did not fit, later lines are complete again, and the loss is counted."""
    program = _LIMITED.format(spool=str(spool))
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    found = read_counters(spool)
    assert (1, 1) == (found.damaged, found.lost)  # the line that was truncated by the limit
    assert [1.0, 3.0] == sorted(
        found.table.filter(pl.col("name") == "process.rss")["value"].unique()
    )


_LIMITED: Final = """
import os, resource, signal
from ioprof.instrument.samplers.file import SampleFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = SampleFile({spool!r}, "node1", 1.0)
file.sample(1, 0, {{(7, 1): {{"process.rss": 1.0}}}})
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize({spool!r} + "/" + os.listdir({spool!r})[0]) + 5, resource.RLIM_INFINITY))
file.sample(2, 0, {{(7, 1): {{"process.rss": 2.0}}}})
assert 1 == file.lost
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.sample(3, 0, {{(7, 1): {{"process.rss": 3.0}}}})
file.close()
"""  # noqa: E501

HEADER: Final = json.dumps({"format": COUNTER_FORMAT, "host": "node1", "pid": 1, "period_s": 1.0})
DEFINED: Final = json.dumps({"series": 0, "name": "cpu.user", "unit": "s", "pid": None})
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["series", "process", "note", "pid", "name"]), inner)
    ),
    max_leaves=8,
)
garbled_lines = (
    json_values.map(json.dumps).map(str.encode)
    | st.binary()
    | st.sampled_from([DEFINED.encode(), b"[1,0,[0,1],[]]"])
)


@given(st.lists(garbled_lines))
@example(
    [
        b'{"note":"\\ud800"}',
        b"[" * 100_000,
        b"[1,0,[0,1e999],[]]",
        b"9" * 5000,
        b"[1,0,[0],[]]",
        b"[" + b"9" * 30 + b",0,[],[]]",
    ]
)
@example(
    [
        b'{"series":0,"name":"x","unit":"s","pid":' + b"9" * 12 + b"}",
        b"[1,[],[],[]]",
        b"[1,0,[],[[]]]",
        b"null",
        b"true",
    ]
)
def test_no_file_stops_the_reader(lines: list[bytes]) -> None:
    """For any file contents the reader returns a table with the right columns and counts invalid
    lines."""
    with tempfile.TemporaryDirectory() as folder:
        text = b"\n".join([HEADER.encode(), DEFINED.encode(), b"[5,0,[0,2.5],[]]", *lines])
        (Path(folder) / "counters-node1-1.jsonl").write_bytes(text)
        found = read_counters(Path(folder))
    assert table_schema(COUNTER_COLUMNS) == dict(found.table.schema)
    assert (5, "node1", "cpu.user", 2.5, "s") in found.table.select(
        "time_ns", "host", "name", "value", "unit"
    ).rows()


def test_a_spool_without_samples_is_an_empty_table(spool: Path) -> None:
    """No file, or a file that cannot be opened: no rows, and the latter is counted."""
    assert (0, 0) == (len(read_counters(spool).table), read_counters(spool).damaged)
    (spool / "counters-node1-1.jsonl").mkdir()
    assert (0, 1) == (len(read_counters(spool).table), read_counters(spool).damaged)


def test_ranks_are_given_by_host_and_pid(spool: Path) -> None:
    """The series of a process that recorded its rank have that rank."""
    file = SampleFile(str(spool), "node1", 1.0)
    file.sample(
        1, 0, {(7, 1): {"process.rss": 1.0}, (8, 1): {"process.rss": 2.0}, HOST: {"cpu.user": 3.0}}
    )
    file.close()
    table = read_counters(spool, {("node1", 7): 3, ("node2", 8): 4}).table
    assert {(7, 3), (8, None), (None, None)} == set(table.select("pid", "rank").rows())
