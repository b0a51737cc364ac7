"""Copies to a device, as the replay takes them."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.gpu_windows import pageable_ratio
from ioprof.analysis.intervals import Intervals, covered
from ioprof.analysis.selection import intervals
from ioprof.format.trace import Trace
from ioprof.train.copies import COPIES

_OVERLAPPED, _PINNED, _PAGEABLE = COPIES
_MOST: Final = 0.5
"""Part of the copies' time beside which the device did nothing, up to which they count as
overlapped."""


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
