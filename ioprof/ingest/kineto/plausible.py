"""Times that cannot be, in the files of other programs: events outside of the time that was
profiled, and activities of one stream that overlap.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.ingest.kineto.spans import EARLY_NS

Numbers = npt.NDArray[np.int64]

FAR_RATIO: Final = 0.01
"""Part of the events that may lie outside. Of more it is not known which of them are wrong."""
_FEWEST: Final = 10
"""Events of which the time of the profile can be told."""


def profiled_time(starts: Numbers) -> tuple[int, int]:
    """The first and the last start of the events that belong together.

    Others are far away: the gap before or behind them is longer than 98 of 100 events last. A zero
    is 50 years away, or up to 91 days where times are relative (the base of Kineto's files), and
    corrupted times of CUPTI a day (pytorch issue 192021).
    """
    order = np.sort(starts)
    most = int(np.ceil(FAR_RATIO * len(order)))
    if len(order) < _FEWEST:
        return (int(order[0]), int(order[-1])) if len(order) else (0, 0)
    last = len(order) - 1 - most
    gaps, extent = np.diff(order), order[last] - order[most]
    early = np.flatnonzero(gaps[:most] > extent)
    late = np.flatnonzero(gaps[last:] > extent)
    low = int(early[-1]) + 1 if len(early) else 0
    high = last + int(late[0]) if len(late) else len(order) - 1
    return int(order[low]), int(order[high])


def clip_overlaps(wall: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Activities of the device, each of which ends when the next one of its stream starts, and how
    many were cut short.

    A stream runs its work in order. Kernels of one graph may run at the same time and have one
    `correlation`; older files round times to microseconds. How long one took that was cut is not
    known: as long as others of its name, if that is less than until the next one.
    """
    columns = ["device", "stream"] + (["process"] if "process" in wall.columns else [])
    placed = wall.with_row_index("row").sort("wall_ns", "row")
    same = pl.col("correlation") == pl.col("correlation").shift(1).over(columns)
    begins = placed.with_columns(
        launch=(~same.fill_null(value=False)).cast(pl.Int64).cum_sum().over(columns)
    )
    nexts = (
        begins.group_by([*columns, "launch"])
        .agg(from_ns=pl.col("wall_ns").min())
        .with_columns(pl.col("launch") - 1)
        .rename({"from_ns": "next_ns"})
    )
    ends = begins.join(nexts, on=[*columns, "launch"], how="left", nulls_equal=True)
    over = (pl.col("wall_ns") + pl.col("dur_ns") - pl.col("next_ns")).fill_null(0)
    found = ends.with_columns(over=pl.max_horizontal(over, 0)).sort("row")
    is_cut = pl.col("over") > EARLY_NS
    cut = int(found.select(is_cut.sum()).item())
    usual_ns = pl.col("dur_ns").filter(~is_cut).median().over("name").cast(pl.Int64)
    left_ns = pl.col("dur_ns") - pl.col("over")
    clipped = found.with_columns(
        dur_ns=pl.when(is_cut).then(pl.min_horizontal(left_ns, usual_ns)).otherwise(left_ns)
    )
    return clipped.select(wall.columns), cut
