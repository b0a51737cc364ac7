"""How much was copied to and from devices in each step, by direction."""

from typing import Final

import polars as pl

from ioprof.analysis.charge.steps import of_steps
from ioprof.analysis.selection import COPIES
from ioprof.format.trace import Trace

_COLUMNS: Final = ("rank", "kind", "start_ns", "step", "bytes")


def copied_per_step(trace: Trace, table: pl.DataFrame) -> dict[str, float]:
    """Bytes of a step by the kind of their copies, mean over ranks and steps. `table` is that of
    the steps in which devices were recorded.
    """
    copies = trace.rows(pl.col("rank").is_not_null(), pl.col("bytes") > 0, kinds=COPIES).select(
        _COLUMNS
    )
    sums = dict.fromkeys(COPIES, 0)
    for (rank,), of_rank in copies.partition_by("rank", as_dict=True).items():
        inside = of_rank.filter(of_steps(of_rank, table.filter(pl.col("rank") == rank)))
        for kind in COPIES:
            sums[kind] += int(inside.filter(pl.col("kind") == kind)["bytes"].sum())
    return {kind: count / len(table) for kind, count in sums.items() if len(table)}
