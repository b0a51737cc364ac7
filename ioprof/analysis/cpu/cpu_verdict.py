"""What a lack of CPU time means for the verdict: a sentence before its text, and advice before its
advice.

Where ranks or workers did not get the CPU time that they could use, more workers only share what
there is.
"""

from typing import Final

from ioprof.analysis.answer.options import JobOptions, options_of
from ioprof.analysis.cpu.cpu_time import LEAST_THREADS
from ioprof.format.run_record import Advice, CpuEvidence, CpuLimit, NoGain, RunRecord, Verdict

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
_NOT_OF_CPUS: Final = (None, "h2d", "checkpoint")


def overrides_workers(found: CpuEvidence | None) -> bool:
    """Whether more workers would only share the CPU time that there is."""
    return found is not None and bool(found.limits)


def with_cpu_limit(verdict: Verdict, found: CpuEvidence | None, run: RunRecord) -> Verdict:
    """The verdict with what limits the CPU time first, in text and advice, where that is the cause
    of what was waited for.
    """
    if found is None or not _explains(found, verdict.bound_by, run):
        return verdict
    verdict = verdict.replace(cpu_limits=found.limits)
    named = [limit for limit in found.limits if limit is not CpuLimit.CORES]
    text = " ".join(
        [*(sentence(found, limit, run.config.workers) for limit in named), verdict.text]
    )
    if not found.limits:
        return verdict
    if not named:
        return verdict.replace(text=f"{text} {_cores_are_busy(found, options_of(run.job_kind))}")
    advice = [
        Advice(_ADVICE[limit](found, options_of(run.job_kind)), no_gain=NoGain.NOT_MODELLED)
        for limit in named
    ]
    return verdict.replace(text=text, advice=(*advice, *verdict.advice))


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


def sentence(found: CpuEvidence, limit: CpuLimit, num_workers: int | None = None) -> str:
    """What limits the CPU time, with the numbers that show it."""
    if limit is CpuLimit.QUOTA:
        cores = f"{found.quota_cores:.4g} core{'' if found.quota_cores == 1 else 's'}"
        return (
            f"The job's cgroup has a quota of {cores} and was throttled in"
            f" {found.throttled_ratio:.0%} of its periods."
        )
    if limit is CpuLimit.THREADS:
        return (
            f"{_threads(found)} on {_cores_text(found)}: {found.most_runnable_threads:.0f} could"
            f" run on average, and waited for a core {_worse(found):.0%} of that"
            f" time{_beside(found)}."
        )
    if limit is CpuLimit.PROCESSES:
        return (
            f"The ranks waited for a core {found.rank_run_delay_ratio or 0.0:.0%} of the time in"
            f" which they could run: {_beside_text(found)} used {found.beside_cores:.1f} of"
            f" {_cores_text(found)}{_beside(found)}."
        )
    of_workers = limit is CpuLimit.WORKER_AFFINITY
    allowed, cpus = (
        (found.worker_cores, found.worker_cpus)
        if of_workers
        else (found.rank_cores, found.rank_cpus)
    )
    ratio = found.worker_run_delay_ratio if of_workers else found.rank_run_delay_ratio
    who = "Workers" if of_workers else "Ranks"
    number = f" ({num_workers} each)" if of_workers and num_workers and num_workers > 1 else ""
    which = f" (CPU affinity {cpus})" if cpus else " (CPU affinity)"
    return (
        f"{who}{number} may use {allowed} of {found.cores} cores{which}, and waited for a core"
        f" {ratio or 0.0:.0%} of the time in which they could run{_beside(found)}."
    )


def _beside(found: CpuEvidence) -> str:
    ratio = found.others_ratio or 0.0
    return (
        f" (other programs took {ratio:.0%} of the host's CPU time)"
        if ratio >= LEAST_OTHERS
        else ""
    )


def _threads(found: CpuEvidence) -> str:
    if (
        found.thread_pool
        and found.thread_pool_threads
        and found.thread_pool_threads >= LEAST_THREADS
    ):
        return f"{found.thread_pool_threads} threads of {found.thread_pool} in a process"
    return f"Up to {found.most_threads} threads in a process"


def _cores_text(found: CpuEvidence) -> str:
    cores = found.worker_cores or found.rank_cores or found.cores
    return f"{cores} core{'' if cores == 1 else 's'}"


def _worse(found: CpuEvidence) -> float:
    return max(found.worker_run_delay_ratio or 0.0, found.rank_run_delay_ratio or 0.0)


def _advise_affinity(found: CpuEvidence, options: JobOptions) -> str:
    who = "workers" if CpuLimit.WORKER_AFFINITY in found.limits else "ranks"
    cores = found.worker_cores if who == "workers" else found.rank_cores
    return (
        f"Let the {who} use more than {cores} of the {found.cores} cores: look for taskset,"
        " os.sched_setaffinity, the binding of the scheduler (srun --cpus-per-task, --cpu-bind),"
        f" OMP_PROC_BIND, KMP_AFFINITY; {options.more_workers} would only share these cores"
    )


def _advise_quota(found: CpuEvidence, options: JobOptions) -> str:
    return (
        f"Raise the CPU quota of the job ({found.quota_cores:.4g} of {found.cores} cores; docker"
        f" --cpus, limits.cpu of Kubernetes, CPUQuota= of systemd): {options.more_workers} would"
        " only share it"
    )


def _advise_threads(found: CpuEvidence, options: JobOptions) -> str:
    how = {
        "OpenCV": "call cv2.setNumThreads(0) in worker_init_fn",
        "torch": "call torch.set_num_threads(1) in each worker, or set OMP_NUM_THREADS=1",
        "numexpr": "set NUMEXPR_NUM_THREADS=1",
    }.get(found.thread_pool or "", "set OMP_NUM_THREADS=1 and MKL_NUM_THREADS=1")
    return (
        f"Use fewer threads per process: {how};"
        f" {_threads(found).lower() if not found.thread_pool else _threads(found)} share"
        f" {_cores_text(found)}, so {options.more_workers} would only add to them"
    )


def _beside_text(found: CpuEvidence) -> str:
    number = found.beside_processes or 0
    processes, each = ("process", "") if number == 1 else ("processes", "each ")
    return (
        f"{number} other {processes} of the job, {each}with {found.beside_threads or 0.0:.1f}"
        " threads that could run on average,"
    )


def _advise_processes(found: CpuEvidence, _options: JobOptions) -> str:
    if (found.beside_threads or 0.0) >= _LEAST_SHARED:
        how = (
            "let each of them compute with one thread: call torch.set_num_threads(1) in it, or"
            " start it with OMP_NUM_THREADS=1"
        )
    else:
        how = "use fewer of them, or let them do less"
    return (
        f"Leave cores for the ranks: {_beside_text(found)} computed beside them on"
        f" {_cores_text(found)}; {how}"
    )


def _cores_are_busy(found: CpuEvidence, options: JobOptions) -> str:
    ratio, busy = found.worker_run_delay_ratio or 0.0, 1 - (found.idle_ratio or 0.0)
    return (
        f"{options.more_workers.capitalize()} would only share the cores: all {found.cores} were"
        f" busy for {busy:.0%} of the time{_beside(found)}, and workers waited for a core"
        f" {ratio:.0%} of the time in which they could run."
    )


_ADVICE: Final = {
    CpuLimit.QUOTA: _advise_quota,
    CpuLimit.WORKER_AFFINITY: _advise_affinity,
    CpuLimit.RANK_AFFINITY: _advise_affinity,
    CpuLimit.THREADS: _advise_threads,
    CpuLimit.PROCESSES: _advise_processes,
}
