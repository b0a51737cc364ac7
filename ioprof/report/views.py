"""What the figures show, as plain tables: no drawing here, and nothing here is a choice of colour.

Long runs are thinned so that a stall is never lost: of several steps the longest is kept, of
several spans the longest is kept and the short ones are joined with their neighbours of the same
kind. Every table says what was thinned.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.reads.sources import counted_reads
from ioprof.analysis.selection import look
from ioprof.format.schema import CAUSES, SOURCES
from ioprof.format.trace import Trace
from ioprof.report.texts.units import percent

MOST_STEPS: Final = 1000
"""Points along the step axis."""
MOST_RANKS: Final = 4
"""Ranks in a timeline, and lines in the throughput chart."""
BINS_PER_DECADE: Final = 10
"""Bars in a decade of read times."""
MOST_RANK_BARS: Final = 32
"""Ranks with a bar of their own."""


def wall_ns() -> pl.Expr:
    """Wall time of a step, as an expression on the table of blame."""
    return pl.col("end_ns") - pl.col("start_ns")


def seconds_by_cause(steps: pl.DataFrame) -> pl.DataFrame:
    """Columns `rank cause seconds share`; rank null is all ranks together and comes first; causes
    that are null are left out.
    """
    sums = [
        pl.when(pl.col(f"{cause}_ns").count() > 0).then(pl.col(f"{cause}_ns").sum()).alias(cause)
        for cause in CAUSES
    ]
    every = steps.select(pl.lit(None, dtype=steps.schema["rank"]).alias("rank"), *sums).head(1)
    ranks = steps.group_by("rank").agg(sums).sort("rank")
    table = pl.concat([every, ranks]) if len(ranks) else ranks.select("rank", *CAUSES)
    long = table.unpivot(
        index="rank", on=list(CAUSES), variable_name="cause", value_name="ns"
    ).drop_nulls("ns")
    total = pl.col("ns").sum().over("rank")
    share = pl.when(total > 0).then(pl.col("ns") / total).otherwise(0.0)
    return long.select("rank", "cause", (pl.col("ns") / 1e9).alias("seconds"), share.alias("share"))


def ranks_by_pace(steps: pl.DataFrame) -> list[int]:
    """The ranks, slowest first: by their time outside gradient exchange, in which a fast rank only
    waits for a slow one.
    """
    own = wall_ns() - _exchange_ns()
    return (
        steps.group_by("rank")
        .agg(own.mean().alias("own"))
        .sort(["own", "rank"], descending=[True, False])["rank"]
        .to_list()
    )


def chosen_ranks(steps: pl.DataFrame, limit: int = MOST_RANKS) -> list[int]:
    """At most `limit` ranks, in order of their numbers: the slowest, the fastest, and evenly from
    between.
    """
    pace = ranks_by_pace(steps)
    if len(pace) <= limit:
        return sorted(pace)
    return sorted(pace[round(place * (len(pace) - 1) / (limit - 1))] for place in range(limit))


def step_rows(steps: pl.DataFrame, limit: int = MOST_STEPS) -> pl.DataFrame:
    """Columns `step rank start_ns wall_ns <cause>_ns of`: for each step the rank that delayed it;
    of each `of` the longest.

    The rank that delayed a step is the one that spent most time outside gradient exchange.
    """
    delaying = _delaying_ranks(steps).with_row_index("place")
    per_point = -(-len(delaying) // limit) or 1
    worst = delaying.with_columns(point=pl.col("place") // per_point).sort(
        ["point", "wall_ns", "step"], descending=[False, True, False]
    )
    kept = worst.group_by("point", maintain_order=True).agg(
        pl.all().exclude("of").first(), pl.len().alias("of")
    )
    return kept.select(
        "step", "rank", "start_ns", "wall_ns", *(f"{cause}_ns" for cause in CAUSES), "of"
    )


def rates(steps: pl.DataFrame, samples_per_step: int, limit: int = MOST_STEPS) -> pl.DataFrame:
    """Columns `rank start_ns end_ns rate lowest of`: samples/s of each chosen rank over time, and
    of the slowest step therein.
    """
    parts = []
    for rank in chosen_ranks(steps):
        mine = (
            steps.filter(pl.col("rank") == rank, wall_ns() > 0)
            .sort("start_ns")
            .with_row_index("place")
        )
        per_point = -(-len(mine) // limit) or 1
        parts.append(
            mine.group_by(pl.col("place") // per_point, maintain_order=True).agg(
                pl.col("rank").first(),
                pl.col("start_ns").first(),
                pl.col("end_ns").last(),
                (samples_per_step * 1e9 * pl.len() / wall_ns().sum()).alias("rate"),
                (samples_per_step * 1e9 / wall_ns().max()).alias("lowest"),
                pl.len().alias("of"),
            )
        )
    return pl.concat(parts).drop("place") if parts else pl.DataFrame()


def longest_steps(steps: pl.DataFrame, limit: int = 10) -> pl.DataFrame:
    """Columns `rank step start_ns wall_ns cause cause_ns`: the longest steps, each with the rank
    that delayed it.

    `cause` is the greatest one after compute; null where nothing is known of the step. Where there
    are others, steps that ioprof itself delayed are left out.
    """
    delaying = _delaying_ranks(steps)
    others = delaying.join(_delayed_by_windows(steps), on=["rank", "step"], how="anti")
    top = (
        (others if len(others) else delaying)
        .sort(["wall_ns", "step"], descending=[True, False])
        .head(limit)
    )
    other = [cause for cause in CAUSES if cause != "compute"]
    is_known = pl.any_horizontal(pl.col(f"{cause}_ns").is_not_null() for cause in CAUSES)
    greatest = pl.when(is_known).then(
        pl.concat_list([pl.col(f"{cause}_ns").fill_null(-1) for cause in other])
    )
    return top.select(
        "rank",
        "step",
        "start_ns",
        "wall_ns",
        greatest.list.arg_max()
        .replace_strict(dict(enumerate(other)), return_dtype=pl.String)
        .alias("cause"),
        greatest.list.max().alias("cause_ns"),
    )


def latency_bins(trace: Trace) -> pl.DataFrame:
    """Columns `source bin reads bytes`: reads that took from 10^(bin/10) to 10^((bin+1)/10)
    seconds, and their bytes.

    Those that the summary counts: reads for batches, if there are any. The bin is null for reads
    that were counted and not timed.
    """
    look(trace, latencies := Latencies(trace))
    return latencies.bins()


class Latencies:
    """`latency_bins`, part by part."""

    def __init__(self, trace: Trace) -> None:
        self.columns = {
            "start_ns": pl.col("start_ns"),
            "end_ns": pl.col("end_ns"),
            "size": pl.col("bytes").cast(pl.Int64).fill_null(0),
            "source_code": (
                pl.col("source")
                .cast(pl.Enum(SOURCES), strict=False)
                .fill_null("unknown")
                .to_physical()
            ),
            "is_counted": counted_reads(trace),
        }
        self._sums = np.zeros((2, len(SOURCES), len(_LEAST_NS) + 1), np.int64)
        """Reads and bytes; the first bin is of those that were not timed."""

    def add(self, part: pl.DataFrame) -> None:
        """Look at the next part of the spans."""
        rows = np.flatnonzero(part["is_counted"].to_numpy())
        start, end, size, source = (
            part[name].to_numpy()[rows] for name in ("start_ns", "end_ns", "size", "source_code")
        )
        bins = np.searchsorted(_LEAST_NS, end - start, side="right")
        cells, width = source.astype(np.int64) * self._sums.shape[2] + bins, self._sums[0].size
        self._sums[0] += np.bincount(cells, minlength=width).reshape(self._sums[0].shape)
        self._sums[1] += (
            np.bincount(cells, size, minlength=width).astype(np.int64).reshape(self._sums[0].shape)
        )

    def bins(self) -> pl.DataFrame:
        """What `latency_bins` returns."""
        source, place = np.nonzero(self._sums[0])
        found = {"source": [SOURCES[each] for each in source], "bin": place + (_FIRST_BIN - 1)}
        sums = {
            name: values[source, place]
            for name, values in zip(("reads", "bytes"), self._sums, strict=True)
        }
        schema = {"source": pl.String, "bin": pl.Int64, "reads": pl.UInt32, "bytes": pl.Int64}
        table = pl.DataFrame({**found, **sums}, schema_overrides=schema)
        return table.with_columns(bin=pl.when(pl.lit(pl.Series(place > 0))).then("bin")).sort(
            "source", "bin"
        )


_FIRST_BIN: Final = -9 * BINS_PER_DECADE
"""The bin of a nanosecond."""


def _least_ns() -> NDArray[np.int64]:
    """The least duration of each bin from the first on; of one that has none, that of the next."""
    bins = np.arange(_FIRST_BIN, 9 * BINS_PER_DECADE)
    near = np.floor(10.0 ** (bins / BINS_PER_DECADE) * 1e9).astype(np.int64)
    candidates = np.unique(np.maximum(near[:, None] + np.arange(-1, 3), 1))
    found = np.floor(np.log10(candidates / 1e9) * BINS_PER_DECADE).astype(np.int64)
    return candidates[np.searchsorted(np.maximum.accumulate(found), bins)]


_LEAST_NS: Final = _least_ns()


class ReadingTime:
    """From the first read of a batch to the last, part by part."""

    columns: Final = {
        "start_ns": pl.col("start_ns"),
        "end_ns": pl.col("end_ns"),
        "is_of_batch": pl.col("kind").is_in(["read", "fault"]) & pl.col("batch").is_not_null(),
    }

    def __init__(self) -> None:
        self._bounds: tuple[int, int] | None = None

    def add(self, part: pl.DataFrame) -> None:
        """Look at the next part of the spans."""
        rows = np.flatnonzero(part["is_of_batch"].fill_null(value=False).to_numpy())
        if not len(rows):
            return
        first, last = (
            int(part["start_ns"].to_numpy()[rows].min()),
            int(part["end_ns"].to_numpy()[rows].max()),
        )
        before = self._bounds or (first, last)
        self._bounds = min(first, before[0]), max(last, before[1])

    @property
    def seconds(self) -> float | None:
        """None: there are no such reads."""
        if self._bounds is None or self._bounds[0] >= self._bounds[1]:
            return None
        return (self._bounds[1] - self._bounds[0]) / 1e9


def around_longest(steps: pl.DataFrame, warmup: int = 0) -> tuple[int, int]:
    """The stretch of the longest step after warm-up and its neighbours, on the rank that delayed
    it.
    """
    longest = longest_steps(_steady(steps, warmup), 1).row(0, named=True)
    mine = steps.filter(
        pl.col("rank") == longest["rank"], (pl.col("step") - longest["step"]).abs() <= 1
    )
    return min(mine["start_ns"]), max(mine["end_ns"])


def typical_step(steps: pl.DataFrame, warmup: int = 0) -> dict[str, int]:
    """The row of the step after warm-up whose length is nearest the median, and of those the one
    nearest the run's middle.
    """
    steady = _steady(steps, warmup)
    median = sorted(steps.select(wall_ns()).to_series())[round(0.5 * (len(steps) - 1))]
    middle = sorted(steady["step"])[len(steady) // 2]
    shown = steady.filter(pl.col("rank").is_in(chosen_ranks(steps))).with_columns(wall_ns=wall_ns())
    return shown.sort(
        (pl.col("wall_ns") - median).abs(), (pl.col("step") - middle).abs(), "rank"
    ).row(0, named=True)


def _steady(steps: pl.DataFrame, warmup: int) -> pl.DataFrame:
    return steps.filter(pl.col("step") >= warmup) if (steps["step"] >= warmup).any() else steps


def usual_height_ms(steps: pl.DataFrame) -> float | None:
    """Where to cut the axis so that the usual steps can be read: 1.5 times their p95; null if no
    step is much longer.
    """
    walls = step_rows(steps)["wall_ns"].to_list()
    usual = 1.5 * sorted(walls)[round(0.95 * (len(walls) - 1))] if walls else 0
    return usual / 1e6 if walls and max(walls) > 2 * usual else None


def bars_of_time_by_cause(steps: pl.DataFrame) -> list[int]:
    """The ranks that get a bar of their own: all, or of very many the slowest, the fastest and some
    between.
    """
    return chosen_ranks(steps, MOST_RANK_BARS)


def thinning_of_steps(steps: pl.DataFrame, limit: int = MOST_STEPS) -> str | None:
    """What a reader must know about `step_rows`, or null if every step is shown."""
    number = steps["step"].n_unique()
    per_point = -(-number // limit)
    return (
        f"{number:,} steps: each point is the longest of {per_point} consecutive steps"
        if per_point > 1
        else None
    )


def thinning_of_ranks(steps: pl.DataFrame, shown: Sequence[int]) -> str | None:
    """Which ranks are shown and why, or null if all are."""
    number = steps["rank"].n_unique()
    if len(shown) >= number:
        return None
    pace = ranks_by_pace(steps)
    named = ", ".join(str(rank) for rank in shown) if len(shown) <= MOST_RANKS else f"{len(shown)}"
    return (
        f"ranks {named} of {number}: the slowest ({pace[0]}), the fastest ({pace[-1]}), and some"
        " between"
    )


def _delaying_ranks(steps: pl.DataFrame) -> pl.DataFrame:
    """For each step the row of the rank that spent most time outside gradient exchange, with
    `wall_ns`.
    """
    own = wall_ns() - _exchange_ns()
    ordered = steps.with_columns(wall_ns=wall_ns(), own=own).sort(
        ["step", "own", "rank"], descending=[False, True, False]
    )
    return ordered.group_by("step", maintain_order=True).first().drop("own")


def _delayed_by_windows(steps: pl.DataFrame) -> pl.DataFrame:
    """`rank` and `step` of the steps in which a recording of the GPU ended: the first ones of which
    nothing is known.
    """
    is_known = pl.any_horizontal(pl.col(f"{cause}_ns").is_not_null() for cause in CAUSES)
    known = steps.select("rank", pl.col("step") + 1, was_known=is_known).filter("was_known")
    return (
        steps.filter(~is_known).join(known, on=["rank", "step"], how="semi").select("rank", "step")
    )


def cause_text(row: Mapping[str, Any]) -> str:
    """Of a row of `longest_steps`: its greatest cause after compute and the share of it; or that
    nothing is known.
    """
    if row["cause"] is None:
        return "GPU not recorded"
    share = percent(row["cause_ns"] / row["wall_ns"] if row["wall_ns"] else None, 0)
    return f"{share} {row['cause'].replace('_', ' ')}"


def _exchange_ns() -> pl.Expr:
    """Time in which a rank exchanged gradients or waited for other ranks."""
    return pl.sum_horizontal(pl.col("exchange_ns", "straggler_ns").fill_null(0))
