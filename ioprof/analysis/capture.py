"""How complete the recording is, what it cost, and what it cannot show."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import polars as pl

from ioprof.analysis.charge.gpu_windows import gpu_not_seen, window_cost_ns
from ioprof.analysis.charge.steps import steps
from ioprof.analysis.charge.unmeasured import unknown_read_ratio
from ioprof.analysis.ranks.collectives import collectives_not_seen
from ioprof.analysis.reads.storage_bytes import URING, by_process
from ioprof.analysis.selection import from_peer
from ioprof.format.run_files import damage_text
from ioprof.format.run_record import Capture, ProcessRecord, ReadCounters, Reason
from ioprof.format.schema import NOT_FOLLOWED, PYTHON_PROGRAM
from ioprof.format.trace import Trace

_MOST_NAMES: Final = 5
_LEAST_FAULT_RATIO: Final = 0.01  # of faults of unknown length that is mentioned
_LEAST_RAW_BYTES: Final = 1_000_000
"""Read by raw system calls in a process, from which on it is mentioned, if it is also this share of
all that the process read. Allocators and torch read their settings in /proc and /sys so: 50 bytes
to 2 kB."""
_LEAST_RAW_RATIO: Final = 0.01
_RAW: Final = "raw system calls"
_UNPREPARED: Final = "exec without capture"
_HIDDEN: Final = (
    "nothing was recorded of {} ({}), for which the folder of the recording was not there, as in a"
    " container with a /tmp of its own; type: TMPDIR=FOLDER ioprof record ..., with a folder that"
    " has the same path in there and can be written"
)
_UNCAPTURED: Final = (
    "{} without the capture library ({}): statically linked, setuid, or started with an empty"
    " environment; their reads are not seen"
)
_NOTED: Final = {
    URING: "used io_uring in a way that cannot be followed, and read little that was not seen",
    "libaio": "used libaio, whose reads are not seen",
    _RAW: "read by raw system calls, which are counted but not timed",
    _UNPREPARED: "started a program with an environment without ioprof; its reads are not seen",
    "stdio of unknown size": "read through stdio in a way that hides how many bytes were read",
    PYTHON_PROGRAM: (
        "ran Python without the hooks of ioprof, so that only its reads are seen; start its script"
        " with python instead of a frozen program, or call ioprof.instrument.autostart.start()"
        " where it begins"
    ),
}
"""What the capture library noticed, as the end of a sentence; the keys are those of
`schema.NOTED`."""

_TO_TYPE: Final = {
    "setuid program": (
        "no library is loaded into it; start ioprof with the rights that the job needs, without"
        " {program}"
    ),
    "32-bit program": "the capture library is a 64-bit one; use a 64-bit build of {program}",
    "static program": "its own reads are not seen; those of dynamic programs that it starts are",
    "launcher": (
        "its command may run where it is not recorded; type: {program} ... ioprof record -- COMMAND"
    ),
}
"""What to do about programs that cannot be recorded, by `schema.NOT_FOLLOWED`."""


def capture(trace: Trace) -> Capture:
    """The part of the summary that says how far the rest can be trusted."""
    recorded = trace.run.capture
    busy_ns = _job_ns(trace)
    cost_ns = _cost_ns(trace, _positive(recorded.ns_per_span), _positive(recorded.ns_per_call))
    most_ns = _cost_ns(
        trace, _positive(recorded.ns_per_cold_span), _positive(recorded.ns_per_cold_call)
    )
    return Capture(
        events=trace.num_spans,
        lost=sum(process.lost or 0 for process in trace.run.processes),
        folder=recorded.folder,
        coverage_ratio=_coverage(trace),
        ns_per_event=_positive(recorded.ns_per_span),
        ns_per_call=_positive(recorded.ns_per_call),
        overhead_ratio=cost_ns / busy_ns if cost_ns is not None and busy_ns else None,
        not_seen=tuple(not_seen(trace)),
        overhead_ratio_most=(
            most_ns / busy_ns if most_ns is not None and cost_ns is not None and busy_ns else None
        ),
        overhead_reason=recorded.cost_reason or Reason.COST_UNRESOLVED if cost_ns is None else None,
        import_damage=tuple(_damaged(trace)) if recorded.imported_from is not None else (),
        uring_processes=tuple(_read_by_uring(trace)),
        native=recorded.native,
        negligible=tuple(_noted(trace, are_negligible=True)),
    )


def not_seen(trace: Trace) -> Iterator[str]:
    """One sentence for each thing that the run did and the recording cannot show."""
    for failure in trace.run.failures:
        yield (
            f"the job failed: {failure.what}"
            if failure.rank is None
            else f"rank {failure.rank} failed: {failure.what}"
        )
    for process in _unclosed(trace):
        rest = (
            "nothing of it was recorded"
            if process.last_ns is None
            else f"nothing of it after {process.last_ns / 1e9:.1f} s"
        )
        yield f"{_name(process)} ended without closing its record; {rest}"
    yield from _missing_ranks(trace)
    for process in trace.run.processes:
        if process.lost:
            spans = f"{process.lost:,} span{'s' if process.lost > 1 else ''}"
            yield f"{_name(process)} had no room for {spans}; steps from then on are left out"
    yield from _damaged(trace)
    yield from (f"run.json: {problem}; it counts as not recorded" for problem in trace.run.problems)
    yield from map(damage_text, trace.run.kept.damaged)
    yield from _reads(trace)
    for hook in trace.run.capture.unobserved:
        why = f" ({hook.why})" if hook.why else ""
        yield (
            "a hook could not be installed, and what it observes was not recorded:"
            f" {hook.unobserved}{why}"
        )
    yield from _faults(trace)
    yield from _noted(trace, are_negligible=False)
    yield from _not_followed(trace)
    yield from _stacks(trace)
    yield from _unseen_processes(trace)
    yield from gpu_not_seen(trace, steps(trace))
    yield from collectives_not_seen(trace)


def _damaged(trace: Trace) -> Iterator[str]:
    """What was wrong with the files of the recording, or with those that were imported."""
    kind = "capture file " if trace.run.capture.imported_from is None else ""
    yield from (f"{kind}{damage.file}: {damage.what}" for damage in trace.run.capture.damaged)


def _job_ns(trace: Trace) -> int:
    """Time that ranks and workers recorded, summed."""
    known = (process for process in trace.run.processes if process.role in ("rank", "worker"))
    return sum((process.last_ns or 0) - (process.first_ns or 0) for process in known)


def _cost_ns(trace: Trace, each_ns: float | None, call_ns: float | None) -> float | None:
    """What recording took: spans at the cost of one span, calls that the library saw at the cost of
    one call.
    """
    counters = _read_counters(trace)
    calls = sum(reads.spans or 0 for reads in counters)
    short = sum(reads.short_calls or 0 for reads in counters)
    if each_ns is None or (calls + short and call_ns is None):
        return None
    return (
        (trace.num_spans - calls) * each_ns
        + (calls + short) * (call_ns or 0)
        + window_cost_ns(trace)
    )


def _positive(cost_ns: float | None) -> float | None:
    """A cost that was measured; 0 and less is none."""
    return float(cost_ns) if cost_ns is not None and cost_ns > 0 else None


def _read_counters(trace: Trace) -> list[ReadCounters]:
    """What the capture library counted in each process that it was loaded into."""
    return [process.reads for process in trace.run.processes if process.reads is not None]


def _coverage(trace: Trace) -> float | None:
    """Bytes that the library saw over proc io counters, of the processes in which both were read at
    the same moment.
    """
    compared = [reads for reads in _read_counters(trace) if reads.io_rchar]
    counted = sum(reads.io_rchar or 0 for reads in compared)
    return sum(reads.seen_bytes or 0 for reads in compared) / counted if counted else None


def _unclosed(trace: Trace) -> list[ProcessRecord]:
    """Ranks and workers that were killed. Idle workers of a rank that came to its end get a
    SIGTERM, and close nothing either.
    """
    parts = [process for process in trace.run.processes if process.role in ("rank", "worker")]
    ended = {process.rank for process in parts if process.role == "rank" and process.closed}
    return [
        process
        for process in parts
        if process.closed is False and not (process.role == "worker" and process.rank in ended)
    ]


def _name(process: ProcessRecord) -> str:
    name = (
        "a process of no rank"
        if process.rank is None or process.rank < 0
        else f"rank {process.rank}"
    )
    if process.role == "worker":
        name += f" worker {process.worker}"
    return f"{name} (pid {process.pid})"


def _missing_ranks(trace: Trace) -> Iterator[str]:
    absent = sorted(set(range(trace.run.config.ranks or 0)) - set(trace.ranks))
    if absent:
        names = f"rank{'s' if len(absent) > 1 else ''} {ranges(absent)}"
        yield (
            f"nothing was recorded of {names}: no number here includes"
            f" {'them' if len(absent) > 1 else 'it'}"
        )


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers as text: `1, 4 to 7`."""
    rows = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in row] for _, row in rows]
    return ", ".join(
        f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in found
    )


def _reads(trace: Trace) -> Iterator[str]:
    recorded = trace.run.capture
    if not trace.run.reads_captured:
        why = f" ({recorded.reads_reason})" if recorded.reads_reason else ""
        yield (
            f"reads were not captured{why}: time spent on storage cannot be separated from other"
            " time of the loader"
        )
        return
    if ratio := unknown_read_ratio(trace):
        yield (
            f"{ratio:.1%} of the read time has no known source: file system and counters do not say"
            " whether memory served it"
        )
    if recorded.reads_by:
        why = " (the capture library is not built)" if recorded.library is False else ""
        yield (
            f"only reads made by {recorded.reads_by} are recorded{why}: "
            "a read or a page fault elsewhere in the job would not be seen"
        )


def _faults(trace: Trace) -> Iterator[str]:
    recorded = trace.run.capture
    if recorded.faults and recorded.faults.reason:
        yield (
            "page faults were not recorded, so reads of memory-mapped files count as loader time:"
            f" {recorded.faults.reason}"
        )
    unwatched = sum(record.unwatched or 0 for record in recorded.fault_records)
    faults = sum(record.faults or 0 for record in recorded.fault_records)
    if unwatched > _LEAST_FAULT_RATIO * faults:
        seen = f"{unwatched:,} of {faults:,} page faults came after seconds without any"
        yield f"{seen}: how long they took is not known, and counts as 0"


def _noted(trace: Trace, are_negligible: bool) -> Iterator[str]:
    """What the capture library noticed in processes: that of which it missed little, or the
    rest.
    """
    noted = {
        word for process in trace.run.processes if process.reads for word in process.reads.noted
    }
    left_out = {_UNPREPARED} if _UNPREPARED in noted and _not_followed(trace) else set()
    recorded = _recorded_bytes(trace) if _RAW in noted else {}
    counted = by_process(trace) if URING in noted else {}
    for process in trace.run.processes:
        words = set(process.reads.noted if process.reads else ()) - left_out
        few = (
            {_RAW}
            if _reads_few_by_number(process, recorded.get((process.host, process.pid), 0))
            else set()
        )
        by_uring = (
            counted[key].by_uring if (key := (process.host, process.pid)) in counted else None
        )
        if by_uring == 0:
            few |= {URING}  # libuv does, for messages
        yield from (
            f"{_name(process)}: {_noted_text(word, by_uring)}"
            for word in sorted(words & few if are_negligible else words - few)
        )


def _noted_text(word: str, by_uring: int | None) -> str:
    if word == URING and by_uring is None:
        return "used io_uring in a way that cannot be followed, and how much it read is not known"
    if word == URING and by_uring:
        return (
            f"read {by_uring / 1e6:,.1f} MB by io_uring in a way that cannot be followed (SQPOLL,"
            " or calls that are built into the program): the kernel counted them, and they were"
            " not timed"
        )
    return _NOTED.get(word, word)


def _read_by_uring(trace: Trace) -> Iterator[str]:
    """The processes that read much by rings that were not followed."""
    counted = by_process(trace)
    for process in trace.run.processes:
        found = counted.get((process.host, process.pid))
        if found is not None and found.by_uring:
            yield _name(process)


def _recorded_bytes(trace: Trace) -> dict[tuple[str | None, int | None], int]:
    """Bytes of the reads of files that have spans, by host and process."""
    sums = (
        trace.sums.filter(pl.col("kind") == "read", ~from_peer)
        .group_by(pl.col("host").cast(pl.String), "pid")
        .agg(pl.col("bytes").sum())
    )
    return {(host, pid): int(count) for host, pid, count in sums.iter_rows()}


def _reads_few_by_number(process: ProcessRecord, recorded: int) -> bool:
    """Whether a process can have read only few bytes by raw system calls: at most what was counted
    and has no span.
    """
    if process.reads is None or process.reads.bytes is None:
        return False
    without_span = process.reads.bytes - recorded
    return without_span < max(_LEAST_RAW_BYTES, _LEAST_RAW_RATIO * process.reads.bytes)


def _not_followed(trace: Trace) -> list[str]:
    """A sentence for each program that the job started and that cannot be recorded, with what to
    type.
    """
    is_named = pl.col("name").cast(pl.String).is_in(list(NOT_FOLLOWED))
    # which `ctypes.util.find_library` starts, as many libraries do, and which reads no data
    is_linker = pl.col("path").str.ends_with("/ldconfig")
    opened = trace.rows(pl.col("name").is_not_null(), is_named, kinds=["open"]).join(
        trace.files, on="file"
    )
    found = (
        opened.filter(~is_linker)
        .group_by("path", pl.col("name").cast(pl.String))
        .len()
        .sort("path")
    )
    return [
        f"{path} was started, a {name}: {_TO_TYPE[name].format(program=path)}"
        for path, name, _ in found.head(_MOST_NAMES).iter_rows()
    ]


def _stacks(trace: Trace) -> Iterator[str]:
    recorded = trace.run.capture.stacks
    if recorded:
        why = [recorded.reason] if recorded.reason else recorded.notes
        yield from (
            f"stacks were not sampled, so no line of code is named: {reason}" for reason in why
        )


def _unseen_processes(trace: Trace) -> Iterator[str]:
    unseen = trace.run.capture.unseen_processes
    if trace.run.capture.library is False:  # it is in no process
        return
    for is_hidden, text in ((True, _HIDDEN), (False, _UNCAPTURED)):
        named = [process.name for process in unseen if process.sees_spool is not is_hidden]
        if named:
            names = sorted(set(named))
            shown = ", ".join(names[:_MOST_NAMES]) + (
                " and others" if len(names) > _MOST_NAMES else ""
            )
            yield text.format(f"{len(named)} process{'' if len(named) == 1 else 'es'}", shown)
