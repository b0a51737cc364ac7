"""Whether staging a dataset paid: what it took, and after how many epochs an epoch's gain has made up for it."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from ioprof.analysis.facts import Facts, mapping, number, whole
from ioprof.trace import Trace


@dataclass(frozen=True)
class StagingCost:
    """What staging took against what it brings."""

    cost_s: float
    """Time that the job began, or its first epoch took, later because of the copy."""
    local_epoch_s: float | None
    """An epoch on the copy: the median of those that began on it. Null: none was completed."""
    shared_epoch_s: float | None
    """An epoch that reads the shared path, with nothing of it in the page cache. Null: not known, see `reason`."""
    epochs: float | None
    """Epochs after which the time is won back. Null: never, or not known."""
    basis: str
    """Of `shared_epoch_s` and `epochs`: one of `ioprof.schema.BASES`."""
    reason: str | None


def staging_cost(trace: Trace) -> StagingCost | None:
    """Of a run that staged its dataset; None of any other."""
    stage = mapping(trace.run.get("stage"))
    if stage.get("mode") == "before":
        return _before(trace, stage)
    return _while_training(trace, stage) if stage.get("mode") == "while-training" else None


def epoch_seconds(trace: Trace, steps_per_epoch: int) -> list[float]:
    """Wall time of each epoch that all ranks completed, from the end of the one before."""
    steps = trace.spans.lazy().filter(pl.col("kind") == "step", pl.col("step").is_not_null())
    by_epoch = (
        steps.with_columns(epoch=pl.col("step") // steps_per_epoch)
        .group_by("epoch")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.len(), pl.col("rank").n_unique().alias("ranks"))
    )
    rows = by_epoch.sort("epoch").collect().rows(named=True)
    whole_ones = [row for row in rows if row["len"] == row["ranks"] * steps_per_epoch]
    starts = [whole_ones[0]["start_ns"], *(row["end_ns"] for row in whole_ones)] if whole_ones else []
    return [(row["end_ns"] - start) / 1e9 for row, start in zip(whole_ones, starts, strict=False)]


def _before(trace: Trace, stage: dict[str, Any]) -> StagingCost:
    cost_s = number(stage.get("seconds")) or 0.0
    local_s = _typical(_epochs(trace, stage))
    shared_s, reason = _predicted_shared_s(trace, stage, local_s)
    epochs, why = _break_even(cost_s, local_s, shared_s)
    return StagingCost(cost_s, local_s, shared_s, epochs, "predicted", reason or why)


def _predicted_shared_s(trace: Trace, stage: dict[str, Any], local_s: float | None) -> tuple[float | None, str | None]:
    """The workers' time for an epoch, with each record's local read exchanged for one as it was sampled on the shared path."""
    facts, sampled_s = Facts.of(trace.run), number(mapping(stage.get("shared_read")).get("mean_s"))
    records = whole(stage.get("records"))
    if local_s is None or records is None:
        return None, "no epoch was completed"
    if sampled_s is None:
        return None, "no read of the shared path was sampled"
    fetched, read_s = _per_record_s(trace, facts.batch_size)
    if fetched is None:
        return None, "the loader does not say what its workers did"
    ranks, workers = facts.ranks or 1, facts.workers or 0
    if not workers:
        return local_s + records * (sampled_s - read_s) / ranks, None
    return max(local_s, records * (fetched - read_s + sampled_s) / (ranks * workers)), None


def _per_record_s(trace: Trace, batch_size: int | None) -> tuple[float | None, float]:
    """What one record took of a worker, and what of that was opening and reading."""
    took = trace.spans.lazy().filter(pl.col("batch").is_not_null()).with_columns(took=pl.col("end_ns") - pl.col("start_ns"))
    fetches = took.filter(pl.col("kind") == "fetch").select(pl.len(), pl.col("took").sum()).collect().row(0)
    reads = took.filter(pl.col("kind").is_in(["open", "read", "fault"])).select(pl.col("took").sum()).collect().item()
    samples = fetches[0] * (batch_size or 0)
    return (fetches[1] / samples / 1e9, (reads or 0) / samples / 1e9) if samples else (None, 0.0)


def _while_training(trace: Trace, stage: dict[str, Any]) -> StagingCost:
    """The first epoch read the shared path and wrote the copy: longer, at most, by what the writing took of the workers."""
    facts, epochs = Facts.of(trace.run), _epochs(trace, stage)
    wrote = trace.spans.lazy().filter(pl.col("kind") == "stage").select((pl.col("end_ns") - pl.col("start_ns")).sum())
    readers = (facts.ranks or 1) * max(1, facts.workers or 0)
    cost_s = (wrote.collect().item() or 0) / 1e9 / readers
    if len(epochs) < 2:
        return StagingCost(cost_s, None, None, None, "derived", "no epoch after the first was completed")
    local_s, shared_s = _typical(epochs[1:]), max(0.0, epochs[0] - cost_s)
    after, why = _break_even(cost_s, local_s, shared_s)
    return StagingCost(cost_s, local_s, shared_s, None if after is None else 1 + after, "derived", why)


def _epochs(trace: Trace, stage: dict[str, Any]) -> list[float]:
    steps = whole(stage.get("steps_per_epoch"))
    return epoch_seconds(trace, steps) if steps and steps > 0 else []


def _typical(epochs: list[float]) -> float | None:
    """The median; without the first, which workers start in, if there are others."""
    known = sorted(epochs[1:] or epochs)
    return known[len(known) // 2] if known else None


def _break_even(cost_s: float, local_s: float | None, shared_s: float | None) -> tuple[float | None, str | None]:
    if local_s is None or shared_s is None:
        return None, None
    if shared_s <= local_s:
        return None, "an epoch on the copy is no faster: the job does not wait for storage"
    return cost_s / (shared_s - local_s), None
