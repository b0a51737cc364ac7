"""What was read, where the bytes came from, and how long one read took."""

from typing import Any, Final

import polars as pl

from ioprof.analysis.result import Storage
from ioprof.trace import Trace

_NUM_SLOWEST: Final = 10
_SLOW_COLUMNS: Final = ("bytes", "source", "rank", "step", "batch")

is_access: Final = pl.col("kind").is_in(["read", "fault"]) & (pl.col("bytes") != 0).fill_null(True)
"""Spans that moved bytes. A read that returned none found the end of a file, or asked the page cache in vain."""


def storage(trace: Trace) -> Storage:
    """Accesses, bytes by source, percentiles of one read's time, and the slowest reads, over all processes of the run.

    Of those that made batches, if any did: what a hundred processes read of Python's libraries says nothing of the dataset.
    """
    every = trace.spans.lazy().filter(is_access).with_columns(took_ns=pl.col("end_ns") - pl.col("start_ns"))
    of_batch = pl.col("batch").is_not_null()
    has_batches = bool(every.select(of_batch.any()).collect().item())
    accesses = every.filter(of_batch) if has_batches else every
    others = every.filter(~of_batch & has_batches).select(pl.len(), pl.col("bytes").sum()).collect()
    took = accesses.select("took_ns").collect()["took_ns"].sort()
    if not len(took):
        return Storage(0, 0, 0, 0, 0, None, None, None, ())
    by_source = _bytes_by_source(accesses)
    p50, p95, p99 = (float(took[round(ratio * (len(took) - 1))]) / 1e9 for ratio in (0.50, 0.95, 0.99))
    return Storage(
        accesses=len(took),
        bytes=sum(by_source.values()),
        bytes_from_storage=by_source.get("storage", 0),
        bytes_from_cache=by_source.get("page_cache", 0),
        bytes_unknown=by_source.get("unknown", 0),
        read_p50_s=p50,
        read_p95_s=p95,
        read_p99_s=p99,
        slowest=_slowest(trace, accesses, int(took[-min(_NUM_SLOWEST, len(took))])),
        other_accesses=int(others.item(0, 0)),
        other_bytes=int(others.item(0, 1) or 0),
    )


def _bytes_by_source(accesses: pl.LazyFrame) -> dict[str, int]:
    sums = accesses.group_by(pl.col("source").fill_null("unknown")).agg(pl.col("bytes").sum()).collect()
    return {source: int(count) for source, count in sums.iter_rows()}


def _slowest(trace: Trace, accesses: pl.LazyFrame, least_ns: int) -> tuple[dict[str, Any], ...]:
    slow = accesses.filter(pl.col("took_ns") >= least_ns).collect()
    ties = ["start_ns", "rank", "pid", "tid", "file", "bytes", "source", "batch", "step"]
    slow = slow.sort("took_ns", *ties, descending=[True, *(False for _ in ties)], nulls_last=True)
    slow = _with_step(trace, _with_batch(trace, slow.head(_NUM_SLOWEST).with_row_index()))
    paths = trace.files.select("file", "path").unique("file")
    slow = slow.join(paths, on="file", how="left", maintain_order="left")
    return tuple(
        # not divided by polars: its division by a number is off in the last digit, and was seen to vary with the order of rows
        {"path": row["path"], "seconds": row["took_ns"] / 1e9, **{key: row[key] for key in _SLOW_COLUMNS}}
        for row in slow.iter_rows(named=True)
    )


def _with_batch(trace: Trace, reads: pl.DataFrame) -> pl.DataFrame:
    """Reads that have no batch of their own get that which their thread, or the worker that they are a thread of, was fetching."""
    spans = trace.spans.lazy().filter(pl.col("rank").is_in(reads["rank"].unique().implode()))
    consumers = spans.filter(pl.col("kind") == "wait").select("pid").unique().collect()["pid"]
    fetches = spans.filter(pl.col("kind") == "fetch").select("rank", "pid", "tid", "batch", "start_ns", "end_ns").collect()
    found = reads.join(fetches, on=["rank", "pid"], suffix="_fetch").filter(
        pl.col("start_ns_fetch") <= pl.col("start_ns"),
        pl.col("end_ns") <= pl.col("end_ns_fetch"),
        (pl.col("tid") == pl.col("tid_fetch")) | ~pl.col("pid").is_in(consumers.implode()),
    )
    reads = reads.join(found.group_by("index").agg(pl.col("batch_fetch").min()), on="index", how="left", maintain_order="left")
    return reads.with_columns(batch=pl.coalesce("batch", "batch_fetch"))


def _with_step(trace: Trace, reads: pl.DataFrame) -> pl.DataFrame:
    """Reads that have no step of their own get that which waited for their batch."""
    waits = trace.spans.lazy().filter(pl.col("kind") == "wait", pl.col("batch").is_in(reads["batch"].unique().implode()))
    steps = waits.group_by("rank", "batch").agg(step_wait=pl.col("step").min()).collect()
    reads = reads.join(steps, on=["rank", "batch"], how="left", maintain_order="left")
    return reads.with_columns(step=pl.coalesce("step", "step_wait"))
