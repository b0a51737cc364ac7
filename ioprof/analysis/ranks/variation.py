"""How waits are spread over batches, and how steps change from epoch to epoch."""

from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.steps import steps
from ioprof.analysis.selection import first_and_last
from ioprof.analysis.student import quantile
from ioprof.format.run_record import EpochReads, Trend, Waiting
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace

_FEWEST_WAITS: Final = 20
_FEWEST_EPOCHS: Final = 3
_FEWEST_STEPS: Final = 4
"""Of each of two epochs that are compared."""
_MOST_OF_WAITING: Final = 0.95
_LEAST_GROWTH: Final = 0.05
_STANDARD_ERRORS: Final = 4.5
"""By which the means of two epochs must differ, of many steps: steps depend on each other, and each
run is asked."""


def waiting(received: pl.DataFrame) -> Waiting | None:
    """How the waiting of the rows of `loaders.batches` for batches to train on is spread."""
    took = (
        received.filter(~pl.col("validates"))
        .select(pl.col("end_ns") - pl.col("start_ns"))
        .to_series()
        .to_numpy()
    )
    if len(took) < _FEWEST_WAITS or not took.sum():
        return None
    longest = np.sort(took)[::-1]
    cumulated = np.cumsum(longest)
    tenth = max(1, round(0.1 * len(longest)))
    most = int(np.searchsorted(cumulated, _MOST_OF_WAITING * cumulated[-1])) + 1
    return Waiting(
        len(longest),
        float(cumulated[-1]) / 1e9,
        float(cumulated[tenth - 1] / cumulated[-1]),
        most / len(longest),
    )


def epochs(trace: Trace, received: pl.DataFrame) -> pl.DataFrame:
    """The batches to train on, and the epoch of each: `rank`, `batch`, `epoch`, `end_ns`, from 0
    on.

    An epoch ends where a rank learns that a loader has no more batches, after one to train on.
    """
    name = pl.col("name").cast(pl.String)
    ends = trace.rows(name == "end", pl.col("rank").is_not_null(), kinds=["wait"])
    ends = ends.select("rank", "end_ns", is_end=pl.lit(value=True))
    training = received.filter(~pl.col("validates")).select(
        "rank", "end_ns", "batch", is_end=pl.lit(value=False)
    )
    ordered = pl.concat([training, ends], how="diagonal").sort("rank", "end_ns", "is_end")
    before = pl.col("is_end").shift().over("rank").fill_null(value=False)
    begins = before & ~pl.col("is_end")
    return (
        ordered.with_columns(epoch=begins.cast(pl.Int64).cum_sum().over("rank"))
        .filter(~pl.col("is_end"))
        .drop("is_end")
    )


def trend(charged: pl.DataFrame, of_batch: pl.DataFrame, of_epochs: pl.DataFrame) -> Trend | None:
    """Steps (`blame`) by epoch; None: there is one epoch.

    `of_batch` is `epochs`; `of_epochs` has `epoch`, `source`, `accesses` and `bytes`.
    """
    last = of_batch.group_by("rank", "epoch").agg(pl.col("end_ns").max()).sort("end_ns")
    if last["epoch"].n_unique() < 2:
        return None
    table = charged.filter(pl.col("host_ns").is_not_null()).sort("start_ns")
    received = of_batch.select("rank", "epoch", "end_ns").sort("end_ns")
    table = table.sort("end_ns").join_asof(
        received, on="end_ns", by="rank", strategy="backward", check_sortedness=False
    )
    table = table.drop_nulls("epoch").with_columns(wall_ns=pl.col("end_ns") - pl.col("start_ns"))
    rows = tuple(
        _epoch(number, table.filter(pl.col("epoch") == number), of_epochs)
        for number in table["epoch"].unique().sort()
    )
    if len(rows) < _FEWEST_EPOCHS:
        return Trend(rows, None, None, None)
    first, final = (table.filter(pl.col("epoch") == row.epoch) for row in (rows[1], rows[-1]))
    grown_ns = float(final["wall_ns"].to_numpy().mean() - first["wall_ns"].to_numpy().mean())
    ratio = grown_ns / float(first["wall_ns"].to_numpy().mean())
    if abs(ratio) < _LEAST_GROWTH or not _differ(
        *(part["wall_ns"].to_numpy() for part in (first, final))
    ):
        return Trend(rows, None, None, None)
    by_cause = {
        cause: _mean(final, cause) - _mean(first, cause)
        for cause in CAUSES
        if not table[f"{cause}_ns"].null_count()
    }
    cause = max(by_cause, key=lambda name: by_cause[name] if grown_ns > 0 else -by_cause[name])
    return Trend(rows, ratio, cause, by_cause[cause])


def _differ(first: np.ndarray, final: np.ndarray) -> bool:
    """Whether the means of two samples differ by more than chance, for the smaller number of their
    values.
    """
    fewest = min(len(first), len(final))
    if fewest < _FEWEST_STEPS:
        return False
    error = float(np.sqrt(sum(each.var(ddof=1) / len(each) for each in (first, final))))
    most = _STANDARD_ERRORS * quantile(0.975, fewest - 1) / quantile(0.975, 10_000)
    return abs(float(final.mean() - first.mean())) > most * error


def _mean(part: pl.DataFrame, cause: str) -> float:
    return float(part[f"{cause}_ns"].to_numpy().mean()) / 1e9


def _epoch(number: int, part: pl.DataFrame, of_epochs: pl.DataFrame) -> EpochReads:
    own = of_epochs.filter(pl.col("epoch") == number)
    moved = dict(own.select("source", "bytes").iter_rows())
    waited = [
        f"{cause}_ns" for cause in CAUSES[CAUSES.index("storage") : CAUSES.index("loader") + 1]
    ]
    return EpochReads(
        epoch=number,
        steps=len(part),
        step_s=float(part["wall_ns"].to_numpy().mean()) / 1e9,
        waited_s=float(part.select(pl.sum_horizontal(waited)).to_series().to_numpy().mean()) / 1e9,
        accesses=int(own["accesses"].sum()),
        bytes_from_storage=int(moved.get("storage", 0)),
        bytes_from_cache=int(moved.get("page_cache", 0)),
        bytes_unknown=int(moved.get("unknown", 0)),
    )


def steps_bounds(trace: Trace) -> tuple[int, int]:
    """From the start of the first step to the end of the last; (0, 1) without steps."""
    table = steps(trace)
    return first_and_last(table) if len(table) else (0, 1)
