"""Where to look in a run: its stalls, and the stretches of a large run whose spans are in the
page.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from ioprof.errors import CommandError
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace
from ioprof.report import views
from ioprof.report.texts.units import visible

MOST_STALLS: Final = 200
"""Stalls that the page leads to, the longest first."""
MOST_SPANS: Final = 400_000
"""Spans that a page has. Of a run with more, those in chosen stretches."""
_EXCESS: Final = 0.5  # of a median step, by which a step is longer to be a stall
_DEVIATIONS: Final = 6.0  # median absolute deviations, by which it is longer too
_NEIGHBOURS: Final = 4  # steps before and after one that is shown
_LONGEST: Final = 50
_EVENLY: Final = 200


@dataclass(frozen=True)
class Stall:
    """A step that took much longer than the median one, on the rank that delayed it."""

    step: int
    rank: int
    start_ns: int
    end_ns: int
    excess_ns: int
    cause: str | None
    """The greatest one after compute; None: nothing is known of the step."""


def stalls(steps: pl.DataFrame) -> list[Stall]:
    """The stalls of a run, the longest first; without any, the longest step."""
    if not len(steps):
        return []
    walls = steps.select(views.wall_ns()).to_series()
    median = float(walls.median() or 0)  # type: ignore[arg-type]
    deviation = float((walls - median).abs().median() or 0)  # type: ignore[arg-type]
    least = median + max(_EXCESS * median, _DEVIATIONS * 1.4826 * deviation)
    longest = views.longest_steps(steps, MOST_STALLS)
    found = longest.filter(pl.col("wall_ns") > least)
    rows = (found if len(found) else longest.head(1)).iter_rows(named=True)
    return [
        Stall(
            row["step"],
            row["rank"],
            row["start_ns"],
            row["start_ns"] + row["wall_ns"],
            int(row["wall_ns"] - median),
            row["cause"],
        )
        for row in rows
    ]


def stretches(
    trace: Trace, steps: pl.DataFrame, found: list[Stall], wanted: tuple[int, int] | None = None
) -> list[tuple[int, int]]:
    """Stretches of time with at most `MOST_SPANS` spans together, in order: `wanted`, the start,
    the longest stalls, a median step, and steps evenly from the run. Of a run without steps, or
    whose steps have more spans, short stretches evenly from the run.
    """
    candidates = [wanted] if wanted else []
    if len(steps):
        first = steps.sort("start_ns").row(0, named=True)
        typical = views.typical_step(steps)
        candidates += [_around(steps, row["rank"], row["step"]) for row in (first, typical)]
        candidates += [_around(steps, stall.rank, stall.step) for stall in found[:_LONGEST]]
        mine = steps.filter(pl.col("rank") == typical["rank"]).sort("start_ns")
        every = max(1, len(mine) // _EVENLY)
        candidates += list(mine.gather_every(every).select("start_ns", "end_ns").iter_rows())
    density = _density(trace)
    if chosen := _fitting(candidates, density, wanted):
        return _merged(chosen)
    begun = density.filter(pl.col("per_ns") > 0).sort("since_ns").select("since_ns", "until_ns")
    every = max(1, len(begun) // _EVENLY)
    return _merged(_fitting([*begun.gather_every(every).iter_rows()], density))


def _fitting(
    candidates: list[tuple[int, int]], density: pl.DataFrame, wanted: tuple[int, int] | None = None
) -> list[tuple[int, int]]:
    """Those of the candidates, the first ones first, that have at most `MOST_SPANS` spans together;
    of `wanted` at least a part.
    """
    ordered = density.sort("since_ns")
    since, until, densities = (
        ordered[name].to_numpy() for name in ("since_ns", "until_ns", "per_ns")
    )
    room, chosen = float(MOST_SPANS), []
    for since_ns, until_ns in candidates:
        length = until_ns - since_ns
        near = slice(
            np.searchsorted(until, since_ns, side="right"),
            np.searchsorted(since, until_ns, side="left"),
        )
        cost = float(densities[near].max(initial=0.0)) * length
        if (since_ns, until_ns) == wanted:
            while cost > room:  # the middle of it
                quarter, cost = (until_ns - since_ns) // 4, cost / 2
                since_ns, until_ns = since_ns + quarter, until_ns - quarter
        if cost <= room:
            room -= cost
            chosen.append((since_ns, until_ns))
    return chosen


def stretch_around(steps: pl.DataFrame, wanted: str) -> tuple[int, int]:
    """The part of the run around a step (`68`) or a second (`8.4s`), as `--around` names it;
    CommandError: there is none.
    """
    if wanted.isdecimal():
        found = around_step(steps, int(wanted))
        if found is None:
            numbers = steps["step"]
            known = (
                f"its steps are {min(numbers)} to {max(numbers)}"
                if len(numbers)
                else "it has no steps"
            )
            raise CommandError(
                f"--around {wanted}: the run has no such step; {known}; seconds are written with an"
                f" s: {wanted}s"
            )
        return found
    if not re.fullmatch(r"\d*\.?\d+s?|\d+\.s?", wanted):
        raise CommandError(
            f"--around {visible(wanted)}: is neither a step (68) nor a second of the run (8.4s)"
        )
    return around_moment(steps, round(float(wanted.removesuffix("s")) * 1e9))


def around_step(steps: pl.DataFrame, number: int) -> tuple[int, int] | None:
    """The stretch of a step and some before and after it, on all ranks; null: there is no such
    step.
    """
    near = steps.filter((pl.col("step") - number).abs() <= _NEIGHBOURS)
    return _extent(near) if (steps["step"] == number).any() else None


def around_moment(steps: pl.DataFrame, moment_ns: int) -> tuple[int, int]:
    """The stretch around a moment of the run, as long as some steps; a second where there are
    none.
    """
    walls = (
        steps.select(views.wall_ns()).to_series() if len(steps) else pl.Series([], dtype=pl.Int64)
    )
    median = walls.median()
    half = int(_NEIGHBOURS * median) if isinstance(median, int | float) else 500_000_000
    return max(0, moment_ns - half), moment_ns + half


def named_cause(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps with the column `cause`, the number in `CAUSES` of the greatest one after compute;
    -1: nothing is known of them.
    """
    other = np.stack(
        [steps[f"{cause}_ns"].fill_null(-1).to_numpy() for cause in CAUSES if cause != "compute"]
    )
    cause = np.where((other >= 0).any(0), np.argmax(other, axis=0) + 1, -1)
    return steps.with_columns(cause=pl.Series(cause, dtype=pl.Int64))


def _density(trace: Trace) -> pl.DataFrame:
    """Spans per nanosecond in stretches of the run, of all ranks; what is not dense adds a third at
    most.
    """
    starts = trace.starts.group_by("since_ns", "until_ns").agg(pl.col("spans").sum())
    return starts.with_columns(
        per_ns=1.33 * pl.col("spans") / (pl.col("until_ns") - pl.col("since_ns"))
    )


def _around(steps: pl.DataFrame, rank: int, step: int) -> tuple[int, int]:
    return _extent(
        steps.filter(pl.col("rank") == rank, (pl.col("step") - step).abs() <= _NEIGHBOURS)
    )


def _extent(near: pl.DataFrame) -> tuple[int, int]:
    return int(near["start_ns"].min()), int(near["end_ns"].max())  # type: ignore[arg-type]


def _merged(chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for since_ns, until_ns in sorted(chosen):
        if merged and since_ns <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(until_ns, merged[-1][1]))
        else:
            merged.append((since_ns, until_ns))
    return merged
