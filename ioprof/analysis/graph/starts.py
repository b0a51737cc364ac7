"""When a loop waited for workers that were starting, whose tasks were not recorded, of pools and of
processes of its own: by who woke whom.

    worker 1   [start    ][make][make]         [start    ][make][make]
    loop       [wait     ].....[..]...         [wait     ].....[..]...
               first generation                second generation

A worker starts from its beginning until it first gives the process of the loop something, or first
waits for that, which includes what it does once, such as the initializer of a pool. What it takes
usually from one of these to the next, such as to make a batch, is no part of its start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.training_process import in_main_thread
from ioprof.analysis.graph.wakers import Wakers
from ioprof.analysis.intervals import Intervals, overlaps, pack, subtract, union, union_all
from ioprof.analysis.loaders import POOLS, generations
from ioprof.analysis.selection import intervals, of_kind
from ioprof.format.run_record import ProcessRecord
from ioprof.format.trace import Trace

_ENDS: Final = "process"
"""What a wait is for that the end of a process ends, which gives nothing."""
_FEWEST_STEPS: Final = 2
"""Steps in which a process must meet the loop's, unless it is of a pool: one that does so in one
alone may be a program that was run for its output."""
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Starts:
    """Of one rank."""

    times: Intervals
    """When it waited for workers that were starting."""
    again: Intervals
    """The part of these in which the workers took the place of others, which had done their
    work."""
    generations: int
    """How often workers were started, at least."""


def starts_by_rank(trace: Trace, wakers: Mapping[int, Wakers]) -> dict[int, Starts]:
    """Of the ranks that waited for processes whose tasks were not recorded."""
    began = [each.first_ns or 0 for each in trace.run.processes if each.role != "rank"]
    steps = trace.rows(pl.col("rank").is_not_null(), kinds=["step"])
    if not wakers or max(began, default=0) < int(steps["start_ns"].min() or 0):  # type: ignore[arg-type]
        return {}  # as of most jobs, whose spans need not be looked at
    fetched = trace.rows(pl.col("rank").is_not_null(), kinds=["fetch"])
    fetched = fetched.select("rank", "batch", "pid").unique()
    waits = trace.rows(pl.col("rank").is_not_null(), kinds=["wait"])
    spans = pl.concat([steps, waits]).sort("start_ns")
    found = {
        rank: _of_rank(trace, part, fetched.filter(pl.col("rank") == rank), wakers[rank])
        for (rank,), part in spans.partition_by("rank", as_dict=True).items()
        if rank in wakers
    }
    return {rank: starts for rank, starts in found.items() if starts is not None}


def _of_rank(
    trace: Trace, spans: pl.DataFrame, fetched: pl.DataFrame, wakers: Wakers
) -> Starts | None:
    """From its steps and waits, and the tasks that were recorded. None: nobody began since its
    first step.
    """
    steps = of_kind(spans, "step").sort("start_ns")
    if steps.is_empty():
        return None
    host, ends = steps["host"].cast(pl.String)[0], steps["end_ns"].to_numpy()
    consumer, loop = int(steps["pid"][0] or 0), int(steps["tid"][0] or 0)
    whole = np.array([[int(steps["start_ns"][0]), int(ends.max())]], np.int64)
    others = [
        each
        for each in trace.run.processes
        if each.first_ns is not None and each.host in (host, None) and each.role != "rank"
    ]
    known = {consumer, *fetched["pid"].to_list()}
    others = [each for each in others if each.pid not in known]
    if all((each.first_ns or 0) < whole[0, 0] for each in others):
        return None
    waits = spans.filter(pl.col("kind") == "wait", in_main_thread(spans))
    name = pl.col("name").cast(pl.String)
    of_pools = waits.filter(name.is_in(POOLS).fill_null(value=False))
    unseen = union(intervals(of_pools.join(fetched, on="batch", how="anti")))
    outside = subtract(whole, union(intervals(waits)))
    met = _met(trace.blocks.filter(pl.col("host").cast(pl.String).eq_missing(host)), consumer)
    others = [each for each in others if each.pid in met]
    for_pools, for_loop = (
        {wakers.process_of(tid) for tid in wakers.working(loop, times)}
        for times in (unseen, outside)
    )
    for_loop = {
        pid
        for pid in for_loop & met.keys()
        if len(np.unique(np.searchsorted(ends, met[pid]))) >= _FEWEST_STEPS
    }
    kinds = {_kind(each) for each in others if each.pid in for_pools | for_loop}
    workers = [
        _worker(each.first_ns or 0, met[each.pid or 0]) for each in others if _kind(each) in kinds
    ]
    if not workers:
        return None
    begins, until, last = np.array(workers, np.int64).T
    of_generation = generations(begins, last)
    count = int(of_generation.max()) + 1
    times = pack(np.full(count, _NEVER), np.full(count, _NEVER))
    np.minimum.at(times[:, 0], of_generation, begins)
    np.minimum.at(times[:, 1], of_generation, until)
    awaited = union_all([unseen, wakers.in_others(loop, outside)])
    return Starts(overlaps(awaited, times), overlaps(awaited, times[1:]), count)


def _kind(process: ProcessRecord) -> tuple[int | None, str | None]:
    """What workers that take each other's place have in common."""
    return process.parent_pid, process.program


def _met(blocks: pl.DataFrame, consumer: int) -> dict[int, NDArray[np.int64]]:
    """When each process gave the consumer something for which that waited, or waited for it, in
    order.
    """
    blocks = blocks.filter(pl.col("object").cast(pl.String) != _ENDS)
    gave = blocks.filter(pl.col("pid") == consumer, pl.col("waker_pid") != consumer)
    got = blocks.filter(pl.col("waker_pid") == consumer, pl.col("pid") != consumer)
    found = pl.concat(
        [
            gave.select(pid="waker_pid", time_ns=pl.coalesce("woken_ns", "end_ns")),
            got.select("pid", time_ns="start_ns"),
        ]
    ).sort("time_ns")
    parts = found.partition_by("pid", as_dict=True, maintain_order=True)
    return {int(pid): part["time_ns"].to_numpy() for (pid,), part in parts.items()}


def _worker(begin_ns: int, met: NDArray[np.int64]) -> tuple[int, int, int]:
    """When it began, had started, and last met the loop's process."""
    usual_ns = int(met[-1] - met[0]) // (len(met) - 1) if len(met) > 1 else 0
    return begin_ns, max(begin_ns, int(met[0]) - usual_ns), int(met[-1])
