"""What the summary says, and that it never says more than the run knows."""

import json
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import examples, shifted, shuffled, traces
from timeline import pid, timeline
from told import summarise

from ioprof.analysis.reads.demand import Tenths, demand
from ioprof.analysis.totals import totals
from ioprof.format.run_record import Reason, RunRecord
from ioprof.format.schema import BASES, CAUSES, FILE_COLUMNS, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.report.texts.catalogue.answer import untimed_text
from ioprof.report.texts.statements import statements
from ioprof.report.texts.storage_statements import uring_notes

JOBS = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NS = 1e-9

JOB = """
    step          0000011111222223333344444
    wait          000..111..222..333..444..
    fetch         000..111..222..333..444..
    read 100B     ##...##...##...##...##...
    decode        ..#....#....#....#....#..
    compute main  ...00...11...22...33...44
"""


def job(**run: Any) -> Trace:
    """Five steps of two samples each on a CPU: 30 of 50 ns wait, 20 of them for storage."""
    return timeline(JOB, **{"config": {"batch_size": 2, "device": "cpu", "workers": 0}} | run)


# --------------------------------------------------------------------------------------------- laws


@JOBS
@given(traces(), st.data())
def test_the_same_trace_gives_the_same_summary(trace: Trace, data: st.DataObject) -> None:
    """Law 6, to the last digit: neither the order of rows nor the clock's zero shows in any
    number."""
    expected = summarise(trace)
    assert expected.to_json() == summarise(data.draw(shuffled(trace))).to_json()
    moved = summarise(shifted(trace, 10**12))
    back = tuple(
        read.replace(start_ns=(read.start_ns or 0) - 10**12) for read in moved.storage.slowest
    )
    assert (
        expected.to_json() == moved.replace(storage=moved.storage.replace(slowest=back)).to_json()
    )
    assert expected.to_json() == summarise(trace, totals(trace)).to_json()


@JOBS
@given(traces())
def test_shares_sum_to_one(trace: Trace) -> None:
    """All causes, in order; what has no number has a reason."""
    causes = summarise(trace).steps.causes
    assert list(CAUSES) == [entry.cause for entry in causes]
    known = [entry.share for entry in causes if entry.share is not None]
    assert not any(known) or sum(known) == pytest.approx(1)
    assert all(entry.reason for entry in causes if entry.seconds is None)
    assert {entry.basis for entry in causes} <= set(BASES)


@pytest.mark.parametrize(
    "run", [{}, {"config": None, "device": 3, "hosts": None, "processes": [None], "capture": []}]
)
def test_a_run_that_knows_nothing_of_itself_is_summarised(run: dict[str, Any]) -> None:
    """Missing keys are missing numbers, not errors; and the JSON has no NaN."""
    for spans in (job().spans, job().spans.clear()):
        found = json.loads(summarise(Trace(RunRecord.of(run), spans)).to_json())
        assert found["throughput"]["samples_per_s"] is None
        assert found["demand"]["bytes_per_s"] is None


# ------------------------------------------------------------------------------------------ numbers


def test_throughput_counts_all_ranks_and_leaves_out_warmup() -> None:
    """5 steps of 2 samples in 250 ns; of the 2 steady ones, 4 samples in 100 ns."""
    found = summarise(job()).throughput
    assert (pytest.approx(10 / 250e-9), pytest.approx(4 / 100e-9)) == (
        found.samples_per_s,
        found.steady_samples_per_s,
    )
    assert (None, "measured") == (found.device_samples_per_s, found.basis)
    two_ranks = summarise(job(config={"batch_size": 2, "ranks": 2})).throughput
    assert pytest.approx(20 / 250e-9) == two_ranks.samples_per_s


def test_a_slow_start_and_the_drain_at_the_end_show_in_the_first_rate_only() -> None:
    """The steady rate begins with the first step after warm-up and ends before the last step, which
    waits for the device."""
    found = summarise(timeline("step 0000011111234444444", config={"batch_size": 1})).throughput
    assert (pytest.approx(5 / 190e-9), pytest.approx(2 / 20e-9)) == (
        found.samples_per_s,
        found.steady_samples_per_s,
    )


def test_few_steps_have_no_steady_rate() -> None:
    """Three steps are all start-up."""
    found = summarise(timeline("step 012", config={"batch_size": 1}))
    assert (None, 0, 3) == (
        found.throughput.steady_samples_per_s,
        found.steps.warmup,
        found.steps.count,
    )


def test_step_times_and_causes() -> None:
    """Seconds, shares and the row of each rank agree."""
    found = summarise(job()).steps
    assert (pytest.approx(50 * NS),) * 3 == (found.mean_s, found.p50_s, found.p95_s)
    seconds = {entry.cause: entry.seconds for entry in found.causes}
    assert {"compute": 100 * NS, "storage": 100 * NS, "decode": 50 * NS} == pytest.approx(
        {c: s for c, s in seconds.items() if s}
    )
    (rank,) = found.per_rank
    assert (0, 5, pytest.approx(250 * NS)) == (rank.rank, rank.steps, rank.wall_s)
    assert seconds == {cause: rank.seconds(cause) for cause in CAUSES}


def test_storage_counts_what_moved_bytes() -> None:
    """By source; a read that found nothing in memory is no access; a fault is one."""
    trace = timeline("""
        step             0000000000
        fetch w0         0000000000
        read w0 0B cache #.........
        read w0 70B      .##.......
        fault w0 20B cache ...###....
        read w0 10B unknown ......####
        """)
    found = summarise(trace).storage
    assert (3, 100, 70, 20, 10) == (
        found.accesses,
        found.bytes,
        found.bytes_from_storage,
        found.bytes_from_cache,
        found.bytes_unknown,
    )
    assert (pytest.approx(30 * NS), pytest.approx(40 * NS)) == (found.read_p50_s, found.read_p99_s)


@JOBS
@given(st.lists(st.integers(500, 10**9), max_size=30), st.lists(st.booleans(), max_size=30))
def test_accesses_without_a_time_change_no_percentile(took: list[int], untimed: list[bool]) -> None:
    """The rest of a call that waited, and faults of which only the end is known, count as accesses;
    where none was timed, no time is known. Nothing that is printed is shorter than the fastest
    read.
    """
    times = [*took, *(0 for _ in untimed)]
    step = {
        "kind": "step",
        "rank": 0,
        "pid": 1,
        "tid": 1,
        "start_ns": 0,
        "end_ns": 2 * 10**9,
        "step": 0,
    }
    fetch = {**step, "kind": "fetch", "pid": 2, "tid": 2, "batch": 0}
    kinds = ["read"] * len(took) + ["fault" if is_fault else "read" for is_fault in untimed]
    reads = [
        {
            **fetch,
            "kind": kind,
            "start_ns": 5,
            "end_ns": 5 + ns,
            "bytes": 8,
            "source": "page_cache",
            "file": 0,
        }
        for kind, ns in zip(kinds, times, strict=True)
    ]
    schema = table_schema(SPAN_COLUMNS)
    files = pl.DataFrame([{"file": 0, "path": "/data/a"}], schema=table_schema(FILE_COLUMNS))
    every, timed = (
        summarise(Trace(RunRecord(), pl.DataFrame(rows, schema=schema), files))
        for rows in ([step, fetch, *reads], [step, fetch, *reads[: len(took)]])
    )
    found, expected = every.storage, timed.storage
    assert (len(times), len(untimed)) == (found.accesses, found.untimed)
    assert (expected.read_p50_s, expected.read_p95_s, expected.read_p99_s) == (
        found.read_p50_s,
        found.read_p95_s,
        found.read_p99_s,
    )
    assert expected.slowest == found.slowest
    for group in every.findings.reads.groups:
        assert [] == [
            time
            for time in (group.p50_s, group.p95_s, group.p99_s, group.max_s)
            if time is not None and time < 490e-9
        ]
        assert (group.p50_s is None) == (group.untimed == group.accesses)
    if not took and untimed:
        assert (
            "not known: no access has a time of its own"
            == {line.label: line.text for line in statements(every)}["one read"]
        )


@pytest.mark.parametrize(
    ("path", "is_data"),
    [("/data/a.jpg", True), ("/env/lib/python3.11/site-packages/torch/__init__.py", False)],
)
def test_a_slow_import_is_no_slow_read_of_data(path: str, is_data: bool) -> None:
    trace = timeline("step 33333\nread 50B .===.", config={"device": "cpu"})
    row = dict.fromkeys(FILE_COLUMNS) | {"file": 7, "path": path}
    files = pl.DataFrame([row], schema=table_schema(FILE_COLUMNS))
    trace = replace(trace, spans=trace.spans.with_columns(file=pl.lit(7, pl.Int64)), files=files)
    assert is_data == bool(summarise(trace).storage.slowest)


def test_the_slowest_reads_are_named_with_batch_and_step() -> None:
    """Where the read itself has no number, the batch is the one that its worker was fetching."""
    trace = timeline(
        "step .....33333\nwait .....3....\nfetch w0 2223333...\nread w0 50B .=.###=..."
    )
    row = dict.fromkeys(FILE_COLUMNS) | {"file": 7, "path": "/data/a.jpg"}
    files = pl.DataFrame([row], schema=table_schema(FILE_COLUMNS))
    trace = replace(trace, spans=trace.spans.with_columns(file=pl.lit(7, pl.Int64)), files=files)
    first, second, third = summarise(trace).storage.slowest
    expected = {
        "path": "/data/a.jpg",
        "seconds": 30 * NS,
        "bytes": 50,
        "source": "storage",
        "rank": 0,
        "step": 3,
        "batch": 3,
    }
    expected |= {"offset": None, "start_ns": 30}  # drawings have no offsets
    assert expected == first.to_dict() | {"seconds": pytest.approx(30 * NS)}
    assert [(None, 2), (3, 3)] == [(row.step, row.batch) for row in (second, third)]


def test_demand_is_bytes_per_sample_at_the_devices_rate() -> None:
    """Each step reads 100 bytes for 2 samples and computes 20 ns: 100 million samples/s, 5 GB/s."""
    found = demand(job(), least_reads=1)
    assert pytest.approx((5e9, 5e7, 1e8)) == (
        found.bytes_per_s,
        found.reads_per_s,
        found.at_samples_per_s,
    )
    assert "derived" == found.basis


def test_reads_of_what_others_send_are_not_those_that_storage_must_make() -> None:
    """Pieces of a pipe say how many bytes are needed, and not in what reads."""
    trace = job()
    piped = (
        pl.when(pl.col("kind") == "read")
        .then(pl.lit("pipe"))
        .otherwise("source")
        .cast(trace.spans["source"].dtype)
    )
    sent = demand(replace(trace, spans=trace.spans.with_columns(source=piped)), least_reads=1)
    assert (5e9, None) == (pytest.approx(sent.bytes_per_s), sent.reads_per_s)


FALLING: Final = [300] * 12 + [100] * 28
SHARDS: Final = [1000, 0, 0, 0, 0, 0, 0, 0] * 5


def test_batches_that_find_what_the_first_ones_read_are_told() -> None:
    """If they take less than half as much as the mean; in which unit it is counted is all one."""
    batches = np.full(10, 6)
    for unit in (1, 4096):
        found = [
            Tenths(batches, unit * np.array(stored), batches).read_at_start(1)
            for stored in ([9, *[0] * 9], [12, *[1] * 9], [6, *[4] * 9], [4] * 10, [0] * 10)
        ]
        assert [1.0, 12 / 21, None, None, None] == found


@given(st.lists(st.integers(0, 50), min_size=10, max_size=10), st.booleans())
def test_a_rate_that_storage_did_not_deliver_is_not_the_steady_one(
    stored: list[int], is_slow: bool
) -> None:
    """The steps after the warm-up are faster; where they read too little for that, it is named, if
    reads from storage took much of the time for batches."""
    step = {"kind": "step", "rank": 0, "pid": 1, "tid": 1}
    fetch = {"kind": "fetch", "rank": 0, "pid": 2, "tid": 2, "offset": 1}
    rows: list[dict[str, Any]] = []
    for number in range(40):
        start = number * 100 + (1000 if number else 0)
        size = stored[number // 4]
        times = {"start_ns": start, "end_ns": number * 100 + 1100}
        rows += [{**step, **times, "step": number}, {**fetch, **times, "batch": number}]
        rows += [{**fetch, **times, "kind": "read", "batch": number, "bytes": size, "offset": 0}]
        rows[-1]["source"] = "storage"
        if not is_slow:
            rows[-1]["end_ns"] = start
    record = RunRecord.of({"config": {"ranks": 1, "workers": 1, "batch_size": 1}})
    found = summarise(
        Trace(record, pl.DataFrame(rows, schema=table_schema(SPAN_COLUMNS)))
    ).throughput
    assert found.samples_per_s is not None
    assert found.steady_samples_per_s is not None
    later, mean = sum(stored[1:]) / 9, sum(stored) / 10
    is_named = is_slow and 0 < mean and later < mean / 2
    assert is_named == (found.read_at_start_ratio is not None)
    assert is_named == (found.steady_samples_per_s == found.samples_per_s)


@pytest.mark.parametrize(
    ("kind", "sizes", "expected"),
    [
        ("fault", FALLING, (3e9, 1.6e9)),
        ("fault", [120] * 12 + [100] * 28, (1.06e9, None)),
        ("fault", SHARDS, (1.25e9, None)),  # a batch that reads a shard reads for others
        ("read", FALLING, (1.6e9, None)),  # calls ask for what they need
    ],
)
def test_demand_is_that_of_the_first_batches_where_it_falls(
    kind: str, sizes: list[int], expected: tuple[float, float | None]
) -> None:
    """A worker makes 40 batches of one sample in 100 ns each; a map is read at random, and later
    pages are in memory already."""
    spans: list[dict[str, Any]] = []
    for batch, size in enumerate(sizes):
        start = 100 * batch
        times = {"start_ns": start, "rank": 0, "batch": batch, "step": batch}
        worker, loop = {"pid": pid(0, 0), "tid": pid(0, 0)}, {"pid": pid(0), "tid": pid(0)}
        spans += [
            {"kind": "step", "end_ns": start + 100, **times, **loop},
            {"kind": "compute", "end_ns": start + 100, **times, **loop, "stream": 0},
            {"kind": "fetch", "end_ns": start + 50, **times, **worker, "offset": 1},
            {
                "kind": kind,
                "end_ns": start + 50,
                **times,
                **worker,
                "offset": start,
                "bytes": size,
                "source": "storage",
            },
        ]
    record = RunRecord.of({"config": {"ranks": 1, "workers": 1, "batch_size": 1, "device": "cuda"}})
    trace = Trace(record, pl.DataFrame(spans, schema=table_schema(SPAN_COLUMNS)))
    found = demand(trace, by_kernel={(None, pid(0, 0)): sum(sizes)}, least_reads=5)
    assert pytest.approx(expected) == (found.bytes_per_s, found.mean_bytes_per_s)
    tenths = found.tenths_bytes_per_s
    assert (tenths is None) == (found.mean_bytes_per_s is None)
    if tenths is not None:  # of 4 batches each, in their order
        assert (
            pytest.approx([sum(sizes[begin : begin + 4]) / 4 * 1e7 for begin in range(0, 40, 4)])
            == tenths
        )
    assert found.devices_fed == pytest.approx(4000 / 3950)  # by the mean


def test_demand_of_two_ranks_is_at_the_rate_of_both_devices() -> None:
    """Rank 1 computes twice as long: 4 samples in 30 ns of compute each on average."""
    two = (
        "step 0000\ncompute 00..\nfetch w0 0...\nread w0 300B #...\nstep r1 0000\ncompute r1"
        " 0000\nfetch r1 w0 0..."
    )
    found = demand(timeline(two, config={"batch_size": 2}), least_reads=1)
    assert (pytest.approx(4 / 30e-9), pytest.approx(75 * 4 / 30e-9)) == (
        found.at_samples_per_s,
        found.bytes_per_s,
    )


def test_demand_of_an_emulated_device_is_at_its_own_rate() -> None:
    """All ranks' devices together; reads outside of a fetch belong to no sample."""
    outside = timeline("read ...............................#").spans.with_columns(
        bytes=pl.lit(10**9, pl.Int64)
    )
    trace = job(
        device={"basis": "emulated", "samples_per_s": 1000.0},
        config={"batch_size": 2, "ranks": 4, "device": "emulated:x"},
    )
    whole = Trace(trace.run, pl.concat([trace.spans, outside]))
    found, need = summarise(whole), demand(whole, least_reads=1)
    assert pytest.approx((200_000, 2000, 4000)) == (
        need.bytes_per_s,
        need.reads_per_s,
        need.at_samples_per_s,
    )
    assert (None, Reason.TOO_FEW_READS) == (found.demand.bytes_per_s, found.demand.reason)
    assert ("emulated", 4000, "emulated") == (
        found.demand.basis,
        found.throughput.device_samples_per_s,
        found.throughput.basis,
    )


# ------------------------------------------------------------------------------ how far to trust it


def test_every_number_says_how_it_came_to_be() -> None:
    """An emulated device makes its own causes emulated; the loader's stay measured, what remains is
    derived."""
    found = summarise(job(device={"basis": "emulated", "samples_per_s": 1.0}))
    bases = {entry.cause: entry.basis for entry in found.steps.causes}
    assert {"compute", "exchange", "straggler"} == {
        cause for cause, basis in bases.items() if basis == "emulated"
    } - {"h2d"}
    assert ("measured", "derived") == (bases["storage"], bases["host"])
    assert "emulated" in found.verdict.text


def test_what_was_not_seen_is_said() -> None:
    """One sentence for each: killed processes, failures, missing ranks, lost spans, damaged files,
    unknown sources."""
    worker = {
        "pid": 123,
        "rank": 1,
        "role": "worker",
        "worker": 0,
        "closed": False,
        "lost": 0,
        "last_ns": 12_300_000_000,
    }
    crowded = {
        "pid": 9,
        "rank": 0,
        "role": "rank",
        "worker": None,
        "closed": True,
        "lost": 5,
        "first_ns": 0,
        "last_ns": 10,
    }
    capture = {
        "damaged": [{"file": "x.ring", "what": "cut short"}],
        "reads_by": "ioprof's own loaders",
    }
    failures = [{"rank": 1, "what": "was killed by SIGKILL"}]
    trace = timeline(
        "step 00\nread ##",
        config={"ranks": 3},
        processes=[worker, crowded],
        capture=capture,
        failures=failures,
    )
    found = summarise(trace).capture
    assert 5 == found.lost
    for sentence in (
        "rank 1 failed: was killed by SIGKILL",
        "rank 1 worker 0 (pid 123) ended without closing its record; nothing of it after 12.3 s",
        "nothing was recorded of ranks 1, 2: no number here includes them",
        "rank 0 (pid 9) had no room for 5 spans; steps from then on are left out",
        "capture file x.ring: cut short",
    ):
        assert sentence in found.not_seen
    unknown = summarise(
        timeline("read unknown ###\nread #", capture={"reads": True})
    ).capture.not_seen
    for unwatched, said in (
        (1, ()),
        (
            2,
            (
                (
                    "how long 2 of 100 page faults took is not known, and counts as 0: they came"
                    " after seconds without a page fault"
                ),
            ),
        ),
    ):
        records = [{"faults": 60, "unwatched": unwatched}, {"faults": 40}]
        assert (
            said
            == summarise(
                timeline("read #", capture={"reads": True, "fault_records": records})
            ).capture.not_seen
        )
    assert (
        (
            "75.0% of the read time has no known source: file system and counters do not say"
            " whether memory served it"
        ),
    ) == unknown


def test_a_whole_run_has_nothing_unseen() -> None:
    """No sentence is said for form's sake."""
    closed = {
        "pid": 1,
        "rank": 0,
        "role": "rank",
        "closed": True,
        "lost": 0,
        "first_ns": 0,
        "last_ns": 1000,
    }
    found = summarise(job(processes=[closed], capture={"reads": True, "ns_per_span": 2.0})).capture
    assert ((), 30, 2.0) == (found.not_seen, found.events, found.ns_per_event)
    assert pytest.approx(30 * 2 / 1000) == found.overhead_ratio


def counters(**fields: Any) -> dict[str, Any]:
    """What the capture library counted in a process."""
    return {
        "pid": 1,
        "rank": 0,
        "role": "rank",
        "closed": True,
        "lost": 0,
        "first_ns": 0,
        "last_ns": 1000,
        "reads": fields,
    }


def test_coverage_compares_with_the_kernels_count() -> None:
    """Over the processes in which both were read at the same moment; null where none was."""
    compared = [
        counters(io_rchar=1000, seen_bytes=900, bytes=5000),
        counters(io_rchar=3000, seen_bytes=3000),
        counters(io_rchar=None),
    ]
    assert pytest.approx(0.975) == summarise(job(processes=compared)).capture.coverage_ratio
    assert summarise(job(processes=[counters(io_rchar=None)])).capture.coverage_ratio is None
    assert summarise(job()).capture.coverage_ratio is None


def test_overhead_counts_spans_and_calls_each_at_their_cost() -> None:
    """Of 30 spans the library wrote 10, and timed 90 calls more; it is unknown where one of the
    costs is."""
    process = counters(spans=10, short_calls=90)
    found = summarise(
        job(processes=[process], capture={"reads": True, "ns_per_span": 2.0, "ns_per_call": 0.5})
    ).capture
    assert pytest.approx((20 * 2.0 + 100 * 0.5) / 1000) == found.overhead_ratio
    assert (
        summarise(
            job(processes=[process], capture={"reads": True, "ns_per_span": 2.0})
        ).capture.overhead_ratio
        is None
    )


def test_what_the_library_noticed_and_could_not_see_is_said() -> None:
    """io_uring, faults without permission, and processes that it was not in, each in a sentence."""
    unseen = [{"pid": 5, "name": "static"}, {"pid": 6, "name": "static"}]
    recorded = {
        "reads": True,
        "faults": {"reason": "kernel.perf_event_paranoid is 3"},
        "unseen_processes": unseen,
    }
    said = summarise(
        job(processes=[counters(noted=["io_uring"])], capture=recorded)
    ).capture.not_seen
    assert ["paranoid" in said[0], "io_uring" in said[1], said[2][:42]] == [
        True,
        True,
        "2 processes without the capture library (s",
    ]


@pytest.mark.parametrize(
    ("counted", "is_said"),
    [
        (500, False),
        (500 + 1488, False),
        (500 + 999_999, False),
        (500 + 1_000_000, True),
        (10**9, True),
    ],
)
def test_few_bytes_by_raw_system_calls_are_not_said(counted: int, is_said: bool) -> None:
    """At most what was counted and has no span was read so; it stays in the summary. The spans have
    500 bytes."""
    process = counters(noted=["raw system calls", "io_uring"], bytes=counted) | {
        "pid": pid(0),
        "host": "node1",
    }
    found = summarise(job(processes=[process], capture={"reads": True})).capture
    told = (
        ["raw system calls" in sentence for sentence in found.not_seen],
        ["raw" in sentence for sentence in found.negligible],
    )
    assert (([False, True], []) if is_said else ([False], [True])) == told


@pytest.mark.parametrize(
    ("fetched", "is_said"), [(0, False), (1 << 19, False), (200_000_000, True)]
)
def test_a_ring_that_was_not_followed_is_said_where_bytes_are_missing(
    fetched: int, is_said: bool
) -> None:
    """libuv has one for messages. What the kernel counted and nothing timed is said to have come by
    io_uring, and not by mapped files, with the process."""
    process = counters(noted=["io_uring"], io_read_bytes=fetched, fetched_bytes=0, seen_bytes=0)
    found = summarise(job(processes=[process], capture={"reads": True}))
    notes = list(uring_notes(found))
    capture = found.capture
    assert (is_said, not is_said) == (bool(capture.not_seen), bool(capture.negligible))
    assert len(notes) == is_said
    assert (fetched if is_said else 0) == capture.uring_bytes_untimed
    assert capture.mapped_bytes_untimed == (0 if is_said else fetched)
    if is_said:
        assert "200 MB came by io_uring and were not timed" == untimed_text(capture)
        assert "rank 0 (pid 1)" in notes[0]


def test_raw_system_calls_are_said_from_one_percent_of_a_large_process_on() -> None:
    """Of 10 GB, 99 MB are few; and where a process has no count, nothing is left out."""
    spans = job().spans.with_columns(
        bytes=pl.when(pl.col("kind") == "read").then(pl.lit(2 * 10**9, pl.Int64))
    )

    def said(counted: int | None) -> int:
        process = counters(noted=["raw system calls"], bytes=counted) | {
            "pid": pid(0),
            "host": "node1",
        }
        run = job(processes=[process], capture={"reads": True}).run
        return len(summarise(Trace(run, spans)).capture.not_seen)

    assert [0, 1, 1] == [said(10**10 + 99 * 10**6), said(10**10 + 102 * 10**6), said(None)]


def test_reads_of_unknown_origin_are_said_where_they_are_charged() -> None:
    """The cause that holds them names their share."""
    found = summarise(
        timeline("step 0000\nwait 0000\nfetch w0 0000\nread w0 unknown ##\nread w0 ..##")
    )
    assert (
        "includes reads of unknown origin, 50.0% of the read time: file system and counters do not"
        " say whether memory served them" == found.steps.causes[CAUSES.index("storage")].reason
    )


# -------------------------------------------------------------------------------------- the verdict


STALL = {
    "storage": "fetch w0 00000\nread w0 9B #####",
    "page_cache": "fetch w0 00000\nread w0 cache 9B #####",
    "decode": "fetch w0 00000\ndecode w0 #####",
    "transform": "fetch w0 00000\ntransform w0 #####",
    "collate": "fetch w0 00000\ncollate w0 #####",
    "delivery": "fetch w1 0....",
    "loader": "fetch w0 00000",
}
FACTS: dict[str, Any] = {
    "hosts": [{"name": "node1", "cpus": 8, "memory_bytes": 10**10}],
    "dataset": {"bytes": 10**9, "layout": "files", "image": {"transform": "original"}},
    "config": {"device": "cuda", "workers": 2, "batch_size": 4},
}


@pytest.mark.parametrize("cause", STALL)
def test_the_verdict_names_what_the_job_waited_for(cause: str) -> None:
    """And each advice rests on a number."""
    found = summarise(
        timeline(
            f"step 0000000\nwait 00000..\ncompute .....00\nh2d 0......\n{STALL[cause]}", **FACTS
        )
    ).verdict
    assert cause == found.bound_by
    _check(found.text, [advice.action for advice in found.findings])


@pytest.mark.parametrize(
    ("expected", "drawing"),
    [
        (
            "compute",
            (
                "step 00000000000\nwait 0..........\nfetch w0 0..........\ncompute .0000000000\nh2d"
                " ...#......."
            ),
        ),
        ("exchange", "step 0000\nwait ....0\nfetch 0\ncompute 0...\ncomm .000\nh2d 0"),
        ("h2d", "step 0000\nwait ....0\nfetch 0\ncompute 0...\nh2d .000"),
        ("host", "step 0000\nwait ....0\nfetch 0\ncompute 0...\nh2d 0"),
    ],
)
def test_the_verdict_on_what_is_not_the_loader(expected: str, drawing: str) -> None:
    """Compute is the bound while the accelerator idles for less than a tenth of the time."""
    found = summarise(timeline(drawing, **FACTS)).verdict
    assert expected == found.bound_by
    _check(found.text, [advice.action for advice in found.findings])


def _check(text: str, actions: list[str]) -> None:
    assert actions
    for said in (text, *actions):
        assert any(letter.isdigit() for letter in said), said
        assert "None" not in said


def test_waiting_for_a_slow_rank_is_what_that_rank_did() -> None:
    """Rank 0 waits for rank 1, which decodes: the job is bound by decoding, not by the exchange."""
    trace = timeline(
        """
        step         0000000000
        compute      0.........
        comm         .000000000
        wait         ..........0
        step r1      0000000000
        wait r1      0000000...
        fetch r1 w0  0000000...
        decode r1 w0 #######...
        compute r1   ........0.
        comm r1      .........0
        """,
        **FACTS,
    )
    found = summarise(trace)
    assert "decode" == found.verdict.bound_by
    assert "on rank 1, which the others waited for" in found.verdict.text
    assert {
        "1": pytest.approx({"decode": 60 * NS, "host": 10 * NS, "compute": 10 * NS})
    } == found.steps.straggler_wait_s
    details = found.steps.causes[CAUSES.index("straggler")].details
    assert [
        ("rank 1: decode", pytest.approx(60 * NS)),
        ("rank 1: compute", pytest.approx(10 * NS)),
    ] == [(part.name, part.seconds) for part in details[:2]]


def test_a_slow_start_is_called_one() -> None:
    """A cause that lies in the warm-up steps mostly is no property of the job."""
    found = summarise(
        timeline(
            "step 0000000000001123344\nwait 00000000000.\nfetch w0 00000000000.\ncompute"
            " ............0000000"
        )
    )
    assert "loader" == found.verdict.bound_by
    assert "was in the first 2 steps (start-up)" in found.verdict.text
    assert "start-up" not in summarise(job()).verdict.text


def test_without_a_step_there_is_no_verdict() -> None:
    """Nothing is made up for a job that was stopped before it began."""
    found = summarise(timeline("wait 0")).verdict
    assert (None, ()) == (found.bound_by, found.findings)


def test_without_compute_nothing_is_said_of_idling() -> None:
    """The greatest cause is named, with what is not known."""
    found = summarise(
        timeline("step 0000\nwait 000.\nfetch w0 000.\nread w0 9B ###.", **FACTS)
    ).verdict
    assert "storage" == found.bound_by
    assert "not recorded" in found.text


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [(8, ["Use 7 threads or processes that make batches instead of 2"]), (2, [])],
)
def test_workers_are_weighed_against_cores(cpus: int, expected: list[str]) -> None:
    """More of them only while cores are free."""
    facts = FACTS | {"hosts": [{"cpus": cpus}]}
    found = summarise(
        timeline(f"step 0000000\nwait 00000..\ncompute .....00\n{STALL['decode']}", **facts)
    ).verdict
    assert expected == [
        advice.action.split(":")[0] for advice in found.findings if advice.change is not None
    ]
    assert all(advice.gain is None for advice in found.findings)
