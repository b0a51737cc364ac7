"""How far apart the ranks arrive at an exchange, by rank and over time."""

from typing import Final

import numpy as np
import polars as pl

from ioprof.format.run_record import RankSkew

_PARTS: Final = 20
_FEWEST_STEPS: Final = 4


def skew(arrived: pl.DataFrame, uncertainty_ns: int) -> tuple[RankSkew, ...]:
    """One per rank, latest first; none for a job of one rank, or with fewer than four steps with an
    exchange of all ranks.

    `arrived` is `stragglers.arrivals(trace)`. What is closer than the clocks' uncertainty counts as
    simultaneous.
    """
    first = (
        arrived.filter(~pl.col("is_message")).group_by("rank", "step").agg(pl.col("own_ns").min())
    )
    ranks = first["rank"].n_unique()
    complete = first.filter(pl.len().over("step") == ranks)
    behind = pl.col("own_ns") - pl.col("own_ns").min().over("step")
    clear = pl.when(behind > uncertainty_ns).then(behind).otherwise(0)
    table = complete.with_columns(behind_ns=clear).with_columns(
        is_last=(pl.col("behind_ns") > 0)
        & (pl.col("behind_ns") == pl.col("behind_ns").max().over("step"))
    )
    number = table["step"].n_unique()
    if ranks < 2 or number < _FEWEST_STEPS:
        return ()
    found = []
    for (rank,), part in (
        table.sort("rank", "step").partition_by("rank", as_dict=True, maintain_order=True).items()
    ):
        late_ns = part["behind_ns"].to_numpy()
        pieces = np.array_split(late_ns, min(_PARTS, number))
        over_time = tuple(float(piece.mean()) / 1e9 for piece in pieces)
        found.append(
            RankSkew(
                int(rank),
                float(part["is_last"].to_numpy().mean()),
                float(late_ns.mean()) / 1e9,
                over_time,
            )
        )
    return tuple(sorted(found, key=lambda entry: (-entry.behind_s, entry.rank)))
