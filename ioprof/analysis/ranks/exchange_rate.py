"""How fast the gradients were exchanged: 2L(p-1)/p / t, to be compared with what the network
delivers; and in how many parts.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.analysis.selection import on_stream
from ioprof.format.run_record import ExchangeRate
from ioprof.format.trace import Trace

_WARMUP_STEPS: Final = 2
_ONE_SPAN: Final = "gradients"
"""Name of the exchange of DistributedDataParallel on the CPU."""
_BACKWARD: Final = "backward"
_OPTIMIZER: Final = "optimizer"
_GRADIENTS: Final = r"^gradients(?: \d+)?$"
_SUMS: Final = r"^all_reduce(?: \d+)?$"
"""Names of all-reduces that the job calls itself; those of a library have the name of what they
exchange."""
MANY_SUMS: Final = 8
"""All-reduces per step from which on they are called many."""
_SMALL_BYTES: Final = 1 << 20
"""Below this the time of an all-reduce is mostly its latency, on any network."""


@dataclass(frozen=True)
class SmallSums:
    """All-reduces that a job calls itself, many per step, most of them small."""

    per_step: int
    """Of one rank, in a median step."""
    median_bytes: int


def small_sums(trace: Trace) -> SmallSums | None:
    """None: there are few, or most of them are large."""
    is_sum = pl.col("name").cast(pl.String).str.contains(_SUMS)
    found = trace.rows(
        is_sum, pl.col("step").is_not_null(), pl.col("rank").is_not_null(), kinds=["comm"]
    )
    if found.is_empty():
        return None
    per_step = found.group_by("rank", "step").len()["len"].median()
    median_bytes = found["bytes"].median()
    if not isinstance(per_step, float) or not isinstance(median_bytes, float):
        return None
    is_small = per_step >= MANY_SUMS and median_bytes < _SMALL_BYTES
    return SmallSums(int(per_step), int(median_bytes)) if is_small else None


def exchanges_per_update(trace: Trace) -> int:
    """How many times all gradients are exchanged for one step of an optimizer, as where gradients
    of several batches are summed up: of one rank, mean, on the CPU. 0: not known.
    """
    name = pl.col("name").cast(pl.String)
    of_rank = pl.col("rank").is_not_null(), pl.col("step").is_not_null()
    exchanges = trace.rows(name == _ONE_SPAN, *of_rank, kinds=["comm"])
    if exchanges.is_empty():
        return 0
    passes = trace.rows(
        name.is_in([_BACKWARD, _OPTIMIZER]), *of_rank, ~on_stream, kinds=["compute"]
    ).sort("rank", "start_ns")
    turns = passes.select("rank", name).filter(
        (pl.col("name") != pl.col("name").shift(1)) | (pl.col("rank") != pl.col("rank").shift(1)),
        pl.col("name") == _OPTIMIZER,
    )  # a step of it may be several spans
    return round(len(exchanges) / len(turns)) if len(turns) else 0


def exchange_rate(trace: Trace) -> ExchangeRate | None:
    """Of a median step after the first two; None: one rank, or it is not known how many bytes the
    gradients have.

    t is the sum over the buckets of a step of the time from the last rank's arrival to the end. The
    exchange of DistributedDataParallel on the CPU is one span of all buckets, in which gradients
    are still computed: then t is more than the transfer, and `alone_s` is less.
    """
    run = trace.run
    num_bytes = run.config.gradient_bytes or (run.device.gradient_bytes if run.device else None)
    ranks = run.config.ranks or 1
    if not num_bytes or ranks < 2:
        return None
    spans = trace.rows(kinds=["comm"]).lazy().with_columns(pl.col("name").cast(pl.String))
    named = spans.filter(pl.col("name").str.contains(_GRADIENTS)).drop_nulls(["step", "rank"])
    buckets = named.group_by("step", "name").agg(
        pl.col("rank").n_unique().alias("ranks"), pl.col("start_ns").max(), pl.col("end_ns").max()
    )
    whole = (
        buckets.filter(pl.col("ranks") == ranks)
        .with_columns(transfer_ns=pl.col("end_ns") - pl.col("start_ns"))
        .collect()
    )
    steps = whole.group_by("step").agg(pl.col("transfer_ns").sum()).sort("step")
    skipped = _WARMUP_STEPS if len(steps) > 2 * _WARMUP_STEPS else 0
    took_ns = steps["transfer_ns"].slice(skipped).median()
    if not isinstance(took_ns, float) or took_ns <= 0:
        return None
    seconds, alone_ns = took_ns / 1e9, _alone(trace, whole)["alone_ns"].slice(skipped).median()
    alone_s = alone_ns / 1e9 if isinstance(alone_ns, float) else None
    return ExchangeRate(
        num_bytes, ranks, seconds, 2 * num_bytes * (ranks - 1) / ranks / seconds, alone_s
    )


def _alone(trace: Trace, exchanges: pl.DataFrame) -> pl.DataFrame:
    """By step, how much of an exchange that is one span came after all gradients had been
    computed.
    """
    is_backward = (
        (pl.col("kind") == "compute")
        & (pl.col("name").cast(pl.String) == _BACKWARD)
        & pl.col("step").is_not_null()
    )
    parts = trace.found(
        lambda part: part.filter(is_backward).select(
            "step", begin_ns="start_ns", computed_ns="end_ns"
        )
    )
    both = (
        exchanges.filter(pl.col("name") == _ONE_SPAN)
        .join(parts, on="step")
        .filter(pl.col("begin_ns") < pl.col("start_ns"))
    )
    found = (
        both.group_by("step")
        .agg(pl.col("start_ns", "end_ns").first(), pl.col("computed_ns").max())
        .sort("step")
    )
    return found.select(
        "step",
        alone_ns=pl.col("end_ns")
        - pl.max_horizontal("start_ns", pl.min_horizontal("computed_ns", "end_ns")),
    )
