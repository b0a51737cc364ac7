"""How much of the copies, reads, decoding and exchange ran while the accelerator computed, and so
cost nothing.
"""

from collections.abc import Callable, Mapping
from typing import Final

import polars as pl

from ioprof.analysis.charge.gpu_windows import recorded_times
from ioprof.analysis.charge.unmeasured import unmeasured
from ioprof.analysis.intervals import covered, overlaps, total, union
from ioprof.analysis.selection import (
    COMPUTE,
    COPIES,
    READS,
    TIMES,
    Piece,
    intervals,
    of_kind,
    of_work,
)
from ioprof.format.run_record import Overlap, Reason
from ioprof.format.trace import Trace

_ACTIVITIES: Final[dict[str, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    "h2d": lambda spans: of_kind(spans, "h2d"),
    "d2h": lambda spans: of_kind(spans, "d2h"),
    "storage": lambda spans: of_work(spans, "storage"),
    "decode": lambda spans: of_kind(spans, "decode"),
    "communication": lambda spans: of_kind(spans, "comm"),
}
_ABSENT: Final = {
    "h2d": Reason.NO_COPY_OCCURRED,
    "storage": Reason.NO_STORAGE_READ,
    "decode": Reason.NO_DECODE,
    "communication": Reason.NO_EXCHANGE_OCCURRED,
}


class Overlaps:
    """For `h2d`, `d2h`, `storage`, `decode`, `communication`: the time during which at least one
    such span of a rank or of its workers was open, and how much of it that rank's accelerator
    computed, summed over ranks; piece by piece.

    There is a `d2h` only where copies to the host were recorded. `storage` is every read that did
    not provably come from the page cache. `communication` includes straggler wait. Where the GPU
    was recorded in windows, only these are looked at.
    """

    kinds = (*COMPUTE, *COPIES, *READS, "decode", "comm")
    columns = ("source",)

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._open_ns = dict.fromkeys(_ACTIVITIES, 0)
        self._hidden_ns = dict.fromkeys(_ACTIVITIES, 0)

    def add(self, piece: Piece) -> None:
        """Add what was open in a piece."""
        spans = piece.spans.select(*TIMES, *self.columns)
        busy, recorded = (
            union(intervals(of_kind(spans, *COMPUTE))),
            recorded_times(self._trace, piece.rank),
        )
        for name, find in _ACTIVITIES.items():
            times = union(intervals(find(spans)))
            times = times if recorded is None else overlaps(times, recorded)
            self._open_ns[name] += total(times)
            self._hidden_ns[name] += int(covered(times, busy).sum())

    def by_activity(self) -> dict[str, Overlap]:
        """What all pieces show."""
        missing, basis = unmeasured(self._trace), self._trace.run.device_basis
        names = [name for name in _ACTIVITIES if name != "d2h" or self._open_ns[name]]
        return {
            name: _overlap(name, self._open_ns[name], self._hidden_ns[name], basis, missing)
            for name in names
        }


def _overlap(
    name: str, open_ns: int, hidden_ns: int, basis: str, missing: Mapping[str, Reason]
) -> Overlap:
    if not open_ns:
        reason = missing.get("exchange" if name == "communication" else name, _ABSENT[name])
        return Overlap(None, None, None, "unknown", reason.text, reason)
    if "compute" in missing:
        return Overlap(
            open_ns / 1e9, None, None, "measured", missing["compute"].text, missing["compute"]
        )
    return Overlap(open_ns / 1e9, hidden_ns / 1e9, hidden_ns / open_ns, basis)
