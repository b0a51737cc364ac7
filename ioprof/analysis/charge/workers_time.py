"""What those who make batches were busy with, waited for or not: by cause, and by the names of
transforms, decoders and spans.
"""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.intervals import Intervals, is_within, overlaps, partition, total, union
from ioprof.analysis.reads.lineage import COLUMNS, KINDS, Axis
from ioprof.analysis.selection import (
    TIMES,
    WORK,
    WORKER,
    Piece,
    of_kind,
    of_work,
)
from ioprof.format.run_record import WorkersTime, WorkPart
from ioprof.format.schema import CAUSES

_SAMPLES: Final = {
    "stack": pl.Categorical(),
    "is_blocked": pl.Boolean(),
    "asks": pl.Boolean(),
    "of_other": pl.Boolean(),
}
_NUM_NAMED: Final = 8
"""Parts of a cause that are named."""
_KINDS_NAMED: Final = {"decode": "decode", "transform": "transform", "loader": "user"}
"""Causes whose time has parts with names, and the kind of spans that name them."""


@dataclass
class Making:
    """Nanoseconds in which batches were fetched, summed over workers."""

    total_ns: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    """By cause; what no span covers is left out, and causes that took none."""
    named: dict[tuple[str, str], int] = field(default_factory=dict)
    """By cause and name."""

    def add(self, cause: str, took_ns: int, name: str | None = None) -> None:
        """Add time of a stage, or of a named part of it."""
        if took_ns and name is None:
            self.stages[cause] = self.stages.get(cause, 0) + took_ns
        elif took_ns and name is not None:
            self.named[cause, name] = self.named.get((cause, name), 0) + took_ns


class MakingSums:
    """What workers spent on each stage of making batches, piece by piece; and which samples of
    stacks, if any, are of the time in which they were in no stage.

    Within their `fetch` spans only: what the same processes read to start up made no batch. An
    instant counts once, as in a wait.
    """

    kinds = (*KINDS, "user")
    columns = (*COLUMNS, WORKER)

    def __init__(self, stacks: pl.DataFrame | None = None) -> None:
        self._sums = Making()
        self._stacks = stacks
        self._unnamed = [pl.DataFrame(schema=_SAMPLES)]

    def add(self, piece: Piece) -> None:
        """Add what workers did in a piece."""
        sums, spans = self._sums, piece.spans.select(*TIMES, *self.columns)
        fetches = of_kind(spans, "fetch")
        if fetches.is_empty():
            return
        axis = Axis.of(fetches)
        there = spans.drop("pid", "tid", "batch").filter(axis.has_worker)
        fetching = union(axis.place(fetches))
        *stages, rest = partition(fetching, [axis.place(of_work(there, cause)) for cause in WORK])
        sums.total_ns += total(fetching)
        if self._stacks is not None and len(rest):
            self._unnamed.append(
                _sampled(self._stacks.filter(pl.col("rank") == piece.rank), fetches, axis, rest)
            )
        for cause, times in zip((*WORK, "loader"), (*stages, rest), strict=True):
            if cause != "loader":
                sums.add(cause, total(times))
            if cause in _KINDS_NAMED and len(times):
                _add_named(sums, cause, times, axis, there)

    def found(self) -> Making:
        """What all pieces show."""
        stages = {cause: self._sums.stages[cause] for cause in WORK if cause in self._sums.stages}
        return replace(self._sums, stages=stages)

    def unnamed_samples(self) -> pl.DataFrame:
        """The samples that were taken of fetching threads in no stage, see `with_blocked`."""
        return pl.concat(self._unnamed)


def _sampled(
    stacks: pl.DataFrame, fetches: pl.DataFrame, axis: Axis, times: Intervals
) -> pl.DataFrame:
    """The samples of threads that fetch, at these times on the axis."""
    samples = stacks.join(
        fetches.select("pid", "tid", "worker").unique(["pid", "tid"]), on=["pid", "tid"]
    )
    since_ns = samples["time_ns"].to_numpy() - axis.origin_ns
    placed = since_ns + np.searchsorted(axis.workers, samples["worker"].to_numpy()) * axis.stride_ns
    inside = is_within(placed, times) & (since_ns >= 0) & (since_ns < axis.stride_ns)
    return samples.filter(pl.Series(inside, dtype=pl.Boolean)).select(*_SAMPLES)


def _add_named(
    found: Making, cause: str, times: Intervals, axis: Axis, there: pl.DataFrame
) -> None:
    spans = of_kind(there, _KINDS_NAMED[cause]).filter(pl.col("name").is_not_null())
    for (name,), part in spans.group_by("name"):
        found.add(cause, total(overlaps(union(axis.place(part)), times)), str(name))


def workers_time(made: Making) -> WorkersTime | None:
    """The same as shares; None where no batch was fetched."""
    if not made.total_ns:
        return None
    by_cause = {**made.stages, "loader": made.total_ns - sum(made.stages.values())}
    parts: list[WorkPart] = []
    for cause in (cause for cause in CAUSES if by_cause.get(cause)):
        named = [
            (name, took_ns) for (of_cause, name), took_ns in made.named.items() if of_cause == cause
        ]
        largest = sorted(named, key=lambda part: (-part[1], part[0]))[:_NUM_NAMED]
        for name, took_ns in ((None, by_cause[cause]), *largest):
            parts.append(
                WorkPart(cause, name, took_ns / 1e9, float(np.float64(took_ns) / made.total_ns))
            )
    return WorkersTime(made.total_ns / 1e9, tuple(parts))
