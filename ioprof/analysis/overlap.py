"""How much of the copies, reads, decoding and exchange ran while the accelerator computed, and so cost nothing."""

from typing import Final

import polars as pl

from ioprof.analysis.facts import Facts
from ioprof.analysis.intervals import covered, overlaps, total, union
from ioprof.analysis.observed import recorded_times
from ioprof.analysis.result import Overlap
from ioprof.analysis.selection import COMPUTE, COPIES, READS, by_rank, intervals, kind_in
from ioprof.analysis.unmeasured import unmeasured
from ioprof.trace import Trace

_ACTIVITIES: Final = {
    "h2d": kind_in(COPIES),
    "storage": kind_in(READS) & (pl.col("source") != "page_cache").fill_null(True),
    "decode": pl.col("kind") == "decode",
    "communication": pl.col("kind") == "comm",
}
_ABSENT: Final = {
    "h2d": "nothing was copied to or from a device",
    "storage": "no read from storage was recorded",
    "decode": "no decoding was recorded",
    "communication": "no gradient exchange was recorded",
}
_KINDS: Final = (*COMPUTE, *COPIES, *READS, "decode", "comm")


def overlap(trace: Trace) -> dict[str, Overlap]:
    """For `h2d`, `storage`, `decode`, `communication`: the time during which at least one such span of a rank or of its workers was
    open, and how much of it that rank's accelerator computed, summed over ranks.

    `storage` is every read that did not provably come from the page cache. `communication` includes waiting for peers.
    Where the GPU was recorded in windows, only these are looked at.
    """
    open_ns = dict.fromkeys(_ACTIVITIES, 0)
    hidden_ns = dict.fromkeys(_ACTIVITIES, 0)
    for rank, spans in by_rank(trace, _KINDS, ["source"]):
        busy, recorded = union(intervals(spans.filter(kind_in(COMPUTE)))), recorded_times(trace, rank)
        for name, condition in _ACTIVITIES.items():
            times = union(intervals(spans.filter(condition)))
            times = times if recorded is None else overlaps(times, recorded)
            open_ns[name] += total(times)
            hidden_ns[name] += int(covered(times, busy).sum())
    missing = unmeasured(trace)
    basis = Facts.of(trace.run).device_basis
    return {name: _overlap(name, open_ns[name], hidden_ns[name], basis, missing) for name in _ACTIVITIES}


def _overlap(name: str, open_ns: int, hidden_ns: int, basis: str, missing: dict[str, str]) -> Overlap:
    if not open_ns:
        return Overlap(None, None, None, "unknown", missing.get(name, _ABSENT[name]))
    if "compute" in missing:
        return Overlap(open_ns / 1e9, None, None, "measured", missing["compute"])
    return Overlap(open_ns / 1e9, hidden_ns / 1e9, hidden_ns / open_ns, basis)
