"""What the kernel fetched from storage for the processes of a run, against what was seen of it, by
source.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from ioprof.analysis.answer.doubts import with_doubt_of
from ioprof.analysis.answer.evidence import IDLE_RATIO
from ioprof.analysis.reads.read_sums import PAGE_BYTES
from ioprof.analysis.selection import first_and_last
from ioprof.format.run_record import Capture, CauseShare, Doubt, Steps, Verdict
from ioprof.format.trace import Trace

ProcessId = tuple[str | None, int | None]
"""Host and process."""

LEAST_UNTIMED_BYTES: Final = 1 << 20
"""Less is metadata: folders, inodes and extent maps, which the kernel counts too."""
LEAST_UNTIMED_RATIO: Final = 0.02
"""Share of the bytes from storage from which on untimed ones are mentioned."""
URING: Final = "io_uring"
"""What the capture library notes of a ring that it could not follow."""
_LEAST_SAMPLED_NS: Final = 5_000_000_000
"""Time of the steps from which on samples, one per second, say what was fetched during them."""
LEAST_VERDICT_RATIO: Final = 0.1
"""Share from which on the verdict mentions them."""
_SLOW_BYTES_PER_S: Final = 5e6
"""Of faults on a slow file system: 16 kB, as the kernel fetches around a fault, in 3 ms."""
_MAY_WAIT: Final = ("host", "loader", "validation", "checkpoint")
"""Causes that waits for mapped files count as, where nothing timed them."""
_LEAST_DOUBT: Final = 0.05
"""Share of the steps' time that they may have taken, from which on another cause may be the
bound."""


@dataclass(frozen=True)
class StorageBytes:
    """Bytes from storage of all processes whose counters were read."""

    kernel: int
    """`read_bytes` of the proc io counters: what they submitted to block devices, readahead
    included."""
    by_calls: int
    """Fetched during read calls and calls of madvise."""
    by_faults: int
    """Fetched by page faults that were recorded."""
    by_uring: int = 0
    """Of processes with a ring that was not followed: fetched, and neither timed nor imported."""
    by_imports: int = 0
    """Fetched while modules were imported, neither by such calls nor by such faults."""
    during_imports: int = 0
    """Fetched while modules were imported, in whichever way."""

    @property
    def untimed(self) -> int:
        """Fetched, and no recorded call or fault says when."""
        return max(0, self.kernel - self.by_calls - self.by_faults)

    @property
    def imports(self) -> int:
        """Those of the untimed bytes that came while modules were imported."""
        return min(self.untimed, self.by_imports)


def by_process(trace: Trace) -> dict[ProcessId, StorageBytes]:
    """The counts of each process, by host and process id, that has both the kernel's and those of
    the capture library.
    """
    is_fault = (pl.col("kind") == "fault") & (pl.col("source") == "storage")
    sums = trace.sums.filter(is_fault).group_by("host", "pid").agg(pl.col("bytes").sum())
    faults = {(host, pid): int(count) for host, pid, count in sums.iter_rows()}
    found, of_imports = {}, _by_imports(trace)
    for process in trace.run.processes:
        if process.reads is None or (mapped := process.reads.mapped_bytes) is None:
            continue
        calls, key = process.reads.fetched_bytes or 0, (process.host, process.pid)
        whole, rest = of_imports.get(key, (0, 0))
        counts = StorageBytes(
            calls + mapped,
            calls,
            min(mapped, faults.get(key, 0)),
            by_imports=rest,
            during_imports=min(calls + mapped, whole),
        )
        by_uring = counts.untimed - counts.imports if URING in process.reads.noted else 0
        found[key] = replace(counts, by_uring=by_uring if _is_much(by_uring, counts) else 0)
    return found


def _is_much(number: int, counts: StorageBytes) -> bool:
    return number >= max(LEAST_UNTIMED_BYTES, LEAST_UNTIMED_RATIO * counts.kernel)


def _by_imports(trace: Trace) -> dict[ProcessId, tuple[int, int]]:
    """By host and process, what came during its imports, as their spans say; and that less the
    pages of files that it read meanwhile and what recorded faults fetched: what is left is of the
    shared libraries that it loaded.
    """
    is_import = pl.col("name").cast(pl.String).str.starts_with("import ")
    imports = trace.rows(is_import, pl.col("bytes") > 0, kinds=["phase"])
    if imports.is_empty():
        return {}
    by, last_ns = ["host", "pid"], int(imports["end_ns"].to_numpy().max())
    imports = imports.select(*by, "start_ns", until_ns="end_ns", fetched="bytes").sort("start_ns")
    known = trace.rows(
        pl.col("source") == "storage", pl.col("start_ns") < last_ns, kinds=["read", "fault"]
    ).sort("start_ns")
    known = known.select(*by, "start_ns", "kind", "file", "bytes").join_asof(
        imports, on="start_ns", by=by, check_sortedness=False
    )
    known = known.filter(pl.col("start_ns") < pl.col("until_ns"))
    known = known.group_by(*by, "kind", "file").agg(pl.col("bytes").sum())
    pages = (
        pl.when(pl.col("kind") == "read")
        .then((pl.col("bytes") / PAGE_BYTES).ceil() * PAGE_BYTES)
        .otherwise("bytes")
    )
    counted = imports.group_by(by).agg(pl.col("fetched").sum())
    rest = counted.join(
        known.group_by(by).agg(known=pages.sum()), on=by, how="left", nulls_equal=True
    )
    rows = rest.select(
        pl.col("host").cast(pl.String), "pid", "fetched", pl.col("known").fill_null(0)
    )
    return {
        (host, pid): (int(count), max(0, int(count - known)))
        for host, pid, count, known in rows.iter_rows()
    }


def storage_bytes(trace: Trace) -> StorageBytes | None:
    """The counts of all processes, summed; None if no process has them."""
    found = by_process(trace).values()
    if not found:
        return None
    return StorageBytes(
        sum(each.kernel for each in found),
        sum(each.by_calls for each in found),
        sum(each.by_faults for each in found),
        sum(each.by_uring for each in found),
        sum(each.imports for each in found),
        sum(each.during_imports for each in found),
    )


def with_storage_bytes(capture: Capture, found: StorageBytes | None) -> Capture:
    """The completeness of a run, with its bytes from storage."""
    if found is None:
        return capture
    seen = found.by_calls + found.by_faults
    return capture.replace(
        storage_bytes_kernel=found.kernel,
        storage_bytes_calls=found.by_calls,
        storage_bytes_faults=found.by_faults,
        storage_bytes_seen=seen,
        storage_coverage_ratio=seen / found.kernel if found.kernel else None,
        mapped_bytes_untimed=found.untimed - found.by_uring,
        uring_bytes_untimed=found.by_uring,
        mapped_bytes_imports=found.imports,
    )


def are_untimed(capture: Capture, least_ratio: float = LEAST_UNTIMED_RATIO) -> bool:
    """Whether bytes that were not timed are more than metadata, and at least that share of all;
    those of imports aside.
    """
    untimed, kernel = _after_imports(capture), capture.storage_bytes_kernel or 0
    return untimed >= LEAST_UNTIMED_BYTES and untimed >= least_ratio * kernel


def untimed_facts(capture: Capture) -> dict[str, Any]:
    """Those bytes, by the way in which they came."""
    by_uring = capture.uring_bytes_untimed or 0
    mapped = _after_imports(capture) - by_uring
    is_much = not by_uring or mapped >= LEAST_UNTIMED_BYTES
    return {"uring_bytes": by_uring or None, "mapped_bytes": mapped if is_much else None}


def import_bytes(capture: Capture) -> int:
    """What came by mapped files while modules were imported; 0: little."""
    imports = capture.mapped_bytes_imports or 0
    least = max(LEAST_UNTIMED_BYTES, LEAST_UNTIMED_RATIO * (capture.storage_bytes_kernel or 0))
    return imports if imports >= least else 0


def _after_imports(capture: Capture) -> int:
    untimed = (capture.mapped_bytes_untimed or 0) + (capture.uring_bytes_untimed or 0)
    return untimed - (capture.mapped_bytes_imports or 0)


def fetched_in_steps(trace: Trace) -> int | None:
    """Bytes that the kernel fetched from storage for ranks and workers between the first step and
    the last, at most, by the samples of its counters; None: the steps lasted too short for that, or
    a process was not sampled twice.
    """
    steps = trace.rows(kinds=["step"])
    asked = {
        (process.host, process.pid)
        for process in trace.run.processes
        if process.role in ("rank", "worker")
    }
    counters = trace.counters.filter(
        pl.col("name").cast(pl.String) == "process.read_bytes",
        pl.col("pid").is_in([pid for _, pid in asked]),
    )
    sampled = (
        counters.group_by(pl.col("host").cast(pl.String), "pid").len().filter(pl.col("len") > 1)
    )
    if steps.is_empty() or asked - set(sampled.select("host", "pid").iter_rows()):
        return None
    begin_ns, end_ns = first_and_last(steps)
    by_process = counters.filter(pl.col("value").is_finite(), pl.col("value") >= 0).group_by(
        "host", "pid"
    )
    if end_ns - begin_ns < _LEAST_SAMPLED_NS:
        return None
    before = pl.col("value").filter(pl.col("time_ns") <= begin_ns).max().fill_null(0.0)
    after = pl.col("value").filter(pl.col("time_ns") >= end_ns).min()
    grown = by_process.agg(grown=after.fill_null(pl.col("value").max()).fill_null(0.0) - before)
    return int(min(grown["grown"].sum(), 2.0**62))


def with_doubt(
    verdict: Verdict,
    capture: Capture,
    steps: Steps,
    in_steps: int | None = None,
    device: str | None = None,
) -> Verdict:
    """The verdict; where much of what came from storage was not timed, it says so, since waits for
    it count as other time.

    It is no reason for doubt where it was fetched before the first step (`in_steps` is
    `fetched_in_steps`), nor where even a slow file system would take too little of the steps' time
    for it to be the bound, nor where the bound takes longer than all that may have waited for
    storage: while a `device` other than the CPU computes, nothing else is the bound.
    """
    on_device = device not in (None, "cpu")
    if on_device and (verdict.bound_by == "compute" or _is_certain(verdict, steps)):
        return verdict
    if not are_untimed(capture, LEAST_VERDICT_RATIO) or (
        in_steps is not None and in_steps < LEAST_UNTIMED_BYTES
    ):
        return verdict
    whole_s = sum(entry.seconds or 0.0 for entry in steps.causes)
    most_s = min(_after_imports(capture), in_steps or _after_imports(capture)) / _SLOW_BYTES_PER_S
    computed = next((entry.share or 0.0 for entry in steps.causes if entry.cause == "compute"), 0.0)
    needed = (
        max(_LEAST_DOUBT, computed - (1 - IDLE_RATIO))
        if verdict.bound_by == "compute"
        else _LEAST_DOUBT
    )
    if most_s < needed * whole_s:
        return verdict
    if verdict.bound_by == "storage":  # what was not timed is more of the same
        return verdict.said("untimed", **untimed_facts(capture))
    facts = untimed_facts(capture)
    return with_doubt_of(verdict, Doubt.UNTIMED, on_device=on_device, **facts)


def _is_certain(verdict: Verdict, steps: Steps) -> bool:
    """Whether the bound of a job that computes on a device took longer, for certain, than all waits
    for mapped files may have.
    """
    waited_s = {entry.cause: _perhaps_waited_s(entry) for entry in steps.causes}
    bound = next((entry for entry in steps.causes if entry.cause == verdict.bound_by), None)
    return bound is not None and (bound.seconds or 0.0) - waited_s[bound.cause] > sum(
        waited_s.values()
    )


def _perhaps_waited_s(charged: CauseShare) -> float:
    """How much of a cause may have been waits for mapped files: of a validation, what the device
    did not compute in.
    """
    if charged.cause not in _MAY_WAIT:
        return 0.0
    return (charged.seconds or 0.0) - sum(
        part.seconds for part in charged.details if part.subject == "compute"
    )
