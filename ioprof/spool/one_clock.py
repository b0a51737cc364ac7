"""The times of several clocks on one."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import polars as pl

from ioprof.clock import Anchor
from ioprof.schema import SPAN_COLUMNS
from ioprof.spool.ties import Clock, Tie, meetings, tie
from ioprof.trace import empty_table

_SAME: Final = Tie()


def best_anchors(anchors: Iterable[tuple[str, Anchor | None]]) -> dict[str, Anchor]:
    """Each host's best reading of the wall clock, hosts in the order of their first."""
    best: dict[str, Anchor] = {}
    for host, anchor in anchors:
        if anchor is not None and (host not in best or anchor.uncertainty_ns < best[host].uncertainty_ns):
            best[host] = anchor
    return best


class OneClock:
    """All times on the first clock, counted from the earliest span.

    `tables` are spans by the name of their clock, any number of tables for one. What no `Clock` is given for is the first's.
    """

    def __init__(self, clocks: Iterable[Clock], tables: Iterable[tuple[str, pl.DataFrame]]) -> None:
        known, spans = list(clocks), list(tables)
        self._anchors = {clock.name: clock.anchor for clock in known if clock.anchor is not None}
        self._ties = _ties(known, spans) if known else {}
        starts = [self.tie(name).of(cast(int, table["start_ns"].min())) for name, table in spans if len(table)]
        self.zero_ns = min(starts, default=None)
        """The earliest start, on the first clock; None: there is no span."""

    def tie(self, name: str) -> Tie:
        """What brings the times of a clock to those of the first."""
        return self._ties.get(name, _SAME)

    def of(self, name: str, table: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """A table whose times (`start_ns` and `end_ns`, or these columns) are those of the clock of that name, on the one clock."""
        moved = self.tie(name).moved
        return table.with_columns(moved(column) - (self.zero_ns or 0) for column in columns or ("start_ns", "end_ns"))

    def at(self, name: str, time_ns: int) -> int:
        """A single time of a clock on the one clock."""
        return self.tie(name).of(time_ns) - (self.zero_ns or 0)

    def of_counters(self, counters: pl.DataFrame) -> pl.DataFrame:
        """Sampled series on the one clock; their clocks are those of their hosts."""
        parts = counters.with_columns(pl.col("host").cast(pl.String)).partition_by("host", as_dict=True, maintain_order=True)
        moved = [self.of(str(host), part, "time_ns") for (host,), part in parts.items()]
        return pl.concat(moved).cast({"host": counters.schema["host"]}) if moved else counters

    def facts(self) -> dict[str, Any]:
        """What goes into `run["clocks"]`."""
        anchors = [_anchor_facts(name, anchor) for name, anchor in self._anchors.items()]
        own = {"zero_monotonic_ns": self.zero_ns, "anchors": anchors}
        return {**own, **_tie_facts(self._ties)} if len(self._ties) > 1 else own


def _ties(clocks: list[Clock], spans: list[tuple[str, pl.DataFrame]]) -> dict[str, Tie]:
    """What brings each clock's times to the first's, that one included."""
    first, *others = clocks
    found = {first.name: _SAME}
    met = {clock.name: meetings(_spans_of(clock, spans)) for clock in (clocks if others else ())}
    return {**found, **{other.name: tie(first, met[first.name], other, met[other.name]) for other in others}}


def _spans_of(clock: Clock, spans: list[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    return pl.concat([empty_table(SPAN_COLUMNS), *(table for name, table in spans if name == clock.name)])


def _tie_facts(ties: Mapping[str, Tie]) -> dict[str, Any]:
    """How far any two of the clocks may be apart, and by what each was tied to the first."""
    first, *others = ties
    bounds = [ties[name].uncertainty_ns for name in others]
    known = sorted(bound for bound in bounds if bound is not None)
    methods = list(dict.fromkeys(ties[name].method for name in others))
    return {
        "method": f"{len(ties)} clocks, tied by {', and by '.join(methods)}",
        "uncertainty_ns": sum(known[-2:]) if len(known) == len(bounds) else None,  # any two are tied by way of the first
        "ties": [ties[name].facts(name, first) for name in others],
    }


def _anchor_facts(host: str, anchor: Anchor) -> dict[str, Any]:
    return {
        "host": host,
        "before_ns": anchor.before_ns,
        "wall_ns": anchor.wall_ns,
        "after_ns": anchor.after_ns,
        "offset_ns": anchor.offset_ns,
        "uncertainty_ns": anchor.uncertainty_ns,
    }
