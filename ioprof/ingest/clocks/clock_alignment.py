"""Converts the times of several clocks to one clock."""

from collections.abc import Iterable, Mapping
from typing import Final, cast

import polars as pl

from ioprof.clock import Anchor
from ioprof.format.run_record import ClockAnchor, ClockRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import empty_table
from ioprof.ingest.clocks.clock_offset import (
    Clock,
    Messages,
    OffsetEstimate,
    estimate_offset,
    synchronisation_points,
)

_NOTHING_KNOWN: Final = ClockRecord()
_IDENTITY: Final = OffsetEstimate()
_NO_MESSAGES: Final[Mapping[str, Messages]] = {}


def best_anchors(anchors: Iterable[tuple[str, Anchor | None]]) -> dict[str, Anchor]:
    """The wall clock reading with the least uncertainty for each host, in the order of the first
    reading of each host.
    """
    best: dict[str, Anchor] = {}
    for host, anchor in anchors:
        if anchor is not None and (
            host not in best or anchor.uncertainty_ns < best[host].uncertainty_ns
        ):
            best[host] = anchor
    return best


class ClockAlignment:
    """Converts all times to the first clock, counted from the earliest span.

    `tables` are span tables by the name of their clock; a clock may have several. A table without a
    `Clock` of its name is taken to be on the first clock. `starts` are the first times of spans
    that are in no table, `messages` those between the first clock and that of a name.
    """

    def __init__(
        self,
        clocks: Iterable[Clock],
        tables: Iterable[tuple[str, pl.DataFrame]],
        starts: Iterable[tuple[str, int]] = (),
        messages: Mapping[str, Messages] = _NO_MESSAGES,
    ) -> None:
        known, spans = list(clocks), list(tables)
        self._anchors = {clock.name: clock.anchor for clock in known if clock.anchor is not None}
        self._estimates = _offset_estimates(known, spans, messages) if known else {}
        earliest = [
            *starts,
            *((name, cast(int, table["start_ns"].min())) for name, table in spans if len(table)),
        ]
        self.zero_ns = min(
            (self.estimate(name).to_first(start_ns) for name, start_ns in earliest), default=None
        )
        """The earliest start on the first clock; None: there are no spans."""

    def estimate(self, name: str) -> OffsetEstimate:
        """The offset estimate of a clock relative to the first one."""
        return self._estimates.get(name, _IDENTITY)

    def align(self, name: str, table: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """Convert these columns (default: `start_ns` and `end_ns`) of a table from the clock of
        that name.
        """
        convert = self.estimate(name).column_to_first
        return table.with_columns(
            convert(column) - (self.zero_ns or 0) for column in columns or ("start_ns", "end_ns")
        )

    def align_time(self, name: str, time_ns: int) -> int:
        """Convert a single time from the clock of that name."""
        return self.estimate(name).to_first(time_ns) - (self.zero_ns or 0)

    def align_counters(self, counters: pl.DataFrame) -> pl.DataFrame:
        """Convert the times of sampled series; the clock of each row is that of its host."""
        parts = counters.with_columns(pl.col("host").cast(pl.String)).partition_by(
            "host", as_dict=True, maintain_order=True
        )
        aligned = [self.align(str(host), part, "time_ns") for (host,), part in parts.items()]
        return pl.concat(aligned).cast({"host": counters.schema["host"]}) if aligned else counters

    def facts(self, known: ClockRecord = _NOTHING_KNOWN) -> ClockRecord:
        """`RunRecord.clocks`: what is `known` of the clocks, and how their times were aligned."""
        anchors = tuple(_anchor_facts(name, anchor) for name, anchor in self._anchors.items())
        own = known.replace(zero_monotonic_ns=self.zero_ns, anchors=anchors)
        return _add_estimates(own, self._estimates) if len(self._estimates) > 1 else own


def _offset_estimates(
    clocks: list[Clock], spans: list[tuple[str, pl.DataFrame]], messages: Mapping[str, Messages]
) -> dict[str, OffsetEstimate]:
    """The offset of each clock from the first, which is included with offset 0."""
    first, *others = clocks
    estimates = {first.name: _IDENTITY}
    if others:
        points = {
            clock.name: synchronisation_points(
                pl.concat(
                    [
                        empty_table(SPAN_COLUMNS),
                        *(table for name, table in spans if name == clock.name),
                    ]
                )
            )
            for clock in clocks
        }
        for other in others:
            known = messages.get(other.name, ())
            estimates[other.name] = estimate_offset(
                first, points[first.name], other, points[other.name], known
            )
    return estimates


def _add_estimates(clocks: ClockRecord, estimates: Mapping[str, OffsetEstimate]) -> ClockRecord:
    """The maximum uncertainty between any two of the clocks, and the estimate of each relative to
    the first.
    """
    first, *others = estimates
    bounds = [estimates[name].uncertainty_ns for name in others]
    known = sorted(bound for bound in bounds if bound is not None)
    methods = list(dict.fromkeys(estimates[name].method for name in others))
    return clocks.replace(
        method=f"{len(estimates)} clocks, aligned by {', and by '.join(methods)}",
        # Two clocks other than the first are related through the first, so their uncertainties add
        # up.
        uncertainty_ns=sum(known[-2:]) if len(known) == len(bounds) else None,
        ties=tuple(estimates[name].facts(name, first) for name in others),
    )


def _anchor_facts(host: str, anchor: Anchor) -> ClockAnchor:
    return ClockAnchor(
        host=host,
        before_ns=anchor.before_ns,
        wall_ns=anchor.wall_ns,
        after_ns=anchor.after_ns,
        offset_ns=anchor.offset_ns,
        uncertainty_ns=anchor.uncertainty_ns,
    )
