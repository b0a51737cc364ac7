"""How processes used cores, from their sampled CPU time and run-queue delay
(`ioprof.format.series`).

The measured time of a stage contains waiting for a core where more threads could run than there
were cores. A replay with other workers or cores must take that out first: `CpuUse.dilation` is by
how much it stretched the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.cpu.cpu_time import cpu_evidence
from ioprof.analysis.intervals import Intervals
from ioprof.format.trace import Trace
from ioprof.model.pipeline import OWN, CpuUse, Program, Rank

_SERIES: Final = ("process.cpu_user", "process.cpu_system", "process.run_delay")
_OF_MAIN: Final = ("process.main_cpu", "process.main_run_delay")
_LEAST_BUSY_S: Final = 0.1
"""Busy time of which sampled CPU time says something."""
_MOST_START_S: Final = 0.05
"""Processes of which one can make a batch so soon after it began were forked: none of them has done
anything else before."""
_FAST: Final = 0.1
"""Part of the steps whose computation was not delayed, as far as any was not: a time slice of
another thread is a few milliseconds."""
_FEWEST_STEPS: Final = 20
"""Steps of which that part is two."""
_MOST_AFTER_NS: Final = 50_000_000
"""How long after the end of its work the last sample of a process may be."""


@dataclass(frozen=True)
class Counted:
    """The CPU time and delay that a process had at the times of its samples, all three cumulative
    and in seconds.
    """

    times_ns: NDArray[np.int64]
    cpu_s: NDArray[np.float64]
    delay_s: NDArray[np.float64]
    """NaN: not sampled."""

    def without(self, part: "Counted") -> "Counted":
        """What is left of it without one of its threads."""
        cpu = np.interp(self.times_ns, part.times_ns, part.cpu_s)
        delay = np.interp(self.times_ns, part.times_ns, part.delay_s)
        return Counted(
            self.times_ns,
            np.maximum(0.0, self.cpu_s - cpu),
            np.maximum(0.0, self.delay_s - delay),
        )


Counts = Mapping[str | None, Mapping[int, Counted]]
"""By host and process."""


def counted(trace: Trace, *, of_main: bool = False) -> Counts:
    """Of all threads of each process or of its main one. Values between samples are those of the
    line between them.
    """
    name = pl.col("name").cast(pl.String)
    wanted = _OF_MAIN if of_main else _SERIES
    rows = (
        trace.counters.filter(name.is_in(wanted), pl.col("pid").is_not_null())
        .with_columns(name)
        .sort("time_ns")
    )
    found: dict[str | None, dict[int, Counted]] = {}
    for (host, pid), part in rows.partition_by("host", "pid", as_dict=True).items():
        series = {
            str(key[0]): each for key, each in part.partition_by("name", as_dict=True).items()
        }
        if wanted[0] not in series:
            continue
        times = np.unique(part["time_ns"].to_numpy())
        values = {
            key: np.interp(times, each["time_ns"].to_numpy(), each["value"].to_numpy())
            for key, each in series.items()
        }
        none = np.zeros(len(times))
        cpu = values[wanted[0]] + (none if of_main else values.get(_SERIES[1], none))
        of_host = found.setdefault(None if host is None else str(host), {})
        of_host[int(str(pid))] = Counted(times, cpu, values.get(wanted[-1], none + np.nan))
    return found


@dataclass(frozen=True)
class Worked:
    """When a process did what, and what it used."""

    counts: Counted | None
    busy: Intervals
    """When it was neither waiting for storage nor for batches; each of its threads that makes
    batches by itself, so that these may overlap.
    """
    since_ns: int
    """When it began. A process that began within the recording counts from zero."""
    reading: Intervals = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """When it waited for storage."""
    once_s: float = 0.0
    """What its first batch took beyond a usual one. It is computation, within `busy`."""


def cpu_use(processes: Sequence[Worked], most_threads: int | None) -> CpuUse:
    """What similar processes did together.

    `most_threads` is the size of their largest pool of threads: further threads, such as the one
    that sends batches, compute little, and their delay is not that of the work. Where the pool has
    one thread, what it ran or could have run beyond its busy time, it did while it waited for
    storage: it ran in system calls, and waited for a core when a read was done.
    """
    busy_s = cpu_s = delay_s = reads_s = 0.0
    start_s = _start_s(processes)
    for each in processes:
        counts, busy, since_ns = each.counts, each.busy, each.since_ns
        if counts is None or not len(busy):
            continue
        first, last = int(busy[:, 0].min()), int(busy[:, 1].max())
        # From one sample to another: what it did before, such as imports, or after, such as its
        # exit, is not of its work.
        is_new = start_s <= _MOST_START_S
        times = np.concatenate(([since_ns], counts.times_ns)) if is_new else counts.times_ns
        within = np.flatnonzero(
            (times >= (since_ns if is_new else first)) & (times <= last + _MOST_AFTER_NS)
        )
        if len(within) < 2:
            continue
        begin, end = within[0], within[-1]
        from_start = is_new and begin == 0
        busy_s += max(
            0.0,
            _length_s(np.clip(busy, times[begin], times[end]))
            - (each.once_s if from_start else 0.0),
        )
        reads_s += _length_s(np.clip(each.reading, times[begin], times[end]))
        none = np.zeros(len(times) - len(counts.times_ns))  # it began with nothing
        cpu, delay = np.concatenate((none, counts.cpu_s)), np.concatenate((none, counts.delay_s))
        ran_s, waited_s = float(cpu[end] - cpu[begin]), float(delay[end] - delay[begin])
        # What it did once took time in which it ran and waited for a core, as in all else that it
        # did.
        could_run_s = ran_s + np.nan_to_num(waited_s)
        part = (
            max(0.0, 1 - (start_s + each.once_s) / could_run_s)
            if from_start and could_run_s > 0
            else 1.0
        )
        cpu_s += part * ran_s
        delay_s += part * waited_s
    if busy_s < _LEAST_BUSY_S or not cpu_s > 0:
        return CpuUse()
    delay_s = 0.0 if np.isnan(delay_s) else delay_s
    runnable = (cpu_s + delay_s) / busy_s
    if most_threads == 1:
        dilation = max(1.0, min(busy_s, cpu_s + delay_s) / cpu_s)
        if not reads_s > 0:
            return CpuUse(min(1.0, runnable), dilation, 1.0, cpu_s)
        ran_s = min(max(0.0, cpu_s - busy_s), reads_s)
        waited_s = min(max(0.0, cpu_s + delay_s - busy_s) - ran_s, reads_s - ran_s)
        return CpuUse(
            min(1.0, runnable),
            dilation,
            1.0,
            cpu_s,
            0.0,
            reads_s,
            ran_s / reads_s,
            waited_s / reads_s,
        )
    runnable = min(runnable, float(most_threads)) if most_threads else runnable
    return CpuUse(min(1.0, runnable), (cpu_s + delay_s) / cpu_s, max(1.0, runnable), cpu_s)


def with_team(use: CpuUse, program: Program) -> CpuUse:
    """The use of a loop with how far its threads wait for each other: one that waits for a core
    stretches what all of them do, so that most steps take longer than its share of the cores says,
    and a few, in which each had a core, do not.
    """
    computed_s = program.after_s[program.is_step][:, OWN.index("compute")]
    computed_s = computed_s[computed_s > 0]
    if use.threads <= 1 or use.dilation <= 1 or len(computed_s) < _FEWEST_STEPS:
        return use
    stretched = float(computed_s.mean() / np.quantile(computed_s, _FAST))
    exponent = float(np.log(stretched) / np.log(use.dilation))
    return replace(use, team=min(1.0, max(0.0, (exponent - 1) / (use.threads - 1))))


def with_common_team(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks with loops that are alike in that on each host, as the replay of its cores has
    them.
    """
    team = {
        host: max(rank.loop_cpu.team for rank in ranks if rank.host == host)
        for host in {rank.host for rank in ranks}
    }
    return [replace(rank, loop_cpu=replace(rank.loop_cpu, team=team[rank.host])) for rank in ranks]


def _length_s(times: Intervals) -> float:
    """Of all of its threads together."""
    return float((times[:, 1] - times[:, 0]).sum()) / 1e9


def _start_s(processes: Sequence[Worked]) -> float:
    """What a new process computes until it can make a batch: the shortest time from its begin to
    its first one.

    The others also waited for their task.
    """
    return min(
        (
            max(0, int(each.busy[:, 0].min()) - each.since_ns) / 1e9
            for each in processes
            if len(each.busy)
        ),
        default=0.0,
    )


def usable_cores(trace: Trace) -> dict[str, float]:
    """By host, how many cores the job may use: affinity and quota included."""
    evidence = cpu_evidence(trace)
    found = {}
    for host in trace.run.hosts:
        cores = float(host.cpus or host.online_cpus or 1)
        if evidence is not None and evidence.host == host.name:
            known = [each for each in (evidence.worker_cores, evidence.rank_cores) if each]
            cores = min([cores, *([float(max(known))] if known else [])])
            cores = min(cores, evidence.quota_cores or cores)
        found[host.name or ""] = cores
    return found
