"""How complete the recording is, what it cost, and what it cannot show."""

from collections.abc import Iterator
from typing import Any

import polars as pl

from ioprof.analysis.facts import Facts, mapping, number, whole
from ioprof.analysis.result import Capture
from ioprof.analysis.unmeasured import unknown_read_ratio
from ioprof.trace import Trace


def capture(trace: Trace) -> Capture:
    """The part of the summary that says how far the rest can be trusted."""
    recorded = mapping(trace.run.get("capture"))
    each_ns = number(recorded.get("ns_per_span"))
    events, busy_ns = len(trace.spans), _job_ns(trace)
    return Capture(
        events=events,
        lost=sum(whole(process.get("lost")) or 0 for process in _processes(trace)),
        coverage_ratio=_coverage(trace, recorded),
        ns_per_event=each_ns,
        overhead_ratio=events * each_ns / busy_ns if each_ns is not None and busy_ns else None,
        not_seen=tuple(not_seen(trace)),
    )


def not_seen(trace: Trace) -> Iterator[str]:
    """One sentence for each thing that the run did and the recording cannot show."""
    yield from (_failure(entry) for entry in trace.run.get("failures") or [])
    yield from (_cut_short(process) for process in _processes(trace) if process.get("closed") is False)
    yield from _missing_ranks(trace)
    yield from _lost(trace)
    yield from (_damaged(entry) for entry in mapping(trace.run.get("capture")).get("damaged") or [])
    yield from _reads(trace)


def _processes(trace: Trace) -> list[dict[str, Any]]:
    return [mapping(process) for process in trace.run.get("processes") or []]


def _job_ns(trace: Trace) -> int:
    """Time that ranks and workers recorded, summed."""
    known = (p for p in _processes(trace) if p.get("role") in ("rank", "worker"))
    return sum((whole(p.get("last_ns")) or 0) - (whole(p.get("first_ns")) or 0) for p in known)


def _coverage(trace: Trace, recorded: dict[str, Any]) -> float | None:
    entries = (mapping(entry) for entry in recorded.get("bytes_by_kernel") or [])
    counted = {pid: whole(entry.get("bytes")) or 0 for entry in entries if (pid := whole(entry.get("pid"))) is not None}
    if not sum(counted.values()):
        return None
    seen = trace.spans.filter(pl.col("kind") == "read", pl.col("pid").is_in(list(counted)))["bytes"].sum()
    return int(seen) / sum(counted.values())


def _who(process: dict[str, Any]) -> str:
    rank = whole(process.get("rank"))
    name = f"rank {rank}" if rank is not None else "a process of no rank"
    if process.get("role") == "worker":
        name += f" worker {process.get('worker')}"
    return f"{name} (pid {process.get('pid')})"


def _cut_short(process: dict[str, Any]) -> str:
    last = whole(process.get("last_ns"))
    rest = "nothing of it was recorded" if last is None else f"nothing of it after {last / 1e9:.1f} s"
    return f"{_who(process)} ended without closing its record; {rest}"


def _failure(entry: Any) -> str:
    rank, what = mapping(entry).get("rank"), mapping(entry).get("what", entry)
    return f"rank {rank} failed: {what}" if rank is not None else f"the job failed: {what}"


def _damaged(entry: Any) -> str:
    return f"capture file {mapping(entry).get('file', '?')}: {mapping(entry).get('what', entry)}"


def _missing_ranks(trace: Trace) -> Iterator[str]:
    absent = sorted(set(range(Facts.of(trace.run).ranks or 0)) - set(trace.ranks))
    if absent:
        names = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
        yield f"nothing was recorded of {names}: no number here includes {'them' if len(absent) > 1 else 'it'}"


def _lost(trace: Trace) -> Iterator[str]:
    for process in _processes(trace):
        lost = whole(process.get("lost"))
        if lost:
            yield f"{_who(process)} had no room for {lost:,} span{'s' if lost > 1 else ''}; their time is in loader or host"


def _reads(trace: Trace) -> Iterator[str]:
    if not Facts.of(trace.run).reads_captured:
        yield "reads were not captured: time spent on storage cannot be told from other time of the loader"
        return
    if ratio := unknown_read_ratio(trace):
        yield f"{ratio:.1%} of the read time has no known source: file system and counters do not say whether memory served it"
    by = mapping(trace.run.get("capture")).get("reads_by")
    if by:
        yield f"only reads made by {by} are recorded: a read or a page fault elsewhere in the job would not be seen"
