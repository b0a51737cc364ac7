"""In which steps torch's compiler worked."""

import polars as pl

from ioprof.format.schema import COMPILATION
from ioprof.format.trace import Trace


def compiled_in(trace: Trace) -> tuple[int, ...]:
    """The steps in which the thread of a rank's steps waited for the compiler, in order; the same
    step of several ranks once.
    """
    spans = trace.rows(pl.col("name").cast(pl.String) == COMPILATION, kinds=["user"]).sort(
        "start_ns"
    )
    if spans.is_empty():
        return ()
    by = ["host", "pid", "tid"]
    steps = trace.rows(pl.col("rank").is_not_null(), kinds=["step"]).select(
        *by, "start_ns", "step", until_ns="end_ns"
    )
    found = spans.select(*by, "start_ns").join_asof(
        steps.sort("start_ns"), on="start_ns", by=by, check_sortedness=False
    )
    return tuple(
        found.filter(pl.col("start_ns") < pl.col("until_ns"))["step"].unique().sort().to_list()
    )
