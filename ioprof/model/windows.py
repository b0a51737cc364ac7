"""What the training loop did where its GPU was not recorded, and without the time that recording it
took.

A GPU is recorded in windows. Elsewhere the times of steps are known, and what the loop itself noted
(validation, checkpoints), but not what the device did. There the rest of the loop's time is divided
between causes as it was, in sum, where the GPU was recorded.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.gpu_windows import recorded_times
from ioprof.analysis.intervals import Intervals, covered, pack, subtract, union
from ioprof.analysis.selection import intervals
from ioprof.format.schema import WINDOW_SPAN
from ioprof.format.trace import Trace
from ioprof.model.pipeline import OWN, Op, Pipeline, Rank, Seconds

_NOTED: Final = np.array([cause in ("validation", "checkpoint") for cause in OWN])
"""Causes that the loop's own records tell, also where the GPU was not recorded."""


def without_windows(
    trace: Trace, recorded: Pipeline, causes: Mapping[int, Mapping[str, Intervals]]
) -> Pipeline:
    """The pipeline as if its GPU had been recorded in all steps, at no cost.

    `causes`: of each rank, the instants that are charged to each cause.
    """
    if not (trace.run.capture.gpu and trace.run.capture.gpu.windows):
        return recorded
    blocked = trace.rows(pl.col("name").cast(pl.String) == WINDOW_SPAN, kinds=["user"])
    marked = trace.rows(pl.col("rank").is_not_null(), kinds=["validate"])
    loops = trace.rows(pl.col("rank").is_not_null(), kinds=["step"]).select("rank", "tid").unique()
    waits = trace.rows(pl.col("rank").is_not_null(), kinds=["sync"]).join(
        loops, on=["rank", "tid"], how="semi"
    )
    is_known = {
        window.rank for window in trace.run.capture.gpu.windows if window.loop_waited_ns is not None
    }

    def changed(rank: Rank) -> Rank:
        recorded = recorded_times(trace, rank.rank)
        if recorded is None or not len(rank.program):
            return rank
        times = (
            union(intervals(each.filter(pl.col("rank") == rank.rank)))
            for each in (blocked, marked, waits)
        )
        found = _of_rank(rank, recorded, causes[rank.rank]["compute"], *times)
        return (
            found
            if rank.rank in is_known
            else replace(found, program=replace(found.program, hidden_s=rank.program.hidden_s))
        )

    return replace(recorded, ranks=tuple(map(changed, recorded.ranks)))


def _of_rank(
    rank: Rank,
    recorded: Intervals,
    computed: Intervals,
    blocked: Intervals,
    marked: Intervals,
    waits: Intervals,
) -> Rank:
    """`blocked`: when windows blocked the loop. `marked`: its validations, as it noted them.
    `waits`: its waits for the device.
    """
    program, after, host = rank.program, rank.program.after_s.copy(), OWN.index("host")
    length_ns = np.rint(after.sum(1) * 1e9).astype(np.int64)
    rows = pack(rank.taken_ns, rank.taken_ns + length_ns)
    is_take = np.array([op is Op.TAKE for op in program.ops])
    trains = is_take & ~np.array(
        [rank.iterations[number].is_validation for number in program.iterations]
    )
    is_seen = covered(rows, recorded) == length_ns
    after = _without_queue(after, is_seen, covered(rows, marked) / 1e9)
    after[:, host] = np.maximum(0.0, after[:, host] - covered(rows, blocked) / 1e9)
    after = as_recorded(after, trains, is_seen)
    hidden = _hidden(
        after[:, OWN.index("compute")], covered(rows, subtract(computed, waits)) / 1e9, is_seen
    )
    until = np.concatenate((rank.begun_ns, rank.taken_ns, [rank.end_ns]))
    moved = until - covered(pack(np.full(len(until), rank.begin_ns), until), blocked)
    arrive = np.minimum(program.arrive_s, after.sum(1))
    return replace(
        rank,
        program=replace(program, after_s=after, arrive_s=arrive, hidden_s=hidden),
        begun_ns=moved[: len(program)],
        taken_ns=moved[len(program) : -1],
        end_ns=int(moved[-1]),
    )


def _hidden(computed_s: Seconds, hidden_s: Seconds, is_seen: NDArray[np.bool_]) -> Seconds:
    """`Program.hidden_s`: as it was in seen rows, and elsewhere the same part of what the device
    computed.
    """
    whole_s = computed_s[is_seen].sum()
    ratio = hidden_s[is_seen].sum() / whole_s if whole_s > 0 else 0.0
    return np.where(is_seen, hidden_s, computed_s * ratio)


def _without_queue(after_s: Seconds, is_seen: NDArray[np.bool_], marked_s: Seconds) -> Seconds:
    """The same where a noted validation is not shorter for what the device still had to compute
    when it began: as in seen rows.
    """
    validation, host = OWN.index("validation"), OWN.index("host")
    noted_s = marked_s[is_seen].sum()
    ratio = min(1.0, after_s[is_seen, validation].sum() / noted_s) if noted_s > 0 else 1.0
    found = after_s.copy()
    found[~is_seen, validation] *= ratio
    found[:, host] += after_s[:, validation] - found[:, validation]
    return found


def as_recorded(after_s: Seconds, trains: NDArray[np.bool_], is_seen: NDArray[np.bool_]) -> Seconds:
    """`Program.after_s` where rows of training that were not seen are divided as the seen ones are,
    in sum.

    Nothing is changed where no row was seen; what a row took in all stays, and what the loop noted
    itself.
    """
    seen, unseen = trains & is_seen, trains & ~is_seen
    sums = np.where(_NOTED, 0.0, after_s[seen].sum(0))
    if not sums.sum():
        return after_s
    found = after_s.copy()
    rest_s = np.where(_NOTED, 0.0, after_s[unseen]).sum(1)
    found[unseen] = np.where(_NOTED, after_s[unseen], rest_s[:, None] * (sums / sums.sum()))
    return found
