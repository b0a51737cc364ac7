"""What devices and servers delivered while the job ran, against what the job asked of them, and how long tasks stalled on I/O.

Rests on `run["storage"]`, what the files of the run lie on, and on the sampled counters of the hosts.
"""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from ioprof.analysis.facts import mapping
from ioprof.analysis.reads import is_access
from ioprof.analysis.result import Delivery, Stalls
from ioprof.trace import Trace

_STALLS: Final = ("pressure.io.some", "pressure.io.full")
_GREATEST: Final = 2.0**63  # a counter of a damaged file may be anything, NaN included
_Growth = dict[tuple[str, str], tuple[float, float]]
"""By host and name of a series: how much it grew, and the seconds in which it did."""
_NAMED: Final = {"lustre": "osc/stats", "nfs": "mountstats", "nfs4": "mountstats"}
"""By what a sampler's note names the file that it could not read."""
_AT_MOST: Final = "_most"
"""Ends the name of the series that bounds one which is not to be had, see `ioprof.series`."""


def deliveries(trace: Trace) -> tuple[Delivery, ...]:
    """Per host and device from which the job read, in the order of what was asked of it; nothing for a run that did not say."""
    places = list(_places(trace))
    if not places:
        return ()
    names = {name for place in places for name in _series(place)}
    grown, asked = _growth(trace, names | {name + _AT_MOST for name in names}), _asked(trace)
    found = [_delivery(place, grown, asked, _why_missing(trace, place)) for place in places]
    return tuple(sorted(found, key=lambda entry: (-(entry.asked_bytes or 0), entry.host or "", entry.device)))


def stalls(trace: Trace) -> tuple[Stalls, ...]:
    """Per host how long its tasks stalled on I/O while the counters were sampled; nothing where that was not recorded."""
    if not any(_places(trace)):
        return ()
    grown = _growth(trace, set(_STALLS))
    hosts = sorted({host for host, _ in grown})
    some, full = _STALLS
    return tuple(Stalls(host, _seconds(grown, host, some), _seconds(grown, host, full), max(_times(grown, host))) for host in hosts)


def _seconds(grown: _Growth, host: str, name: str) -> float | None:
    return grown[host, name][0] if (host, name) in grown else None


def _places(trace: Trace) -> Iterator[dict[str, Any]]:
    """The entries of `run["storage"]`, one for each host and device."""
    entries = trace.run.get("storage")
    known = [mapping(entry) for entry in entries] if isinstance(entries, list) else []
    seen = {(entry.get("host"), entry["device"], entry.get("file_system")): entry for entry in known if _is_named(entry)}
    yield from seen.values()


def _is_named(entry: dict[str, Any]) -> bool:
    texts = [entry.get(key) for key in ("device", "host", "file_system", "mount_point", "kind")]
    return all(isinstance(text, str) for text in texts) and entry.get("kind") != "memory"


def _series(place: dict[str, Any]) -> list[str]:
    """The names of the series of what was delivered."""
    names = place.get("delivered")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _growth(trace: Trace, names: set[str]) -> _Growth:
    """By host and name, by how much a series of a host grew from its first sample to its last, and the seconds between."""
    named = pl.col("name").cast(pl.String).is_in(sorted(names))
    table = trace.counters.lazy().filter(pl.col("pid").is_null(), named, pl.col("value").is_between(0, _GREATEST))
    ends = table.sort("time_ns", "value").group_by("host", "name").agg(
        grown=pl.col("value").last() - pl.col("value").first(), took_ns=pl.col("time_ns").last() - pl.col("time_ns").first()
    )  # fmt: skip
    rows = ends.select("host", "name", "grown", "took_ns").collect().rows()
    return {(host, name): (max(grown, 0.0), took_ns / 1e9) for host, name, grown, took_ns in rows}


def _times(grown: _Growth, host: str) -> Iterator[float]:
    return (took_s for (of, _), (_, took_s) in grown.items() if of == host)


def _asked(trace: Trace) -> dict[tuple[str, str, str], int]:
    """By host, device and file system, the bytes that the job's reads and faults were for."""
    files = trace.files.lazy().select("file", "device", "file_system").drop_nulls().unique("file")
    accesses = trace.spans.lazy().filter(is_access).select("host", "file", "bytes")
    sums = accesses.join(files, on="file").group_by("host", "device", "file_system").agg(pl.col("bytes").sum())
    return {(host, device, kind): int(count) for host, device, kind, count in sums.collect().rows()}


def _why_missing(trace: Trace, place: dict[str, Any]) -> str:
    """Why there is no series of what was delivered, by the run itself or by its sampler."""
    notes = mapping(mapping(trace.run.get("capture")).get("sampled")).get("notes")
    texts = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    named = next((note for note in texts if (word := _NAMED.get(place["file_system"])) and word in note), None)
    return str(place.get("reason") or named or "its counters were not sampled")


def _delivery(place: dict[str, Any], grown: _Growth, asked: dict[tuple[str, str, str], int], why_missing: str) -> Delivery:
    host, names = place["host"], _series(place)
    known = [grown[host, name][0] for name in names if (host, name) in grown]
    bounds = [grown[host, name + _AT_MOST][0] for name in names if (host, name + _AT_MOST) in grown]
    values = known or bounds
    return Delivery(
        device=place["device"],
        host=host,
        file_system=place["file_system"],
        mount_point=place["mount_point"],
        kind=place["kind"],
        asked_bytes=asked.get((host, place["device"], place["file_system"]), 0),
        delivered_bytes=round(sum(values)) if values else None,
        is_at_most=bool(bounds and not known),
        reason=None if values else why_missing,
    )
