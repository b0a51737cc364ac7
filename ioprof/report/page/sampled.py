"""The sampled series that the page draws as lanes, and the batches that are ready: values that hold
until the next time.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.trace import Trace
from ioprof.report.page.encoding import block, differences, ticks, varints
from ioprof.report.texts.units import NAME_LENGTH, clean

MOST_POINTS: Final = 8192
"""Points of one series; of more, the least and the greatest value in each stretch of time."""
_MOST_HOSTS: Final = 8
_MOST_DEVICES: Final = 3
_SCALE: Final = 65_535

_DIFFERENCES: Final = (
    (r"cpu\.(user|system|irq)", "CPU", "cores", "sum"),
    (r"cpu\.iowait", "I/O wait", "cores", "sum"),
    (r"pressure\.io\.some", "I/O pressure", "ratio", "sum"),
    (r"disk\.(.+)\.read_bytes", "disk {} reads", "bytes/s", "each"),
    (r"disk\.(.+)\.write_bytes", "disk {} writes", "bytes/s", "each"),
    (r"(?:lustre|nfs)\.(.+)\.fetched_bytes", "{} fetched", "bytes/s", "each"),
    (r"infiniband\.(.+)\.received_bytes", "{} received", "bytes/s", "each"),
    (r"network\.(?!lo\.)(.+)\.received_bytes", "{} received", "bytes/s", "each"),
    (r"vm\.major_faults", "major faults", "faults/s", "sum"),
)
"""Cumulative series: their pattern, what the lane is called, its unit, and whether all that match
are one lane."""
_STATES: Final = (
    (r"memory\.cached", "page cache", "bytes"),
    (r"memory\.available", "memory available", "bytes"),
    (r"(gpu\d+)\.utilisation", "{} busy", "ratio"),
)


@dataclass(frozen=True)
class Lane:
    """Values over time, for one lane."""

    name: str
    unit: str
    host: str | None
    rank: int | None
    time_ns: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    """From this time to the next."""

    @property
    def most(self) -> float:
        """The greatest value."""
        return float(self.value.max(initial=0.0))

    def block(self) -> str:
        """Times and values, these as shares of the greatest, as a block."""
        scaled = np.rint(self.value / (self.most or 1.0) * _SCALE).clip(0, _SCALE).astype(np.int64)
        return block([differences(ticks(self.time_ns)), varints(scaled)])


def sampled_lanes(trace: Trace) -> list[Lane]:
    """What was sampled of the hosts: disks, network, CPU, memory, pressure, and GPUs."""
    rows = trace.counters.with_columns(pl.col("host", "name").cast(pl.String))
    is_shared = pl.col("pid").is_null()
    hosts = (
        rows.filter(is_shared)["host"]
        .drop_nulls()
        .unique(maintain_order=True)
        .to_list()[:_MOST_HOSTS]
    )
    return [
        lane
        for host in hosts
        for lane in _host_lanes(rows.filter(is_shared, pl.col("host") == host), host)
    ]


def _host_lanes(rows: pl.DataFrame, host: str) -> Iterator[Lane]:
    names = rows["name"].unique(maintain_order=True).to_list()
    shown = clean(host, NAME_LENGTH)
    for pattern, label, unit, how in _DIFFERENCES:
        matches = [(name, found) for name in names if (found := re.fullmatch(pattern, name))]
        if how == "sum":
            yield from _thinned(
                _sum([_rates(rows, name) for name, _ in matches]), label, unit, shown
            )
            continue
        each = [(found.group(1), _rates(rows, name)) for name, found in matches]
        busiest = sorted(each, key=lambda entry: -_integral(entry[1]))[:_MOST_DEVICES]
        for instance, points in busiest:
            if _integral(points):
                yield from _thinned(points, label.format(clean(instance, 24)), unit, shown)
    for pattern, label, unit in _STATES:
        for name, found in [
            (name, found) for name in names if (found := re.fullmatch(pattern, name))
        ]:
            points = rows.filter(pl.col("name") == name).sort("time_ns").select("time_ns", "value")
            if unit == "ratio":
                points = points.with_columns(pl.col("value") / 100)
            yield from _thinned(points, label.format(*found.groups()), unit, shown)


def _rates(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """The growth per second from each sample to the next, as columns `time_ns value`."""
    found = (
        rows.filter(pl.col("name") == name)
        .group_by("time_ns")
        .agg(pl.col("value").sum())
        .sort("time_ns")
    )
    took_s = (pl.col("time_ns").shift(-1) - pl.col("time_ns")) / 1e9
    growth = (pl.col("value").shift(-1) - pl.col("value")).clip(lower_bound=0.0)
    return found.select("time_ns", value=(growth / took_s).fill_null(0.0))


def _integral(points: pl.DataFrame) -> float:
    took_s = (pl.col("time_ns").shift(-1) - pl.col("time_ns")).fill_null(0) / 1e9
    return float(points.select((pl.col("value") * took_s).sum()).item() or 0.0)


def _sum(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Several series as one: at each time the sum of the values that hold."""
    if len(parts) <= 1:
        return (
            parts[0]
            if parts
            else pl.DataFrame(
                {"time_ns": [], "value": []}, schema={"time_ns": pl.Int64, "value": pl.Float64}
            )
        )
    times = pl.concat([part.select("time_ns") for part in parts]).unique().sort("time_ns")
    held = [times.join_asof(part, on="time_ns")["value"].fill_null(0.0) for part in parts]
    total = held[0]
    for values in held[1:]:
        total = total + values
    return times.with_columns(value=total)


def _thinned(
    points: pl.DataFrame, name: str, unit: str, host: str | None, rank: int | None = None
) -> Iterator[Lane]:
    """The lane of these points, if it has any that is not 0."""
    if not len(points) or not points["value"].max():
        return
    if len(points) > MOST_POINTS:
        first, last = int(points["time_ns"][0]), int(points["time_ns"][-1])
        stretch = max(1, (last - first) // (MOST_POINTS // 2))
        ordered = points.with_columns(place=(pl.col("time_ns") - first) // stretch)
        extremes: tuple[Callable[[], pl.Expr], ...] = (
            pl.col("value").arg_min,
            pl.col("value").arg_max,
        )
        kept = [
            ordered.group_by("place", maintain_order=True).agg(
                pl.col("time_ns", "value").gather(extreme()).first()
            )
            for extreme in extremes
        ]
        points = pl.concat(kept).select("time_ns", "value").unique().sort("time_ns")
    yield Lane(
        name, unit, host, rank, points["time_ns"].to_numpy().clip(0), points["value"].to_numpy()
    )


def ready_batches(trace: Trace, ranks: list[int | None]) -> list[Lane]:
    """For each rank the batches that were made and that it had not taken yet: 0 while it waits for
    one.
    """
    lanes: list[Lane] = []
    spans = trace.rows(pl.col("batch").is_not_null(), kinds=("fetch", "wait"))
    for rank in ranks:
        mine = spans.filter(pl.col("rank").eq_missing(rank))
        made = (
            mine.filter(pl.col("kind") == "fetch")
            .group_by("batch")
            .agg(made_ns=pl.col("end_ns").max())
        )
        taken = (
            mine.filter(pl.col("kind") == "wait")
            .group_by("batch")
            .agg(taken_ns=pl.col("end_ns").max())
        )
        both = made.join(taken, on="batch").filter(pl.col("made_ns") <= pl.col("taken_ns"))
        events = pl.concat(
            [
                both.select(time_ns="made_ns", change=pl.lit(1.0)),
                both.select(time_ns="taken_ns", change=pl.lit(-1.0)),
            ]
        ).sort("time_ns", "change", descending=[False, True])
        points = events.select("time_ns", value=pl.col("change").cum_sum())
        lanes += _thinned(points, "batches ready", "batches", None, rank)
    return lanes
