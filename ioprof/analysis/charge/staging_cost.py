"""What staging a dataset cost, and after how many epochs the time saved per epoch exceeds it."""

from dataclasses import dataclass

import polars as pl

from ioprof.format.run_record import Reason, StageRecord
from ioprof.format.trace import Trace


@dataclass(frozen=True)
class StagingCost:
    """What staging cost, and what it saves."""

    cost_s: float
    """Time by which the copy delayed the job's start, or lengthened its first epoch."""
    local_epoch_s: float | None
    """An epoch on the copy: the median of those that began on it. Null: none was completed."""
    shared_epoch_s: float | None
    """An epoch that reads the shared path, with nothing of it in the page cache. Null: not known,
    see `reason`."""
    epochs: float | None
    """Epochs after which the saved time exceeds the cost. Null: never, or not known."""
    basis: str
    """Of `shared_epoch_s` and `epochs`: one of `ioprof.format.schema.BASES`."""
    reason: Reason | None


def staging_cost(trace: Trace) -> StagingCost | None:
    """Of a run that staged its dataset; None of any other."""
    stage = trace.run.stage
    if stage is None:
        return None
    return (
        _before(trace, stage)
        if stage.mode == "before"
        else _while_training(trace, stage)
        if stage.mode == "while-training"
        else None
    )


def epoch_seconds(trace: Trace, steps_per_epoch: int) -> list[float]:
    """Wall time of each epoch that all ranks completed, from the end of the one before."""
    steps = trace.rows(pl.col("step").is_not_null(), kinds=["step"]).lazy()
    by_epoch = (
        steps.with_columns(epoch=pl.col("step") // steps_per_epoch)
        .group_by("epoch")
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.len(),
            pl.col("rank").n_unique().alias("ranks"),
        )
    )
    rows = by_epoch.sort("epoch").collect().rows(named=True)
    whole_ones = [row for row in rows if row["len"] == row["ranks"] * steps_per_epoch]
    starts = (
        [whole_ones[0]["start_ns"], *(row["end_ns"] for row in whole_ones)] if whole_ones else []
    )
    return [(row["end_ns"] - start) / 1e9 for row, start in zip(whole_ones, starts, strict=False)]


def _before(trace: Trace, stage: StageRecord) -> StagingCost:
    cost_s = stage.seconds or 0.0
    local_s = _typical(_epochs(trace, stage))
    shared_s, reason = _predicted_shared_s(trace, stage, local_s)
    epochs, why = _break_even(cost_s, local_s, shared_s)
    return StagingCost(cost_s, local_s, shared_s, epochs, "predicted", reason or why)


def _predicted_shared_s(
    trace: Trace, stage: StageRecord, local_s: float | None
) -> tuple[float | None, Reason | None]:
    """The workers' time for an epoch, with each record's local read replaced by one as sampled on
    the shared path.
    """
    config, sampled_s = trace.run.config, stage.shared_read.mean_s if stage.shared_read else None
    records = stage.records
    if local_s is None or records is None:
        return None, Reason.NO_EPOCH
    if not sampled_s:
        return None, Reason.NO_SHARED_READ
    fetched, read_s = _per_record_s(trace, config.batch_size)
    if fetched is None:
        return None, Reason.NO_WORKER_TIME
    ranks, workers = config.ranks or 1, config.workers or 0
    if not workers:
        return local_s + records * (sampled_s - read_s) / ranks, None
    return max(local_s, records * (fetched - read_s + sampled_s) / (ranks * workers)), None


def _per_record_s(trace: Trace, batch_size: int | None) -> tuple[float | None, float]:
    """Time of a worker for one record, and the part of it that was opening and reading."""
    took = trace.sums.filter(pl.col("in_batch"))
    fetches = (
        took.filter(pl.col("kind") == "fetch")
        .select(pl.col("spans").sum(), pl.col("took_ns").sum())
        .row(0)
    )
    reads = took.filter(pl.col("kind").is_in(["open", "read", "fault"]))["took_ns"].sum()
    samples = fetches[0] * (batch_size or 0)
    return (fetches[1] / samples / 1e9, (reads or 0) / samples / 1e9) if samples else (None, 0.0)


def _while_training(trace: Trace, stage: StageRecord) -> StagingCost:
    """The first epoch read the shared path and wrote the copy: longer by at most the workers' time
    for writing.
    """
    config, epochs = trace.run.config, _epochs(trace, stage)
    wrote_ns = int(trace.sums.filter(pl.col("kind") == "stage")["took_ns"].sum())
    readers = (config.ranks or 1) * max(1, config.workers or 0)
    cost_s = wrote_ns / 1e9 / readers
    if len(epochs) < 2:
        return StagingCost(cost_s, None, None, None, "derived", Reason.NO_LATER_EPOCH)
    local_s, shared_s = _typical(epochs[1:]), max(0.0, epochs[0] - cost_s)
    after, why = _break_even(cost_s, local_s, shared_s)
    return StagingCost(
        cost_s, local_s, shared_s, None if after is None else 1 + after, "derived", why
    )


def _epochs(trace: Trace, stage: StageRecord) -> list[float]:
    return epoch_seconds(trace, stage.steps_per_epoch) if stage.steps_per_epoch else []


def _typical(epochs: list[float]) -> float | None:
    """The median; without the first, which workers start in, if there are others."""
    known = sorted(epochs[1:] or epochs)
    return known[len(known) // 2] if known else None


def _break_even(
    cost_s: float, local_s: float | None, shared_s: float | None
) -> tuple[float | None, Reason | None]:
    if local_s is None or shared_s is None:
        return None, None
    if shared_s <= local_s:
        return None, Reason.NO_GAIN
    return cost_s / (shared_s - local_s), None
