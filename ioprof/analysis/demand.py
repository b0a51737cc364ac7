"""What storage must deliver so that the accelerators never wait for it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.facts import Facts
from ioprof.analysis.intervals import Intervals, covered, pack, total, union
from ioprof.analysis.lineage import Axis, with_lane
from ioprof.analysis.observed import observed
from ioprof.analysis.reads import is_access
from ioprof.analysis.result import Demand
from ioprof.analysis.selection import COMPUTE, by_rank, intervals
from ioprof.analysis.steps import steps
from ioprof.trace import Trace

_KINDS: Final = ("wait", "fetch", "read", "fault", "decode")


@dataclass(frozen=True)
class Fetched:
    """What making batches took, over all batches that were made whole."""

    batches: int = 0
    reads: int = 0
    """Accesses that moved bytes."""
    bytes: int = 0
    decode_ns: int = 0
    """Summed over workers."""

    def __add__(self, other: "Fetched") -> "Fetched":
        return Fetched(
            self.batches + other.batches, self.reads + other.reads, self.bytes + other.bytes, self.decode_ns + other.decode_ns
        )


def fetched(trace: Trace) -> Fetched:
    """What lies within a fetch. Reads outside of one (imports, opening the dataset, a fetch cut short) belong to no sample."""
    found = Fetched()
    for _, spans in by_rank(trace, _KINDS, ["pid", "tid", "batch", "bytes"]):
        found += _of_rank(spans)
    return found


def demand(trace: Trace, found: Fetched | None = None) -> Demand:
    """Mean bytes and reads per sample, times the rate at which the devices themselves can go.

    That rate is the emulated device's own, or else samples over the time that the accelerators computed: what the job would
    reach if nothing ever held it up. High against what the path delivers: storage is, or will be, the bottleneck.
    `found` is `fetched(trace)`, if at hand.
    """
    facts = Facts.of(trace.run)
    found = fetched(trace) if found is None else found
    rate = device_rate(trace)
    samples = found.batches * (facts.batch_size or 0)
    if rate is None or not samples or not facts.reads_captured:
        return Demand(None, None, rate, "unknown" if rate is None else _basis(facts))
    return Demand(found.bytes / samples * rate, found.reads / samples * rate, rate, _basis(facts))


def device_rate(trace: Trace) -> float | None:
    """Samples per second of all devices together while they compute; null where neither a known rate nor compute was recorded."""
    facts = Facts.of(trace.run)
    if facts.device_samples_per_s is not None:
        return facts.device_samples_per_s * (facts.ranks or len(trace.ranks) or 1)
    rows = int(observed(trace, steps(trace)).sum())
    computed_ns = sum(total(intervals(spans)) for _, spans in by_rank(trace, COMPUTE, []))
    if not computed_ns or not rows or not facts.batch_size:
        return None
    return rows * facts.batch_size / (computed_ns / 1e9) * (facts.ranks or len(trace.ranks))


def _basis(facts: Facts) -> str:
    return "emulated" if facts.emulated else "derived"


def _of_rank(spans: pl.DataFrame) -> Fetched:
    spans = with_lane(spans)
    fetches = spans.filter(pl.col("kind") == "fetch")
    axis = Axis.of(fetches["lane"].to_numpy(), intervals(fetches))
    within = union(axis.place(fetches))
    spans = spans.filter(pl.col("lane").is_in(pl.Series(axis.lanes).implode()))
    accesses, decodes = spans.filter(is_access), spans.filter(pl.col("kind") == "decode")
    inside = accesses.filter(pl.Series(_is_within(axis, accesses, within)))
    return Fetched(
        batches=fetches["batch"].n_unique(),
        reads=len(inside),
        bytes=int(inside["bytes"].sum()),
        decode_ns=int(covered(axis.place(decodes), within).sum()),
    )


def _is_within(axis: Axis, spans: pl.DataFrame, within: Intervals) -> NDArray[np.bool_]:
    """Which spans begin within one of the intervals on the axis."""
    begins = axis.place(spans)[:, 0]
    found: NDArray[np.bool_] = (covered(pack(begins, begins + 1), within) == 1) & (spans["start_ns"].to_numpy() >= axis.origin_ns)
    return found
