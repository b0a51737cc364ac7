"""All hosts' times on one clock."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from ioprof.clock import Anchor


def best_anchors(anchors: Iterable[tuple[str, Anchor | None]]) -> dict[str, Anchor]:
    """Each host's best reading of the wall clock, hosts in the order of their first."""
    best: dict[str, Anchor] = {}
    for host, anchor in anchors:
        if anchor is not None and (host not in best or anchor.uncertainty_ns < best[host].uncertainty_ns):
            best[host] = anchor
    return best


class OneClock:
    """All hosts' times on the first host's clock, counted from the earliest span."""

    def __init__(self, anchors: dict[str, Anchor], tables: list[tuple[str, pl.DataFrame]]) -> None:
        self._anchors = anchors
        offsets = {host: anchor.offset_ns for host, anchor in anchors.items()}
        first = next(iter(offsets.values()), 0)
        self._shifts = {host: offset - first for host, offset in offsets.items()}
        starts = [int(table["start_ns"].min()) + self._shift(host) for host, table in tables if len(table)]  # type: ignore[arg-type]
        self._zero_ns = min(starts, default=None)

    def _shift(self, host: str) -> int:
        """What to add to a host's times to get those of the first host's clock; 0 where no reading ties the two."""
        return self._shifts.get(host, 0)

    def of(self, host: str, spans: pl.DataFrame) -> pl.DataFrame:
        """The spans of a host on the one clock."""
        return spans.with_columns(pl.col("start_ns", "end_ns") + (self._shift(host) - (self._zero_ns or 0)))

    def of_counters(self, counters: pl.DataFrame) -> pl.DataFrame:
        """Sampled series on the one clock."""
        if counters.is_empty():
            return counters
        shifts = pl.col("host").cast(pl.String).replace_strict({**self._shifts, "": 0}, default=0, return_dtype=pl.Int64)
        return counters.with_columns(time_ns=pl.col("time_ns") + shifts - (self._zero_ns or 0))

    def facts(self) -> dict[str, Any]:
        """What goes into `run["clocks"]`."""
        return {"zero_monotonic_ns": self._zero_ns, "anchors": _anchor_facts(self._anchors)}


def _anchor_facts(anchors: dict[str, Anchor]) -> list[dict[str, Any]]:
    return [
        {
            "host": host,
            "before_ns": anchor.before_ns,
            "wall_ns": anchor.wall_ns,
            "after_ns": anchor.after_ns,
            "offset_ns": anchor.offset_ns,
            "uncertainty_ns": anchor.uncertainty_ns,
        }
        for host, anchor in anchors.items()
    ]
