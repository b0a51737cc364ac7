"""The CPU time that ranks and workers got, as one line of a report."""

from collections.abc import Iterator

from ioprof.format.run_record import CpuEvidence, CpuLimit
from ioprof.report.texts.units import clean, count, percent


def cpu_text(found: CpuEvidence) -> str:
    """Cores, quota, run-queue delay and threads, as far as each is known."""
    return "; ".join(_parts(found))


def short_of_cores(found: CpuEvidence) -> str:
    """Who waited for a core, in a line: the verdict has what limits the CPU time."""
    if CpuLimit.QUOTA in found.limits:
        return (
            f"The job was throttled in {percent(found.throttled_ratio)} of the periods of its CPU"
            " quota."
        )
    workers, ranks = found.worker_run_delay_ratio or 0.0, found.rank_run_delay_ratio or 0.0
    of_ranks = ranks > workers or CpuLimit.PROCESSES in found.limits
    who, ratio = ("Ranks", ranks) if of_ranks else ("Workers", workers)
    return f"{who} waited for a core {percent(ratio)} of the time in which they could run."


def _parts(found: CpuEvidence) -> Iterator[str]:
    allowed = [
        f"{who} may use {count(cores)}"
        for who, cores in (("ranks", found.rank_cores), ("workers", found.worker_cores))
        if cores is not None
    ]
    yield f"{clean(found.host, 40)}: {count(found.cores)} cores" + (
        f", {', '.join(allowed)}" if allowed else ""
    )
    if found.quota_cores is not None:
        yield (
            f"quota {found.quota_cores:.4g} cores, throttled in {percent(found.throttled_ratio)} of"
            " its periods"
        )
    delays = [
        f"{who} {percent(ratio)}"
        for who, ratio in (
            ("ranks", found.rank_run_delay_ratio),
            ("workers", found.worker_run_delay_ratio),
        )
        if ratio is not None
    ]
    if delays:
        yield f"waited for a core while they could run: {', '.join(delays)}"
    if found.runnable_threads is not None:
        yield (
            f"{found.runnable_threads:.1f} threads could run on average, a process had up to"
            f" {count(found.most_threads)}"
        )
    if found.beside_processes and found.beside_cores:
        processes = "process" if found.beside_processes == 1 else "processes"
        yield (
            f"{count(found.beside_processes)} other {processes} of the job used"
            f" {found.beside_cores:.1f} cores"
        )
    if found.steal_ratio:
        yield f"{percent(found.steal_ratio)} of the host's CPU time was stolen by the hypervisor"
