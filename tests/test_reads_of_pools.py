"""Reads of other threads of a training process that makes its own batches: for batches, for
something else, or not known."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import ioprof
from preload import needs_library
from repository import PROGRAMS
from strategies import examples
from timeline import pid, timeline
from told import summarise

from ioprof.analysis.reads.demand import fetched
from ioprof.analysis.selection import of_kind
from ioprof.format.run_record import Reason
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest.joining import FetchIndex, HelperIndex, assign_batches
from ioprof.report.run import Run

MAIN, POOL = pid(0), pid(0) + 50_001


def spans_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    known = {"host": "node1", "rank": 0, "pid": MAIN, "tid": MAIN}
    return pl.DataFrame([known | row for row in rows], schema=table_schema(SPAN_COLUMNS))


def loop(batches: int, fetch_ns: int = 60, step_ns: int = 100) -> list[dict[str, Any]]:
    """Steps of a process that makes its own batches: each begins with the wait for one, during
    which it is fetched."""
    found = []
    for number in range(batches):
        start = number * step_ns
        found.append({"kind": "step", "start_ns": start, "end_ns": start + step_ns, "step": number})
        for kind in ("wait", "fetch"):
            found.append(
                {
                    "kind": kind,
                    "start_ns": start,
                    "end_ns": start + fetch_ns,
                    "batch": number,
                    "step": number,
                }
            )
    return found


READS = st.lists(
    st.tuples(
        st.integers(0, 999),
        st.integers(0, 20),
        st.sampled_from([MAIN, POOL, POOL + 1]),
        st.sampled_from(["read", "fault"]),
    ),
    max_size=30,
)


def reads_of(drawn: list[tuple[int, int, int, str]]) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "start_ns": start,
            "end_ns": start + took,
            "tid": tid,
            "bytes": 100,
            "source": "storage",
            "file": 0,
        }
        for start, took, tid, kind in drawn
    ]


@settings(max_examples=examples(100), deadline=None)
@given(READS, st.integers(1, 9))
def test_parts_find_what_the_whole_finds(drawn: list[tuple[int, int, int, str]], size: int) -> None:
    """Conservation: no span is lost or changed but for its batch, whatever the parts in which the
    reads are looked at; and a batch is that of a fetch in which the read began.
    """
    structure, reads = spans_of(loop(10)), spans_of(reads_of(drawn))
    spans = pl.concat([structure, reads])
    whole = assign_batches(spans)
    assert spans.drop("batch").equals(whole.drop("batch"))
    index = HelperIndex([structure])
    for first in range(0, len(reads), size):
        index.add(reads[first : first + size])
    helpers = index.found()
    assert whole.equals(assign_batches(spans, helpers))
    if len(reads):
        assert whole[len(structure) :].equals(FetchIndex([structure], helpers).assign(reads))
    for row in whole.filter(
        pl.col("kind").is_in(["read", "fault"]), pl.col("batch").is_not_null()
    ).iter_rows(named=True):
        assert row["batch"] * 100 <= row["start_ns"] <= row["batch"] * 100 + 60


@settings(max_examples=examples(100), deadline=None)
@given(READS)
def test_a_thread_helps_if_it_hardly_reads_between_fetches(
    drawn: list[tuple[int, int, int, str]],
) -> None:
    """By brute force: at most 5 % of the time of its reads, and each is at least 1 ns, lies between
    the first fetch and the last and in none of them.
    """
    index = HelperIndex([spans_of(loop(10))])
    index.add(spans_of(reads_of(drawn)))
    expected = set()
    for tid in (POOL, POOL + 1):
        inside = sum(
            max(took, 1) for start, took, of, _ in drawn if of == tid and start % 100 <= 60
        )
        between = sum(
            max(took, 1)
            for start, took, of, _ in drawn
            if of == tid and 60 < start % 100 and start <= 960
        )
        if inside and between <= 0.05 * (inside + between):
            expected.add(tid)
    assert ({("node1", MAIN): (MAIN, expected)} if expected else {}) == index.found()


@pytest.mark.parametrize(
    ("change", "helps"),
    [
        ("nothing", True),
        ("another thread fetches", False),
        ("the fetching thread takes no batch", False),
        ("another process sent it", False),
    ],
)
def test_whose_reads_are_for_a_batch(change: str, helps: bool) -> None:
    """Those of a pool beside the one thread that makes and takes batches."""
    rows = loop(10)
    read = {
        "kind": "read",
        "start_ns": 110,
        "end_ns": 120,
        "tid": POOL,
        "bytes": 100,
        "source": "storage",
        "file": 0,
    }
    if change == "another thread fetches":
        rows.append({"kind": "fetch", "start_ns": 0, "end_ns": 50, "tid": POOL + 1, "batch": 77})
    if change == "the fetching thread takes no batch":
        rows = [row | ({"tid": POOL + 1} if row["kind"] == "fetch" else {}) for row in rows]
    if change == "another process sent it":
        read |= {"source": "socket"}
    [batch] = assign_batches(spans_of([*rows, read])).filter(pl.col("kind") == "read")["batch"]
    assert (1 if helps else None) == batch


POOL_JOB = """
    step             0000011111222223333344444
    wait             000..111..222..333..444..
    fetch            000..111..222..333..444..
    decode           ###..###..###..###..###..
    read t0 100B     .#=...#=...#=...#=...#=..
    compute main     ...00...11...22...33...44
"""


def test_reads_of_a_pool_count_like_those_of_a_worker() -> None:
    """Storage, time, and what a sample takes are the same whether a pool of the training process or
    of a worker reads."""
    facts: dict[str, Any] = {
        "config": {"batch_size": 2, "device": "cpu", "workers": 0},
        "capture": {"reads": True},
    }
    drawn = timeline(POOL_JOB, **facts)
    own = Trace(drawn.run, assign_batches(drawn.spans))
    in_worker = (
        POOL_JOB.replace("fetch   ", "fetch w0")
        .replace("decode   ", "decode w0")
        .replace("read t0", "read w0")
    )
    other = timeline(in_worker, **facts)
    worker = Trace(other.run, assign_batches(other.spans))
    found, expected = summarise(own), summarise(worker)
    assert (10, 1000, 0) == (found.storage.accesses, found.storage.bytes, found.storage.other_bytes)
    assert (expected.storage.accesses, expected.storage.bytes) == (
        found.storage.accesses,
        found.storage.bytes,
    )
    assert str(fetched(own)) == str(fetched(worker))
    seconds = [
        {each.cause: each.seconds for each in every.steps.causes} for every in (found, expected)
    ]
    for cause in ("storage", "decode", "compute"):
        assert pytest.approx(seconds[1][cause]) == seconds[0][cause], cause
    assert found.findings.workers == expected.findings.workers


def test_reads_of_threads_between_fetches_make_the_demand_unknown() -> None:
    """A thread that reads as much in the rest of the step may read for batches or not; so much is
    said, and no rate."""
    rows = loop(40)
    for number in range(40):
        start = number * 100
        rows.append({"kind": "compute", "start_ns": start + 60, "end_ns": start + 100})
        rows += reads_of(
            [
                (start + 5, 20, MAIN, "read"),
                (start + 30, 20, POOL, "read"),
                (start + 70, 20, POOL, "read"),
            ]
        )
    facts = {
        "config": {"batch_size": 2, "device": "cpu", "workers": 0, "ranks": 1},
        "capture": {"reads": True},
    }
    run = timeline("step 0", **facts).run
    found = summarise(Trace(run, assign_batches(spans_of(rows))))
    assert (40, 80, 8000, 0) == (
        found.storage.accesses,
        found.storage.thread_accesses,
        found.storage.thread_bytes,
        found.storage.other_accesses,
    )
    assert (None, Reason.READS_OF_THREADS) == (found.demand.bytes_per_s, found.demand.reason)
    without = summarise(
        Trace(run, assign_batches(spans_of([row for row in rows if row.get("tid") != POOL])))
    )
    assert without.demand.bytes_per_s is not None


# ----------------------------------------------------------------------------------- a real program


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 row groups of four columns, 64 kB each; and another file of 8 MB."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed", exc_type=ImportError)
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    random = np.random.default_rng(0)
    table = pa.table({f"column{place}": random.random(160 * 8192) for place in range(4)})
    pq.write_table(table, path, row_group_size=8192, compression="none", use_dictionary=False)
    Path(f"{path}.other").write_bytes(random.bytes(8_000_000))
    return path


@pytest.mark.job(every=4)
@needs_library
@pytest.mark.parametrize("how", ["fetch", "both", "step"])
def test_reads_of_pyarrows_threads_are_those_that_the_program_counts(
    parquet: Path, tmp_path: Path, how: str
) -> None:
    """In a fetch they are reads for batches; if another thread reads all the time as well, so are
    they, and the demand is not known. In a step, where no read is known to be for a batch, all
    reads count, and no demand is said.
    """
    command = (sys.executable, PROGRAMS / "train_on_rows.py", parquet, 60, how)
    done = ioprof("record", "--quiet", "--out", tmp_path / "run", "--", *command, cwd=tmp_path)
    assert 0 == done.code, done.err
    counted = int(done.out)
    run = Run.load(tmp_path / "run")
    file = run.trace.files.filter(pl.col("path") == str(parquet))["file"].item()
    reads = of_kind(run.trace.spans, "read").filter(pl.col("file") == file)
    main = of_kind(run.trace.spans, "step")["tid"].unique().to_list()
    assert (reads["tid"].is_in(main).sum()) < len(reads), "pyarrow's threads read nothing"
    of_batch = int(reads.filter(pl.col("batch").is_not_null())["bytes"].sum())
    found = run.summary
    if how == "step":
        assert (0, 0) == (of_batch, found.storage.thread_bytes)
        assert counted <= found.storage.bytes
        assert found.demand.bytes_per_s is None
        return
    assert counted == pytest.approx(of_batch, rel=0.02)
    # of libraries, where their pages are not cached
    code_bytes = int(of_kind(run.trace.spans, "fault")["bytes"].sum())
    most = 1.05 * counted + code_bytes
    assert 0.95 * counted <= found.storage.bytes <= most
    if how == "fetch":
        assert found.storage.thread_bytes <= code_bytes
        per_sample = found.demand.bytes_per_s / found.demand.at_samples_per_s
        assert 0.95 * counted <= 120 * per_sample <= most
    else:
        assert found.storage.thread_bytes > 1_000_000
        assert Reason.READS_OF_THREADS == found.demand.reason
