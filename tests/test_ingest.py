"""The reader of capture files: one clock, one set of file ids, and no failure for any file
contents."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from captures import WRITERS, chunk, header_bytes, record, recorded, string, trace_from, trace_of
from hypothesis import given
from hypothesis import strategies as st

from ioprof.errors import CaptureError
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import KINDS, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.format.wire_format import CHUNK_BYTES, FORMAT_VERSION, HEADER_BYTES, SLOTS
from ioprof.ingest import read_spool
from ioprof.ingest.joining import join_faults
from ioprof.ingest.sidecar_files import read_job_facts
from ioprof.instrument.span import emit, intern

READ = KINDS.index("read") + 1


def damage(trace: Trace) -> list[str]:
    """The damage in a trace."""
    return [entry.what for entry in trace.run.capture.damaged]


def test_no_files_make_an_empty_trace(tmp_path: Path) -> None:
    """Nothing was recorded: empty tables of the right types, and no zero."""
    trace = read_spool(tmp_path, RunRecord(command="x"))
    assert table_schema(SPAN_COLUMNS) == trace.spans.schema
    assert (0, 0, None) == (
        trace.spans.height,
        trace.files.height,
        trace.run.clocks.zero_monotonic_ns,
    )
    assert "x" == trace.run.command


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    """A missing spool is a mistake, not an empty recording."""
    with pytest.raises(CaptureError, match="no such spool folder"):
        read_spool(tmp_path / "missing")


def test_given_facts_are_kept(tmp_path: Path) -> None:
    """New facts are added to the given ones, whose dictionaries are not modified."""
    run = RunRecord.of({"clocks": {"method": "anchors"}, "capture": {"events": 5}})
    trace = read_spool(tmp_path, run)
    assert ("anchors", None, ()) == (
        trace.run.clocks.method,
        trace.run.clocks.zero_monotonic_ns,
        trace.run.clocks.anchors,
    )
    assert (5, ()) == (trace.run.capture.to_dict()["events"], trace.run.capture.damaged)


def test_times_count_from_the_earliest_span(tmp_path: Path) -> None:
    """Zero is the earliest start of all processes; the processes' own first and last times count
    from it too."""
    trace = trace_from(
        tmp_path,
        a=header_bytes(pid=1) + chunk(record(kind=READ, start_ns=150, end_ns=170)),
        b=header_bytes(pid=2) + chunk(record(kind=READ, start_ns=120, end_ns=200)),
        c=header_bytes(pid=3),
    )
    assert 120 == trace.run.clocks.zero_monotonic_ns
    assert [(1, 30, 50), (2, 0, 80)] == trace.spans.select("pid", "start_ns", "end_ns").rows()
    facts = [
        (process.pid, process.spans, process.first_ns, process.last_ns)
        for process in trace.run.processes
    ]
    assert [(1, 1, 30, 50), (2, 1, 0, 80), (3, 0, None, None)] == facts


def test_hosts_share_the_first_hosts_clock(tmp_path: Path) -> None:
    """Times of another host are shifted by the difference of the wall clocks, from the narrowest
    reading of each host."""
    one = {
        "anchor_before_ns": 100,
        "anchor_wall_ns": 1_000_100,
        "anchor_after_ns": 100,
        "host": b"one",
    }
    two = {
        "anchor_before_ns": 50,
        "anchor_wall_ns": 1_000_150,
        "anchor_after_ns": 50,
        "host": b"two",
    }
    loose = two | {"anchor_before_ns": 0, "anchor_wall_ns": 777_777, "anchor_after_ns": 1000}
    trace = trace_from(
        tmp_path,
        a=header_bytes(**one) + chunk(record(kind=READ, start_ns=200, end_ns=210)),
        b=header_bytes(**loose) + chunk(record(kind=READ, start_ns=110, end_ns=120)),
        c=header_bytes(**two) + chunk(record(kind=READ, start_ns=100, end_ns=110)),
    )
    assert [("one", 0), ("two", 10), ("two", 0)] == trace.spans.select("host", "start_ns").rows()
    offsets = [
        (anchor.host, anchor.offset_ns, anchor.uncertainty_ns)
        for anchor in trace.run.clocks.anchors
    ]
    assert [("one", 1_000_000, 0), ("two", 1_000_100, 0)] == offsets


def test_the_same_path_is_the_same_file(tmp_path: Path) -> None:
    """Each process has its own string ids; the run has one id per path, and none for names."""
    use = record(kind=READ, end_ns=1, file=1, name=0)
    trace = trace_from(
        tmp_path,
        a=header_bytes()
        + chunk(string(0, b"named"), string(1, b"/x"), use, record(kind=READ, file=0)),
        b=header_bytes() + chunk(string(0, b"other"), string(1, b"/x"), string(2, b"/unused"), use),
    )
    assert [(0, "named"), (1, "/x")] == trace.files.sort("file").select("file", "path").rows()
    assert [(1, "named"), (0, None), (1, "other")] == trace.spans.select("file", "name").rows()


def test_a_string_may_follow_its_use(tmp_path: Path) -> None:
    """Two threads share a string id: the chunk with the string may follow the one that uses it."""
    trace = trace_from(
        tmp_path, a=header_bytes() + chunk(record(kind=READ, file=0)) + chunk(string(0, b"/late"))
    )
    assert (["/late"], []) == (trace.files["path"].to_list(), damage(trace))


def test_bytes_of_a_string_are_not_records(tmp_path: Path) -> None:
    """A path whose bytes look like a span, a string or an owner record is a path."""
    hostile_path = (
        record(kind=READ, end_ns=5) + string(7, b"inner") + record(batch=99) + record(kind=READ)
    )
    trace = trace_from(
        tmp_path,
        a=header_bytes()
        + chunk(string(0, hostile_path), record(kind=READ, end_ns=3, file=0), tid=70),
    )
    assert [(3, 70)] == trace.spans.select("end_ns", "tid").rows()
    assert ([hostile_path.decode(errors="backslashreplace")], []) == (
        trace.files["path"].to_list(),
        damage(trace),
    )


def test_chunks_change_owners(tmp_path: Path) -> None:
    """An owner record assigns the rest of its chunk, and of no other, to another thread."""
    read = record(kind=READ)
    chunks = chunk(read, record(batch=71), read, read, record(batch=72), read) + chunk(read, tid=80)
    assert [70, 71, 71, 72, 80] == trace_from(tmp_path, a=header_bytes() + chunks).spans[
        "tid"
    ].to_list()


def test_a_rank_belongs_to_every_span_of_its_process(tmp_path: Path) -> None:
    """Rank, worker and role come from the header; -1 is null."""
    one = header_bytes(rank=3, worker=1, role=1, parent_pid=6, closed=0, lost=4) + chunk(
        record(kind=READ)
    )
    trace = trace_from(tmp_path, a=one, b=header_bytes(pid=8) + chunk(record(kind=READ)))
    assert [3, None] == trace.spans["rank"].to_list()
    columns = ("host", "pid", "parent_pid", "rank", "role", "worker", "closed", "lost")
    expected = [("a", 7, 6, 3, "worker", 1, False, 4), ("a", 8, 0, None, "rank", None, True, 0)]
    assert expected == [
        tuple(getattr(process, column) for column in columns) for process in trace.run.processes
    ]


def test_many_chunks_are_read_block_by_block(tmp_path: Path) -> None:
    """A file larger than one block keeps every span, its thread and its path."""
    with recorded(tmp_path, native=WRITERS["native"]):
        for place in range(260 * SLOTS):
            emit("read", place, place + 1, step=place)
        emit("read", 0, 1, file=intern("/last"))
    trace = trace_of(tmp_path)
    assert np.array_equal(
        np.arange(260 * SLOTS), trace.spans.filter(pl.col("file").is_null())["step"].to_numpy()
    )
    assert ["/last"] == trace.files["path"].to_list()


def test_the_trace_can_be_saved_and_loaded(tmp_path: Path) -> None:
    """The reader returns an ordinary Trace."""
    spool = tmp_path / "spool"
    spool.mkdir()
    trace = trace_from(
        spool, a=header_bytes() + chunk(string(0, b"/\xff"), record(kind=READ, file=0, source=2))
    )
    trace.save(tmp_path / "run")
    loaded = Trace.load(tmp_path / "run")
    assert trace.spans.equals(loaded.spans)
    assert trace.files.equals(loaded.files)


# ------------------------------------------------------------------------------------------- damage

SPAN = record(kind=READ, start_ns=1, end_ns=2)


@pytest.mark.parametrize(
    ("data", "spans", "what"),
    [
        (b"", 0, "empty: the process ended while it started to record"),
        (header_bytes()[:100], 0, "truncated within its header"),
        (
            header_bytes(magic=b"ELEPHANT"),
            0,
            "not a capture file that this version of ioprof reads",
        ),
        (
            header_bytes(version=FORMAT_VERSION + 1) + chunk(SPAN),
            0,
            "not a capture file that this version of ioprof reads",
        ),
        (
            header_bytes(record_bytes=64) + chunk(SPAN),
            0,
            "not a capture file that this version of ioprof reads",
        ),
        (
            header_bytes(chunks=3) + chunk(SPAN),
            1,
            "truncated: it has fewer chunks than were written",
        ),
        (header_bytes(chunks=3, lost=9) + chunk(SPAN), 1, None),
        (
            header_bytes(chunks=1) + chunk(SPAN, SPAN)[:150],
            1,
            "a chunk has fewer slots than its header says",
        ),
        (
            header_bytes(chunks=1) + chunk(SPAN)[:30],
            0,
            "truncated: it has fewer chunks than were written",
        ),
        (
            header_bytes() + chunk(*[SPAN] * SLOTS, count=2**64 - 1),
            SLOTS,
            "a chunk has fewer slots than its header says",
        ),
        (
            header_bytes() + chunk(SPAN, count=3),
            1,
            "a slot is neither a span nor a string (2 times)",
        ),
        (header_bytes() + chunk(record(kind=len(KINDS) + 1), SPAN), 1, "a span of an unknown kind"),
        (
            header_bytes() + chunk(record(kind=READ, start_ns=5, end_ns=4), SPAN),
            1,
            "a span with impossible times",
        ),
        (
            header_bytes() + chunk(record(kind=READ, start_ns=-5, end_ns=4), SPAN),
            1,
            "a span with impossible times",
        ),
        (
            header_bytes() + chunk(record(kind=READ, end_ns=2**63 - 1), SPAN),
            1,
            "a span with impossible times",
        ),
        (header_bytes() + chunk(record(kind=READ, source=9)), 1, "a span with an unknown source"),
        (
            header_bytes() + chunk(record(kind=READ, file=5)),
            1,
            "a span refers to a string that does not exist",
        ),
        (
            header_bytes() + chunk(record(kind=READ, name=2**31 - 1)),
            1,
            "a span refers to a string that does not exist",
        ),
        (
            header_bytes() + chunk(record(file=0, bytes=10**6), SPAN),
            1,
            "a slot is neither a span nor a string",
        ),
        (
            header_bytes() + chunk(record(file=0, bytes=57), SPAN),
            1,
            "a slot is neither a span nor a string",
        ),
        (
            header_bytes() + chunk(record(file=0, bytes=-7), SPAN),
            1,
            "a slot is neither a span nor a string",
        ),
        (
            header_bytes() + chunk(string(0, b"a"), string(0, b"b"), SPAN),
            1,
            "two strings with the same id",
        ),
        (
            header_bytes(anchor_before_ns=2**63 - 1) + chunk(SPAN),
            1,
            "its wall clock reading is invalid",
        ),
        (header_bytes(role=9) + chunk(SPAN), 1, "unknown role"),
        (header_bytes(pid=2**32 - 1, host=b"\xff" * 64) + chunk(SPAN, tid=2**32 - 1), 1, None),
    ],
)
def test_damage_is_counted_and_the_rest_is_kept(
    data: bytes, spans: int, what: str | None, tmp_path: Path
) -> None:
    """Truncated, empty, foreign and inconsistent files: the readable spans are kept, and the damage
    is described."""
    trace = trace_from(tmp_path, a=data, b=header_bytes() + chunk(SPAN, SPAN))
    assert spans + 2 == trace.spans.height
    assert ([] if what is None else [what]) == damage(trace)
    assert trace.run.to_json()


def test_what_is_not_a_regular_file_is_reported(tmp_path: Path) -> None:
    """A folder or a pipe with that name is not opened: opening a pipe would block."""
    (tmp_path / "a.ring").mkdir()
    (tmp_path / "b.ring").symlink_to("/dev/zero")
    (tmp_path / "c.ring").symlink_to("nowhere")
    trace = read_spool(tmp_path)
    assert [
        "not a regular file",
        "not a regular file",
        "cannot be read: No such file or directory",
    ] == damage(trace)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 2**61), st.integers(0, 2**20)), max_size=30
    ),
    cut=st.integers(0),
)
def test_a_cut_file_keeps_a_beginning(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Any], cut: int
) -> None:
    """Of a truncated file, a prefix of the spans of each thread is kept, in any order, and nothing
    else appears."""
    folder = tmp_path_factory.mktemp("cut")
    with recorded(folder, native=False):
        for kind, start_ns, duration_ns in calls:
            emit(kind, start_ns, start_ns + duration_ns)
    (path,) = folder.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[: cut % (HEADER_BYTES + CHUNK_BYTES)])
    spans = read_spool(folder).spans
    kept = spans.select("kind", pl.col("end_ns") - pl.col("start_ns")).rows()
    assert sorted((kind, duration_ns) for kind, _, duration_ns in calls[: len(kept)]) == sorted(
        kept
    )


# --------------------------------------------------------------------------------- homes and copies


def steps_of(*numbers: int) -> list[bytes]:
    return [record(kind=READ, step=number) for number in numbers]


@pytest.mark.parametrize(
    ("written", "emptied"),
    [*((part, False) for part in (0, 40, 4000, CHUNK_BYTES)), (CHUNK_BYTES, True)],
)
def test_a_process_killed_while_it_copied_a_home_leaves_every_span_once(
    written: int, emptied: bool, tmp_path: Path
) -> None:
    """For any partial copy: spans count in the home while it still holds them, afterwards in the
    copy."""
    full = [record(kind=READ, step=number) for number in range(SLOTS)]
    home = (
        chunk(*full, origin=1, sequence=5)
        if not emptied
        else chunk(*full, origin=1, sequence=6, count=0)
    )
    older = chunk(*steps_of(SLOTS, SLOTS + 1), origin=1, sequence=4)
    copy = chunk(*full, origin=1, sequence=5)[:written]
    trace = trace_from(tmp_path, a=header_bytes(closed=0, chunks=3) + home + older + copy)
    assert list(range(SLOTS + 2)) == trace.spans["step"].sort().to_list()
    assert () == trace.run.capture.damaged


def test_of_several_copies_of_a_home_the_last_counts(tmp_path: Path) -> None:
    """A disk that was full for some time leaves partial copies, whose contents were copied again
    later."""
    half, whole = chunk(*steps_of(0), origin=1), chunk(*steps_of(0, 1, 2), origin=1)
    trace = trace_from(
        tmp_path, a=header_bytes() + chunk(*steps_of(3), origin=1, sequence=1) + half + whole
    )
    assert [0, 1, 2, 3] == trace.spans["step"].sort().to_list()


def test_tallies_are_those_of_homes(tmp_path: Path) -> None:
    """The totals in a copy are older ones of its home."""
    tally = {"calls": 5, "bytes": 700, "short_calls": 3, "short_ns": 90}
    home, other = chunk(SPAN, origin=1, sequence=1, **tally), chunk(SPAN, origin=2, **tally)
    copy = chunk(SPAN, origin=1, calls=2, bytes=100, short_calls=1, short_ns=10)
    trace = trace_from(tmp_path, a=header_bytes(writer=1, noted=1 | 8) + home + other + copy)
    (process,) = trace.run.processes
    expected = {"calls": 10, "bytes": 1400, "short_calls": 6, "short_ns": 180}
    assert expected == {name: getattr(process.reads, name) for name in expected}
    assert ["exec without capture", "io_uring"] == list(process.reads.noted)
    assert process.reads.io_rchar is None  # never compared


# ------------------------------------------------------------------------- two files of one process


def test_the_two_files_of_a_process_are_one_process(tmp_path: Path) -> None:
    """Role and end come from the file with its spans; reads and proc io counters come from the file
    of the library."""
    spans = header_bytes(rank=2, role=1, worker=4, closed=0) + chunk(record(kind=READ, step=1))
    io_counters = {
        "io_time_ns": 9,
        "io_rchar": 1000,
        "io_syscr": 10,
        "io_read_bytes": 4096,
        "seen_bytes": 990,
        "seen_calls": 9,
    }
    reads = header_bytes(rank=-1, role=2, writer=1, closed=1, lost=2, **io_counters) + chunk(
        record(kind=READ, step=2), origin=1
    )
    trace = trace_from(tmp_path, a=reads, b=spans)
    (process,) = trace.run.processes
    columns = ("rank", "role", "worker", "closed", "lost", "spans")
    assert (2, "worker", 4, False, 2, 2) == tuple(getattr(process, column) for column in columns)
    assert {name: value for name, value in io_counters.items() if name != "io_time_ns"} == {
        name: getattr(process.reads, name) for name in io_counters if name != "io_time_ns"
    }
    assert [2, 2] == trace.spans["rank"].to_list()


@pytest.mark.parametrize(
    ("sources", "ranks"),
    [
        ([1, 4], [0, None]),
        ([4, 4], [0, 1]),
        ([0, 1], [0, 1]),
        ([2, 3], [0, None]),
        ([3, 2], [None, 1]),
    ],
)
def test_only_the_best_source_of_ranks_counts(
    sources: list[int], ranks: list[int | None], tmp_path: Path
) -> None:
    """torchrun itself gets a number from the scheduler; if there are ranks from torch, it is not a
    rank."""
    one, two = (
        header_bytes(pid=7 + rank, rank=rank, rank_source=source) + chunk(record(kind=READ))
        for rank, source in enumerate(sources)
    )
    assert ranks == trace_from(tmp_path, a=one, b=two).spans["rank"].to_list()


@pytest.mark.parametrize(("consumes", "other_thread"), [(False, 3), (True, 3)])
def test_a_read_belongs_to_the_batch_that_its_worker_was_fetching(
    consumes: bool, other_thread: int | None, tmp_path: Path
) -> None:
    """The library does not know batches; a read that started during a `fetch` of its thread belongs
    to that batch.

    The same holds for other threads of a process that only fetches, and of one that takes its own
    if they read only meanwhile.
    """
    fetch, wait = KINDS.index("fetch") + 1, KINDS.index("wait") + 1
    fetches = [
        record(kind=fetch, start_ns=10, end_ns=20, batch=3),
        record(kind=fetch, start_ns=20, end_ns=30, batch=4),
    ]
    waits = [record(kind=wait, start_ns=40, end_ns=41, batch=3)] * consumes
    reads = [record(kind=READ, start_ns=at, end_ns=at + 1) for at in (5, 10, 19, 25, 31)]
    own = record(kind=READ, start_ns=12, end_ns=13, batch=9)
    other = chunk(record(kind=READ, start_ns=12, end_ns=13), tid=71)
    files = {
        "a": header_bytes() + chunk(*fetches, own, *waits),
        "b": header_bytes(writer=1) + chunk(*reads) + other,
    }
    trace = trace_from(tmp_path, **files)
    found = (
        trace.spans.filter(pl.col("kind") == "read")
        .sort("tid", "start_ns")
        .select("tid", "start_ns", "batch")
        .rows()
    )
    expected = [
        (70, 5, None),
        (70, 10, 3),
        (70, 12, 9),
        (70, 19, 3),
        (70, 25, 4),
        (70, 31, None),
        (71, 12, other_thread),
    ]
    assert expected == [(tid, start + 5, batch) for tid, start, batch in found]


def test_a_fault_is_counted_once(tmp_path: Path) -> None:
    """If a thread recorded a fault itself, the records of the kernel for it are dropped."""
    fault = KINDS.index("fault") + 1
    own = record(kind=fault, start_ns=10, end_ns=20, batch=3, bytes=9000)
    by_kernel = [
        record(kind=fault, start_ns=start, end_ns=end, bytes=4096)
        for start, end in ((2, 5), (11, 14), (15, 20), (22, 25))
    ]
    trace = trace_from(tmp_path, a=header_bytes() + chunk(own, *by_kernel))
    assert [(2, 4096), (10, 9000), (22, 4096)] == [
        (start + 2, size)
        for start, size in trace.spans.sort("start_ns").select("start_ns", "bytes").rows()
    ]


FAULT = KINDS.index("fault") + 1
faults_of_threads = st.lists(
    st.tuples(
        st.sampled_from([7, 8]),
        st.sampled_from([70, 71]),
        st.integers(0, 12),
        st.integers(0, 6),
        st.booleans(),
    ),
    max_size=12,
)
"""Process, thread, start, length, and whether the thread recorded it itself; those of one thread do
not overlap."""


@given(faults_of_threads)
def test_a_fault_is_a_duplicate_if_it_ended_within_one_of_its_own_thread(
    rows: list[tuple[int, int, int, int, bool]],
) -> None:
    """One rule for each pair of spans: same host, process and thread, and an end that lies within.
    All others stay in order."""
    own: list[tuple[int, int, int, int, bool]] = []
    for row in (row for row in rows if row[4]):
        if all(
            row[:2] != other[:2] or row[2] > other[2] + other[3] or row[2] + row[3] < other[2]
            for other in own
        ):
            own.append(row)
    spans = [*own, *(row for row in rows if not row[4])]
    duplicates = {
        place
        for place, (pid, tid, start, length, is_own) in enumerate(spans)
        if not is_own
        and any(
            (pid, tid) == other[:2] and other[2] <= start + length <= other[2] + other[3]
            for other in own
        )
    }
    columns = {
        "kind": ["fault"] * len(spans),
        "host": ["a"] * len(spans),
        "pid": [row[0] for row in spans],
        "tid": [row[1] for row in spans],
        "start_ns": [row[2] for row in spans],
        "end_ns": [row[2] + row[3] for row in spans],
        "batch": [5 if row[4] else None for row in spans],
        "step": list(range(len(spans))),
        "bytes": [4096] * len(spans),
        "source": ["storage"] * len(spans),
    }
    known = {name: dtype for name, dtype in table_schema(SPAN_COLUMNS).items() if name in columns}
    found = join_faults(pl.DataFrame(columns, schema=known))
    assert [place for place in range(len(spans)) if place not in duplicates] == found[
        "step"
    ].to_list()


@pytest.mark.parametrize("slept", [0, 3])
def test_a_value_that_waited_for_the_page_of_another_thread_waited_for_storage(slept: int) -> None:
    """Of the source that is not known alone, and if the kernel says that the fault in it slept; its
    bytes are those of the thread that fetched them, but for one."""
    rows = [
        {"start_ns": 10, "end_ns": 20, "batch": 5, "bytes": 9000, "source": "unknown"},
        {"start_ns": 30, "end_ns": 40, "batch": 5, "bytes": 9000, "source": "unknown"},
        {"start_ns": 18 - slept, "end_ns": 18, "batch": None, "bytes": 4096, "source": "storage"},
    ]
    rows = [{"kind": "fault", "host": "a", "pid": 1, "tid": 1, **row} for row in rows]
    schema = {name: kind for name, kind in table_schema(SPAN_COLUMNS).items() if name in rows[0]}
    found = join_faults(pl.DataFrame(rows, schema=schema)).sort("start_ns")
    waited = [(10, 20, 1, "storage"), (20, 20, 8999, "page_cache")] if slept else []
    expected = [*(waited or [(10, 20, 9000, "unknown")]), (30, 40, 9000, "unknown")]
    assert expected == found.select("start_ns", "end_ns", "bytes", "source").rows()


def test_other_threads_hosts_and_kinds_are_no_duplicates(tmp_path: Path) -> None:
    """A fault of another thread, process or host at the same time is another fault; a read within
    one is a read."""
    own, by_kernel = (
        record(kind=FAULT, start_ns=10, end_ns=20, batch=3),
        record(kind=FAULT, start_ns=11, end_ns=15, step=1),
    )
    read = record(kind=READ, start_ns=11, end_ns=15, step=2)
    trace = trace_from(
        tmp_path,
        a=header_bytes() + chunk(own, read) + chunk(by_kernel, tid=71),
        b=header_bytes(pid=8) + chunk(by_kernel),
        c=header_bytes(host=b"elsewhere") + chunk(by_kernel),
    )
    assert [None, 1, 1, 1, 2] == trace.spans.sort("step")["step"].to_list()


# --------------------------------------------------------------------------- other files of a spool


def test_damage_has_the_same_format_for_every_kind_of_file(tmp_path: Path) -> None:
    """A single occurrence has no count; earlier damage stays in the list."""
    (tmp_path / "x.perf").write_bytes(b"")
    (tmp_path / "x.ring").write_bytes(b"")
    trace = read_spool(
        tmp_path, RunRecord.of({"capture": {"damaged": [{"file": "y", "what": "gone"}]}})
    )
    empty = "empty: the {} ended while it started"
    expected = ["gone", f"{empty.format('process')} to record", empty.format("recorder")]
    assert expected == damage(trace)


@pytest.mark.job
def test_hosts_that_share_a_spool_do_not_share_files(tmp_path: Path) -> None:
    """Process 7 of one host and process 7 of another write files of their own, and number their own
    batches."""
    program = f"""
import os, sys
os.getpid = lambda: 7
os.uname = lambda: os.uname_result(("Linux", sys.argv[1], "", "", ""))
from pathlib import Path
from ioprof.instrument.hooks.batch_numbering import Allotment, PublishedNumbers, Series
from ioprof.instrument.hooks.state import HookState
state = HookState()
spool = state.spool = Path({str(tmp_path)!r})
series = Series(Allotment(), 11)
series.begin_epoch()
series.take(spool, int(sys.argv[2]))
state.record_fact(workers=int(sys.argv[2]))
follower = PublishedNumbers(spool, 7, 11)
assert (0, int(sys.argv[2])) == (follower.number(0), follower.rank)
"""
    for rank, host in enumerate(("a", "b", "a")):
        subprocess.run([sys.executable, "-c", program, host, str(3 + rank % 2)], check=True)
    assert ["batches-a-7", "batches-b-7", "facts-a-7.jsonl", "facts-b-7.jsonl"] == sorted(
        path.name for path in tmp_path.iterdir()
    )
    assert '{"workers": 4}\n' == (tmp_path / "facts-b-7.jsonl").read_text()


@pytest.mark.parametrize(
    ("purposes", "expected"),
    [(["train", "step"], ("Train", 4, 2)), (["train", "no step"], ("Held", 0, None))],
)
def test_settings_are_those_of_the_loader_that_steps_are_made_from(
    tmp_path: Path, purposes: list[str], expected: tuple[str, int, int | None]
) -> None:
    """Whichever loader begins first; where no step was made, they are those of the first."""
    held = {"dataset": "Held", "workers": 0, "batch_size": 8, "prefetch": None}
    train = {"dataset": "Train", "workers": 4, "batch_size": 4, "prefetch": 2}
    used = [
        ({"path": "a", "number": 0, **held}, ["no gradients", "no step"]),
        ({"path": "b", "number": 0, **train}, purposes),
    ]
    facts: list[dict[str, Any]] = [
        {"loader": "torch DataLoader", **settings} for settings in (held, train)
    ]
    facts += [
        {"made_loader": {**loader, "purposes": [purpose]}}
        for loader, purposes in used
        for purpose in purposes
    ]
    (tmp_path / "facts-a-7.jsonl").write_text("".join(f"{json.dumps(fact)}\n" for fact in facts))
    config = read_job_facts(tmp_path, []).config
    assert expected == (config.dataset, config.workers, config.prefetch)
