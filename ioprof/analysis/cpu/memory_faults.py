"""What it costs a loop on the CPU that its allocator gives freed memory back to the kernel.

glibc returns large blocks when they are freed (man mallopt: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). A
step whose activations are such blocks then asks for the same memory again, and the kernel zeroes
each page of it anew. Whether that happens depends on what else lies on top of the heap, so that the
same loop may take half as long again in one run and not in another.

The kernel counts these faults and the system's CPU time of each process (man proc_pid_stat). Those
of batches that workers sent in shared memory are none of them: each page of these is new.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.steps import steps
from ioprof.analysis.reads.read_sums import PAGE_BYTES
from ioprof.format.schema import SENT
from ioprof.format.trace import Trace

_SERIES: Final = ("process.minor_faults", "process.cpu_system")
_MOST_FAULT_S: Final = 4e-6
"""Of one fault with the zeroing of its page, also where the host of a virtual machine has to find
it first. What the system worked beyond that was something else."""
_MOST_RATIO: Final = 0.5
"""Of the steps' time: zeroing a page takes no longer than using it once."""


@dataclass(frozen=True)
class MemoryFaults:
    """Of the main processes of all ranks, while they made steps."""

    per_step: float
    ratio: float
    """Their system time over the steps' time, 0 to 1. The true cost is higher: caches are cold
    afterwards, and what the host of a virtual machine does meanwhile is not in it."""


def memory_faults(trace: Trace) -> MemoryFaults | None:
    """Their number and time; None: they were not counted, or the model is not on the CPU."""
    sent = _sent_pages(trace) if trace.run.config.workers else 0.0
    if trace.run.device_name not in (None, "cpu") or sent is None:
        return None
    table = (
        steps(trace)
        .group_by("rank")
        .agg(
            pl.len(),
            start_ns=pl.col("start_ns").min(),
            end_ns=pl.col("end_ns").max(),
            took_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        )
    )
    processes = {each.rank: each for each in trace.run.processes if each.role == "rank"}
    name = pl.col("name").cast(pl.String)
    counted = trace.counters.filter(name.is_in(_SERIES)).sort("time_ns")
    number, faults, seconds, steps_s = 0, 0.0, 0.0, 0.0
    columns = ("rank", "len", "start_ns", "end_ns", "took_ns")
    for rank, length, start_ns, end_ns, took_ns in table.select(columns).iter_rows():
        process = processes.get(rank)
        if process is None:
            continue
        mine = counted.filter(
            pl.col("pid").eq_missing(pl.lit(process.pid)),
            pl.col("host").cast(pl.String).eq_missing(pl.lit(process.host, pl.String)),
        )
        grown = []
        for series in _SERIES:
            part = mine.filter(name == series)
            times, values = part["time_ns"].to_numpy(), part["value"].to_numpy()
            if len(times) < 2:
                break
            ends = np.interp([start_ns, end_ns], times, values)
            grown.append(float(max(0.0, ends[1] - ends[0])))
        if len(grown) < len(_SERIES):
            continue
        mine_alone = max(0.0, grown[0] - length * sent)
        number += length
        steps_s += took_ns / 1e9
        faults += mine_alone
        seconds += min(grown[1] * mine_alone / max(grown[0], 1.0), mine_alone * _MOST_FAULT_S)
    if not steps_s:
        return None
    return MemoryFaults(faults / number, min(_MOST_RATIO, seconds / steps_s))


def _sent_pages(trace: Trace) -> float | None:
    """Pages of a batch that a worker sent; None: not measured."""
    is_batch = pl.col("name").cast(pl.String) == SENT
    num_bytes = trace.rows(pl.col("rank").is_not_null(), is_batch, kinds=["deliver"])["bytes"]
    mean = num_bytes.mean()
    return None if mean is None else float(mean) / PAGE_BYTES  # type: ignore[arg-type]
