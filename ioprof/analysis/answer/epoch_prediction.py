"""How long a job of more epochs would take, from its first ones: the first is cold, later ones find
what the page cache keeps.

    time(N) = start and end + first epoch + (N - 1) later epochs + evaluations(N) + checkpoints(N)

Epochs are taken without their evaluations and checkpoints, whose number follows from how often the
job makes them. A page cache smaller than the dataset keeps as much of it at the end of each epoch,
so that the later epochs are alike, whatever share they read from storage; at least one of them must
have been made.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.analysis.charge.steps import steps
from ioprof.analysis.student import quantile_975
from ioprof.format.run_record import EpochPrediction, RunRecord
from ioprof.format.trace import Trace

Times = npt.NDArray[Any]
_BLOCKS: Final = 8
"""Parts of the later epochs whose means are compared, for the error of their mean."""


def predicted_epochs(trace: Trace, from_epochs: int | None = None) -> EpochPrediction | None:
    """The prediction that the run asked for (`--predict-epochs`); None: it did not, or has no two
    epochs.

    `from_epochs`: as if the run had made only its first so many, so that a longer run tells the
    error of the model itself.
    """
    run, asked = trace.run, trace.run.config.predict_epochs
    per_epoch, first = run.config.steps_per_epoch or 0, run.config.first_step or 0
    if (
        not asked
        or not per_epoch
        or first
        or run.times is None
        or run.times.end_ns is None
        or run.times.start_ns is None
    ):
        return None
    table = steps(trace)
    ends = table.group_by("step").agg(pl.col("end_ns").max()).sort("step")["end_ns"].to_numpy()
    made = min(len(ends) // per_epoch, from_epochs or len(ends))
    if made < 2:
        return None
    begin_ns = cast(int, table["start_ns"].min())
    bounds = np.concatenate([[begin_ns], ends[per_epoch - 1 :: per_epoch][:made]])
    fixed_ns = run.times.end_ns - run.times.start_ns - int(ends[-1] - begin_ns)
    ends = ends if from_epochs is None else ends[: made * per_epoch]
    events = {kind: _events(trace, kind) for kind in ("validate", "checkpoint")}
    if from_epochs is not None:
        events = {kind: found[found[:, 0] < bounds[-1]] for kind, found in events.items()}
    own = np.diff(bounds).astype(np.float64) - sum(
        _within(found, bounds) for found in events.values()
    )
    means = {
        kind: float((found[:, 1] - found[:, 0]).mean()) if len(found) else 0.0
        for kind, found in events.items()
    }
    counts = {
        "validate": _count(run.config.evaluate_every, asked * per_epoch),
        "checkpoint": _count(run.config.checkpoint_every, asked * per_epoch),
    }
    between_ns = sum(means[kind] * counts[kind] for kind in means)
    later_ns = float(own[1:].mean())
    total_ns = fixed_ns + own[0] + (asked - 1) * later_ns + between_ns
    return EpochPrediction(
        epochs=asked,
        made=made,
        seconds=total_ns / 1e9,
        error_s=_error(_step_times(ends, events, per_epoch, made), own[1:], per_epoch)
        * (asked - 1)
        / 1e9,
        fixed_s=fixed_ns / 1e9,
        first_epoch_s=float(own[0]) / 1e9,
        later_epoch_s=later_ns / 1e9,
        evaluations=counts["validate"] if means["validate"] else 0,
        checkpoints=counts["checkpoint"] if means["checkpoint"] else 0,
        between_s=between_ns / 1e9,
        storage_bytes=_storage_bytes(trace, bounds),
        dataset_bytes=_dataset_bytes(run),
    )


def _events(trace: Trace, kind: str) -> Times:
    """Start and end of each on the first rank; the ranks make them together."""
    rows = trace.rows(pl.col("rank") == pl.col("rank").min(), kinds=[kind]).sort("start_ns")
    found: Times = rows.select("start_ns", "end_ns").to_numpy().reshape(-1, 2)
    if not len(found):
        return found
    # a save within a save is part of it
    starts = np.concatenate([[True], found[1:, 0] >= np.maximum.accumulate(found[:, 1])[:-1]])
    outer: Times = found[starts]
    return outer


def _within(events: Times, bounds: Times) -> Times:
    """How much time of the events there was between each two bounds."""
    starts, ends = (
        np.clip(events[:, place, None], bounds[None, :-1], bounds[None, 1:]) for place in (0, 1)
    )
    total: Times = (ends - starts).sum(axis=0)
    return total


def _count(every: int | None, num_steps: int) -> int:
    """How often something happens that is due every so many steps, and at the end."""
    return math.ceil(num_steps / every) if every else 0


def _step_times(ends: Times, events: dict[str, Times], per_epoch: int, made: int) -> Times:
    """Of the steps of later epochs, without what happened between them."""
    bounds = ends[per_epoch - 1 : made * per_epoch]
    times: Times = np.diff(bounds).astype(np.float64) - sum(
        _within(found, bounds) for found in events.values()
    )
    return times


def _error(times: Times, epochs: Sequence[float] | Times, per_epoch: int) -> float:
    """95 % bound of the error of a later epoch's mean time, by the spread of its parts, and of
    epochs where there are several.
    """
    blocks = [block.mean() for block in np.array_split(times, _BLOCKS) if len(block)]
    found = [_bound(blocks) * per_epoch] if len(blocks) > 1 else [float(times.mean()) * per_epoch]
    if len(epochs) > 2:
        found.append(_bound(epochs[:_BLOCKS]))
    return max(found)


def _bound(values: Sequence[float] | Times) -> float:
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return spread * quantile_975(len(values) - 1)


def _storage_bytes(trace: Trace, bounds: Times) -> tuple[int, ...]:
    """What was read from storage in each epoch."""
    reads = (
        (pl.col("kind").is_in(["read", "fault"]))
        & (pl.col("source") == "storage")
        & (pl.col("end_ns") <= bounds[-1])
    )
    epoch = pl.sum_horizontal(pl.col("end_ns") > bound for bound in bounds[1:-1].tolist()).cast(
        pl.String
    )
    sums = trace.summed(
        lambda part: part.filter(reads).group_by(epoch.alias("epoch")).agg(pl.col("bytes").sum()),
        ["epoch"],
    )
    known = dict(sums.group_by("epoch").agg(pl.col("bytes").sum()).iter_rows())
    return tuple(int(known.get(str(each)) or 0) for each in range(len(bounds) - 1))


def _dataset_bytes(run: RunRecord) -> int | None:
    return run.dataset.bytes if run.dataset else None
