"""Waits until what was written is on storage: fsync and calls like it, see
`native/capture/hooks_sync.c`.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.analysis.selection import of_kind
from ioprof.format.schema import FLUSH, OPEN_TO_WRITE, RENAME
from ioprof.format.trace import Trace

_BEFORE_NS: Final = 1_000_000
"""A checkpoint that begins to be saved so soon after a file was opened is written to it."""
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
    """The calls beside its `save` that a checkpoint consists of: just before it those that open its
    files for writing; after it those by which they reach storage (flushes) and by which they get
    their names (renames), one after the other, each from the end of what came before it.

    `spans` are the `checkpoint` and `user` spans of the thread that saved.
    """
    name = pl.col("name").cast(pl.String)
    is_opening = (name == OPEN_TO_WRITE).fill_null(value=False)
    is_after = is_flush | (name == RENAME).fill_null(value=False)
    calls = of_kind(spans, "user").filter(is_opening | is_after)
    saves = of_kind(spans, "checkpoint").filter(name == "save")
    if calls.is_empty() or saves.is_empty():
        return calls.clear()
    row = pl.concat([saves.with_columns(is_save=True), calls.with_columns(is_save=False)]).sort(
        "start_ns", "end_ns"
    )
    is_save, start_ns, end_ns = pl.col("is_save"), pl.col("start_ns"), pl.col("end_ns")
    is_beside = (start_ns >= end_ns.cum_max().shift()).fill_null(value=True)
    begins = (start_ns.shift(-1) - end_ns > _BEFORE_NS).fill_null(value=True)
    opened = row.filter(is_save | is_opening & is_beside).with_columns(
        chain=(is_save | begins).cum_sum(reverse=True)
    )
    before_ns = end_ns.cum_max().shift()
    continues = (start_ns - before_ns <= _AFTER_NS).fill_null(value=False)
    ended = row.filter(is_save | is_after).with_columns(
        chain=(is_save | ~continues).cum_sum(), start_ns=pl.min_horizontal("start_ns", before_ns)
    )
    found = [
        opened.filter(is_save.last().over("chain"), ~is_save),
        ended.filter(is_save.first().over("chain"), ~is_save),
    ]
    return pl.concat(found).select(calls.columns)
