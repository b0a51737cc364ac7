"""How complete the recording is, what it cost, and what it cannot show."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import polars as pl

from ioprof.analysis.charge.gpu_windows import gpu_gaps, window_cost_ns
from ioprof.analysis.charge.steps import steps
from ioprof.analysis.charge.unmeasured import unknown_read_ratio
from ioprof.analysis.ranks.collectives import collective_gaps
from ioprof.analysis.reads.storage_bytes import URING, by_process
from ioprof.analysis.selection import from_peer
from ioprof.format.run_files import damage_text
from ioprof.format.run_record import (
    Capture,
    CpuEvidence,
    Facts,
    ProcessRecord,
    ReadCounters,
    Reason,
    Sentence,
    sentence,
)
from ioprof.format.schema import NOT_FOLLOWED
from ioprof.format.trace import Trace

_MOST_NAMES: Final = 5
_LEAST_FAULT_RATIO: Final = 0.01  # of faults of unknown length that is mentioned
_LEAST_RAW_BYTES: Final = 1_000_000
"""Read by raw system calls in a process, from which on it is mentioned, if it is also this share of
all that the process read. Allocators and torch read their settings in /proc and /sys so: 50 bytes
to 2 kB."""
_LEAST_RAW_RATIO: Final = 0.01
_DISPLACED: Final = 3.5
"""What hooks of training steps take at most, as a multiple of their own time: calls of them, and
what they take from the processor's caches (`benchmarks/small_steps.py`)."""
_RAW: Final = "raw system calls"
_UNPREPARED: Final = "exec without capture"
IMPORT_DAMAGE: Final = "import_damage"
"""The code of what was wrong with imported files."""


def capture(trace: Trace, cpu: CpuEvidence | None = None) -> Capture:
    """The part of the summary that says how far the rest can be trusted; `cpu`: what the job and
    its host computed.
    """
    recorded = trace.run.capture
    busy_ns = _job_ns(trace)
    cost_ns = _cost_ns(trace, _positive(recorded.ns_per_span), _positive(recorded.ns_per_call))
    return Capture(
        events=trace.num_spans,
        lost=sum(process.lost or 0 for process in trace.run.processes),
        folder=recorded.folder,
        coverage_ratio=_coverage(trace),
        ns_per_event=_positive(recorded.ns_per_span),
        ns_per_call=_positive(recorded.ns_per_call),
        overhead_ratio=cost_ns / busy_ns if cost_ns is not None and busy_ns else None,
        not_seen=(),
        gaps=tuple(gaps(trace)),
        overhead_ratio_most=_most_ratio(trace, cpu) if cost_ns is not None and busy_ns else None,
        overhead_reason=recorded.cost_reason or Reason.COST_UNRESOLVED if cost_ns is None else None,
        native=recorded.native,
        negligible_gaps=tuple(_noted(trace, are_negligible=True)),
    )


def gaps(trace: Trace) -> Iterator[Sentence]:
    """What the run did and the recording cannot show."""
    for failure in trace.run.failures:
        yield sentence("failed", what=failure.what, rank=failure.rank)
    for process in _unclosed(trace):
        last_s = None if process.last_ns is None else process.last_ns / 1e9
        yield sentence("unclosed", **_facts(process), last_s=last_s)
    absent = sorted(set(range(trace.run.config.ranks or 0)) - set(trace.ranks))
    if absent:
        yield sentence("missing_ranks", ranks=absent, number=len(absent))
    for process in trace.run.processes:
        if process.lost:
            yield sentence("lost", **_facts(process), spans=process.lost)
    kind = "damaged" if trace.run.capture.imported_from is None else IMPORT_DAMAGE
    for damage in trace.run.capture.damaged:
        yield sentence(kind, file=damage.file, what=damage.what)
    yield from (sentence("run_record", what=str(each)) for each in trace.run.problems)
    yield from (sentence("kept", what=damage_text(each)) for each in trace.run.kept.damaged)
    yield from _reads(trace)
    for hook in trace.run.capture.unobserved:
        yield sentence("hook", unobserved=hook.unobserved, why=hook.why)
    yield from _faults(trace)
    yield from _noted(trace, are_negligible=False)
    yield from _not_followed(trace)
    if stacks := trace.run.capture.stacks:
        why = [stacks.reason] if stacks.reason else stacks.notes
        yield from (sentence("stacks", why=reason) for reason in why)
    yield from _unseen_processes(trace)
    yield from gpu_gaps(trace, steps(trace))
    yield from collective_gaps(trace)


def _job_ns(trace: Trace) -> int:
    """Time that ranks and workers recorded, summed."""
    return sum(map(_length_ns, _ranks_and_workers(trace)))


def _ranks_and_workers(trace: Trace) -> Iterator[ProcessRecord]:
    return (each for each in trace.run.processes if each.role in ("rank", "worker"))


def _length_ns(process: ProcessRecord) -> int:
    return (process.last_ns or 0) - (process.first_ns or 0)


def _cost_ns(
    trace: Trace, each_ns: float | None, call_ns: float | None, *, is_most: bool = False
) -> float | None:
    """What recording took: spans at the cost of one span, the hooks of training steps, calls that
    the library saw at the cost of one call, and programs that the job started, each at the cost of
    one. The hooks write spans, so at least it is the longer of the two.
    """
    counters = _read_counters(trace)
    calls = sum(reads.spans or 0 for reads in counters)
    short = sum(reads.short_calls or 0 for reads in counters)
    if each_ns is None or (calls + short and call_ns is None):
        return None
    programs = sum(process.role == "other" for process in trace.run.processes)
    spans_ns = (trace.num_spans - calls) * each_ns
    hooks_ns = sum(process.hooks_ns for process in trace.run.processes)
    return (
        (spans_ns + _DISPLACED * hooks_ns if is_most else max(spans_ns, hooks_ns))
        + (calls + short) * (call_ns or 0)
        + programs * (trace.run.capture.ns_per_process or 0)
        + window_cost_ns(trace)
    )


def _most_ratio(trace: Trace, cpu: CpuEvidence | None) -> float | None:
    """What recording took at most, as a share of the job's time; see `Capture`."""
    recorded = trace.run.capture
    each_ns, call_ns = map(_positive, (recorded.ns_per_cold_span, recorded.ns_per_cold_call))
    cost_ns = _cost_ns(trace, each_ns, call_ns, is_most=True)
    if cost_ns is None or each_ns is None:
        return None
    total_ns = _job_ns(trace)
    return max(
        cost_ns / total_ns if total_ns else 0.0,
        _largest_ratio(trace, each_ns, call_ns or 0.0),
        _cores_ratio(trace, cpu, cost_ns),
    )


def _largest_ratio(trace: Trace, each_ns: float, call_ns: float) -> float:
    """Of the rank or worker in which recording took the largest share of its time. Workers that
    start anew each epoch are one if they had the same number.
    """
    own_ns: Counter[tuple[str | None, int | None, int | None]] = Counter()
    length_ns: Counter[tuple[str | None, int | None, int | None]] = Counter()
    for process in _ranks_and_workers(trace):
        key = (process.role, process.rank, process.worker)
        reads = process.reads or ReadCounters()
        calls = reads.spans or 0
        own_ns[key] += round(max(0, (process.spans or 0) - calls) * each_ns)
        own_ns[key] += round((calls + (reads.short_calls or 0)) * call_ns)
        own_ns[key] += round(_DISPLACED * process.hooks_ns)
        length_ns[key] += _length_ns(process)
    return max((own_ns[key] / each for key, each in length_ns.items() if each > 0), default=0.0)


def _cores_ratio(trace: Trace, cpu: CpuEvidence | None, cost_ns: float) -> float:
    """What recording computes, `cost_ns` in the job and the rest beside it, over the CPU time of
    the job, where no core is idle for either.
    """
    recorded, known = trace.run.capture, list(_ranks_and_workers(trace))
    if cpu is None or not cpu.job_cores or not known:
        return 0.0
    wall_ns = max(each.last_ns or 0 for each in known) - min(each.first_ns or 0 for each in known)
    beside_s = (
        recorded.samplers and recorded.samplers.cpu_s,
        recorded.stacks and recorded.stacks.cpu_s,
        recorded.faults and recorded.faults.copier_cpu_s,
    )
    of_host_ns = cost_ns / len({each.host for each in known}) + 1e9 * sum(
        each or 0.0 for each in beside_s
    )
    busy = 1 - (cpu.idle_ratio or 0.0)
    return busy * of_host_ns / (wall_ns * cpu.job_cores) if wall_ns > 0 else 0.0


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


def _facts(process: ProcessRecord) -> Facts:
    """Which process it is."""
    return {
        "rank": process.rank if (process.rank or 0) >= 0 else None,
        "worker": process.worker if process.role == "worker" else None,
        "pid": process.pid,
    }


def _reads(trace: Trace) -> Iterator[Sentence]:
    recorded = trace.run.capture
    if not trace.run.reads_captured:
        yield sentence("reads_not_captured", why=recorded.reads_reason)
        return
    if ratio := unknown_read_ratio(trace):
        yield sentence("unknown_sources", ratio=ratio)
    if recorded.reads_by:
        is_not_built = recorded.library is False
        yield sentence("reads_of_some", by=recorded.reads_by, is_not_built=is_not_built)


def _faults(trace: Trace) -> Iterator[Sentence]:
    recorded = trace.run.capture
    if recorded.faults and recorded.faults.reason:
        yield sentence("faults", why=recorded.faults.reason)
    unwatched = sum(record.unwatched or 0 for record in recorded.fault_records)
    faults = sum(record.faults or 0 for record in recorded.fault_records)
    if unwatched > _LEAST_FAULT_RATIO * faults:
        yield sentence("unwatched_faults", unwatched=unwatched, faults=faults)


def _noted(trace: Trace, are_negligible: bool) -> Iterator[Sentence]:
    """What the capture library noticed in processes: that of which it missed little, or the
    rest.
    """
    noted = {
        word for process in trace.run.processes if process.reads for word in process.reads.noted
    }
    left_out = {_UNPREPARED} if _UNPREPARED in noted and any(_not_followed(trace)) else set()
    recorded = _recorded_bytes(trace) if _RAW in noted else {}
    counted = by_process(trace) if URING in noted else {}
    for process in trace.run.processes:
        words = set(process.reads.noted if process.reads else ()) - left_out
        few = (
            {_RAW}
            if _reads_few_by_number(process, recorded.get((process.host, process.pid), 0))
            else set()
        )
        found = counted.get((process.host, process.pid))
        by_uring = None if found is None else found.by_uring
        if by_uring == 0:
            few |= {URING}  # libuv does, for messages
        for word in sorted(words & few if are_negligible else words - few):
            facts = {"by_uring": by_uring, "is_uncounted": by_uring is None}
            yield sentence(word, **_facts(process), **(facts if word == URING else {}))


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


def _not_followed(trace: Trace) -> Iterator[Sentence]:
    """The programs that the job started and that cannot be recorded."""
    is_named = pl.col("name").cast(pl.String).is_in(list(NOT_FOLLOWED))
    # which `ctypes.util.find_library` starts, as many libraries do, and which reads no data
    is_linker = pl.col("path").str.ends_with("/ldconfig")
    opened = trace.rows(pl.col("name").is_not_null(), is_named, kinds=["open"]).join(
        trace.files, on="file"
    )
    found = opened.filter(~is_linker).select("path", pl.col("name").cast(pl.String)).unique()
    for path, name in found.sort("path", "name").head(_MOST_NAMES).iter_rows():
        yield sentence(name, program=path)


def _unseen_processes(trace: Trace) -> Iterator[Sentence]:
    if trace.run.capture.library is False:  # it is in no process
        return
    for code, is_hidden in (("hidden_processes", True), ("uncaptured_processes", False)):
        named = [
            process.name
            for process in trace.run.capture.unseen_processes
            if (process.sees_spool is False) == is_hidden
        ]
        if named:
            names = sorted(set(named))
            shown, others = names[:_MOST_NAMES], len(names) > _MOST_NAMES
            yield sentence(code, number=len(named), names=shown, others=others)
