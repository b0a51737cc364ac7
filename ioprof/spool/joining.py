"""What spans of different origin say of each other: whose batch a read was for, and what was told twice."""

import polars as pl


def with_batches(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans, of which reads that know no batch have that of the `fetch` in whose course their worker made them.

    A worker is a thread, or all threads of a process that fetches in one thread and consumes no batches.
    """
    of_batch = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null(), pl.col("tid").is_not_null())
    orphan = pl.col("kind").is_in(["open", "read", "fault"]) & pl.col("batch").is_null()
    if of_batch.is_empty() or spans.filter(orphan).is_empty():
        return spans
    worker = ["host", "pid", "lane"]
    lane = _lane(spans, of_batch)
    fetches = of_batch.select(*worker[:2], lane, "start_ns", until="end_ns", fetched="batch").sort("start_ns")
    orphans = spans.select("kind", "batch", *worker[:2], lane, "start_ns").with_row_index("row").filter(orphan).sort("start_ns")
    joined = orphans.join_asof(fetches, on="start_ns", by=worker, strategy="backward", check_sortedness=False)
    found = joined.filter(pl.col("start_ns") <= pl.col("until"))
    return spans.with_columns(spans["batch"].scatter(found["row"], found["fetched"]))


def _lane(spans: pl.DataFrame, of_batch: pl.DataFrame) -> pl.Expr:
    """The thread, or 0 in processes all of whose threads are one worker."""
    consumers = spans.filter(pl.col("kind") == "wait").select("host", "pid").unique()
    threads = of_batch.group_by("host", "pid").agg(pl.col("tid").n_unique()).filter(pl.col("tid") == 1)
    pooled = threads.join(consumers, on=["host", "pid"], how="anti").select(pl.struct(pl.col("host").cast(pl.String), "pid"))
    process = pl.struct(pl.col("host").cast(pl.String), "pid")
    return pl.when(process.is_in(pooled.to_series().implode())).then(0).otherwise(pl.col("tid").fill_null(-1)).alias("lane")


def without_told_twice(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans, without page faults of the kernel's telling in the course of a `fault` that the thread itself recorded."""
    thread = ["host", "pid", "tid"]
    own = spans.filter(pl.col("kind") == "fault", pl.col("batch").is_not_null()).select(*thread, "start_ns", until="end_ns")
    by_kernel = (pl.col("kind") == "fault") & pl.col("batch").is_null()
    if own.is_empty() or spans.filter(by_kernel).is_empty():
        return spans
    told = spans.select("kind", "batch", *thread, "end_ns").with_row_index("row").filter(by_kernel).sort("end_ns")
    found = told.join_asof(
        own.sort("start_ns"), left_on="end_ns", right_on="start_ns", by=thread, strategy="backward", check_sortedness=False
    ).filter(pl.col("end_ns") <= pl.col("until"))
    return spans.with_row_index("row").filter(~pl.col("row").is_in(found["row"].implode())).drop("row")
