"""Makes `checkpoint` spans of files that a training thread wrote to keep them, where no hook knows
the function that did: a pickle, an archive, a writer of the job's own.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from ioprof.format.schema import FLUSH, OPEN_TO_WRITE, RENAME, SPAN_COLUMNS, WRITE
from ioprof.format.trace import empty_table

LEAST_KEPT_BYTES: Final = 1_000_000
"""Logs, metrics and pages of a database are shorter, and are flushed and renamed as well."""
AFTER_NS: Final = 50_000_000
"""A flush or a rename that begins so soon after a file was written is of that file."""
_THREAD: Final = ["host", "pid", "tid"]


class WrittenFiles:
    """Looks at spans in any number of parts.

    What is written between two steps to one file, and is then brought to storage (fsync) or given
    its final name (rename), is kept: what a job only writes, such as predictions, is not. The span
    lasts from the opening of the file, or else from the first write of 4 kB or more, to the last
    write; what was computed before is not known.
    """

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []

    def add(self, spans: pl.DataFrame) -> None:
        """Look at the next part."""
        kind = pl.col("kind")
        few = spans.filter(pl.col("rank").is_not_null(), kind.is_in(["step", "checkpoint", "user"]))
        name = pl.col("name").cast(pl.String)
        keeps = name.is_in([OPEN_TO_WRITE, WRITE, RENAME]) | name.str.starts_with(FLUSH)
        found = few.filter((kind != "user") | keeps.fill_null(value=False))
        if not found.is_empty():
            self._parts.append(found.with_columns(name=name))

    def spans(self) -> pl.DataFrame:
        """The spans of such files."""
        none = empty_table(SPAN_COLUMNS)
        parts = [found for part in self._threads() for found in _kept(part)]
        if not parts:
            return none
        return pl.concat([none, *(part.cast(none.schema) for part in parts)])

    def _threads(self) -> Iterator[pl.DataFrame]:
        if not self._parts:
            return
        found = pl.concat(self._parts)
        has = found.group_by(_THREAD).agg(
            steps=(pl.col("kind") == "step").any(), writes=(pl.col("name") == WRITE).any()
        )
        both = has.filter("steps", "writes")
        yield from found.join(both, on=_THREAD, how="semi", nulls_equal=True).partition_by(_THREAD)


def _kept(spans: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Those of one thread."""
    kind = pl.col("kind")
    starts = np.unique(spans.filter(kind == "step")["start_ns"].to_numpy())
    known = spans.filter(kind == "checkpoint").select("start_ns", until_ns="end_ns")
    is_opening = pl.col("name") == OPEN_TO_WRITE
    rows = spans.filter(kind == "user", ~is_opening).sort("start_ns", "end_ns")
    rows = rows.join_asof(known.sort("start_ns"), on="start_ns", check_sortedness=False)
    rows = rows.filter((pl.col("end_ns") > pl.col("until_ns")).fill_null(value=True))
    step = np.searchsorted(starts, rows["start_ns"].to_numpy(), side="right")
    is_write = pl.col("name") == WRITE
    rows = rows.with_columns(between=pl.Series(step), is_write=is_write)
    same = pl.struct("file", "between", "is_write")
    begins = (~pl.col("is_write") | (same != same.shift())).fill_null(value=True)
    chains = rows.group_by(begins.cum_sum().alias("chain"), maintain_order=True).agg(
        pl.exclude("end_ns", "bytes").first(), pl.col("end_ns").max(), pl.col("bytes").sum()
    )
    kept = chains.filter(
        "is_write",
        pl.col("bytes") >= LEAST_KEPT_BYTES,
        ~pl.col("is_write").shift(-1),
        pl.col("start_ns").shift(-1) - pl.col("end_ns") <= AFTER_NS,
    )
    if not kept.is_empty():
        opened = spans.filter(kind == "user", is_opening).sort("start_ns")
        opened = opened.select("file", start_ns="start_ns", opened_ns="start_ns")
        kept = kept.sort("start_ns").join_asof(
            opened, on="start_ns", by="file", check_sortedness=False
        )
        # of an earlier step it is another opening, or a file that stays open
        of_step = np.append(np.iinfo(np.int64).min, starts)[kept["between"].to_numpy()]
        is_of_step = pl.col("opened_ns") >= pl.Series(of_step)
        kept = kept.with_columns(
            start_ns=pl.when(is_of_step.fill_null(value=False))
            .then("opened_ns")
            .otherwise("start_ns")
        )
        yield kept.select(SPAN_COLUMNS.keys()).with_columns(
            kind=pl.lit("checkpoint"), name=pl.lit("save")
        )
