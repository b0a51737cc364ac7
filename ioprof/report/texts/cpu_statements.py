"""The CPU time that ranks and workers got, as one line of a report."""

from typing import Final

from ioprof.format.run_record import CpuEvidence, CpuLimit
from ioprof.report.texts.catalogue.filling import tell
from ioprof.report.texts.units import percent

_CPU: Final = (
    "{found.host:clean40}: {found.cores:count} cores[, ranks may use {found.rank_cores:count}][,"
    " workers may use {found.worker_cores:count}][; quota {found.quota_cores:.4g} cores, throttled"
    " in {found.throttled_ratio:percent} of its periods][; waited for a core while they could run:"
    " ranks {found.rank_run_delay_ratio:percent}[, workers"
    " {found.worker_run_delay_ratio:percent}]|;"
    " waited for a core while they could run: workers {found.worker_run_delay_ratio:percent}][;"
    " {found.runnable_threads:.1f} threads could run on average, a process had up to"
    " {found.most_threads:count}][{found.beside_cores:if}{found.beside_processes:if};"
    " {found.beside_processes:count} other process{found.beside_processes:es} of the job used"
    " {found.beside_cores:.1f} cores][{found.steal_ratio:if}; {found.steal_ratio:percent} of the"
    " host's CPU time was stolen by the hypervisor]"
)


LEAST_SHARED: Final = 0.15
"""Part of the time in which threads could run that they waited for a core, from which on the first
screen says so."""


def cpu_text(found: CpuEvidence) -> str:
    """Cores, quota, run-queue delay and threads, as far as each is known."""
    return tell(_CPU, found=found)


def short_of_cores(found: CpuEvidence) -> str:
    """Who waited for a core, in a line: the verdict has what limits the CPU time."""
    if CpuLimit.QUOTA in found.limits:
        return (
            f"The job was throttled in {percent(found.throttled_ratio)} of the periods of its CPU"
            " quota."
        )
    workers, ranks = found.worker_run_delay_ratio or 0.0, found.rank_run_delay_ratio or 0.0
    if CpuLimit.PROCESSES in found.limits or workers < LEAST_SHARED:
        who = f"Ranks waited for a core {percent(ranks)}"
    elif ranks < LEAST_SHARED:
        who = f"Workers waited for a core {percent(workers)}"
    else:
        both = f"ranks waited for one {percent(ranks)}, workers {percent(workers)}"
        who = f"Ranks and workers share the cores: {both}"
    return f"{who} of the time in which they could run."
