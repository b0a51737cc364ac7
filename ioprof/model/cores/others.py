"""CPU time of a host that was not that of the job: of other programs, and of those that serve its
reads.

A server of a file system on the same machine, and the kernel's threads for network and disks, work
for each read. That work is not the job's own, and yet goes with it: twice as many reads per second
are twice as much of it, and reads from memory need none.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.format.trace import Trace
from ioprof.model.cores.cpu_use import Counted, Counts

_BUSY: Final = ("cpu.user", "cpu.nice", "cpu.system", "cpu.irq", "cpu.softirq", "cpu.steal")
_ALWAYS: Final = 0.25
"""Quantile of the seconds of the loop: what was there in three of four is no other program that ran
for some of them."""
_MOST_UNSEEN: Final = 0.05
"""Share of a second in which a process of the job may have lived without being sampled after it:
its CPU time is not known then, and would be taken for that of others."""

_GROUPS: Final = ("groups.own", "groups.others", "groups.others_beside")
_MOST_BESIDE: Final = 0.5
"""Of what others used, what was in the job's groups of the scheduler."""


@dataclass(frozen=True)
class Others:
    """Cores that a host used for others than the job, on average."""

    cores: float
    """By what goes on whatever the job does; the recorder included."""
    serving: float = 0.0
    """By what began with the job's loop."""
    own_groups: float | None = None
    """Groups of the scheduler that the job is, for each one of others (`groups.others` in
    `format.series`). None: most of what others used was in groups of the job, or that is not
    known."""


def others(trace: Trace, counts: Counts) -> dict[str, Others]:
    """By host, where that is known: while the loop took batches, or, where that was too short for
    the samples, during the whole recording. `counts`: see `counted`.
    """
    known = [
        host for host in trace.run.hosts if host.others_cpu_ratio is not None and host.online_cpus
    ]
    found = {
        host.name or "": Others((host.others_cpu_ratio or 0.0) * (host.online_cpus or 0))
        for host in known
    }
    found = {
        name: _in_loop(trace, name, counts.get(name, {})) or average
        for name, average in found.items()
    }
    return {
        name: replace(each, own_groups=_own_groups(trace, name, each.cores))
        for name, each in found.items()
    }


def _own_groups(trace: Trace, host: str, cores: float) -> float | None:
    """`Others.own_groups`, where others used so many cores."""
    name = pl.col("name").cast(pl.String)
    counted = trace.counters.filter(pl.col("host") == host, name.is_in(_GROUPS)).with_columns(name)
    times = trace.counters.filter(pl.col("host") == host, name == "sampler.cpu")["time_ns"]
    last = dict(counted.sort("time_ns").group_by("name").agg(pl.col("value").last()).rows())
    own = last.get("groups.own", 0.0)
    if times.is_empty() or not 0 < own < math.inf:  # a damaged file may hold anything
        return None
    # of processes that are not seen from here, as those of other containers, at least one
    elsewhere = max(1.0, last.get("groups.others", 0.0))
    took_s = (counted["time_ns"].max() - times.min()) / 1e9  # type: ignore[operator]
    beside = last.get("groups.others_beside", 0.0) / max(took_s, 1e-9)
    return own / elsewhere if beside <= _MOST_BESIDE * cores else None


def _in_loop(trace: Trace, host: str, counts: Mapping[int, Counted]) -> Others | None:
    """From the first batch that the loop took to the last one; None: fewer than two samples."""
    waits = trace.rows(pl.col("host") == host, kinds=["wait"])
    series = trace.counters.filter(pl.col("host") == host).with_columns(
        pl.col("name").cast(pl.String)
    )
    series = series.filter(pl.col("name").is_in(_BUSY)).sort("time_ns")
    if waits.is_empty() or series.is_empty():
        return None
    begin, first, last = (
        int(each)  # type: ignore[arg-type]
        for each in (waits["start_ns"].min(), waits["end_ns"].min(), waits["end_ns"].max())
    )
    times = np.unique(series["time_ns"].to_numpy())
    took_s, ends = np.diff(times) / 1e9, times[1:]
    lived = _lived(trace, host)
    seen = _unseen_s(times, counts, lived) <= _MOST_UNSEEN * took_s
    looping, before = (times[:-1] >= first) & (ends <= last) & seen, (ends <= begin) & seen
    if not looping.any():
        return None
    used_s, began = np.zeros(len(times)), {pid: since_ns for pid, (since_ns, _) in lived.items()}
    for each in series.partition_by("name"):
        used_s += np.interp(times, each["time_ns"].to_numpy(), each["value"].to_numpy())
    used_s -= sum(
        (_at(times, each, began[pid]) for pid, each in counts.items() if pid in began),
        np.zeros(len(times)),
    )
    recorder_s = sum(
        (_at(times, each, None) for pid, each in counts.items() if pid not in began),
        np.zeros(len(times)),
    )
    rates = np.diff(used_s - recorder_s) / took_s
    always = (
        float(np.quantile(rates[looping], _ALWAYS)) - max(0.0, float(rates[before].mean()))
        if before.any()
        else 0.0
    )
    mean = float(np.diff(used_s)[looping].sum() / took_s[looping].sum())
    serving = min(max(0.0, always), max(0.0, mean))
    return Others(max(0.0, mean - serving), serving)


def _lived(trace: Trace, host: str) -> dict[int, tuple[int, int]]:
    """From when until when each process of the job there lived, as far as is known: the earliest
    and the latest time of all.
    """
    spans = (
        trace.spans.filter(pl.col("host") == host)
        .group_by("pid")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .drop_nulls()
    )
    found = {int(pid): (int(first), int(last)) for pid, first, last in spans.rows()}
    for each in trace.run.processes:
        if each.pid in found and each.host in (host, None):
            first, last = found[each.pid]
            known = (
                first if each.first_ns is None else each.first_ns,
                last if each.last_ns is None else each.last_ns,
            )
            found[each.pid] = min(first, known[0]), max(last, known[1])
    return found


def _unseen_s(
    times: NDArray[np.int64], counts: Mapping[int, Counted], lived: Mapping[int, tuple[int, int]]
) -> NDArray[np.float64]:
    """Between one sample of the host and the next: the longest time that a process lived after its
    own last sample.
    """
    found = np.zeros(len(times) - 1)
    for pid, (first, last) in lived.items():
        since = int(counts[pid].times_ns[-1]) if pid in counts else first
        found = np.maximum(
            found, (np.minimum(times[1:], last) - np.maximum(times[:-1], since)) / 1e9
        )
    return found


def _at(times: NDArray[np.int64], each: Counted, since_ns: int | None) -> NDArray[np.float64]:
    """CPU time of a process by then; one that began within the recording had none before."""
    if since_ns is None or since_ns >= each.times_ns[0]:
        return np.interp(times, each.times_ns, each.cpu_s)
    return np.interp(
        times, np.concatenate(([since_ns], each.times_ns)), np.concatenate(([0.0], each.cpu_s))
    )
