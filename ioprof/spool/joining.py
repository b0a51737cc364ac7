"""What spans of different origin say of each other: whose batch a read was for, and what was told twice."""

import polars as pl


def with_batches(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans, of which reads that know no batch have that of the `fetch` in whose course their thread made them."""
    thread = ["host", "pid", "tid"]
    of_batch = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null())
    fetches = of_batch.select(*thread, "start_ns", until="end_ns", fetched="batch").drop_nulls("tid").sort("start_ns")
    orphan = pl.col("kind").is_in(["open", "read", "fault"]) & pl.col("batch").is_null()
    orphans = spans.select("kind", "batch", *thread, "start_ns").with_row_index("row").filter(orphan).sort("start_ns")
    if fetches.is_empty() or orphans.is_empty():
        return spans
    joined = orphans.join_asof(fetches, on="start_ns", by=thread, strategy="backward", check_sortedness=False)
    found = joined.filter(pl.col("start_ns") <= pl.col("until"))
    return spans.with_columns(spans["batch"].scatter(found["row"], found["fetched"]))


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
