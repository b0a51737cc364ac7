"""The parts of one run make the run again: times, spans, samples and facts, whatever their clocks show and whoever wrote them."""

import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from captures import chunk, header_bytes, record, string
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from timeline import pid, timeline

from ioprof.analysis.summary import summarise
from ioprof.errors import RunError
from ioprof.schema import COUNTER_COLUMNS, KINDS
from ioprof.spool import read_spool
from ioprof.spool.parts import merge_parts, missing_parts
from ioprof.trace import Trace, table_schema

DRAWING: Final = """
    step r0         0000000000 1111111111
    comm r0         ......00.. ......11..
    step r1         0000000000 1111111111
    comm r1         .......0.. .......1..
"""
ANCHOR: Final = {"before_ns": 100, "wall_ns": 10**18, "after_ns": 100, "offset_ns": 10**18 - 100, "uncertainty_ns": 0}


def drawn(host: str, rank: int, ahead_ns: int = 0, drawing: str = DRAWING, **clocks: Any) -> Trace:
    """The part of one rank, on a host whose clock is ahead."""
    whole = timeline(drawing)
    spans = whole.spans.filter(rank=rank).with_columns(host=pl.lit(host).cast(whole.spans.schema["host"]))
    zero = int(spans["start_ns"].min())  # type: ignore[arg-type]
    anchor = {**ANCHOR, "host": host, "before_ns": 100 + ahead_ns, "after_ns": 100 + ahead_ns}
    processes = [{"host": host, "pid": pid(rank), "role": "rank", "rank": rank, "first_ns": 0, "last_ns": 200}]
    run = {
        "name": host,
        "status": "complete",
        "command": f"python train.py --node {rank}",
        "started": f"2026-11-21T10:00:0{rank}Z",
        "exit_code": 0,
        "failures": [],
        "config": {"ranks": 2, "batch_size": 4},
        "hosts": [{"name": host, "cpus": 8, "memory_bytes": 1 << 34, "others_cpu_ratio": 0.1 * rank}],
        "processes": processes,
        "part": {"number": rank, "of": 2, "job": "SLURM_JOB_ID=1 step 0"},
        "clocks": {"uncertainty_ns": 0, "zero_monotonic_ns": zero + ahead_ns, "anchors": [anchor], "kernel": "one", **clocks},
        "capture": {
            "reads": True,
            "ns_per_span": 100.0 + rank,
            "damaged": [{"file": host, "what": "cut"}],
            "unseen_processes": [{"host": host, "pid": 5, "name": "static"}],
            "faults": {"by": "perf events", "reason": None},
            "samplers": {"period_s": 1.0},
            "sampled": {"notes": ["no GPU"], "damaged": rank, "lost": 0},
            "gpu": {"windows": [{"host": host, "rank": rank, "start_ns": 10, "end_ns": None}], "notes": []},
        },
    }
    counters = [{"time_ns": 50, "host": host, "pid": number, "name": "x", "value": 1.0} for number in (None, pid(rank))]
    table = pl.DataFrame(counters, schema=table_schema(COUNTER_COLUMNS))
    return Trace(run, spans.with_columns(pl.col("start_ns", "end_ns") - zero), counters=table)


@given(st.integers(0, 10**15), st.integers(0, 10**15), st.booleans())
def test_what_two_hosts_recorded_of_a_job_is_the_job(one: int, two: int, swapped: bool) -> None:
    """Whatever their clocks show: where the clocks are known to be one, every time is that of the whole job, to the nanosecond."""
    parts = [drawn("a", 0, one, monotonic_shift_ns=one), drawn("b", 1, two, monotonic_shift_ns=two)]
    merged = merge_parts(parts[::-1] if swapped else parts, "both")
    columns = ["kind", "rank", "step", "start_ns", "end_ns"]
    assert_frame_equal(timeline(DRAWING).spans.select(columns), merged.spans.select(columns), check_row_order=False)
    assert [10, 10] == [window["start_ns"] for window in merged.run["capture"]["gpu"]["windows"]]
    assert [(0, 200), (0, 200)] == [(process["first_ns"], process["last_ns"]) for process in merged.run["processes"]]
    assert {50} == set(merged.counters["time_ns"])
    whole = timeline(DRAWING, config={"batch_size": 4})
    assert summarise(whole).to_json() == summarise(Trace(whole.run, merged.spans)).to_json()


def test_facts_are_those_of_all_parts() -> None:
    """The first rank's part leads; lists are joined, the worst holds, the greatest cost counts, and what differs is kept."""
    late, early = drawn("b", 1), drawn("a", 0)
    late.run.update(status="failed", exit_code=3, failures=[{"rank": None, "what": "torchrun exited with 3"}])
    late.run["config"]["workers"] = 8
    early.run["config"]["workers"] = 4
    late.run["capture"]["faults"]["reason"] = "forbidden"
    run = merge_parts([late, early], "both").run
    assert ("both", "failed", 3, early.run["command"]) == (run["name"], run["status"], run["exit_code"], run["command"])
    assert "2026-11-21T10:00:00Z" == run["started"]
    assert [{"rank": None, "what": "torchrun exited with 3 (on b)"}] == run["failures"]
    assert ["a", "b"] == [host["name"] for host in run["hosts"]] == [entry["file"] for entry in run["capture"]["damaged"]]
    assert ["a", "b"] == [entry["host"] for entry in run["capture"]["unseen_processes"]]
    assert (101.0, "forbidden (on b)") == (run["capture"]["ns_per_span"], run["capture"]["faults"]["reason"])
    assert {"notes": ["no GPU"], "damaged": 1, "lost": 0} == run["capture"]["sampled"]
    assert (4, 2) == (run["config"]["workers"], run["config"]["ranks"])
    assert [None, {"workers": 8}] == [part.get("config") for part in run["parts"]]
    assert "part" not in run


def test_two_tasks_of_one_host_count_it_once() -> None:
    """Its cores, its memory and its own series; processes are each task's."""
    merged = merge_parts([drawn("a", 0), drawn("a", 1)], "both")
    assert [{"name": "a", "cpus": 8, "memory_bytes": 1 << 34, "others_cpu_ratio": 0.1}] == merged.run["hosts"]
    assert [None, pid(0), pid(1)] == merged.counters.sort("pid")["pid"].to_list()
    assert (0, ["a", "a, task 1"]) == (merged.run["clocks"]["uncertainty_ns"], [part["name"] for part in merged.run["parts"]])


def test_machines_of_one_name_stay_two() -> None:
    """Every container may call itself localhost; whose boot id differs is another machine, and gets another name."""
    parts = [drawn("localhost", 0), drawn("localhost", 1, kernel="two")]
    merged = merge_parts(parts, "both")
    assert ["localhost", "localhost (2)"] == [host["name"] for host in merged.run["hosts"]]
    names = merged.spans.select(pl.col("host").cast(pl.String), "rank").unique().sort("rank").rows()
    assert [("localhost", 0), ("localhost (2)", 1)] == names
    assert ["localhost", "localhost (2)"] == [process["host"] for process in merged.run["processes"]]
    assert 4 == len(merged.counters)
    assert merged.run["clocks"]["uncertainty_ns"] > 0


def test_what_is_not_known_within_a_part_is_not_known_of_the_whole() -> None:
    """Uncertainties add: a part of hosts that shared a spool brings its own."""
    exact, vague, blind = drawn("a", 0), drawn("b", 1, uncertainty_ns=700), drawn("b", 1, uncertainty_ns=None)
    assert 700 == merge_parts([exact, vague], "both").run["clocks"]["uncertainty_ns"]
    assert merge_parts([exact, blind], "both").run["clocks"]["uncertainty_ns"] is None


def of_another_job() -> Trace:
    """A part that another start of the command made."""
    part = drawn("b", 1)
    part.run["part"]["job"] = "SLURM_JOB_ID=2 step 0"
    return part


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "nothing to gather"),
        ([drawn("a", 0), drawn("b", 0)], "rank 0 is in both a and b"),
        ([drawn("a", 0), drawn("a", 0)], "rank 0 is in both"),
        ([drawn("a", 0), of_another_job()], "a is of SLURM_JOB_ID=1 step 0, b is of SLURM_JOB_ID=2 step 0"),
    ],
)  # fmt: skip
def test_what_are_no_parts_of_one_run_is_refused(parts: list[Trace], said: str) -> None:
    """Two jobs, two runs of one job, one part twice: one line, with what to type."""
    with pytest.raises(RunError) as refused:
        merge_parts(parts, "both")
    assert said in str(refused.value)
    assert "ioprof " in str(refused.value)


def test_missing_parts_are_known_by_their_numbers() -> None:
    """Where the launcher numbered them; else nothing is known to be missing."""
    one = drawn("b", 1)
    assert [0] == missing_parts([one])
    assert [] == missing_parts([one, drawn("a", 0)])
    assert [] == missing_parts([Trace({}, one.spans)])


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way for key, entry in inner for way in ((*above, key), *places(entry, (*above, key)))]


ANY: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["host", "rank", "start_ns", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(places(drawn("b", 1).run)), ANY)
@example(("clocks", "zero_monotonic_ns"), "x")
@example(("clocks", "anchors", 0, "wall_ns"), -5)
@example(("part", "of"), 2**62)
@example(("capture", "fault_records"), 7)
def test_any_value_anywhere_in_a_part_works_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, way: tuple[Any, ...], value: Any
) -> None:
    """A part's run.json that somebody changed: it is merged, or refused in one line, and what is merged can be saved."""
    part = drawn("b", 1)
    run = json.loads(json.dumps(part.run))
    inner = run
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    folder, refused = tmp_path_factory.mktemp("part"), ""
    try:
        Trace(run, part.spans, part.files, part.counters).save(folder)
        loaded = Trace.load(folder)
        missing_parts([loaded])
        merge_parts([drawn("a", 0), loaded], "both").save(folder)
    except RunError as error:
        refused = str(error)
    assert len(refused.splitlines()) < 2


def test_hosts_that_shared_a_spool_are_tied_by_their_collectives(tmp_path: Path) -> None:
    """Whose TMPDIR is a folder of all hosts: what is said of the clocks is no longer that they are one."""
    comm = KINDS.index("comm") + 1
    for rank, (host, ahead) in enumerate(((b"a", 0), (b"b", 5000))):
        spans = [record(kind=comm, start_ns=at + ahead, end_ns=at + ahead + 9, step=at, name=0) for at in (1000, 2000)]
        header = header_bytes(
            host=host, pid=7, rank=rank, rank_source=1, anchor_before_ns=ahead, anchor_wall_ns=10**18, anchor_after_ns=ahead
        )
        (tmp_path / f"{rank}.ring").write_bytes(header + chunk(string(0, b"all_reduce"), *spans))
    clocks = {"method": "one host, one monotonic clock", "uncertainty_ns": 0}
    trace = read_spool(tmp_path, {"clocks": clocks})
    assert "2 clocks, tied by their collectives" == trace.run["clocks"]["method"]
    assert 5000 < trace.run["clocks"]["uncertainty_ns"] < 6000
    assert [0, 1000] * 2 == trace.spans.sort("rank", "start_ns")["start_ns"].to_list()
