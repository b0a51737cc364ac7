"""When a rank validates."""

import numpy as np
import polars as pl

from ioprof.analysis.intervals import EMPTY, Intervals, pack, union, union_all
from ioprof.analysis.selection import intervals, of_kind
from ioprof.format.schema import BY_MODE
from ioprof.format.trace import Trace


def by_mode_s(trace: Trace) -> float:
    """Seconds, summed over ranks, in which a model was in evaluation mode, and nothing else says
    that it was evaluated.
    """
    named = trace.rows(
        pl.col("name").cast(pl.String) == BY_MODE, pl.col("rank").is_not_null(), kinds=["validate"]
    )
    return int((named["end_ns"] - named["start_ns"]).sum()) / 1e9


def validations(spans: pl.DataFrame) -> Intervals:
    """When the training thread whose spans these are evaluated its model.

    That is: its `validate` spans; its waits for batches to validate on; what follows such a wait up
    to the next wait, if no training step ended in between; and next to these the waits for the
    workers ("start") and for the end ("end") of a loader.
    """
    waits = of_kind(spans, "wait").with_columns(pl.col("name").cast(pl.String).fill_null(""))
    batches, starts, ends = (
        union(intervals(waits.filter(pl.col("name") == name)))
        for name in ("validate", "start", "end")
    )
    marked = intervals(of_kind(spans, "validate"))
    if not len(batches):
        return union(marked)
    every = union(intervals(waits))
    gaps = pack(every[:-1, 1], every[1:, 0])
    steps = (
        of_kind(spans, "step")
        .group_by("step")
        .agg(pl.col("end_ns").max())["end_ns"]
        .sort()
        .to_numpy()
    )
    is_quiet = np.searchsorted(steps, gaps[:, 0]) == np.searchsorted(
        steps, gaps[:, 1], side="right"
    )
    after = gaps[is_quiet & np.isin(gaps[:, 0], batches[:, 1])]
    before = gaps[is_quiet & np.isin(gaps[:, 0], starts[:, 1]) & np.isin(gaps[:, 1], batches[:, 0])]
    last = ends[np.isin(ends[:, 0], np.concatenate([batches[:, 1], after[:, 1]]))]
    first = starts[np.isin(starts[:, 1], np.concatenate([batches[:, 0], before[:, 0]]))]
    return union_all([marked, batches, after, before, last, first])


def queued_before(validation: Intervals, steps: pl.DataFrame, computed: pl.DataFrame) -> Intervals:
    """What a device still computed of earlier steps when a validation had begun: a loop launches
    work before it is done.

    `validation`: a normal set. `steps`, and `computed` on streams of a device: `step`, `start_ns`,
    `end_ns`.
    """
    steps, computed = steps.sort("start_ns"), computed.filter(pl.col("step").is_not_null())
    if not len(validation) or steps.is_empty() or computed.is_empty():
        return EMPTY
    place = np.searchsorted(steps["start_ns"].to_numpy(), validation[:, 0], side="right") - 1
    current = np.where(
        place >= 0,
        steps["step"].to_numpy()[place] + (steps["end_ns"].to_numpy()[place] <= validation[:, 0]),
        -1,
    )
    of_validation = np.searchsorted(validation[:, 0], computed["end_ns"].to_numpy()) - 1
    is_earlier = (of_validation >= 0) & (computed["step"].to_numpy() < current[of_validation])
    return intervals(computed.filter(pl.Series(is_earlier)))
