"""What was read, where the bytes came from, and how long one read took."""

from typing import Any, Final

import polars as pl

from ioprof.analysis.lineage import with_lane
from ioprof.analysis.result import Storage
from ioprof.trace import Trace

_NUM_SLOWEST: Final = 10

is_access: Final = pl.col("kind").is_in(["read", "fault"]) & (pl.col("bytes") != 0).fill_null(True)
"""Spans that moved bytes. A read that returned none found the end of a file, or asked the page cache in vain."""


def storage(trace: Trace) -> Storage:
    """Accesses, bytes by source, percentiles of one read's time, and the slowest reads, over all processes of the run."""
    columns = ["start_ns", "end_ns", "kind", "rank", "pid", "tid", "step", "batch", "bytes", "file", "source"]
    accesses = trace.spans.lazy().select(columns).filter(is_access).collect()
    if not len(accesses):
        return Storage(0, 0, 0, 0, 0, None, None, None, ())
    by_source = _bytes_by_source(accesses)
    took = (accesses["end_ns"] - accesses["start_ns"]).sort()
    p50, p95, p99 = (float(took[round(ratio * (len(took) - 1))]) / 1e9 for ratio in (0.50, 0.95, 0.99))
    return Storage(
        accesses=len(accesses),
        bytes=sum(by_source.values()),
        bytes_from_storage=by_source.get("storage", 0),
        bytes_from_cache=by_source.get("page_cache", 0),
        bytes_unknown=by_source.get("unknown", 0),
        read_p50_s=p50,
        read_p95_s=p95,
        read_p99_s=p99,
        slowest=_slowest(trace, accesses, int(took[-min(_NUM_SLOWEST, len(took))])),
    )


def _bytes_by_source(accesses: pl.DataFrame) -> dict[str, int]:
    sums = accesses.group_by(pl.col("source").cast(pl.String).fill_null("unknown")).agg(pl.col("bytes").sum())
    return {source: int(count) for source, count in sums.iter_rows()}


def _slowest(trace: Trace, accesses: pl.DataFrame, least_ns: int) -> tuple[dict[str, Any], ...]:
    took = pl.col("end_ns") - pl.col("start_ns")
    slow = accesses.filter(took >= least_ns).with_columns(seconds=took / 1e9)
    slow = slow.sort(["seconds", "start_ns", "rank", "pid", "file"], descending=[True, False, False, False, False], nulls_last=True)
    paths = trace.files.select("file", "path").unique("file")
    slow = slow.head(_NUM_SLOWEST).join(paths, on="file", how="left", maintain_order="left")
    return tuple(_slow_read(trace, row) for row in slow.iter_rows(named=True))


def _slow_read(trace: Trace, row: dict[str, Any]) -> dict[str, Any]:
    batch = row["batch"] if row["batch"] is not None else _batch_at(trace, row)
    step = row["step"] if row["step"] is not None else _step_of(trace, row["rank"], batch)
    kept = {key: row[key] for key in ("path", "seconds", "bytes", "source", "rank")}
    return {**kept, "step": step, "batch": batch}


def _batch_at(trace: Trace, row: dict[str, Any]) -> int | None:
    """The batch that the reading worker was fetching."""
    rank = trace.spans.lazy().select("start_ns", "end_ns", "kind", "rank", "pid", "tid", "batch")
    rank = rank.filter(pl.col("rank") == row["rank"], pl.col("kind").is_in(["wait", "fetch"]))
    reading = pl.DataFrame([row], schema_overrides={"pid": pl.Int32, "tid": pl.Int32}).select("pid", "tid")
    spans = pl.concat([rank.collect(), reading], how="diagonal")
    lane = with_lane(spans)["lane"][-1]
    at = (pl.col("start_ns") <= row["start_ns"]) & (row["end_ns"] <= pl.col("end_ns"))
    found = with_lane(spans).filter(pl.col("kind") == "fetch", pl.col("lane") == lane, at)["batch"].drop_nulls()
    return int(found.min()) if len(found) else None  # type: ignore[arg-type]


def _step_of(trace: Trace, rank: int | None, batch: int | None) -> int | None:
    """The step that waited for a batch."""
    found = trace.spans.lazy().select("kind", "rank", "batch", "step")
    found = found.filter(pl.col("kind") == "wait", pl.col("rank") == rank, pl.col("batch") == batch)
    steps = found.collect()["step"].drop_nulls()
    return int(steps.min()) if len(steps) else None  # type: ignore[arg-type]
