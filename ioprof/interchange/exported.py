"""What all exports have in common: what was written, and the sampled series of a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.trace import Trace
from ioprof.interchange.tracks import harmless


@dataclass(frozen=True)
class Exported:
    """What a file holds."""

    spans: dict[str, int]
    """Number of spans by kind."""
    counters: int = 0
    """Sampled values."""
    arrows: int = 0
    """From reads to batches, waits and steps."""
    samples: int = 0
    """Stack samples, in a format of these alone."""
    functions: int = 0
    """Slices of functions, from stack samples."""

    @property
    def num_spans(self) -> int:
        """Of all kinds."""
        return sum(self.spans.values())

    def text(self) -> str:
        """Such as `12,345 spans, 90 counter values`."""
        if self.samples:
            return f"{self.samples:,} samples"
        more = [
            f"{number:,} {what}"
            for number, what in (
                (self.counters, "counter values"),
                (self.arrows, "arrows"),
                (self.functions, "slices of sampled functions"),
            )
            if number
        ]
        return ", ".join([f"{self.num_spans:,} spans", *more])


@dataclass(frozen=True)
class CounterSeries:
    """A sampled series of a host, rank or process."""

    name: str
    unit: str
    host: str | None
    pid: int | None
    times_ns: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


def counter_series(trace: Trace) -> Iterator[CounterSeries]:
    """The sampled series, each in order of time; the name has rank or host where no process is
    known.
    """
    keys = ["host", "rank", "pid", "name", "unit"]
    table = trace.counters.with_columns(pl.col("host", "name", "unit").cast(pl.String)).drop_nulls(
        ["time_ns", "value"]
    )
    several = table["host"].n_unique() > 1
    for (host, rank, pid, name, unit), samples in table.sort("time_ns").group_by(
        keys, maintain_order=True
    ):
        own = harmless(str(name))
        if rank is not None:
            own += f" of rank {rank}"
        if several and host:
            own += harmless(f" on {host}")
        columns: tuple[Any, Any] = samples["time_ns"].to_numpy(), samples["value"].to_numpy()
        yield CounterSeries(own, harmless(str(unit or "")), host, pid, *columns)
