"""How long the threads of a process waited for a CPU, what its main thread did, and which CPUs they
may use.

Run-queue delay is the time in which a thread could have run but another one had the CPU: the second
field of /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst). The kernel has no
sum over the threads of a process that needs no privilege, so each thread is read by itself. With
thousands of threads that is expensive; then each sample reads some in turn, and a thread that was
not read keeps its last value. So does a thread that has ended: the sum never decreases.

Affinity is that of the main thread, or of all threads together where they differ: OpenMP with
OMP_PROC_BIND binds each to a CPU of its own.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ioprof.instrument.samplers.readings import Readings, Subject, read_record

MOST_THREADS: Final = 128
"""Threads that one sample reads, at most."""
_AFFINITY_EVERY: Final = 5
"""In one of so many samples the affinity is read again of processes whose threads are the same; it
hardly ever changes."""


@dataclass
class _Process:
    delays_ns: dict[int, int] = field(default_factory=dict)
    """By thread: its run-queue delay when it was last read."""
    ended_ns: int = 0
    """The delay of threads that have ended."""
    threads: list[int] = field(default_factory=list)
    """As they were last listed: again when their number has changed, or one of them is gone."""
    main_s: tuple[float, float] | None = None
    """What the main thread ran, and its run-queue delay; None: not read yet."""
    affinity: dict[str, float] | None = None
    """As it was last read, of these threads; None: not read yet."""


class ThreadCounters:
    """Reads the run-queue delay and the affinity of processes, given with their number of threads,
    and the CPU time and delay of their main threads.
    """

    def __init__(
        self,
        proc: str = "/proc",
        read_affinity: Callable[[int], Iterable[int]] = os.sched_getaffinity,
        num_cpus: int | None = None,
        most_threads: int = MOST_THREADS,
    ) -> None:
        self._proc, self._read_affinity, self._most_threads = proc, read_affinity, most_threads
        self._num_cpus = num_cpus or os.cpu_count() or 1
        self._processes: dict[Subject, _Process] = {}
        self._turn = self._samples = 0
        self.cpus: dict[Subject, str] = {}
        """The CPUs that each process may use, in the format of the kernel's lists (man cpuset),
        e.g. `0-3,8`."""

    def read(self, num_threads: Mapping[Subject, int]) -> Readings:
        """The values of these processes; of the others what is known is forgotten."""
        self._processes = {
            subject: self._processes.get(subject) or _Process() for subject in num_threads
        }
        self.cpus = {subject: cpus for subject, cpus in self.cpus.items() if subject in num_threads}
        threads = {subject: self._threads(subject, count) for subject, count in num_threads.items()}
        self._read_delays(threads)
        is_due = self._samples % _AFFINITY_EVERY == 0
        self._samples += 1
        readings: Readings = {}
        for subject, process in self._processes.items():
            if process.affinity is None or is_due:
                process.affinity = self._affinity(subject, threads[subject])
            readings[subject] = {**process.affinity}
            if process.delays_ns:
                readings[subject]["process.run_delay"] = round(
                    (process.ended_ns + sum(process.delays_ns.values())) / 1e9, 6
                )
            if process.main_s is not None:
                ran_s, delay_s = process.main_s
                readings[subject]["process.main_cpu"] = ran_s
                readings[subject]["process.main_run_delay"] = delay_s
        return readings

    def _threads(self, subject: Subject, count: int) -> list[int]:
        """The threads of a process; the main thread has the process's id."""
        pid, _ = subject
        assert pid is not None
        process = self._processes[subject]
        if len(process.threads) != count:
            process.affinity = None
            try:
                process.threads = (
                    [pid]
                    if count == 1
                    else [int(name) for name in os.listdir(f"{self._proc}/{pid}/task")]
                )
            except OSError:
                process.threads = []
        return process.threads

    def _read_delays(self, threads: Mapping[Subject, list[int]]) -> None:
        for subject, alive in threads.items():
            process = self._processes[subject]
            for ended in process.delays_ns.keys() - alive if alive else ():
                process.ended_ns += process.delays_ns.pop(ended)
        everything = [(subject, tid) for subject, alive in threads.items() for tid in alive]
        if len(everything) > self._most_threads:
            start = self._turn % len(everything)
            self._turn = start + self._most_threads
            everything = (everything + everything)[start : start + self._most_threads]
        for subject, tid in everything:
            self._read_delay(subject, tid)

    def _read_delay(self, subject: Subject, tid: int) -> None:
        process = self._processes[subject]
        try:
            data = read_record(f"{self._proc}/{subject[0]}/task/{tid}/schedstat")
            ran_ns, delay_ns = map(int, data.split()[:2])
        except (
            OSError,
            ValueError,
            IndexError,
        ):  # the thread has ended, or the kernel has no CONFIG_SCHED_INFO
            process.threads = []
            return
        before_ns = process.delays_ns.get(tid, 0)
        if delay_ns < before_ns:  # another thread with the same id
            process.ended_ns += before_ns
        process.delays_ns[tid] = delay_ns
        if tid == subject[0]:
            process.main_s = round(ran_ns / 1e9, 6), round(delay_ns / 1e9, 6)

    def _affinity(self, subject: Subject, threads: list[int]) -> dict[str, float]:
        pid, _ = subject
        assert pid is not None
        try:
            found = set(self._read_affinity(pid))
        except OSError:
            return {}
        if len(found) < self._num_cpus and len(threads) > 1:
            for tid in threads[: self._most_threads]:
                with suppress(OSError):
                    found |= set(self._read_affinity(tid))
        self.cpus[subject] = cpu_list(found)
        return {"process.cpus_allowed": len(found)}


def cpu_list(cpus: Iterable[int]) -> str:
    """CPU numbers in the format of the kernel's lists, e.g. `0-3,8`."""
    ranges: list[list[int]] = []
    for number in sorted(cpus):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
