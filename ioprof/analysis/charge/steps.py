"""The steps of every rank."""

import polars as pl

from ioprof.analysis.charge.validation import validations
from ioprof.analysis.intervals import union_all
from ioprof.analysis.selection import intervals
from ioprof.format.trace import Trace


def steps(trace: Trace) -> pl.DataFrame:
    """One row per rank and step, in that order: `rank`, `step`, `start_ns`, `end_ns`.

    A step reaches from the start of its earliest span to the end of its latest; `end_ns - start_ns`
    is its wall time. Validations and checkpoints that follow a step are in the next one; those that
    follow the last step of a rank are in that one. Spans without a rank or a number are not steps
    of the job, and neither are those that ended when a rank or worker had no room for its spans any
    more.
    """
    named = trace.rows(
        pl.col("rank").is_not_null(),
        pl.col("step").is_not_null(),
        pl.col("end_ns") <= complete_until_ns(trace),
        kinds=["step"],
    )
    found = (
        named.group_by("rank", "step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("rank", "step")
    )
    until = _ends_of_epochs(trace, named)
    is_last = pl.col("end_ns") == pl.col("end_ns").max().over("rank")
    ends = pl.max_horizontal("end_ns", pl.col("rank").replace_strict(until, default=0))
    return found.with_columns(end_ns=pl.when(is_last).then(ends).otherwise("end_ns"))


def complete_until_ns(trace: Trace) -> int:
    """When the first rank or worker had recorded its last span, of those that lost further ones."""
    ends = [
        each.last_ns
        for each in trace.run.processes
        if each.lost and each.last_ns is not None and each.role in ("rank", "worker")
    ]
    return min(ends, default=1 << 62)


def _ends_of_epochs(trace: Trace, steps: pl.DataFrame) -> dict[int, int]:
    """By rank, the end of the last validation or checkpoint of its training threads that is after
    its last step.
    """
    if steps.is_empty():
        return {}
    thread = ["rank", "host", "pid", "tid"]
    threads = steps.with_columns(last_ns=pl.col("end_ns").max().over("rank"))
    threads = threads.select(*thread, "last_ns").unique()
    later = trace.rows(
        pl.col("rank").is_not_null(),
        pl.col("end_ns") > threads["last_ns"].min(),
        kinds=["wait", "validate", "checkpoint"],
    )
    own = later.join(threads, on=thread, nulls_equal=True)
    own = own.filter(pl.col("end_ns") > pl.col("last_ns"))
    found = dict[int, int]()
    for (rank,), spans in own.partition_by("rank", as_dict=True).items():
        saved = intervals(spans.filter(pl.col("kind") == "checkpoint"))
        ended = union_all([validations(spans), saved])
        if len(ended):
            found[int(str(rank))] = int(ended[-1, 1])
    return found


def warmup(num_steps: int) -> int:
    """How many leading steps of a rank the steady rate leaves out: a tenth, at least 2; none if
    fewer than 4 steps were made.

    The first steps wait for workers to start and for their queues to fill, which a long job does
    once.
    """
    return max(2, num_steps // 10) if num_steps >= 4 else 0


def steady_steps_per_s(table: pl.DataFrame) -> float | None:
    """Steps per second of the rank that made most, of rows of `steps`, without its warm-up and its
    last step. None: too few.
    """
    if not len(table):
        return None
    rank = table.group_by("rank").len().sort(-pl.col("len").cast(pl.Int64), "rank")["rank"][0]
    own = table.filter(pl.col("rank") == rank).sort("step")
    own = own[warmup(len(own)) : -1] if warmup(len(own)) else own[:0]
    seconds = (int(own["end_ns"][-1]) - int(own["start_ns"][0])) / 1e9 if len(own) else 0.0
    return len(own) / seconds if seconds > 0 else None


def of_steps(spans: pl.DataFrame, table: pl.DataFrame, begin: str = "start_ns") -> pl.Series:
    """Which spans of a rank are of one of these of its steps: by the number of their step, which is
    that of a launch, if they have one, else by when they began.
    """
    steps = table.sort("start_ns").select(at="start_ns", until="end_ns")
    found = (
        spans.select(pl.col(begin).alias("at"), "step")
        .with_row_index()
        .sort("at")
        .join_asof(steps, on="at", strategy="backward")
    )
    by_time = (pl.col("at") < pl.col("until")).fill_null(value=False)
    is_one = (
        pl.when(pl.col("step").is_null())
        .then(by_time)
        .otherwise(pl.col("step").is_in(table["step"].implode()))
    )
    return found.sort("index").select(is_one.alias("is_one")).to_series()
