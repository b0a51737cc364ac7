"""What a lack of CPU time means for the verdict: a sentence before its own, and findings before its
findings.

Where ranks or workers did not get the CPU time that they could use, more workers only share what
there is.
"""

from collections.abc import Mapping
from typing import Any, Final

from ioprof.analysis.cpu.cpu_time import LEAST_THREADS
from ioprof.format.run_record import (
    CpuEvidence,
    CpuLimit,
    Finding,
    JobChange,
    NoGain,
    RunRecord,
    Verdict,
    known,
)

LEAST_OF_STORAGE: Final = 0.30
"""Threads of a worker that waited for a core on average, or share of throttled periods, from which
on CPU time can be the cause where storage is the bound: a read that has ended counts as one until
its thread runs again."""
LEAST_OTHERS: Final = 0.05
"""Share of the host's CPU time that other programs took that is mentioned: they are part of why a
thread waits for a core."""
_LEAST_SHARED: Final = 1.25
"""Threads of a process that could run, on average, from which on it is said to compute with
several."""
_MADE: Final = ("decode", "transform", "collate", "loader")
"""What workers compute."""
_MOST_DELAY: Final = 0.9
"""Of the time in which threads can run, which they may be said to lose for good."""
_OF_JOB: Final = (CpuLimit.THREADS, CpuLimit.PROCESSES)
"""Limits that the job itself sets: its threads compete with each other."""
_NOT_OF_CPUS: Final = (None, "h2d", "checkpoint")


def with_cpu_limit(verdict: Verdict, found: CpuEvidence | None, run: RunRecord) -> Verdict:
    """The verdict with what limits the CPU time first, in sentences and findings, where that is the
    cause of what was waited for.
    """
    if found is None or not _explains(found, verdict.bound_by, run):
        return verdict
    if any(each.code == "served_line" for each in verdict.findings):
        # the process beside the ranks does what workers ask it for
        limits = tuple(each for each in found.limits if each is not CpuLimit.PROCESSES)
        found = found.replace(limits=limits)
    verdict = verdict.replace(cpu_limits=found.limits)
    facts = cpu_facts(found, run.config.workers)
    named = [limit for limit in found.limits if limit is not CpuLimit.CORES]
    if found.limits and not named:
        return verdict.said(CpuLimit.CORES, **facts)
    for limit in reversed(named):
        verdict = verdict.said(limit, first=True, **facts)
    more = tuple(_finding(limit, found, facts) for limit in named)
    return verdict.replace(findings=(*more, *verdict.findings))


def _finding(limit: CpuLimit, found: CpuEvidence, facts: Mapping[str, Any]) -> Finding:
    """What to change. Where threads of the job compete with each other, it brings no more than if
    none of them had waited for a core.
    """
    base = Finding(f"cpu_{limit}", facts=known(dict(facts)))
    if limit not in _OF_JOB:
        return base.replace(no_gain=NoGain.NOT_MODELLED)
    delays = dict.fromkeys(_MADE, found.worker_run_delay_ratio)
    delays |= {"compute": found.rank_run_delay_ratio}
    speeds = {cause: 1 / (1 - min(_MOST_DELAY, delay)) for cause, delay in delays.items() if delay}
    return base.replace(change=JobChange(speeds=speeds), is_bound=True)


def _explains(found: CpuEvidence, bound: str | None, run: RunRecord) -> bool:
    """Whether a lack of CPU time can be why the steps took as long as they did."""
    if bound == "compute":
        return run.device_name == "cpu"
    if bound == "storage":
        return (
            max(found.worker_waiting_threads or 0.0, found.throttled_ratio or 0.0)
            >= LEAST_OF_STORAGE
        )
    return bound not in _NOT_OF_CPUS


def cpu_facts(found: CpuEvidence, num_workers: int | None) -> dict[str, Any]:
    """What limits the CPU time, as facts of a sentence or a finding."""
    worse = max(found.worker_run_delay_ratio or 0.0, found.rank_run_delay_ratio or 0.0)
    others, pool_threads = found.others_ratio or 0.0, found.thread_pool_threads or 0
    beside_threads, processes = found.beside_threads or 0.0, found.beside_processes or 0
    is_of_workers = CpuLimit.WORKER_AFFINITY in found.limits
    return {
        "quota_cores": found.quota_cores,
        "throttled": found.throttled_ratio,
        "cores": found.cores,
        "allowed": found.worker_cores or found.rank_cores or found.cores,
        "of_workers": is_of_workers,
        "affine_cores": found.worker_cores if is_of_workers else found.rank_cores,
        "cpus": found.worker_cpus if is_of_workers else found.rank_cpus,
        "num_workers": num_workers if num_workers and num_workers > 1 else None,
        "pool": found.thread_pool,
        "pool_threads": pool_threads if pool_threads >= LEAST_THREADS else None,
        "most_threads": found.most_threads,
        "runnable": found.most_runnable_threads,
        "delay": worse,
        "worker_delay": found.worker_run_delay_ratio or 0.0,
        "rank_delay": found.rank_run_delay_ratio or 0.0,
        "others": others if others >= LEAST_OTHERS else None,
        "beside": processes,
        "several": processes > 1,
        "programs": ", ".join(found.beside_programs),
        "beside_threads": beside_threads,
        "beside_cores": found.beside_cores,
        "shared": beside_threads >= _LEAST_SHARED,
        "busy": 1 - (found.idle_ratio or 0.0),
    }
