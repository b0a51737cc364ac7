"""What a loop on the CPU loses because its allocator gives freed memory back."""

from typing import Any

import polars as pl
import pytest
from timeline import TICK_NS, pid, timeline

from ioprof.analysis.cpu.memory_faults import MemoryFaults, memory_faults
from ioprof.format.run_record import ProcessRecord
from ioprof.format.schema import COUNTER_COLUMNS
from ioprof.format.trace import Trace, table_schema

DRAWING = """
    step          0000000000111111111122222222223333333333
    compute main  00000000001111111111222222222233333333..
    """


def counted(faults: float, system_s: float, **config: Any) -> Trace:
    """A loop of four steps, beside which a process has as many faults and as much system time; as
    much more came before."""
    trace = timeline(DRAWING, config={"device": "cpu", "workers": 0, **config})
    host, end = trace.spans["host"][0], 40 * TICK_NS
    rows = [
        {"time_ns": at, "host": host, "rank": 0, "pid": pid(0), "name": name, "value": value}
        for name, whole in (("process.minor_faults", faults), ("process.cpu_system", system_s))
        for at, value in ((-end, 0.0), (0, whole), (end, 2 * whole))
    ]
    record = trace.run.replace(
        processes=(ProcessRecord(host=host, pid=pid(0), role="rank", rank=0),)
    )
    counters = pl.DataFrame(rows, schema=table_schema(COUNTER_COLUMNS))
    return Trace(record, trace.spans, trace.files, counters, trace.stacks)


def test_faults_take_the_systems_time_and_no_more_than_a_fault_may() -> None:
    """System time beyond that was something else."""
    steps_s = 40 * TICK_NS / 1e9
    found = memory_faults(counted(4000, 0.2 * steps_s))
    assert MemoryFaults(1000.0, pytest.approx(0.2)) == found
    found = memory_faults(counted(0.1 * steps_s / 4e-6, 5.0))
    assert found is not None
    assert pytest.approx(0.1) == found.ratio
    assert MemoryFaults(1000.0, 0.5) == memory_faults(counted(4000, 5.0))


def test_nothing_is_known_where_they_were_not_counted_or_may_be_of_batches() -> None:
    """Of a device, of workers whose batches nobody measured, without samples."""
    trace = counted(4000, 0.002)
    empty = Trace(trace.run, trace.spans, trace.files, trace.counters.clear(), trace.stacks)
    assert memory_faults(empty) is None
    assert memory_faults(counted(4000, 0.002, device="cuda")) is None
    assert memory_faults(counted(4000, 0.002, workers=2)) is None
