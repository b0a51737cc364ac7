"""What each step's time is charged to: every nanosecond to exactly one cause.

An instant of a step goes to the first of these that was happening on the rank:

    1  compute         the accelerator did useful work; whatever ran beside it was hidden
    2  communication   transfer: every rank had arrived, and the gradients moved
    3  h2d             a copy to or from the device
    4  the wait        `storage` to `loader`, see `lineage`
    5  communication   waiting for the ranks that had not arrived
    6  host            nothing of this: what remains

Waiting for peers stands behind the rank's own wait, because a rank whose own next batch is missing would stand still even if its
peers were there. So `communication` of a rank says what others cost it, and the slow rank's own causes say why.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis import lineage
from ioprof.analysis.intervals import Intervals, charge, overlaps
from ioprof.analysis.observed import observed
from ioprof.analysis.peers import COLLECTIVE, Classes, arrivals, behind_peers, exchange, late_windows, waited_for
from ioprof.analysis.selection import COMPUTE, COPIES, by_rank, intervals, kind_in
from ioprof.analysis.steps import steps
from ioprof.analysis.unmeasured import unmeasured
from ioprof.schema import CAUSES
from ioprof.trace import Trace

_KINDS: Final = (*COMPUTE, *COPIES, "comm", *lineage.KINDS)


@dataclass(frozen=True)
class Charges:
    """What the time of all steps is charged to."""

    steps: pl.DataFrame
    """What `blame` returns."""
    behind_peers: dict[int, dict[str, int]]
    """The part of `communication` that was waiting for peers: late rank to what that rank was doing to nanoseconds, summed over the
    ranks that waited. `compute` here means that the late rank had more to compute, or began later."""


def blame(trace: Trace) -> pl.DataFrame:
    """One row per rank and step, in that order: `rank`, `step`, `start_ns`, `end_ns`, and `<cause>_ns` for each of `CAUSES`.

    The causes that are not null sum to `end_ns - start_ns` exactly. A column is null where the run could not measure the cause,
    and a whole row where the GPU was not recorded in that step.
    """
    return charges(trace).steps


def charges(trace: Trace) -> Charges:
    """`blame`, and what the ranks did that others waited for."""
    table, missing, arrived = steps(trace), unmeasured(trace), arrivals(trace)
    charged, seen = np.zeros((len(table), len(CAUSES)), np.int64), observed(trace, table)
    charged[seen, CAUSES.index("host")] = (table["end_ns"] - table["start_ns"]).to_numpy()[seen]  # where a rank has nothing else
    waited, doing = [], {}
    for rank, spans in by_rank(trace, _KINDS, (*lineage.COLUMNS, *COLLECTIVE)):
        rows = np.flatnonzero(seen & (table["rank"].to_numpy() == rank))
        windows, classes = intervals(table[rows]), _classes(spans, arrived, missing)
        charged[rows] = _charge(windows, classes)
        waited.append(waited_for(arrived, rank, classes, windows))
        when_late = late_windows(arrived, rank)
        doing[rank] = [(cause, overlaps(times, when_late)) for cause, times in classes]
    return Charges(_with_causes(table, charged, missing, seen), behind_peers(waited, doing))


def _with_causes(table: pl.DataFrame, charged: NDArray[np.int64], missing: dict[str, str], seen: NDArray[np.bool_]) -> pl.DataFrame:
    columns = {
        cause: pl.repeat(None, len(table), dtype=pl.Int64, eager=True) if cause in missing else pl.Series(charged[:, place])
        for place, cause in enumerate(CAUSES)
    }
    return table.with_columns(column.set(pl.Series(~seen), None).alias(f"{cause}_ns") for cause, column in columns.items())


def _charge(windows: Intervals, classes: Classes) -> NDArray[np.int64]:
    """Nanoseconds of each step by cause, in the order of `CAUSES`."""
    shares = charge(windows, [times for _, times in classes])
    charged = np.zeros((len(windows), len(CAUSES)), np.int64)
    for place, cause in enumerate([*(cause for cause, _ in classes), "host"]):
        charged[:, CAUSES.index(cause)] += shares[:, place]
    return charged


def _classes(spans: pl.DataFrame, arrived: pl.DataFrame, missing: dict[str, str]) -> Classes:
    """What happened on a rank and when, in the order in which time is charged."""
    transfer, waiting = exchange(spans, arrived)
    leaves = lineage.wait_leaves(spans, [cause for cause in lineage.LEAVES if cause not in missing])
    return [
        ("compute", intervals(spans.filter(kind_in(COMPUTE)))),
        ("communication", transfer),
        ("h2d", intervals(spans.filter(kind_in(COPIES)))),
        *leaves.items(),
        ("communication", waiting),
    ]
