"""Whether ranks and workers got the CPU time that they could use: affinity, quota, run-queue delay,
threads.

The sources are the sampled series of the processes (`ioprof.format.series`), which count from the
start of each process, and the facts in `RunRecord.processes`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.analysis.charge.steps import steps
from ioprof.format.run_record import CpuEvidence, CpuLimit, HostRecord, ProcessRecord
from ioprof.format.trace import Trace

LEAST_DELAY_RATIO: Final = 0.25
"""Share of the time in which threads could run that they waited for a core, from which on cores are
called too few."""
LEAST_WAITING: Final = 0.15
"""The same as a share of all time: a worker that mostly waits for storage waits little for a
core."""
LEAST_THROTTLED: Final = 0.10
"""Share of the periods of a quota in which it was used up."""
MOST_THREADS_PER_CORE: Final = 2.5
"""Threads that could run, per core that the job may use, above which threads compete instead of
sharing the work."""
LEAST_THREADS: Final = 3.0
"""Threads of one process that could run, on average: below, processes compete and not the threads
of one."""
MOST_IDLE: Final = 0.05
"""Share of the host's CPU time that may be idle where all cores are called busy."""
LEAST_WANTED: Final = 0.5
"""Cores that a worker could use on average, from which on busy cores hold it up: one that mostly
waits for data needs few."""
LEAST_BESIDE: Final = 0.25
"""Cores that other processes of the job used since the first step, from which on they can be what
ranks waited for."""
_LEAST_OF_OTHERS: Final = 0.5
"""The same over the cores that other programs took: below, these are what ranks waited for."""
_MOST_PROGRAMS: Final = 3
_LEAST_OF_PROCESS: Final = 0.1
"""Cores that one of these used, from which on it counts."""
_LEAST_SAMPLED_S: Final = 0.25
"""Life of a process at its last sample, below which that says nothing: the kernel counts CPU time
in steps of 10 ms."""
_GREATEST: Final = 2.0**63  # a counter of a damaged file may be anything, NaN included
_OF_PROCESS: Final = (
    "process.cpu_user",
    "process.cpu_system",
    "process.run_delay",
    "process.threads",
    "process.cpus_allowed",
    "process.involuntary_switches",
)
_STATES: Final = ("user", "system", "irq", "idle", "iowait", "steal")


@dataclass(frozen=True)
class _Usage:
    """What one process did with its CPUs."""

    record: ProcessRecord
    cpu_s: float
    delay_s: float | None
    wall_s: float
    last_ns: float
    threads: int
    cores: int
    switches: float

    @property
    def runnable(self) -> float:
        """Threads that ran or could have run, on average."""
        return (self.cpu_s + (self.delay_s or 0.0)) / self.wall_s if self.wall_s else 0.0


def cpu_evidence(trace: Trace) -> CpuEvidence | None:
    """The evidence of the host whose ranks and workers waited for a core most; None: nothing of it
    was sampled.
    """
    steps_ns = int(steps(trace).select(pl.col("start_ns").min()).item() or 0)
    of_hosts = _usages(trace, steps_ns).items()
    found = [
        _of_host(trace, host, usages, steps_ns)
        for host, usages in of_hosts
        if any(each.record.role != "other" for each in usages)
    ]
    return max(
        found,
        key=lambda entry: (len(entry.limits), entry.worker_run_delay_ratio or 0.0),
        default=None,
    )


def _of_host(trace: Trace, host: str, usages: list[_Usage], steps_ns: int) -> CpuEvidence:
    ranks = [usage for usage in usages if usage.record.role == "rank"]
    workers = [usage for usage in usages if usage.record.role == "worker"]
    wall_s = max(usage.wall_s for usage in (*ranks, *workers))
    steps_s = (max(usage.last_ns for usage in (*ranks, *workers)) - steps_ns) / 1e9
    beside = [
        usage
        for usage in usages
        if usage.record.role == "other" and usage.cpu_s >= _LEAST_OF_PROCESS * steps_s > 0
    ]
    usages = [*ranks, *workers]
    busiest = max(usages, key=lambda usage: usage.runnable)
    pools = {
        name: size
        for usage in usages
        for name, size in usage.record.thread_pools.items()
        if size == _largest_pool(usages)
    }
    quota, states = _quota(trace, host), _states(trace, host)
    machine = next((each for each in trace.run.hosts if each.name == host), HostRecord())
    found = CpuEvidence(
        host=host,
        cores=machine.online_cpus,
        others_ratio=machine.others_cpu_ratio,
        rank_cores=_cores(ranks),
        rank_cpus=_cpus(ranks),
        worker_cores=_cores(workers),
        worker_cpus=_cpus(workers),
        rank_run_delay_ratio=_delay_ratio(ranks),
        worker_run_delay_ratio=_delay_ratio(workers),
        rank_waiting_threads=_waiting(ranks),
        worker_running_threads=_running(workers),
        worker_waiting_threads=_waiting(workers),
        runnable_threads=_of_known(
            [
                usage.runnable * usage.wall_s / wall_s
                for usage in usages
                if usage.delay_s is not None
            ]
        ),
        most_runnable_threads=busiest.runnable if busiest.delay_s is not None else None,
        most_threads=max(usage.threads for usage in usages),
        thread_pool=next(iter(sorted(pools)), None),
        thread_pool_threads=_largest_pool(usages),
        beside_processes=len(beside) or None,
        beside_programs=_programs(beside),
        beside_cores=_of_known([usage.cpu_s / steps_s for usage in beside]),
        beside_threads=sum(usage.runnable for usage in beside) / len(beside) if beside else None,
        job_cores=sum(usage.cpu_s for usage in usages) / wall_s,
        involuntary_switches_per_s=sum(usage.switches for usage in usages) / wall_s,
        quota_cores=quota.cores,
        quota_group=quota.group,
        throttled_ratio=quota.throttled_ratio,
        idle_ratio=states.get("idle"),
        steal_ratio=states.get("steal"),
    )
    return found.replace(limits=tuple(_limits(found)))


def _programs(usages: list[_Usage]) -> tuple[str, ...]:
    ordered = sorted(usages, key=lambda usage: -usage.cpu_s)
    names = dict.fromkeys(usage.record.program for usage in ordered)
    return tuple(name for name in names if name)[:_MOST_PROGRAMS]


def _limits(found: CpuEvidence) -> Iterator[CpuLimit]:
    cores = found.cores or 0
    if (found.throttled_ratio or 0.0) >= LEAST_THROTTLED and (found.quota_cores or 0.0) < cores:
        yield CpuLimit.QUOTA
    workers_wait = _is_short(found.worker_run_delay_ratio, found.worker_waiting_threads)
    ranks_wait = _is_short(found.rank_run_delay_ratio, found.rank_waiting_threads)
    if workers_wait and (found.worker_cores or cores) < cores:
        yield CpuLimit.WORKER_AFFINITY
    elif ranks_wait and (found.rank_cores or cores) < cores:
        yield CpuLimit.RANK_AFFINITY
    usable = (
        min(found.worker_cores or cores, found.rank_cores or cores)
        if found.worker_cores or found.rank_cores
        else cores
    )
    threads, of_one = found.runnable_threads or 0.0, found.most_runnable_threads or 0.0
    is_crowded = usable > 0 and max(threads, of_one) > MOST_THREADS_PER_CORE * usable
    if is_crowded and of_one >= LEAST_THREADS and (workers_wait or ranks_wait):
        yield CpuLimit.THREADS
    wanted = (found.worker_running_threads or 0.0) + (found.worker_waiting_threads or 0.0)
    if (
        workers_wait
        and wanted >= LEAST_WANTED
        and found.idle_ratio is not None
        and found.idle_ratio <= MOST_IDLE
    ):
        yield CpuLimit.CORES
    beside, others = found.beside_cores or 0.0, (found.others_ratio or 0.0) * cores
    if (
        ranks_wait
        and beside >= max(LEAST_BESIDE, _LEAST_OF_OTHERS * others)
        and beside + threads + others > usable
    ):
        yield CpuLimit.PROCESSES


def _is_short(delay_ratio: float | None, waiting: float | None) -> bool:
    return (delay_ratio or 0.0) >= LEAST_DELAY_RATIO and (waiting or 0.0) >= LEAST_WAITING


# ---------------------------------------------------------------------------------- from the series


def _usages(trace: Trace, steps_ns: int) -> dict[str, list[_Usage]]:
    """By host, the processes of the job that were sampled for long enough; all but workers since
    the first step, which began at `steps_ns`.
    """
    records = {
        (record.host, record.pid): record
        for record in trace.run.processes
        if record.host is not None and record.pid is not None
    }
    pids = sorted({pid for _, pid in records})
    named = pl.col("name").cast(pl.String).is_in(_OF_PROCESS)
    table = trace.counters.filter(
        pl.col("pid").is_in(pids), named, pl.col("value").is_between(0, _GREATEST)
    )
    before, before_ns = (
        pl.col(name).filter(pl.col("time_ns") <= steps_ns).last() for name in ("value", "time_ns")
    )
    ends = table.sort("time_ns").group_by("host", "pid", "name").agg(
        pl.col("time_ns").first().alias("first_ns"), pl.col("time_ns").last().alias("last_ns"),
        pl.col("value").last().alias("last"), pl.col("value").max().alias("most"),
        before.alias("before"), before_ns.alias("before_ns"),
    ).cast({"host": pl.String, "name": pl.String})  # fmt: skip
    rows: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for row in ends.iter_rows(named=True):
        rows.setdefault((row["host"], row["pid"]), {})[row["name"].removeprefix("process.")] = row
    found: dict[str, list[_Usage]] = {}
    for key, values in sorted(rows.items()):
        if (
            key in records
            and {"cpu_user", "cpu_system", "threads", "cpus_allowed"} <= values.keys()
        ):
            usage = _usage(records[key], values)
            if usage.wall_s >= _LEAST_SAMPLED_S:
                found.setdefault(key[0], []).append(usage)
    return found


def _usage(record: ProcessRecord, values: Mapping[str, Mapping[str, float]]) -> _Usage:
    """Cumulative series count from the start of the process, of which its first span is the first
    known sign.

    A worker counts from its start, what else there is from the last sample before the first step:
    what ranks import, and a launcher, says nothing of the steps.
    """
    begin_ns = min(row["first_ns"] for row in values.values())
    if record.first_ns is not None:
        begin_ns = min(begin_ns, record.first_ns)
    last_ns = max(row["last_ns"] for row in values.values())
    used = {name: row["last"] for name, row in values.items()}
    before_ns = max((row["before_ns"] or 0 for row in values.values()), default=0)
    is_long = last_ns - before_ns >= _LEAST_SAMPLED_S * 1e9
    if record.role == "other" or (record.role == "rank" and is_long):
        begin_ns = max(begin_ns, before_ns)
        used = {name: row["last"] - (row["before"] or 0.0) for name, row in values.items()}
    return _Usage(
        record,
        cpu_s=used["cpu_user"] + used["cpu_system"],
        delay_s=used.get("run_delay"),
        wall_s=last_ns / 1e9 - begin_ns / 1e9,
        last_ns=last_ns,
        threads=round(values["threads"]["most"]),
        cores=round(values["cpus_allowed"]["last"]),
        switches=used.get("involuntary_switches", 0.0),
    )


def _of_known(values: Collection[float]) -> float | None:
    return sum(values) if values else None


def _largest_pool(usages: Iterable[_Usage]) -> int | None:
    return max(
        (size for usage in usages for size in usage.record.thread_pools.values()), default=None
    )


def _cores(usages: Collection[_Usage]) -> int | None:
    """Cores that at least one of the processes may use; of those without a list, the most that one
    may use.
    """
    listed = {number for usage in usages for number in _numbers(usage.record.cpus_allowed)}
    counts = [usage.cores for usage in usages]
    return len(listed) or max(counts, default=None)


def _cpus(usages: Collection[_Usage]) -> str | None:
    """Their numbers, if all of the processes may use the same ones."""
    lists = {usage.record.cpus_allowed for usage in usages}
    return lists.pop() if len(lists) == 1 else None


def _numbers(cpus: str | None) -> Iterator[int]:
    """The numbers in a list of CPUs such as `0-3,8`; nothing of what is no such list."""
    for part in (cpus or "").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and len(part) < 12:
            yield from range(int(first), min(int(last or first), int(first) + (1 << 14)) + 1)


def _delay_ratio(usages: Iterable[_Usage]) -> float | None:
    known = [(usage.delay_s, usage.cpu_s) for usage in usages if usage.delay_s is not None]
    delay_s, cpu_s = sum(delay for delay, _ in known), sum(cpu for _, cpu in known)
    return delay_s / (delay_s + cpu_s) if delay_s + cpu_s > 0 else None


def _waiting(usages: Iterable[_Usage]) -> float | None:
    known = [(usage.delay_s, usage.wall_s) for usage in usages if usage.delay_s is not None]
    wall_s = sum(wall for _, wall in known)
    return sum(delay for delay, _ in known) / wall_s if wall_s > 0 else None


def _running(usages: Collection[_Usage]) -> float | None:
    wall_s = sum(usage.wall_s for usage in usages)
    return sum(usage.cpu_s for usage in usages) / wall_s if wall_s > 0 else None


@dataclass(frozen=True)
class _Quota:
    cores: float | None = None
    group: str | None = None
    throttled_ratio: float | None = None


def _quota(trace: Trace, host: str) -> _Quota:
    """The quota that was used up in the greatest share of its periods."""
    ends = _ends(trace, host, "cgroup.")
    found = []
    for name, (_, cores) in ends.items():
        group, _, what = name.removeprefix("cgroup.").rpartition(".")
        if what == "cpu_quota":
            periods, throttled = (
                _growth(ends, f"cgroup.{group}.cpu_{kind}")
                for kind in ("periods", "throttled_periods")
            )
            found.append(_Quota(cores, group, min(1.0, throttled / periods) if periods else 0.0))
    return max(
        found,
        key=lambda quota: (quota.throttled_ratio or 0.0, -(quota.cores or 0.0)),
        default=_Quota(),
    )


def _states(trace: Trace, host: str) -> dict[str, float]:
    """Shares of the host's CPU time that were idle, and taken by the hypervisor; empty if it was
    not sampled.
    """
    ends = _ends(trace, host, "cpu.")
    times = {state: _growth(ends, f"cpu.{state}") for state in _STATES}
    total_s = sum(times.values())
    return (
        {"idle": (times["idle"] + times["iowait"]) / total_s, "steal": times["steal"] / total_s}
        if total_s
        else {}
    )


def _growth(ends: Mapping[str, tuple[float, float]], name: str) -> float:
    first, last = ends.get(name, (0.0, 0.0))
    return max(0.0, last - first)


def _ends(trace: Trace, host: str, prefix: str) -> dict[str, tuple[float, float]]:
    """First and last value of the host's series with that prefix."""
    table = trace.counters.filter(
        pl.col("pid").is_null(),
        pl.col("host").cast(pl.String) == host,
        pl.col("value").is_between(0, _GREATEST),
        pl.col("name").cast(pl.String).str.starts_with(prefix),
    )
    ends = (
        table.sort("time_ns")
        .group_by("name")
        .agg(pl.col("value").first().alias("first"), pl.col("value").last().alias("last"))
    )
    return {
        str(name): (first, last)
        for name, first, last in ends.select("name", "first", "last").rows()
    }
