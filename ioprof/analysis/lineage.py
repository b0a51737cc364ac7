"""What each wait for a batch was for: the batch walked backwards, from its delivery to the reads that made it.

At an instant of the wait for batch k, whose worker ended fetch(k) at `ready`:

    at or after ready    `delivery`: the batch was made, and on its way or queued
    before ready         what that worker did: `storage`, `page_cache`, `decode`, `transform`, `collate`
                         (before fetch(k) began the same worker was busy with an earlier batch, or was starting up)
    not covered by that  `loader`: Python between the stages, queues, a worker without work
    fetch(k) unknown     `loader`, all of it: the worker was killed, or is not recorded

A worker is a *lane*: all threads of a process that fetches in one thread and is not the consumer itself, else the one thread.
Where a damaged record shows two leaves at once, the earlier in `LEAVES` wins; so a read inside a decode is a read.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import EMPTY, Intervals, charge, overlaps, pack, union
from ioprof.analysis.selection import READS, by_rank, intervals, kind_in
from ioprof.trace import Trace

LEAVES: Final = ("storage", "page_cache", "decode", "transform", "collate", "delivery", "loader")
"""Causes that a wait is charged to, in the order of `ioprof.schema.CAUSES`."""
KINDS: Final = ("wait", "fetch", *READS, "decode", "transform", "collate")
"""Kinds that `wait_leaves` looks at."""
COLUMNS: Final = ("pid", "tid", "batch", "source")
"""Columns that it needs besides times, kind and rank."""

_WORK: Final = {
    "storage": kind_in(READS) & (pl.col("source") != "page_cache").fill_null(True),
    "page_cache": kind_in(READS) & (pl.col("source") == "page_cache").fill_null(False),
    "decode": pl.col("kind") == "decode",
    "transform": pl.col("kind") == "transform",
    "collate": pl.col("kind") == "collate",
}


@dataclass(frozen=True)
class Axis:
    """The time of all lanes of a rank, laid end to end, so that one sorted array holds them all."""

    lanes: NDArray[np.int64]
    """Sorted."""
    origin_ns: int
    stride_ns: int
    """Longer by one than what any lane holds: the end of a lane does not touch the start of the next."""

    @classmethod
    def of(cls, lanes: NDArray[np.int64], times: Intervals) -> "Axis":
        """An axis that holds these lanes from the first to the last of these times."""
        first, last = (int(times[:, 0].min()), int(times[:, 1].max())) if len(times) else (0, 0)
        return cls(np.unique(lanes), first, max(last - first, 0) + 1)

    def place(self, spans: pl.DataFrame, end: str = "end_ns") -> Intervals:
        """Where spans with a known `lane` lie on the axis, clipped to it."""
        shift = np.searchsorted(self.lanes, spans["lane"].to_numpy()) * self.stride_ns
        starts, ends = (np.clip(spans[name].to_numpy() - self.origin_ns, 0, self.stride_ns - 1) for name in ("start_ns", end))
        return pack(starts + shift, ends + shift)

    def times(self, placed: Intervals) -> Intervals:
        """When that was."""
        return placed - placed[:, :1] // self.stride_ns * self.stride_ns + self.origin_ns


def with_lane(spans: pl.DataFrame) -> pl.DataFrame:
    """Spans of one rank with the column `lane`: which worker did it, as one number."""
    consumers = spans.filter(pl.col("kind") == "wait")["pid"].unique()
    fetchers = spans.filter(pl.col("kind") == "fetch").group_by("pid").agg(pl.col("tid").n_unique())
    workers = fetchers.filter(pl.col("tid") == 1, ~pl.col("pid").is_in(consumers.implode()))["pid"]
    thread = pl.when(pl.col("pid").is_in(workers.implode())).then(0).otherwise(pl.col("tid").fill_null(-1))
    return spans.with_columns(lane=pl.col("pid").fill_null(-1).cast(pl.Int64) * 2**32 + thread)


def wait_leaves(spans: pl.DataFrame, measured: Collection[str] = LEAVES) -> dict[str, Intervals]:
    """For each of `LEAVES` when it held up this rank; an instant belongs to the first that covers it, in that order.

    `spans` are those of one rank; what is not in `measured` goes to `loader`, which covers every wait.
    """
    spans = with_lane(spans)
    waits = _with_fetch(spans)
    known = waits.filter(pl.col("ready_ns").is_not_null())
    found = dict.fromkeys(LEAVES, EMPTY)
    found |= {cause: times for cause, times in _work(spans, known).items() if cause in measured}
    if "delivery" in measured:
        found["delivery"] = pack(np.maximum(known["start_ns"].to_numpy(), known["ready_ns"].to_numpy()), known["end_ns"].to_numpy())
    found["loader"] = intervals(waits)
    return found


def making(trace: Trace) -> dict[str, int]:
    """Nanoseconds that workers spent on each stage of making batches, waited for or not; stages that took none are left out.

    Within their `fetch` spans only: what the same processes read to start up made no batch. An instant counts once, as in a wait.
    """
    total = np.zeros(len(_WORK), np.int64)
    for _, spans in by_rank(trace, KINDS, COLUMNS):
        spans = with_lane(spans)
        fetches = spans.filter(pl.col("kind") == "fetch")
        axis = Axis.of(fetches["lane"].to_numpy(), intervals(fetches))
        there = spans.filter(pl.col("lane").is_in(pl.Series(axis.lanes).implode()))
        work = [axis.place(there.filter(of_cause)) for of_cause in _WORK.values()]
        total += charge(union(axis.place(fetches)), work)[:, :-1].sum(0)
    return {cause: int(took_ns) for cause, took_ns in zip(_WORK, total, strict=True) if took_ns}


def waits(trace: Trace) -> pl.DataFrame:
    """One row per wait: `rank`, `batch`, `start_ns`, `end_ns`, and `<leaf>_ns` for each of `LEAVES`, which sum to the wait exactly.

    This is the whole wait, whether the accelerator computed meanwhile or not; `blame` charges only what was exposed.
    """
    parts = [_empty_waits()]
    for rank, spans in by_rank(trace, KINDS, COLUMNS):
        rows = spans.filter(pl.col("kind") == "wait").select("rank", "batch", "start_ns", "end_ns").sort("start_ns", "batch")
        leaves = charge(intervals(rows), list(wait_leaves(spans).values()))
        columns = [pl.Series(f"{cause}_ns", leaves[:, place]) for place, cause in enumerate(LEAVES)]
        parts.append(rows.with_columns(columns) if len(rows) else _empty_waits())
        assert not leaves[:, -1].any(), f"a wait of rank {rank} is not fully charged"
    return pl.concat(parts)


def _empty_waits() -> pl.DataFrame:
    columns = dict.fromkeys(("batch", "start_ns", "end_ns", *(f"{cause}_ns" for cause in LEAVES)), pl.Int64)
    return pl.DataFrame(schema={"rank": pl.Int32, **columns})


def _with_fetch(spans: pl.DataFrame) -> pl.DataFrame:
    """The waits, each with the `lane` that made its batch and when it was `ready_ns`; null where that is not known.

    Should two workers claim one batch, the one that was ready first delivered it.
    """
    ready = spans.filter(pl.col("kind") == "fetch").group_by("batch", "lane").agg(ready_ns=pl.col("end_ns").max())
    first = ready.sort("ready_ns", "lane").unique("batch", keep="first")
    return spans.filter(pl.col("kind") == "wait").select("start_ns", "end_ns", "batch").join(first, on="batch", how="left")


def _work(spans: pl.DataFrame, known: pl.DataFrame) -> dict[str, Intervals]:
    """What the workers did while the rank waited for a batch of theirs."""
    axis = Axis.of(known["lane"].to_numpy(), intervals(known))
    windows = union(axis.place(known.with_columns(until=pl.min_horizontal("end_ns", "ready_ns")), "until"))
    relevant = pl.col("lane").is_in(pl.Series(axis.lanes).implode()) & (pl.col("end_ns") > axis.origin_ns)
    return {
        cause: axis.times(overlaps(axis.place(spans.filter(relevant & of_cause)), windows)) for cause, of_cause in _WORK.items()
    }
