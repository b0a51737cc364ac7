"""How complete the recording is, what it cost, and what it cannot show."""

from collections.abc import Iterator
from typing import Any, Final

from ioprof.analysis.facts import Facts, mapping, number, whole
from ioprof.analysis.observed import gpu_not_seen, window_cost_ns
from ioprof.analysis.result import Capture
from ioprof.analysis.steps import steps
from ioprof.analysis.unmeasured import unknown_read_ratio
from ioprof.trace import Trace

_MOST_NAMES: Final = 5
_FEW_FAULTS: Final = 0.01  # of unknown length, of which nothing need be said
_UNSEEN_CAUSES: Final = "statically linked, setuid, or started with an emptied environment; what they read is not seen"
_NOTED: Final = {
    "io_uring": "used io_uring, whose reads are not seen",
    "libaio": "used libaio, whose reads are not seen",
    "raw system calls": "read by raw system calls, which are counted but not timed",
    "exec without capture": "started a program with an environment without ioprof; what that one read is not seen",
    "stdio of unknown size": "read through stdio in a way that hides how much",
}
"""What the capture library noticed, as a sentence's end; the keys are those of `schema.NOTED`."""


def capture(trace: Trace) -> Capture:
    """The part of the summary that says how far the rest can be trusted."""
    recorded = mapping(trace.run.get("capture"))
    cost_ns, busy_ns = _cost_ns(trace, recorded), _job_ns(trace)
    return Capture(
        events=len(trace.spans),
        lost=sum(whole(process.get("lost")) or 0 for process in _processes(trace)),
        coverage_ratio=_coverage(trace),
        ns_per_event=number(recorded.get("ns_per_span")),
        ns_per_call=number(recorded.get("ns_per_call")),
        overhead_ratio=cost_ns / busy_ns if cost_ns is not None and busy_ns else None,
        not_seen=tuple(not_seen(trace)),
    )


def not_seen(trace: Trace) -> Iterator[str]:
    """One sentence for each thing that the run did and the recording cannot show."""
    yield from (_failure(entry) for entry in trace.run.get("failures") or [])
    yield from (_cut_short(process) for process in _cut_short_processes(trace))
    yield from _missing_ranks(trace)
    yield from _lost(trace)
    yield from (_damaged(entry) for entry in mapping(trace.run.get("capture")).get("damaged") or [])
    yield from _reads(trace)
    yield from _unobserved(trace)
    yield from _faults(trace)
    yield from _noted(trace)
    yield from _unseen_processes(trace)
    yield from gpu_not_seen(trace, steps(trace))


def _processes(trace: Trace) -> list[dict[str, Any]]:
    return [mapping(process) for process in trace.run.get("processes") or []]


def _job_ns(trace: Trace) -> int:
    """Time that ranks and workers recorded, summed."""
    known = (p for p in _processes(trace) if p.get("role") in ("rank", "worker"))
    return sum((whole(p.get("last_ns")) or 0) - (whole(p.get("first_ns")) or 0) for p in known)


def _cost_ns(trace: Trace, recorded: dict[str, Any]) -> float | None:
    """What recording took: spans at the cost of one span, calls that the library saw at the cost of one call."""
    each_ns, call_ns = number(recorded.get("ns_per_span")), number(recorded.get("ns_per_call"))
    books = _books(trace)
    calls = sum(whole(reads.get("spans")) or 0 for reads in books)
    short = sum(whole(reads.get("short_calls")) or 0 for reads in books)
    if each_ns is None or (calls + short and call_ns is None):
        return None
    return (len(trace.spans) - calls) * each_ns + (calls + short) * (call_ns or 0) + window_cost_ns(trace)


def _books(trace: Trace) -> list[dict[str, Any]]:
    """What the capture library counted in each process that it was in."""
    return [reads for process in _processes(trace) if (reads := mapping(process.get("reads")))]


def _coverage(trace: Trace) -> float | None:
    """Of the processes whose books and the kernel's were compared: both sides were read at the same moment."""
    compared = [reads for reads in _books(trace) if whole(reads.get("io_rchar"))]
    counted = sum(whole(reads.get("io_rchar")) or 0 for reads in compared)
    return sum(whole(reads.get("seen_bytes")) or 0 for reads in compared) / counted if counted else None


def _cut_short_processes(trace: Trace) -> list[dict[str, Any]]:
    """Ranks and workers that were killed. Idle workers of a rank that came to its end get a SIGTERM, and so close nothing."""
    parts = [process for process in _processes(trace) if process.get("role") in ("rank", "worker")]
    ended = {process.get("rank") for process in parts if process.get("role") == "rank" and process.get("closed")}
    return [
        process
        for process in parts
        if process.get("closed") is False and not (process.get("role") == "worker" and process.get("rank") in ended)
    ]


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
        reason = mapping(trace.run.get("capture")).get("reads_reason")
        why = f" ({reason})" if reason else ""
        yield f"reads were not captured{why}: time spent on storage cannot be told from other time of the loader"
        return
    if ratio := unknown_read_ratio(trace):
        yield f"{ratio:.1%} of the read time has no known source: file system and counters do not say whether memory served it"
    by = mapping(trace.run.get("capture")).get("reads_by")
    if by:
        why = " (the capture library is not built)" if _library_is_missing(trace) else ""
        yield f"only reads made by {by} are recorded{why}: a read or a page fault elsewhere in the job would not be seen"


def _library_is_missing(trace: Trace) -> bool:
    return mapping(trace.run.get("capture")).get("library") is False


def _unobserved(trace: Trace) -> Iterator[str]:
    found = mapping(trace.run.get("capture")).get("unobserved")
    for entry in found if isinstance(found, list) else []:
        yield f"a hook could not be installed, and what it observes was not recorded: {mapping(entry).get('unobserved', entry)}"


def _faults(trace: Trace) -> Iterator[str]:
    reason = mapping(mapping(trace.run.get("capture")).get("faults")).get("reason")
    if reason:
        yield f"page faults were not recorded, so that reads of memory-mapped files cost loader time: {reason}"
    records = [mapping(entry) for entry in mapping(trace.run.get("capture")).get("fault_records") or []]
    unwatched, faults = (sum(whole(entry.get(key)) or 0 for entry in records) for key in ("unwatched", "faults"))
    if unwatched > _FEW_FAULTS * faults:
        seen = f"{unwatched:,} of {faults:,} page faults came after seconds without any"
        yield f"{seen}: how long they took is not known, and counts as 0"


def _noted(trace: Trace) -> Iterator[str]:
    for process in _processes(trace):
        noted = mapping(process.get("reads")).get("noted")
        for word in noted if isinstance(noted, list) else []:
            yield f"{_who(process)}: {_NOTED.get(word, word)}"


def _unseen_processes(trace: Trace) -> Iterator[str]:
    unseen = [mapping(entry) for entry in mapping(trace.run.get("capture")).get("unseen_processes") or []]
    if unseen and not _library_is_missing(trace):  # else it is in none
        names = sorted({str(entry.get("name", "?")) for entry in unseen})
        shown = ", ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")
        yield f"{len(unseen)} process{'' if len(unseen) == 1 else 'es'} without the capture library ({shown}): {_UNSEEN_CAUSES}"
