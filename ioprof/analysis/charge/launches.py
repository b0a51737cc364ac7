"""Time in which a device had nothing to do until the host launched its next kernel.

A kernel of a few microseconds ends before Python has launched the next one: a launch takes 10 to
100 us in a loop of PyTorch. Such a job is bound by launches. What costs is the number of kernels,
not one line of code.

A gap between two activities of a device counts if it has the length that gaps have where kernels
are launched one by one. In sixteen jobs on an H100, each with another fault, 99 % of the gaps
between kernels that were queued are below 3 us (median 1.5 us). Kernels of a CUDA graph are one
launch, and follow each other as closely. Of the gaps of the job that is bound by launches (2,432
kernels a step) 98 % are between 12 and 78 us, and 99.7 % below 200 us. Longer gaps have another
reason, such as Python of the job's own, from 3 ms on in these jobs.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.duration_classes import duration_class, quantiles_ns
from ioprof.analysis.charge.steps import of_steps
from ioprof.analysis.charge.training_process import in_main_thread
from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    overlaps,
    pack,
    subtract,
    total,
    union,
    union_all,
)
from ioprof.analysis.selection import COMPUTE, COPIES, Piece, intervals, of_kind, on_stream
from ioprof.format.trace import Trace

SHORTEST_NS: Final = 3_000
LONGEST_NS: Final = 200_000
"""Lengths of gaps that count."""


@dataclass(frozen=True)
class Launches:
    """The launches of kernels in the steps that were recorded, and what waiting for them took."""

    waited_ns: int
    """Part of `host` in which devices waited for the next launch, summed over ranks."""
    per_step: float
    """Kernels of a step, mean over ranks and steps."""
    median_s: float
    """The time of a kernel."""


class LaunchWaits:
    """`Launches`, piece by piece."""

    def __init__(self, trace: Trace, recorded: pl.DataFrame) -> None:
        self._recorded, self._steps = recorded, recorded.clear()
        """The recorded steps of all ranks, and of the rank of the piece."""
        is_kernel = (pl.col("kind") == "kernel") & pl.col("on_stream")
        self._ranks = frozenset(trace.sums.filter(is_kernel)["rank"].unique())
        """Of whose devices kernels were recorded."""
        self._classes = pl.DataFrame(schema={"time_class": pl.Int32, "kernels": pl.UInt32})
        self._waited_ns = 0
        self.unnamed_ns = 0
        """Part of the waits outside of spans with a name."""
        self._last_ns: int | None = None
        """When the rank's device was last busy in the pieces so far."""
        self._since = EMPTY, EMPTY
        """The host's time since then, all of it and that without a name."""

    def add(self, piece: Piece, host: Intervals) -> None:
        """Look at a piece of a rank's time, and at what of its recorded steps is charged to
        `host`.
        """
        if piece.is_first:
            self._last_ns, self._since = None, (EMPTY, EMPTY)
            self._steps = self._recorded.filter(pl.col("rank") == piece.rank)
        if piece.rank not in self._ranks:
            return
        self._count(
            of_kind(piece.spans, "kernel").filter(on_stream, pl.col("begin_ns") >= piece.start_ns)
        )
        busy = union(intervals(of_kind(piece.spans, *COMPUTE, *COPIES, "comm").filter(on_stream)))
        users = of_kind(piece.spans, "user").filter(
            in_main_thread(piece.spans), pl.col("name").is_not_null()
        )
        unnamed = subtract(host, intervals(users))
        waiting = union_all([self._since[0], host]), union_all([self._since[1], unnamed])
        if len(busy):
            firsts, lasts = busy[:, 0], busy[:, 1]
            starts = lasts[:-1] if self._last_ns is None else np.append(self._last_ns, lasts[:-1])
            gaps = pack(starts, firsts[len(firsts) - len(starts) :])
            lengths = gaps[:, 1] - gaps[:, 0]
            gaps = gaps[(lengths >= SHORTEST_NS) & (lengths <= LONGEST_NS)]
            self._waited_ns += total(overlaps(gaps, waiting[0]))
            self.unnamed_ns += total(overlaps(gaps, waiting[1]))
            self._last_ns = int(lasts[-1])
        if self._last_ns is not None:
            # a longer gap does not count
            rest = pack(np.array([self._last_ns]), np.array([self._last_ns + LONGEST_NS]))
            self._since = overlaps(rest, waiting[0]), overlaps(rest, waiting[1])

    def _count(self, kernels: pl.DataFrame) -> None:
        """Count those of a recorded step."""
        counted = kernels.filter(of_steps(kernels, self._steps, "begin_ns"))
        classes = counted.select(
            time_class=duration_class(pl.col("finish_ns") - pl.col("begin_ns"))
        )
        sums = pl.concat(
            [self._classes, classes.group_by("time_class").agg(kernels=pl.len())],
            how="vertical_relaxed",
        )
        self._classes = sums.group_by("time_class").agg(pl.col("kernels").sum())

    def found(self) -> Launches | None:
        """What all pieces show; None: no kernel of a step was recorded."""
        ordered = self._classes.sort("time_class")
        number = int(ordered["kernels"].sum())
        if not number:
            return None
        classes, counts = (
            ordered[name].cast(pl.Int64).to_numpy() for name in ("time_class", "kernels")
        )
        (median_ns,) = quantiles_ns(classes, counts, (0.5,))
        return Launches(self._waited_ns, number / len(self._recorded), median_ns / 1e9)
