"""Batches whose tensors are parts of larger ones, which a worker sends whole;
`instrument/hooks/pytorch/sent_batches.py` sees them.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.format.schema import SENT
from ioprof.format.trace import Trace

_LEAST_BYTES: Final = 1e6
"""Per batch, below which sending them is quick."""
_LEAST_RATIO: Final = 2.0
"""Bytes that are sent over those of the tensors, from which on it is told."""


@dataclass(frozen=True)
class SentViews:
    """Means over the batches that were looked at."""

    part_bytes: float
    """Of the tensors of a batch."""
    whole_bytes: float
    """Of the storages that they are parts of, all of which is sent."""


def sent_views(trace: Trace) -> SentViews | None:
    """None: no batch was looked at, or they send little more than their tensors."""
    rows = _sent(trace)
    if rows.is_empty():
        return None
    part, whole = (float(rows[name].fill_null(0).to_numpy().mean()) for name in ("offset", "bytes"))
    return SentViews(part, whole) if whole >= max(_LEAST_BYTES, _LEAST_RATIO * part) else None


def batch_bytes(trace: Trace) -> dict[int, float]:
    """By rank, the mean bytes of the tensors of a batch that workers sent, of those that were
    looked at; where there are none, of what is read for one.
    """
    sent = _sent(trace).group_by("rank").agg(pl.col("offset").mean()).drop_nulls()
    if len(sent):
        return dict(sent.iter_rows())
    known = (pl.col(name).is_not_null() for name in ("rank", "batch"))
    reads = trace.rows(*known, kinds=["read"])
    each = pl.col("bytes").sum() / pl.col("batch").n_unique()
    return dict(reads.group_by("rank").agg(each).drop_nulls().iter_rows())


def _sent(trace: Trace) -> pl.DataFrame:
    is_sent = pl.col("name").cast(pl.String) == SENT
    return trace.rows(pl.col("rank").is_not_null(), is_sent, kinds=["deliver"])
