"""Merging the parts of a run restores the run: times, spans, samples and facts, for any clocks and
any part contents."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from captures import chunk, header_bytes, record, string
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from strategies import examples, traces
from timeline import pid, timeline
from told import summarise

from ioprof.errors import RunError
from ioprof.format.run_record import Failure, FaultRecording, PartNumber, RunRecord, SampledSeries
from ioprof.format.schema import COUNTER_COLUMNS, FILE_COLUMNS, KINDS
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest import read_spool
from ioprof.ingest.merging import merge_parts, missing_parts

DRAWING: Final = """
    step r0         0000000000 1111111111
    comm r0         ......00.. ......11..
    step r1         0000000000 1111111111
    comm r1         .......0.. .......1..
"""
ANCHOR: Final = {
    "before_ns": 100,
    "wall_ns": 10**18,
    "after_ns": 100,
    "offset_ns": 10**18 - 100,
    "uncertainty_ns": 0,
}


def drawn(host: str, rank: int, ahead_ns: int = 0, drawing: str = DRAWING, **clocks: Any) -> Trace:
    """The part of one rank, on a host whose clock is ahead."""
    whole = timeline(drawing)
    spans = whole.spans.filter(rank=rank).with_columns(
        host=pl.lit(host).cast(whole.spans.schema["host"])
    )
    zero = int(spans["start_ns"].min())  # type: ignore[arg-type]
    anchor = {**ANCHOR, "host": host, "before_ns": 100 + ahead_ns, "after_ns": 100 + ahead_ns}
    processes = [
        {
            "host": host,
            "pid": pid(rank),
            "role": "rank",
            "rank": rank,
            "first_ns": 0,
            "last_ns": 200,
        }
    ]
    run = {
        "name": host,
        "status": "complete",
        "command": f"python train.py --node {rank}",
        "started": f"2026-11-21T10:00:0{rank}Z",
        "exit_code": 0,
        "failures": [],
        "config": {"ranks": 2, "batch_size": 4},
        "hosts": [
            {"name": host, "cpus": 8, "memory_bytes": 1 << 34, "others_cpu_ratio": 0.1 * rank}
        ],
        "processes": processes,
        "part": {"number": rank, "of": 2, "job": "SLURM_JOB_ID=1 step 0"},
        "clocks": {
            "uncertainty_ns": 0,
            "zero_monotonic_ns": zero + ahead_ns,
            "anchors": [anchor],
            "kernel": "one",
            **clocks,
        },
        "capture": {
            "reads": True,
            "ns_per_span": 100.0 + rank,
            "damaged": [{"file": host, "what": "cut"}],
            "unseen_processes": [{"host": host, "pid": 5, "name": "static"}],
            "faults": {"by": "perf events", "reason": None},
            "samplers": {"period_s": 1.0},
            "sampled": {"notes": ["no GPU"], "damaged": rank, "lost": 0},
            "gpu": {
                "windows": [{"host": host, "rank": rank, "start_ns": 10, "end_ns": None}],
                "notes": [],
            },
        },
    }
    counters = [
        {"time_ns": 50, "host": host, "pid": number, "name": "x", "value": 1.0}
        for number in (None, pid(rank))
    ]
    table = pl.DataFrame(counters, schema=table_schema(COUNTER_COLUMNS))
    return Trace(
        RunRecord.of(run), spans.with_columns(pl.col("start_ns", "end_ns") - zero), counters=table
    )


@settings(max_examples=examples(20))  # of two numbers, which are added and subtracted
@given(st.integers(0, 10**15), st.integers(0, 10**15), st.booleans())
def test_what_two_hosts_recorded_of_a_job_is_the_job(one: int, two: int, swapped: bool) -> None:
    """For any clocks: if the clocks are known to be the same, every time equals that of the whole
    job exactly."""
    parts = [drawn("a", 0, one, monotonic_shift_ns=one), drawn("b", 1, two, monotonic_shift_ns=two)]
    merged = merge_parts(parts[::-1] if swapped else parts, "both")
    columns = ["kind", "rank", "step", "start_ns", "end_ns"]
    assert_frame_equal(
        timeline(DRAWING).spans.select(columns), merged.spans.select(columns), check_row_order=False
    )
    assert [10, 10] == [window.start_ns for window in merged.run.capture.gpu.windows]
    assert [(0, 200), (0, 200)] == [
        (process.first_ns, process.last_ns) for process in merged.run.processes
    ]
    assert {50} == set(merged.counters["time_ns"])
    whole = timeline(DRAWING, config={"batch_size": 4})
    assert summarise(whole).to_json() == summarise(Trace(whole.run, merged.spans)).to_json()


def with_facts(trace: Trace, **fields: Any) -> Trace:
    """The trace with other values in its run.json."""
    return replace(trace, run=trace.run.replace(**fields))


@st.composite
def halves(draw: st.DrawFn) -> tuple[Trace, list[Trace]]:
    """A run of two or three ranks whose spans name files, and the same run in two parts of its
    ranks, each with the files that it used, numbered its own way."""
    whole = draw(traces(max_ranks=3).filter(lambda trace: len(trace.ranks) > 1))
    size = len(whole.spans)
    used = draw(st.lists(st.none() | st.integers(0, 4), min_size=size, max_size=size))
    first = draw(st.sets(st.sampled_from(whole.ranks), min_size=1, max_size=len(whole.ranks) - 1))
    spans = whole.spans.with_columns(
        file=pl.Series(used, dtype=pl.Int64), host=pl.lit("node1", whole.spans.schema["host"])
    )
    rows = [
        {"file": number, "path": f"/data/{number}", "size_bytes": number} for number in range(5)
    ]
    files = pl.DataFrame(rows, schema=table_schema(FILE_COLUMNS))
    clocks = {"kernel": "one", "monotonic_shift_ns": 0, "zero_monotonic_ns": 0}
    parts = []
    for is_chosen in (True, False):
        own = spans.filter(pl.col("rank").is_in(first) == is_chosen)
        order = [each for each in draw(st.permutations(range(5))) if each in own["file"].to_list()]
        numbers = {number: 7 + place for place, number in enumerate(order)}
        renumbered = pl.col("file").replace_strict(numbers, default=None, return_dtype=pl.Int64)
        processes = [
            {"host": "node1", "pid": pid(rank), "rank": rank, "role": "rank"}
            for rank in own["rank"].unique()
        ]
        facts = {**whole.run.to_dict(), "clocks": clocks, "processes": processes}
        part = Trace(
            RunRecord.of(facts),
            own.with_columns(renumbered),
            files.filter(pl.col("file").is_in(order)).with_columns(renumbered),
        )
        parts.append(part)
    return Trace(whole.run, spans, files), parts


@settings(max_examples=examples(25))
@given(halves(), st.booleans())
def test_the_halves_of_a_run_merge_into_the_whole(
    found: tuple[Trace, list[Trace]], swapped: bool
) -> None:
    """In any order: each span still names its path, whatever number that had in its half."""
    whole, parts = found
    merged = merge_parts(parts[::-1] if swapped else parts, "whole")

    def named(trace: Trace) -> list[tuple[Any, ...]]:
        zero_ns = pl.col("start_ns").min()
        spans = trace.spans.join(trace.files.select("file", "path"), on="file", how="left")
        since = (pl.col(name) - zero_ns for name in ("start_ns", "end_ns"))
        return sorted(spans.drop("file").with_columns(*since).rows(), key=repr)

    assert named(whole) == named(merged)
    assert len(merged.files) == merged.files["path"].n_unique() == merged.files["file"].n_unique()


def test_what_two_parts_know_of_a_file_is_one_row(tmp_path: Path) -> None:
    """A null in one part is filled from the other; parts are read from the disk, with the numbers
    that each file has for hosts and names."""
    rows = (
        {"file": 3, "path": "/a", "size_bytes": 9},
        {"file": 0, "path": "/a", "file_system": "lustre"},
    )
    for rank, row in enumerate(rows):
        one = drawn("ab"[rank], rank)
        replace(
            one,
            spans=one.spans.with_columns(file=pl.lit(row["file"]), name=pl.lit(f"of {rank}")),
            files=pl.DataFrame([row], table_schema(FILE_COLUMNS)),
        ).save(tmp_path / str(rank))
    merge_parts([Trace.load(tmp_path / "1"), Trace.load(tmp_path / "0")], "both").save(tmp_path)
    merged = Trace.load(tmp_path)
    assert [("/a", 9, "lustre")] == merged.files.select("path", "size_bytes", "file_system").rows()
    assert merged.files["file"].to_list() == merged.spans["file"].unique().to_list()
    assert [("a", "of 0"), ("b", "of 1")] == sorted(
        merged.spans.select("host", "name").unique().rows()
    )


def test_a_process_in_two_parts_is_refused() -> None:
    """Its time would be counted twice, also where no rank is known."""
    part = with_facts(drawn("a", 0), processes=())
    with pytest.raises(RunError, match=f"process {pid(0)} .* two"):
        merge_parts([part, part], "both")


def test_facts_are_those_of_all_parts() -> None:
    """The first rank's part takes precedence; lists are joined, worst status and greatest cost
    count, differences are kept."""
    late, early = drawn("b", 1), drawn("a", 0)
    late = with_facts(
        late,
        status="failed",
        exit_code=3,
        failures=(Failure(what="torchrun exited with 3"),),
        config=late.run.config.replace(workers=8),
        capture=late.run.capture.replace(faults=FaultRecording(reason="forbidden")),
    )
    early = with_facts(early, config=early.run.config.replace(workers=4))
    run = merge_parts([late, early], "both").run
    assert ("both", "failed", 3, early.run.command) == (
        run.name,
        run.status,
        run.exit_code,
        run.command,
    )
    assert "2026-11-21T10:00:00Z" == run.started
    assert [(None, "torchrun exited with 3 (on b)")] == [
        (failure.rank, failure.what) for failure in run.failures
    ]
    assert (
        ["a", "b"]
        == [host.name for host in run.hosts]
        == [damage.file for damage in run.capture.damaged]
    )
    assert ["a", "b"] == [process.host for process in run.capture.unseen_processes]
    assert (101.0, "forbidden (on b)") == (
        run.capture.ns_per_span,
        run.capture.faults and run.capture.faults.reason,
    )
    assert SampledSeries(notes=("no GPU",), damaged=1, lost=0) == run.capture.sampled
    assert (4, 2) == (run.config.workers, run.config.ranks)
    assert [{}, {"workers": 8}] == [part.config for part in run.parts]
    assert run.part is None


def test_two_tasks_of_one_host_count_it_once() -> None:
    """Its cores, its memory and its own series; processes belong to their task."""
    merged = merge_parts([drawn("a", 0), drawn("a", 1)], "both")
    assert [("a", 8, 1 << 34, 0.1)] == [
        (host.name, host.cpus, host.memory_bytes, host.others_cpu_ratio)
        for host in merged.run.hosts
    ]
    assert [None, pid(0), pid(1)] == merged.counters.sort("pid")["pid"].to_list()
    assert (0, ["a", "a, task 1"]) == (
        merged.run.clocks.uncertainty_ns,
        [part.name for part in merged.run.parts],
    )


def test_machines_of_one_name_stay_two() -> None:
    """Containers may share the name localhost; a different boot id means another machine, which
    gets another name."""
    parts = [drawn("localhost", 0), drawn("localhost", 1, kernel="two")]
    merged = merge_parts(parts, "both")
    assert ["localhost", "localhost (2)"] == [host.name for host in merged.run.hosts]
    names = merged.spans.select(pl.col("host").cast(pl.String), "rank").unique().sort("rank").rows()
    assert [("localhost", 0), ("localhost (2)", 1)] == names
    assert ["localhost", "localhost (2)"] == [process.host for process in merged.run.processes]
    assert 4 == len(merged.counters)
    assert merged.run.clocks.uncertainty_ns > 0


def test_uncertainties_of_parts_count_for_the_whole() -> None:
    """Uncertainties add up: a part of several hosts with one spool has its own; an unknown one
    makes the sum unknown."""
    exact, vague, blind = (
        drawn("a", 0),
        drawn("b", 1, uncertainty_ns=700),
        drawn("b", 1, uncertainty_ns=None),
    )
    assert 700 == merge_parts([exact, vague], "both").run.clocks.uncertainty_ns
    assert merge_parts([exact, blind], "both").run.clocks.uncertainty_ns is None


def of_another_job() -> Trace:
    """A part of another run of the command."""
    return with_facts(
        drawn("b", 1), part=PartNumber(number=1, num_parts=2, job="SLURM_JOB_ID=2 step 0")
    )


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "nothing to gather"),
        ([drawn("a", 0), drawn("b", 0)], "rank 0 is in both a and b"),
        ([drawn("a", 0), drawn("a", 0)], "rank 0 is in both"),
        ([drawn("a", 0), of_another_job()], "a is of SLURM_JOB_ID=1 step 0, b is of SLURM_JOB_ID=2 step 0"),  # noqa: E501
    ],
)  # fmt: skip
def test_parts_of_different_runs_are_refused(parts: list[Trace], said: str) -> None:
    """Two jobs, two runs of one job, one part twice: one line with the command to use."""
    with pytest.raises(RunError) as refused:
        merge_parts(parts, "both")
    assert said in str(refused.value)
    assert "ioprof " in str(refused.value)


def test_missing_parts_are_known_by_their_numbers() -> None:
    """Only if the launcher numbered them; otherwise none is known to be missing."""
    one = drawn("b", 1)
    assert [0] == missing_parts([one])
    assert [] == missing_parts([one, drawn("a", 0)])
    assert [] == missing_parts([Trace(RunRecord(), one.spans)])


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value within a value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [way for key, entry in inner for way in ((*above, key), *places(entry, (*above, key)))]


ANY: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["host", "rank", "start_ns", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(places(drawn("b", 1).run.to_dict())), ANY)
@example(("clocks", "zero_monotonic_ns"), "x")
@example(("clocks", "anchors", 0, "wall_ns"), -5)
@example(("part", "of"), 2**62)
@example(("part", "job"), "\r")
@example(("capture", "fault_records"), 7)
def test_any_value_anywhere_in_a_part_works_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, way: tuple[Any, ...], value: Any
) -> None:
    """A run.json that was edited: it is merged, or refused in one line, and the merged run can be
    saved."""
    part = drawn("b", 1)
    run = json.loads(part.run.to_json())
    inner = run
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    folder, refused = tmp_path_factory.mktemp("part"), ""
    try:
        part.save(folder)
        (folder / "run.json").write_text(json.dumps(run))
        loaded = Trace.load(folder)
        missing_parts([loaded])
        merge_parts([drawn("a", 0), loaded], "both").save(folder)
    except RunError as error:
        refused = str(error)
    assert len(refused.splitlines()) < 2


def test_hosts_that_shared_a_spool_are_aligned_by_their_collectives(tmp_path: Path) -> None:
    """If TMPDIR is a folder of all hosts, the facts no longer say that the clocks are one."""
    comm = KINDS.index("comm") + 1
    for rank, (host, ahead) in enumerate(((b"a", 0), (b"b", 5000))):
        spans = [
            record(kind=comm, start_ns=at + ahead, end_ns=at + ahead + 9, step=at, name=0)
            for at in (1000, 2000)
        ]
        header = header_bytes(
            host=host,
            pid=7,
            rank=rank,
            rank_source=1,
            anchor_before_ns=ahead,
            anchor_wall_ns=10**18,
            anchor_after_ns=ahead,
        )
        (tmp_path / f"{rank}.ring").write_bytes(header + chunk(string(0, b"all_reduce"), *spans))
    clocks = {"method": "one host, one monotonic clock", "uncertainty_ns": 0}
    trace = read_spool(tmp_path, RunRecord.of({"clocks": clocks}))
    assert "2 clocks, aligned by their collectives" == trace.run.clocks.method
    assert 5000 < trace.run.clocks.uncertainty_ns < 6000
    assert [0, 1000] * 2 == trace.spans.sort("rank", "start_ns")["start_ns"].to_list()
