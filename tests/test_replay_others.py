"""CPU time of a host that others than the job used, as the replay tells it apart."""

import math
from collections.abc import Callable

import polars as pl
import pytest

from ioprof.format.run_record import RunRecord
from ioprof.format.schema import COUNTER_COLUMNS, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.model.cores.cpu_use import counted
from ioprof.model.cores.others import others


def host_series(seconds: int, used: Callable[[int], float], rank_pid: int) -> pl.DataFrame:
    """CPU time of a host by second: `used` by others in the second before, and half a core by the
    rank."""
    total, rows = 0.0, list[dict[str, object]]()
    for second in range(seconds + 1):
        total += used(second)
        at = {"time_ns": second * 10**9, "host": "node1"}
        rows += [
            {**at, "pid": None, "name": "cpu.user", "value": total + 0.5 * second},
            {**at, "pid": rank_pid, "name": "process.cpu_user", "value": 0.5 * second},
        ]
    return pl.DataFrame(rows, schema=table_schema(COUNTER_COLUMNS))


def sampled(counters: pl.DataFrame, *starts: int) -> Trace:
    """A loop of a host of two cores that waits at these times."""
    thread = {"kind": "wait", "host": "node1", "rank": 0, "pid": 7, "tid": 7}
    waits = [{**thread, "start_ns": start, "end_ns": start + 10} for start in starts]
    record = RunRecord.of(
        {"hosts": [{"name": "node1", "cpus": 2, "online_cpus": 2, "others_cpu_ratio": 0.5}]}
    )
    return Trace(record, pl.DataFrame(waits, schema=table_schema(SPAN_COLUMNS)), counters=counters)


@pytest.mark.parametrize(
    ("used", "cores", "serving"),
    [
        (lambda second: 0.2, 0.2, 0.0),  # goes on, loop or not
        (lambda second: 0.0 if second <= 3 else 0.2, 0.0, 0.2),  # began with the loop
        # another program that ran for two of ten seconds
        (
            lambda second: 0.7 if second in (6, 7) else 0.0,
            0.14,
            0.0,
        ),
    ],
)
def test_who_serves_reads_began_with_the_loop(
    used: Callable[[int], float], cores: float, serving: float
) -> None:
    """CPU time of others is told apart by when it was used: before the loop, in some seconds of it,
    or in nearly all."""
    trace = sampled(host_series(13, used, 7), 3 * 10**9 - 10, 13 * 10**9)
    found = others(trace, counted(trace))["node1"]
    assert cores == pytest.approx(found.cores, abs=1e-6)
    assert serving == pytest.approx(found.serving, abs=1e-6)
    short = sampled(host_series(3, used, 7), 3 * 10**9 - 10, 13 * 10**9)
    assert 1.0 == others(short, counted(short))["node1"].cores


@pytest.mark.parametrize("number", [7, 9])
def test_a_process_of_another_host_uses_no_core_of_this_one(number: int) -> None:
    """Whatever its id: that of a process here, or of none."""
    here = host_series(13, lambda _: 0.2, 7)
    there = here.filter(pl.col("pid").is_not_null()).with_columns(
        host=pl.lit("node2").cast(here.schema["host"]),
        pid=pl.lit(number).cast(pl.Int32),
        value=pl.col("value") / 4,
    )
    alone, both = (
        sampled(each, 3 * 10**9 - 10, 13 * 10**9) for each in (here, pl.concat([here, there]))
    )
    assert others(alone, counted(alone)) == others(both, counted(both))
    assert [[7], [number]] == [list(each) for each in counted(both).values()]


def with_worker(rank_rows: pl.DataFrame, sampled_until: int, ended: float) -> pl.DataFrame:
    """A worker that computes on one core from second 3 on; each of its samples is a second after
    the one before."""
    of_host = pl.col("pid").is_null()
    used = (pl.col("time_ns") / 1e9).clip(3, ended) - 3
    rows = rank_rows.with_columns(
        value=pl.when(of_host).then(pl.col("value") + used).otherwise(pl.col("value"))
    )
    worker = rows.filter(of_host, pl.col("time_ns").is_between(3 * 10**9, sampled_until * 10**9))
    named = worker.with_columns(
        pid=pl.lit(8), name=pl.lit("process.cpu_user"), value=pl.col("time_ns") / 1e9 - 3
    )
    return pl.concat(
        [rows, named.select(pl.col(name).cast(kind) for name, kind in rows.schema.items())]
    )


@pytest.mark.parametrize(("seconds", "known"), [(13, True), (5, False)])
def test_a_worker_that_ended_between_two_samples_is_no_other_program(
    seconds: int, known: bool
) -> None:
    """Its CPU time after its last sample is known to nobody: such a second says nothing, and a loop
    of one such second has none."""
    ended_ns = seconds * 10**9 - 10**8
    waits = [
        {
            "kind": "wait",
            "start_ns": start,
            "end_ns": start + 10,
            "host": "node1",
            "rank": 0,
            "pid": 7,
            "tid": 7,
        }
        for start in (((seconds - 10) if known else seconds - 2) * 10**9 - 10, seconds * 10**9)
    ]
    made = {
        "kind": "fetch",
        "start_ns": 3 * 10**9,
        "end_ns": ended_ns,
        "host": "node1",
        "rank": 0,
        "pid": 8,
        "tid": 8,
    }
    record = RunRecord.of(
        {"hosts": [{"name": "node1", "cpus": 2, "online_cpus": 2, "others_cpu_ratio": 0.25}]}
    )
    table = pl.DataFrame([*waits, made], schema=table_schema(SPAN_COLUMNS))
    samples = with_worker(host_series(seconds, lambda _: 0.0, 7), seconds - 1, ended_ns / 1e9)
    if not known:  # the only sample of the loop's seconds is the last one
        samples = samples.filter(pl.col("time_ns") != (seconds - 1) * 10**9)
    trace = Trace(record, table, counters=samples)
    found = others(trace, counted(trace))["node1"]
    assert (0.0 if known else 0.5) == pytest.approx(found.cores, abs=1e-6)
    assert 0.0 == pytest.approx(found.serving, abs=1e-6)


@pytest.mark.parametrize(
    ("own", "elsewhere", "beside_s", "expected"),
    [
        (1.0, 2.0, 0.0, 0.5),
        (2.0, 1.0, 4.0, 2.0),  # less than half of what others used
        (1.0, 2.0, 6.0, None),  # most of it
        (1.0, 0.0, 0.0, 1.0),  # none of them is seen from here
        (1.0, 0.0, 6.0, None),
        (None, None, None, None),  # not sampled
        (math.nan, 2.0, 0.0, None),  # damaged
        (1.0, 2.0, math.nan, None),
    ],
)
def test_whether_others_are_in_groups_of_their_own(
    own: float | None, elsewhere: float | None, beside_s: float | None, expected: float | None
) -> None:
    """Where most of what they used was not in the job's groups: one core for ten seconds."""
    values = {"groups.own": own, "groups.others": elsewhere, "groups.others_beside": beside_s}
    at = {"host": "node1", "pid": None}
    rows = [{**at, "name": "sampler.cpu", "value": 0.0, "time_ns": 0}]
    rows += [
        {**at, "name": name, "value": value, "time_ns": 10**10}
        for name, value in values.items()
        if value is not None
    ]
    found = others(sampled(pl.DataFrame(rows, schema=table_schema(COUNTER_COLUMNS))), {})["node1"]
    assert 1.0 == found.cores
    assert expected == found.own_groups
