"""What a device computes while the training loop goes on, how far ahead of it the loop is, and how
batches are copied to it.

A loop on an accelerator launches work and waits for it later: when it reads the loss, or some steps
on. When, no record says, but one that asks for a batch while the device still computes has not
waited for that. So the run is replayed with a loop that waits at once, one step later, and two, as
far as it was seen to do so. What reproduces the measured steps best is taken, if it does so well;
else, of these and a loop whose waits are part of its own time, the best. The last always reproduces
the waits of one rank, but not what they would be on a slower device: computation that a wait for a
batch hides is not in it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.gpu_windows import pageable_ratio
from ioprof.analysis.intervals import Intervals, covered, union
from ioprof.analysis.ranks.stragglers import arrivals
from ioprof.analysis.selection import COMPUTE, by_rank, intervals, kind_in, on_stream
from ioprof.format.trace import Trace
from ioprof.model.changed import shortened
from ioprof.model.cores.contention import MOST_COMPARED
from ioprof.model.pace import Pace, measured, replayed
from ioprof.model.pipeline import Op, Pipeline, Program, Rank
from ioprof.train.copies import COPIES

_DEPTHS: Final = (0, 1, 2)
_OFTEN: Final = 0.9
"""Quantile of the steps that the loop was seen to be ahead."""
_UNFINISHED: Final = 0.1
"""Part of a step's computation that the device has yet to do, from which on the loop is ahead of
it; less may be the error of its clock."""
_GOOD_ERROR: Final = 0.03
"""Of the replayed step, up to which a loop that waits for a device is taken for what it is."""
_MOST_OFF: Final = 0.1
"""Of the whole loop."""
_LEAST_KNOWN: Final = 4
"""Steps whose computation on the device must have been recorded: as many as a replay needs.
Profiles of other programs often have six."""
_OVERLAPPED, _PINNED, _PAGEABLE = COPIES
_MOST: Final = 0.5
"""Part of the copies' time beside which the device did nothing, up to which they count as
overlapped."""


def with_depth(trace: Trace, recorded: Pipeline) -> Pipeline:
    """The pipeline with what its device computes, if it has one."""
    if not recorded.on_device:
        return recorded
    arrived = arrivals(trace)
    spans = dict(by_rank(trace, (*COMPUTE, "comm", "step"), ("stream", "step", "batch", "name")))
    ranks, seen = zip(
        *(_with_device(rank, spans[rank.rank], arrived) for rank in recorded.ranks), strict=True
    )
    if any(int((rank.program.device_s > 0).sum()) < _LEAST_KNOWN for rank in ranks):
        return recorded
    least = max(seen)
    tried = [
        replace(recorded, ranks=tuple(replace(rank, depth=depth) for rank in ranks))
        for depth in (least, *(depth for depth in _DEPTHS if depth > least), None)
    ]
    short = [shortened(each, MOST_COMPARED) for each in tried]
    errors = [_error(measured(short[0]), replayed(each)) for each in short]
    best = min(errors[:-1])
    return tried[errors.index(best if best <= _GOOD_ERROR else min(errors))]


def _ahead(rank: Rank, ends: dict[int, int]) -> int:
    """How many steps the device had yet to do when the loop asked for a batch, but for the tenth of
    the steps in which most were left. `ends`: by action, when the device had done its work.
    """
    rows = np.array(sorted(ends), np.int64)
    least_ns = _UNFINISHED * 1e9 * rank.program.device_s[rows]
    done_ns = np.maximum.accumulate(np.array([ends[row] for row in rows.tolist()]) - least_ns)
    number = np.arange(len(rows))
    done = np.searchsorted(done_ns, rank.begun_ns[rows], side="right")
    ahead = number - np.minimum(done, number)
    return int(np.quantile(ahead, _OFTEN, method="lower")) if len(ahead) else 0


def _error(true: Pace, found: Pace) -> float:
    """Of a step. Infinite if the whole loop is far off: of few steps, a wrong depth may fit the
    last ones alone.
    """
    is_off = abs(found.total_s / true.total_s - 1) > _MOST_OFF
    return math.inf if is_off else abs(found.step_s / true.step_s - 1)


def _with_device(rank: Rank, spans: pl.DataFrame, arrived: pl.DataFrame) -> tuple[Rank, int]:
    """The rank with the device's work for each batch that it takes, in order of the steps, and how
    many steps it was seen to be ahead.
    """
    computed = spans.filter(kind_in(COMPUTE), on_stream)
    busy = union(intervals(computed))
    of_step = (
        computed.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("step")
    )
    if of_step.is_empty():
        return rank, 0
    device = dict(
        zip(
            of_step["step"].to_list(),
            (covered(intervals(of_step), busy) / 1e9).tolist(),
            strict=True,
        )
    )
    ends = dict(of_step.select("step", "end_ns").rows())
    comm = (
        spans.filter(pl.col("kind") == "comm", pl.col("step").is_not_null())
        .group_by("step")
        .agg(pl.col("end_ns").max())
    )
    own = (
        arrived.filter(pl.col("rank") == rank.rank)
        .group_by("step")
        .agg(pl.col("complete_ns").max())
    )
    transfers = {
        step: max(0, end - max(complete, ends.get(step, complete))) / 1e9
        for step, end, complete in comm.join(own, on="step")
        .select("step", "end_ns", "complete_ns")
        .rows()
    }
    program = rank.program
    numbers = spans.filter(pl.col("kind") == "step")["step"].drop_nulls().unique().sort().to_list()
    trains = [
        op is Op.TAKE and not rank.iterations[each].is_validation
        for op, each in zip(program.ops, program.iterations, strict=True)
    ]
    steps = dict(zip(np.flatnonzero(trains).tolist(), numbers, strict=False))
    found = replace(rank, program=_with_work(program, steps, device, transfers))
    return found, _ahead(found, {row: ends[step] for row, step in steps.items() if step in ends})


def _with_work(
    program: Program, steps: dict[int, int], device: dict[int, float], transfers: dict[int, float]
) -> Program:
    device_s, transfer_s, device_step = (
        np.zeros(len(program)),
        np.zeros(len(program)),
        np.full(len(program), -1, np.int64),
    )
    for row, step in steps.items():
        device_s[row] = device.get(step, np.nan)
        transfer_s[row] = transfers.get(step, 0.0)
        device_step[row] = step if step in transfers else -1
    return replace(program, device_s=device_s, transfer_s=transfer_s, device_step=device_step)


def copy_s(trace: Trace) -> float:
    """The median over steps of the time of their copies to the device."""
    copies = trace.rows(pl.col("step").is_not_null(), kinds=["h2d"]).group_by("rank", "step")
    took = copies.agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())["ns"].to_numpy()
    return float(np.median(took)) / 1e9 if len(took) else 0.0


def way(trace: Trace, exposed: Mapping[int, Intervals]) -> str:
    """How batches are copied, one of `ioprof.train.copies.COPIES`: as the job says, or as its
    copies were recorded.

    `exposed`: the instants of each rank that are charged to `h2d`.
    """
    if trace.run.config.copy:
        return trace.run.config.copy
    copies = trace.rows(pl.col("rank").is_not_null(), kinds=["h2d"])
    alone = [
        covered(intervals(part), exposed[rank]).sum()
        for (rank,), part in copies.partition_by("rank", as_dict=True).items()
        if rank in exposed
    ]
    if sum(alone) <= _MOST * int((copies["end_ns"] - copies["start_ns"]).sum()):
        return _OVERLAPPED
    return _PAGEABLE if (pageable_ratio(trace) or 0.0) > _MOST else _PINNED
