"""Whether one run differs from another, and in which causes, with intervals from their steps.

Steps that follow each other are not independent: a loop waits in every n-th step, for example. So
the steady steps of a run are divided into blocks of equal length, and the interval is that of the
mean of the blocks (batch means), which are nearly independent.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.steps import warmup
from ioprof.analysis.run import Run
from ioprof.analysis.student import quantile
from ioprof.format.run_record import CauseDifference, RunDifference
from ioprof.format.schema import CAUSES

_NUM_BLOCKS: Final = 20
_FEWEST_BLOCKS: Final = 4
_SAME_SAMPLES: Final = 1e-3
"""Relative difference of the samples per step, up to which they are the same."""
_INTERVALS: Final = 2.0
"""Half intervals by which a difference must exceed 0: of runs without one, 1 in 2,000 is then said
to differ, and not 1 in 20."""
LEAST_RATIO: Final = 0.02
"""Of a step: smaller differences are none, since two runs with the same settings differ by as
much."""


@dataclass(frozen=True)
class _Blocks:
    """Means per step over blocks of steps: seconds, one row per block, one column per cause, and
    the wall time last.
    """

    means: NDArray[np.float64]
    measured: tuple[str, ...]
    samples: float | None
    """Per step, over all ranks; None: not known."""


def difference(first: Run, other: Run) -> RunDifference:
    """What `other` takes more, or less, than `first`."""
    blocks = []
    for run in (first, other):
        if (found := _blocks(run)) is None:
            name, steps = run.summary.run.name, 2 * _FEWEST_BLOCKS
            return RunDifference(
                "step", None, reason=f"{name} has fewer than {steps} steady steps with causes"
            )
        blocks.append(found)
    a, b = blocks
    per, scales = "step", (1.0, 1.0)
    if a.samples and b.samples and abs(a.samples / b.samples - 1) > _SAME_SAMPLES:
        per, scales = "sample", (1 / a.samples, 1 / b.samples)
    entries = {
        name: _difference(name, a.means[:, place] * scales[0], b.means[:, place] * scales[1])
        for place, name in enumerate((*CAUSES, "step"))
    }
    least_s = LEAST_RATIO * entries["step"].first_s
    entries = {
        name: entry.replace(differs=_differs(entry, least_s)) for name, entry in entries.items()
    }
    causes = tuple(
        entries[cause] for cause in CAUSES if cause in a.measured and cause in b.measured
    )
    return RunDifference(
        per, entries["step"], causes, entries["step"].other_s / entries["step"].first_s
    )


def _blocks(run: Run) -> _Blocks | None:
    table = run.steps.filter(pl.col("host_ns").is_not_null())
    number = int(table.group_by("rank").len()["len"].min() or 0) if len(table) else 0  # type: ignore[arg-type]
    first = warmup(number)
    count = min(_NUM_BLOCKS, (number - first) // 2)
    if count < _FEWEST_BLOCKS:
        return None
    place = pl.int_range(pl.len()).over("rank") - first
    columns = [pl.col(f"{cause}_ns").fill_null(0) for cause in CAUSES]
    wall = (pl.col("end_ns") - pl.col("start_ns")).alias("wall_ns")
    steady = (
        table.sort("rank", "step")
        .with_columns(block=place * count // (number - first))
        .filter(pl.col("block").is_between(0, count - 1))
    )
    means = (
        steady.with_columns(wall)
        .group_by("block")
        .agg(*(column.mean() for column in columns), pl.col("wall_ns").mean())
    )
    values: NDArray[np.float64] = means.sort("block").drop("block").to_numpy() / 1e9
    measured = tuple(cause for cause in CAUSES if not table[f"{cause}_ns"].null_count())
    rate, mean_s = run.summary.throughput.steady_samples_per_s, run.summary.steps.mean_s
    trained = [
        loader
        for loader in run.summary.findings.loaders
        if loader.purpose == "train" and loader.samples is not None
    ]
    samples = (
        sum(loader.samples or 0 for loader in trained) / len(table)
        if trained
        else run.trace.run.config.batch_size
    )
    return _Blocks(values, measured, samples if rate and mean_s else None)


def _difference(
    name: str, first: NDArray[np.float64], other: NDArray[np.float64]
) -> CauseDifference:
    """Welch's interval for the difference of two means."""
    errors = first.var(ddof=1) / len(first), other.var(ddof=1) / len(other)
    error = float(np.sqrt(sum(errors)))
    shares = errors[0] ** 2 / (len(first) - 1) + errors[1] ** 2 / (len(other) - 1)
    freedom = sum(errors) ** 2 / shares if shares else 1e9
    half = quantile(0.975, float(freedom)) * error
    grown = float(other.mean() - first.mean())
    return CauseDifference(
        name, float(first.mean()), float(other.mean()), grown - half, grown + half, differs=False
    )


def _differs(entry: CauseDifference, least_s: float) -> bool:
    grown, half = entry.other_s - entry.first_s, (entry.high_s - entry.low_s) / 2
    return abs(grown) > _INTERVALS * half and abs(grown) >= least_s
