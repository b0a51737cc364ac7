"""Capture files that hold any bytes: the reader finds what is valid, by the rules of
native/FORMAT.md."""

import subprocess
import sys

import chunk_oracle
import polars as pl
import pytest
from captures import chunk, header_bytes, record, string, trace_from
from compiling import sanitized
from hypothesis import example, given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from repository import NATIVE, PROGRAMS

from ioprof.format.layout import RECORD_DTYPE
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import KINDS, SPAN_COLUMNS
from ioprof.format.trace import table_schema
from ioprof.format.wire_format import CHUNK_BYTES, HEADER_BYTES, SLOTS
from ioprof.ingest import chunks as reader_of_chunks
from ioprof.ingest import read_spool

READ = KINDS.index("read") + 1

slots = st.one_of(
    st.builds(
        record,
        kind=st.integers(0, len(KINDS) + 2),
        start_ns=st.integers(-1, 5) | st.integers(-(2**63), 2**63 - 1),
        end_ns=st.integers(-1, 5) | st.integers(-(2**63), 2**63 - 1),
        file=st.integers(-2, 3) | st.integers(-(2**31), 2**31 - 1),
        name=st.integers(-2, 3) | st.integers(-(2**31), 2**31 - 1),
        bytes=st.integers(-2, 300) | st.integers(-(2**63), 2**63 - 1),
        batch=st.integers(-2, 300) | st.integers(-(2**63), 2**63 - 1),
        source=st.integers(0, 255),
        stream=st.integers(-2, 2),
    ),
    st.builds(string, st.integers(0, 3), st.binary(max_size=150)),
    st.builds(
        lambda number, length: record(file=number, bytes=length),
        st.integers(-1, 3),
        st.integers(-2, 5000),
    ),
    st.builds(lambda tid: record(batch=tid), st.integers(-2, 100) | st.integers(0, 2**63 - 1)),
    st.binary(min_size=RECORD_DTYPE.itemsize, max_size=RECORD_DTYPE.itemsize),
    st.just(bytes(RECORD_DTYPE.itemsize)),
)
counts = st.none() | st.integers(0, SLOTS + 2) | st.integers(0, 2**64 - 1)
chunks = st.builds(
    lambda parts, tid, count: chunk(*parts, tid=tid, count=count),
    st.lists(slots, max_size=12),
    st.integers(0, 2**32 - 1),
    counts,
)
headers = st.builds(
    header_bytes,
    chunks=st.integers(0, 3) | st.integers(0, 2**64 - 1),
    lost=st.integers(0, 2**64 - 1),
    pid=st.integers(0, 2**32 - 1),
    rank=st.integers(-(2**31), 2**31 - 1),
    worker=st.integers(-(2**31), 2**31 - 1),
    role=st.integers(0, 2**32 - 1),
    closed=st.integers(0, 2**32 - 1),
    anchor_before_ns=st.integers(-(2**63), 2**63 - 1),
    anchor_wall_ns=st.integers(-(2**63), 2**63 - 1),
    anchor_after_ns=st.integers(-(2**63), 2**63 - 1),
    host=st.binary(max_size=64),
)
hostile = st.builds(
    lambda header, body, cut: (header + b"".join(body))[:cut],
    st.just(header_bytes()) | headers | st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES),
    st.lists(chunks, max_size=3),
    st.none() | st.integers(0, HEADER_BYTES + 3 * CHUNK_BYTES),
)


@given(data=st.lists(hostile, min_size=1, max_size=3))
@example(data=[header_bytes()[:88].ljust(HEADER_BYTES, b"\xff")])
@example(
    data=[
        header_bytes()[:88].ljust(HEADER_BYTES, b"\xff"),
        header_bytes(lost=2**64 - 1),
        header_bytes(lost=2**64 - 1),
    ]
)
def test_no_file_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes]
) -> None:
    """For any bytes in a spool, the reader returns a valid trace that can be saved and contains the
    valid file."""
    folder = tmp_path_factory.mktemp("fuzz")
    good = header_bytes(host=b"good") + chunk(record(kind=READ, start_ns=10, end_ns=30, step=77))
    trace = trace_from(folder, zz=good, **{f"a{number}": each for number, each in enumerate(data)})
    assert table_schema(SPAN_COLUMNS) == trace.spans.schema
    assert trace.spans.filter(pl.col("end_ns") < pl.col("start_ns")).is_empty()
    assert 0 == trace.spans["start_ns"].min()
    assert (
        20
        in trace.spans.filter(host="good", step=77)
        .select(pl.col("end_ns") - pl.col("start_ns"))
        .to_series()
    )
    assert trace.spans["file"].drop_nulls().is_in(trace.files["file"].implode()).all()
    assert sum(process.spans for process in trace.run.processes) == trace.spans.height
    assert RunRecord.from_json(trace.run.to_json()).to_json() == trace.run.to_json()


@given(data=st.lists(hostile, min_size=1, max_size=2))
def test_spans_strings_and_damage_are_those_of_the_rules(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes]
) -> None:
    """Of any bytes: the same spans, strings, and damage, in the same order."""
    folder = tmp_path_factory.mktemp("fuzz")
    in_c = trace_from(folder, **{f"a{number}": each for number, each in enumerate(data)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_of_chunks, "_chunks", chunk_oracle)
        in_python = read_spool(folder)
    assert_frame_equal(in_python.spans, in_c.spans)
    assert_frame_equal(in_python.files, in_c.files)
    assert in_python.run.to_json() == in_c.run.to_json()


@pytest.mark.system(every=3)
def test_sanitizers_find_nothing_in_the_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No access outside of a buffer and no undefined behaviour, whatever the chunks hold."""
    built, variables = sanitized(
        "_chunks", [str(NATIVE / "chunks.c")], tmp_path_factory.mktemp("built")
    )
    command = [sys.executable, str(PROGRAMS / "sanitized_chunks.py"), str(built), "500"]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert (0, "done\n") == (ended.returncode, ended.stdout), ended.stderr[-3000:]
