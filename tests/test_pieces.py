"""Large runs are read in pieces: of a rank's time, of a capture file, of spans.parquet. No result
depends on it."""

import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pytest
from captures import chunk, header_bytes, record, string
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from strategies import traces
from timeline import block, timeline, with_blocks
from timeline import pid as pid_of
from told import summarise

from ioprof.analysis import selection
from ioprof.analysis.charge.blame import charges, exposed
from ioprof.analysis.kept import kept_analysis
from ioprof.analysis.selection import pieces_by_rank
from ioprof.analysis.totals import totals
from ioprof.errors import RunError
from ioprof.format import span_parts
from ioprof.format.run_files import SPANS
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import CAUSES, DENSE_KINDS, KINDS
from ioprof.format.trace import Trace
from ioprof.format.wire_format import SLOTS
from ioprof.ingest import read_spool, store_spool
from ioprof.ingest.reader import Spool
from ioprof.model.summary import with_gains
from ioprof.recording.run_writer import make_run_folder
from ioprof.report.run import Run

STRAGGLING = """
    step r0          00000000001111111111
    step r1          00000000001111111111
    wait r0          ..000...............
    wait r1          ..000000.1111111....
    fetch r0 w0      0000................
    fetch r1 w0      00000001111111......
    read r1 w0       ##.####..###........
    decode r1 w0     ..#....##...##......
    comm r0          .......000........11
    comm r1          .........0........11
"""


CHAINED = """
    step r0          000000
    step r1          000...
    step r2          000000
    comm r0 name=a   .00000
    comm r1 name=a   .....0
    comm r1 name=b   ..0000
    comm r2 name=b   .....0
    compute r2       .0.00.
"""


@given(traces(), st.integers(1, 9))
@example(timeline(STRAGGLING), 1)
@example(timeline(CHAINED), 1)
@settings(max_examples=15, deadline=None)
def test_pieces_of_a_ranks_time_add_up_to_the_whole(trace: Trace, rows_at_once: int) -> None:
    """The summary and the charges of each step are the same, to the nanosecond, however a rank is
    divided."""
    whole, summary, instants = totals(trace).charged, summarise(trace), exposed(trace, CAUSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_ROWS_AT_ONCE", rows_at_once)
        found = totals(trace)
        assert summary.to_json() == summarise(trace, found).to_json()
        in_pieces = exposed(trace, CAUSES)
    assert instants.keys() == in_pieces.keys()
    for rank, of_rank in instants.items():
        for cause, times in of_rank.items():
            assert times.tolist() == in_pieces[rank][cause].tolist()
    divided = found.charged
    assert_frame_equal(whole.steps, divided.steps)
    assert whole.straggler_wait_ns == divided.straggler_wait_ns
    assert (whole.own_ns, whole.derived_ns, whole.threads_ns) == (
        divided.own_ns,
        divided.derived_ns,
        divided.threads_ns,
    )
    assert whole.details.explained_ns == divided.details.explained_ns


def test_a_large_rank_has_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow each other without a gap; each has few of the spans that may be many, and shows
    who steps, waits and fetches."""
    monkeypatch.setattr(selection, "_ROWS_AT_ONCE", 2)
    trace = timeline(STRAGGLING)
    pieces = [piece for piece in pieces_by_rank(trace, KINDS, []) if piece.rank == 1]
    assert len(pieces) > 1
    assert [piece.end_ns for piece in pieces[:-1]] == [piece.start_ns for piece in pieces[1:]]
    assert [True, *[False] * (len(pieces) - 1)] == [piece.is_first for piece in pieces]
    dense = [len(piece.spans.filter(selection.kind_in(DENSE_KINDS))) for piece in pieces]
    assert max(dense) < sum(dense)
    assert all({"step", "wait", "fetch"} <= set(piece.spans["kind"]) for piece in pieces)


@given(traces(), st.lists(st.sampled_from(KINDS), min_size=1, unique=True), st.booleans())
def test_spans_of_kinds_are_found_in_any_order(
    trace: Trace, kinds: list[str], is_ordered: bool
) -> None:
    """A filter finds the same, in the order of kinds where the spans are in it; also of work of a
    cause."""
    spans = selection.in_order_of_kinds(trace.spans) if is_ordered else trace.spans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_FEW_ROWS", 0)
        assert_frame_equal(spans.filter(selection.kind_in(kinds)), selection.of_kind(spans, *kinds))
        for cause, of_cause in selection.WORK.items():
            assert_frame_equal(spans.filter(of_cause), selection.of_work(spans, cause))


LENGTHS = st.tuples(st.integers(0, 90), st.integers(0, 40))


@given(st.lists(LENGTHS, min_size=1), st.lists(st.integers(1, 99), max_size=9), st.integers(0, 9))
def test_what_lies_near_a_time_does_not_depend_on_what_is_held(
    times: list[tuple[int, int]], edges: list[int], held: int
) -> None:
    """Stretches of time that follow each other find what a filter of all spans finds, in parts that
    reach over several of them."""
    spans = pl.DataFrame(
        {"start_ns": [at for at, _ in times], "end_ns": [at + length for at, length in times]}
    )
    groups = [spans[first : first + 5] for first in range(0, len(spans), 5)]
    parts = [
        span_parts.Part(
            each.lazy(),
            int(each["start_ns"].to_numpy().min()),
            int(each["end_ns"].to_numpy().max()),
            None,
        )
        for each in groups
    ]
    nearby = span_parts.Nearby(parts, lambda part: part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_parts, "_ROWS_HELD", held)
        for since, until in pairwise(sorted({-1, *edges, 200})):
            begins, ends = pl.col("start_ns"), pl.col("end_ns")
            expected = spans.filter(begins < until, (ends > since) | (begins >= since))
            assert_frame_equal(expected, nearby.between(since, until))


def make_spool(folder: Path) -> Path:
    """Two workers and the process that waits for them; reads that get their batch from a fetch, a
    fault, strings that follow."""
    kind = {name: KINDS.index(name) + 1 for name in KINDS}
    reads = [
        record(
            kind=kind["read"],
            start_ns=at,
            end_ns=at + 3,
            bytes=at,
            source=1 + at % 3,
            file=at % 2,
            offset=0,
        )
        for at in range(100, 300, 4)
    ]
    fetches = [
        record(kind=kind["fetch"], start_ns=at, end_ns=at + 40, batch=at)
        for at in range(100, 300, 50)
    ]
    decodes = [
        record(kind=kind["decode"], start_ns=at, end_ns=at + 5, batch=at, name=0)
        for at in range(110, 300, 50)
    ]
    fault = record(
        kind=kind["fault"], start_ns=120, end_ns=125, source=1, bytes=4096, offset=0, file=1
    )
    step = record(kind=kind["step"], start_ns=90, end_ns=310, step=0)
    wait = record(kind=kind["wait"], start_ns=95, end_ns=145, batch=100, step=0)
    folder.mkdir()
    worker = {"rank": 0, "rank_source": 1, "role": 1}
    for pid in (71, 72):
        late = chunk(string(0, b"/a"), string(1, b"/b"), tid=pid)
        captured = (
            header_bytes(pid=pid, writer=1, **worker)
            + chunk(*reads[:30], tid=pid)
            + chunk(*reads[30:], fault, tid=pid)
        )
        (folder / f"{pid}-reads.ring").write_bytes(captured + late)
        own = chunk(string(0, b"jpeg"), *fetches, *decodes, tid=pid)
        (folder / f"{pid}-spans.ring").write_bytes(
            header_bytes(pid=pid, worker=pid - 71, **worker) + own
        )
    (folder / "70.ring").write_bytes(
        header_bytes(pid=70, rank=0, rank_source=1, role=0) + chunk(step, wait)
    )
    return folder


def test_spans_that_are_written_in_blocks_are_those_that_are_read_at_once(tmp_path: Path) -> None:
    """The facts of the run are the same, too, and so is all that is said of it."""
    spool = make_spool(tmp_path / "spool")
    whole = read_spool(spool, RunRecord(command="x"))
    stored = store_spool(spool, RunRecord(command="x"), tmp_path / SPANS, rows_in_memory=0)
    assert (False, True) == (whole.is_stored, stored.is_stored)
    assert whole.run.to_json() == stored.run.to_json()
    assert (len(whole.spans), whole.ranks) == (stored.num_spans, stored.ranks)
    assert summarise(whole).to_json() == summarise(stored).to_json()
    assert stored.is_stored, "the summary loads no table"
    assert_frame_equal(whole.spans.sort(pl.all()), stored.spans.sort(pl.all()))
    batches = whole.spans.filter(kind="read")["batch"]
    outside = sum((at - 100) % 50 > 40 for at in range(100, 300, 4))
    assert (2 * outside, {100, 150, 200, 250}) == (batches.null_count(), set(batches.drop_nulls()))


def test_reads_of_a_process_from_storage_are_summed_between_times(tmp_path: Path) -> None:
    """As faults are credited with what the kernel counted and no read did: each sum lies at the end
    of its last read."""
    spool = make_spool(tmp_path / "spool")
    reads = read_spool(spool).spans.filter(kind="read", source="storage", pid=71)
    found = Spool(spool).storage_calls(reads["host"][0], 71, np.array([50, 1000]))
    between = reads.filter(pl.col("end_ns") >= 50)
    expected = [
        (part["end_ns"].max(), part["bytes"].sum())
        for part in (reads.filter(pl.col("end_ns") < 50), between)
    ]
    assert expected == found.select("end_ns", "bytes").rows()


def test_the_analysis_of_a_large_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of the run; it is made again when a file of the run has changed."""
    monkeypatch.setattr("ioprof.format.trace.ROWS_IN_MEMORY", 10)
    store = partial(store_spool, rows_in_memory=10)
    monkeypatch.setattr("ioprof.recording.stored_run.store_spool", store)
    (out := tmp_path / "run").mkdir()
    run = make_run_folder(make_spool(tmp_path / "spool"), out, RunRecord(command="x"))
    assert kept_analysis(out) is not None
    loaded = Run.load(out)
    again = with_gains(Run.of(loaded.trace), is_asked=False)
    assert run.summary.to_json() == loaded.summary.to_json() == again.summary.to_json()
    assert_frame_equal(run.steps, loaded.steps)
    not_asked, asked = (
        {each.no_gain for each in found.summary.verdict.findings}
        for found in (loaded, with_gains(loaded))
    )
    assert not_asked == asked
    (out / "run.json").write_text((out / "run.json").read_text().replace('"x"', '"y"'))
    assert kept_analysis(out) is None
    assert "y" == Run.load(out).summary.run.command


def test_what_a_late_batch_waited_for_does_not_depend_on_the_pieces() -> None:
    """Its sender waits for a thread that faults, though the pieces end within the wait."""
    trace = timeline("""
        step r0      000000000000000000000
        wait r0      ...00000000000000000.
        fetch r0 w0  00...................
        fetch r0 w1  .1111111111111111111.
        fault r0 w1  .######=====------##.
    """)
    late = with_blocks(trace, block(3, 20, pid_of(0), 7), block(2, 19, 7, pid_of(0, 1)))
    whole = charges(late).steps
    assert (160, 10) == (whole["storage_ns"].sum(), whole["delivery_ns"].sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_ROWS_AT_ONCE", 1)
        assert_frame_equal(whole, charges(late).steps)


MEASURE: Final = """
import sys
from pathlib import Path
from ioprof.report.run import Run
from ioprof.ingest import store_spool
from ioprof.format.run_record import RunRecord
run = Run.of(store_spool(Path(sys.argv[1]), RunRecord(), Path(sys.argv[1]) / "spans.parquet", rows_in_memory=0))
lines = Path("/proc/self/status").read_text().splitlines()
print(run.summary.storage.accesses, next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""  # noqa: E501


def peak_bytes(folder: Path, num_chunks: int) -> tuple[int, int]:
    """How many reads so many chunks hold, and the peak memory of a process that stores and analyses
    them."""
    read = KINDS.index("read") + 1
    reads = [
        record(kind=read, start_ns=at * 50, end_ns=at * 50 + at % 40, bytes=64, source=2, offset=0)
        for at in range(SLOTS)
    ]
    folder.mkdir()
    (folder / "7.ring").write_bytes(header_bytes(writer=1) + num_chunks * chunk(*reads))
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    number, peak_kb = map(int, ended.stdout.split())
    return number, peak_kb * 1024


@pytest.mark.job(every=4)
def test_memory_does_not_grow_with_the_number_of_reads(tmp_path: Path) -> None:
    """Four times as many reads take at most 40 bytes for each further one, and 9 beyond that
    (measured); it was 375."""
    few, few_bytes = peak_bytes(tmp_path / "few", 500)
    many, many_bytes = peak_bytes(tmp_path / "many", 2000)
    assert (500 * SLOTS, 2000 * SLOTS) == (few, many)
    assert many_bytes - few_bytes < 40 * (many - few)


def test_a_table_that_is_stored_is_loaded_when_it_is_asked_for(tmp_path: Path) -> None:
    """A notebook sees a data frame; what is selected is in memory; other facts change without it
    being loaded."""
    spool = make_spool(tmp_path / "spool")
    trace = store_spool(spool, RunRecord(), tmp_path / SPANS, rows_in_memory=0)
    changed = trace.with_facts(run=RunRecord(command="y"))
    assert ("y", True, True) == (changed.run.command, changed.is_stored, trace.is_stored)
    assert 100 == len(trace.select(kind="read").spans)
    trace.save(tmp_path / "run")
    trace.save(tmp_path / "run")
    assert_frame_equal(trace.spans, Trace.load(tmp_path / "run").spans)
    assert not trace.is_stored


def test_damage_that_is_found_late_is_an_error_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footer of a large spans.parquet is whole and its data is not: the error names the file,
    as that of a small one does."""
    monkeypatch.setattr("ioprof.format.trace.ROWS_IN_MEMORY", 10)
    read_spool(make_spool(tmp_path / "spool")).save(tmp_path / "run")
    data = bytearray((tmp_path / "run" / SPANS).read_bytes())
    data[100 : len(data) // 3] = bytes(len(data) // 3 - 100)
    (tmp_path / "run" / SPANS).write_bytes(data)
    with pytest.raises(RunError, match=r"spans\.parquet: damaged"):
        Run.load(tmp_path / "run")
