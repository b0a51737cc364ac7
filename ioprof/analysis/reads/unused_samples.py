"""Samples that workers made and that were in no batch: those in shuffle buffers when an epoch
ended, and the workers with it, and those that a stage dropped.

What is taken out of shards is known of webdataset, by its spans named "tar", see
`instrument/hooks/libraries/webdataset_pipelines.py`.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.analysis.loaders import known_samples
from ioprof.format.trace import Trace

_LIBRARY: Final = "webdataset"
_LEAST_TAKEN: Final = 1.25
"""Samples that were taken out of shards for each one that was in a batch, from which on it is
told."""
_FEWEST: Final = 100
"""Samples, below which nothing is said."""
_DECODED: Final = 0.8
"""Decodes per sample that was taken out of a shard, from which on samples are said to be decoded
before they are thrown away."""


@dataclass(frozen=True)
class Unused:
    """Samples of all ranks and epochs."""

    taken: int
    """Out of shards."""
    used: int
    """In batches that the loops waited for."""
    is_decoded: bool
    """Whether those that were taken were decoded, used or not."""


def unused_samples(trace: Trace) -> Unused | None:
    """None: nearly all were used, or it is not known."""
    if not any(name.startswith(_LIBRARY) for name in trace.run.config.libraries):
        return None
    is_taken = pl.col("name").cast(pl.String) == "tar"
    taken = len(trace.rows(pl.col("rank").is_not_null(), is_taken, kinds=["transform"]))
    if taken < _FEWEST:
        return None
    batch = pl.col("rank").is_not_null(), pl.col("batch").is_not_null()
    waits = trace.rows(*batch, kinds=["wait"]).select("rank", "batch").unique()
    fetches = trace.rows(*batch, kinds=["fetch"]).select("rank", "batch", "offset")
    used = known_samples(fetches.join(waits, on=["rank", "batch"], how="semi")["offset"])
    if not used or taken < _LEAST_TAKEN * used:
        return None
    decodes = len(trace.rows(pl.col("rank").is_not_null(), kinds=["decode"]))
    return Unused(taken, used, decodes >= _DECODED * taken)
