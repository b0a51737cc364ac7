"""Waits until what was written is on storage: fsync and calls like it, see
`native/capture/hooks_sync.c`.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.analysis.selection import of_kind
from ioprof.format.schema import FLUSH, RENAME
from ioprof.format.trace import Trace

_AFTER_NS: Final = 50_000_000
"""A flush that begins so soon after a checkpoint was saved, or after such a flush, is part of
it."""

is_flush: Final = pl.col("name").cast(pl.String).str.starts_with(FLUSH).fill_null(value=False)
"""Of spans of kind `user`."""


@dataclass(frozen=True)
class Flushed:
    """The flushes that the threads of the ranks' steps made within steps."""

    number: int
    per_step: float
    seconds: float
    """Of all of them, summed over ranks."""
    file: str
    """Whose flushes took longest; empty: not known."""


def flushed(trace: Trace) -> Flushed | None:
    """Those of all ranks; None: there is none."""
    by = ["host", "pid", "tid"]
    found = trace.rows(is_flush, kinds=["user"]).select(
        *by, "start_ns", "end_ns", pl.col("name").cast(pl.String)
    )
    if found.is_empty():
        return None
    steps = trace.rows(pl.col("rank").is_not_null(), kinds=["step"]).select(
        *by, "start_ns", until_ns="end_ns"
    )
    found = found.sort("start_ns").join_asof(
        steps.sort("start_ns"), on="start_ns", by=by, check_sortedness=False
    )
    found = found.filter(pl.col("start_ns") < pl.col("until_ns"))
    if found.is_empty():
        return None
    took = (
        found.group_by("name")
        .agg(took_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("took_ns", "name")
    )
    _, _, file = str(took["name"][-1]).partition(" of ")
    return Flushed(len(found), len(found) / len(steps), int(took["took_ns"].sum()) / 1e9, file)


def of_checkpoints(spans: pl.DataFrame) -> pl.DataFrame:
    """The flushes by which checkpoints reach storage, and the renames by which they get their
    names: those of one thread that follow the end of a `save`, one after the other.

    Each from the end of what came before it.

    `spans` are the `checkpoint` and `user` spans of that thread.
    """
    is_rename = (pl.col("name").cast(pl.String) == RENAME).fill_null(value=False)
    flushes = of_kind(spans, "user").filter(is_flush | is_rename)
    saves = of_kind(spans, "checkpoint").filter(pl.col("name").cast(pl.String) == "save")
    if flushes.is_empty() or saves.is_empty():
        return flushes.clear()
    row = pl.concat([saves.with_columns(is_save=True), flushes.with_columns(is_save=False)]).sort(
        "start_ns", "end_ns"
    )
    before_ns = pl.col("end_ns").cum_max().shift()
    chain = (
        pl.col("is_save") | (pl.col("start_ns") - before_ns > _AFTER_NS).fill_null(value=True)
    ).cum_sum()
    row = row.with_columns(chain=chain, before_ns=before_ns).filter(
        pl.col("is_save").first().over("chain"), ~pl.col("is_save")
    )
    return row.with_columns(start_ns=pl.min_horizontal("start_ns", "before_ns")).select(
        flushes.columns
    )
