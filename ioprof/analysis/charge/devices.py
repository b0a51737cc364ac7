"""What devices and servers delivered while the job ran, against what the job asked of them, and how
long tasks stalled on I/O.

The sources are `RunRecord.storage`, what the files of the run lie on, and the sampled counters of
the hosts.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from ioprof.analysis.reads.sources import is_access
from ioprof.format.run_record import Delivery, Stalls, UsedStorage
from ioprof.format.trace import Trace

_STALLS: Final = ("pressure.io.some", "pressure.io.full")
_GREATEST: Final = 2.0**63  # a counter of a damaged file may be anything, NaN included
_Growth = dict[tuple[str, str], tuple[float, float]]
"""By host and name of a series: how much it grew, and the seconds in which it did."""
_AT_MOST: Final = "_most"
"""Suffix of the series that bounds one which cannot be sampled, see `ioprof.format.series`."""


def deliveries(trace: Trace) -> tuple[Delivery, ...]:
    """Per host and device from which the job read, in the order of what was asked of it; nothing
    for a run that did not say.
    """
    places = list(_places(trace))
    if not places:
        return ()
    names = {name for place in places for name in place.delivered}
    grown, asked = _growth(trace, names | {name + _AT_MOST for name in names}), _asked(trace)
    sampled = trace.run.capture.sampled
    unsampled = sampled.unsampled if sampled else {}
    found = [_delivery(place, grown, asked, unsampled) for place in places]
    return tuple(
        sorted(found, key=lambda entry: (-(entry.asked_bytes or 0), entry.host or "", entry.device))
    )


def stalls(trace: Trace) -> tuple[Stalls, ...]:
    """Per host how long its tasks stalled on I/O while the counters were sampled; nothing where
    that was not recorded.
    """
    if not any(_places(trace)):
        return ()
    grown = _growth(trace, set(_STALLS))
    hosts = sorted({host for host, _ in grown})
    some, full = _STALLS
    return tuple(
        Stalls(
            host,
            _seconds(grown, host, some),
            _seconds(grown, host, full),
            max(took_s for (of, _), (_, took_s) in grown.items() if of == host),
        )
        for host in hosts
    )


def _seconds(grown: _Growth, host: str, name: str) -> float | None:
    return grown[host, name][0] if (host, name) in grown else None


def _places(trace: Trace) -> Iterator[UsedStorage]:
    """The storage that files of the run lie on, one entry for each host and device; incomplete
    entries left out, such as memory without a block device.
    """
    seen = {
        (entry.host, entry.device, entry.file_system): entry
        for entry in trace.run.storage
        if None not in (entry.device, entry.host, entry.file_system, entry.mount_point, entry.kind)
    }
    yield from seen.values()


def _growth(trace: Trace, names: set[str]) -> _Growth:
    """By host and name, by how much a series of a host grew from its first sample to its last, and
    the seconds between.
    """
    named = pl.col("name").cast(pl.String).is_in(sorted(names))
    table = trace.counters.lazy().filter(
        pl.col("pid").is_null(), named, pl.col("value").is_between(0, _GREATEST)
    )
    ends = (
        table.sort("time_ns", "value")
        .group_by("host", "name")
        .agg(
            grown=pl.col("value").last() - pl.col("value").first(),
            took_ns=pl.col("time_ns").last() - pl.col("time_ns").first(),
        )
    )
    rows = ends.select("host", "name", "grown", "took_ns").collect().rows()
    return {(host, name): (max(grown, 0.0), took_ns / 1e9) for host, name, grown, took_ns in rows}


def _asked(trace: Trace) -> dict[tuple[str, str, str], int]:
    """By host, device and file system, the bytes that the job's reads and faults were for."""
    files = trace.files.select("file", "device", "file_system").drop_nulls().unique("file")
    accesses = trace.summed(
        lambda part: part.filter(is_access).group_by("host", "file").agg(pl.col("bytes").sum()),
        ["host", "file"],
    )
    sums = (
        accesses.join(files, on="file")
        .group_by("host", "device", "file_system")
        .agg(pl.col("bytes").sum())
    )
    return {(host, device, kind): int(count) for host, device, kind, count in sums.rows()}


def _delivery(
    place: UsedStorage,
    grown: _Growth,
    asked: dict[tuple[str, str, str], int],
    unsampled: Mapping[str, str],
) -> Delivery:
    host, device, file_system = place.host or "", place.device or "", place.file_system or ""
    known = [grown[host, name][0] for name in place.delivered if (host, name) in grown]
    bounds = [
        grown[host, name + _AT_MOST][0]
        for name in place.delivered
        if (host, name + _AT_MOST) in grown
    ]
    values = known or bounds
    return Delivery(
        device=device,
        host=host,
        file_system=file_system,
        mount_point=place.mount_point or "",
        kind=place.kind or "",
        asked_bytes=asked.get((host, device, file_system), 0),
        delivered_bytes=round(sum(values)) if values else None,
        is_at_most=bool(bounds and not known),
        reason=(
            None
            if values
            else place.reason or unsampled.get(file_system) or "its counters were not sampled"
        ),
    )
