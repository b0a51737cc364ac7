"""Joins spans from different recorders: the batch that a read belongs to, and page faults that were recorded twice."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.schema import SPAN_COLUMNS
from ioprof.trace import empty_table

_Array = npt.NDArray[Any]


class FetchIndex:
    """The `fetch` spans of all workers, to assign batches to reads of one process at a time, as `assign_batches` does.

    `tables` and the spans are on the clocks of their hosts.
    """

    def __init__(self, tables: Iterable[pl.DataFrame]) -> None:
        spans = pl.concat([empty_table(SPAN_COLUMNS), *(table.filter(pl.col("kind").is_in(["fetch", "wait"])) for table in tables)])
        fetching = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null(), pl.col("tid").is_not_null())
        known = fetching.select("host", "pid", _worker_id(spans, fetching), "start_ns", "end_ns", "batch").sort("start_ns")
        self._workers: dict[tuple[str, int], dict[int, tuple[_Array, _Array, _Array]]] = {}
        for (host, pid, worker), part in known.partition_by("host", "pid", "worker", as_dict=True).items():
            if pid is not None:
                times = part["start_ns"].to_numpy(), part["end_ns"].to_numpy(), part["batch"].to_numpy()
                self._workers.setdefault((host, pid), {})[worker] = times

    def assign(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Spans of one process, whose reads that have no batch get that of their fetch."""
        workers = self._workers.get(spans.select("host", "pid").row(0), {})
        orphan = (pl.col("kind").is_in(["open", "read", "fault"]) & pl.col("batch").is_null()).alias("orphan")
        rows: _Array = np.flatnonzero(spans.select(orphan)["orphan"].to_numpy() & bool(workers))
        if not len(rows):
            return spans
        starts, tids = spans["start_ns"].to_numpy()[rows], spans["tid"].fill_null(-1).to_numpy()[rows]
        batches = np.full(len(spans), -1, np.int64)
        for worker, (since, until, batch) in workers.items():
            mine = np.arange(len(rows)) if worker == 0 else np.flatnonzero(tids == worker)
            place = np.searchsorted(since, starts[mine], side="right") - 1
            mine, place = mine[place >= 0], place[place >= 0]
            is_inside = starts[mine] <= until[place]
            batches[rows[mine[is_inside]]] = batch[place[is_inside]]
        found = pl.Series("batch", batches)
        return spans.with_columns(batch=pl.coalesce("batch", found.set(found < 0, None)))


def assign_batches(spans: pl.DataFrame) -> pl.DataFrame:
    """Set the batch of reads that have none to that of the `fetch` during which their worker started them.

    A worker is a thread, or a whole process if only one of its threads fetches and it consumes no batches.
    """
    fetching = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null(), pl.col("tid").is_not_null())
    orphan = pl.col("kind").is_in(["open", "read", "fault"]) & pl.col("batch").is_null()
    if fetching.is_empty() or spans.filter(orphan).is_empty():
        return spans
    worker = ["host", "pid", "worker"]
    worker_id = _worker_id(spans, fetching)
    fetches = fetching.select(*worker[:2], worker_id, "start_ns", until="end_ns", fetched="batch").sort("start_ns")
    orphans = (
        spans.select("kind", "batch", *worker[:2], worker_id, "start_ns").with_row_index("row").filter(orphan).sort("start_ns")
    )
    joined = orphans.join_asof(fetches, on="start_ns", by=worker, strategy="backward", check_sortedness=False)
    found = joined.filter(pl.col("start_ns") <= pl.col("until"))
    return spans.with_columns(spans["batch"].scatter(found["row"], found["fetched"]))


def _worker_id(spans: pl.DataFrame, fetching: pl.DataFrame) -> pl.Expr:
    """The thread id, or 0 in processes all of whose threads are one worker."""
    consumers = spans.filter(pl.col("kind") == "wait").select("host", "pid").unique()
    threads = fetching.group_by("host", "pid").agg(pl.col("tid").n_unique()).filter(pl.col("tid") == 1)
    pooled = threads.join(consumers, on=["host", "pid"], how="anti").select(pl.struct(pl.col("host").cast(pl.String), "pid"))
    process = pl.struct(pl.col("host").cast(pl.String), "pid")
    return pl.when(process.is_in(pooled.to_series().implode())).then(0).otherwise(pl.col("tid").fill_null(-1)).alias("worker")


def drop_duplicate_faults(spans: pl.DataFrame) -> pl.DataFrame:
    """Drop page faults from the kernel that ended during a `fault` span that the same thread recorded itself."""
    thread = ["host", "pid", "tid"]
    own = spans.filter(pl.col("kind") == "fault", pl.col("batch").is_not_null()).select(*thread, "start_ns", until="end_ns")
    by_kernel = (pl.col("kind") == "fault") & pl.col("batch").is_null()
    if own.is_empty() or spans.filter(by_kernel).is_empty():
        return spans
    kernel_faults = spans.select("kind", "batch", *thread, "end_ns").with_row_index("row").filter(by_kernel).sort("end_ns")
    found = kernel_faults.join_asof(
        own.sort("start_ns"), left_on="end_ns", right_on="start_ns", by=thread, strategy="backward", check_sortedness=False
    ).filter(pl.col("end_ns") <= pl.col("until"))
    return spans.with_row_index("row").filter(~pl.col("row").is_in(found["row"].implode())).drop("row")
