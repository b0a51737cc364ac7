"""The sampling thread, and its cost."""

import os
import resource
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.host import host
from ioprof.instrument.samplers.cgroups import CpuLimits
from ioprof.instrument.samplers.file import SampleFile
from ioprof.instrument.samplers.gpus import GpuCounters
from ioprof.instrument.samplers.groups import SchedulingGroups
from ioprof.instrument.samplers.host import HostCounters
from ioprof.instrument.samplers.lustre import LustreCounters
from ioprof.instrument.samplers.nfs import NfsCounters
from ioprof.instrument.samplers.processes import JobProcesses
from ioprof.instrument.samplers.rate_limit import RateLimitedSource
from ioprof.instrument.samplers.readings import HOST
from ioprof.instrument.variables import SPOOL_VARIABLE

PERIOD_S: Final = 1.0
"""Default time between two samples."""
LARGEST_COST: Final = 0.01
"""Maximum CPU use of the sampler in cores: if a sample costs more than this share of the period,
the period is extended."""
LARGEST_BYTES_PER_S: Final = 20_000
"""Maximum growth of the file (72 MB per hour), enforced in the same way."""
LARGEST_WAIT_S: Final = 10.0
"""How long `stop` waits for the thread, which a driver or a process in uninterruptible sleep may
block."""

_ALL_PROCESSES_EVERY: Final = 10
"""In one of so many samples, in the first two and in the last the processes of other programs are
read."""

_HOST_GROUP, _PROCESS_GROUP, _GPU_GROUP, _FIRST_FILE_SYSTEM_GROUP = range(4)

FileSystemCounters = LustreCounters | NfsCounters


class Sampler:
    """Samples the host and the processes of the job into `spool` from `start` to `stop`, or in a
    `with` block.

    The job consists of the descendants of this process and of processes with `IOPROF_SPOOL=<spool>`
    in their environment. Raises `OSError` if the file cannot be created in the spool; later errors
    raise nothing. `find_file_systems` is called in the thread.
    """

    def __init__(
        self,
        spool: str,
        period_s: float = PERIOD_S,
        find_file_systems: Callable[[], Sequence[FileSystemCounters]] | None = None,
    ) -> None:
        self._file = SampleFile(spool, host(), period_s)
        self._requested_s = self._period_s = self._longest_s = period_s
        self._host = HostCounters()
        self._processes = JobProcesses(
            os.getpid(), os.fsencode(f"{SPOOL_VARIABLE}={spool}"), spool=os.path.abspath(spool)
        )
        self._cpu_limits, self._scheduling = CpuLimits(), SchedulingGroups()
        self._gpus: GpuCounters | None = None
        self._find_file_systems = find_file_systems or _network_file_systems
        self._file_systems: list[tuple[FileSystemCounters, RateLimitedSource]] = []
        self._notes: list[str] = []
        self._samples, self._cpu_s, self._needed_s = 0, 0.0, 0.0
        self._began_ns = self._ended_ns = monotonic_ns()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ioprof sampler", daemon=True)

    def start(self) -> "Sampler":
        """Start the thread; call it before the job is started."""
        self._began_ns = self._ended_ns = monotonic_ns()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take a last sample and end. Call it after waiting for the job, when the kernel has added
        up the counters of its children.
        """
        self._end.set()
        if self._thread.ident:
            self._thread.join(LARGEST_WAIT_S)
        if self._thread.is_alive():
            self._notes.append(
                f"the sampler did not end within {LARGEST_WAIT_S:.0f} s: it was blocked by a driver"
                " or a process"
            )
        elif not self._thread.ident:
            self._file.close()

    def facts(self) -> dict[str, Any]:
        """What was sampled and what it cost, see `run_record.Sampling`; complete after `stop`."""
        wall_s = (self._ended_ns - self._began_ns) / 1e9
        return {
            "period_s": self._requested_s,
            "longest_period_s": self._longest_s,
            "samples": self._samples,
            "lost": self._file.lost,
            "cpu_s": self._cpu_s,
            "wall_s": wall_s,
            "notes": list(self._notes),
            "cost_ratio": self._cpu_s / wall_s if wall_s > 0 else 0.0,
        }

    def __enter__(self) -> "Sampler":
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _run(self) -> None:
        import pynvml  # a job without GPUs should not wait for this import

        self._gpus = GpuCounters(pynvml)
        self._file_systems = [
            (counters, RateLimitedSource(counters.read)) for counters in self._find_file_systems()
        ]
        next_ns = monotonic_ns()
        try:
            while not self._end.wait(max(0.0, (next_ns - monotonic_ns()) / 1e9)):
                self._sample()
                # Relative to the schedule, not to now, so that the period does not drift; a late
                # sample delays the next.
                next_ns = max(next_ns + int(self._period_s * 1e9), monotonic_ns())
            self._sample(is_last=True)
        finally:
            self._gpus.close()
            self._file.close()
            self._ended_ns = monotonic_ns()

    def _sample(self, *, is_last: bool = False) -> None:
        before_bytes, before_memory_s = self._file.sampled_bytes, self._processes.memory_s
        self._file.sample(monotonic_ns(), _HOST_GROUP, self._host.read())
        self._sample_processes(is_last)
        if self._gpus and (found := self._gpus.read()):
            self._file.sample(monotonic_ns(), _GPU_GROUP, found)
        self._write_notes()
        cpu_s = _thread_cpu_s()
        if self._samples:  # not after the first sample, which examines every process of the host and defines every series  # noqa: E501
            # The mean of the needed periods: one expensive sample should not reduce the sampling
            # rate for long.
            size_bytes = self._file.sampled_bytes - before_bytes
            memory_s = self._processes.memory_s - before_memory_s
            cost_s = max(
                (cpu_s - self._cpu_s - memory_s) / LARGEST_COST, size_bytes / LARGEST_BYTES_PER_S
            )
            self._needed_s = (self._needed_s + cost_s) / 2
            self._period_s = max(self._requested_s, self._needed_s)
            self._longest_s = max(self._longest_s, self._period_s)
        # Counters of network file systems are expensive with hundreds of targets and therefore have
        # a rate limit of their own.
        for group, (_, source) in enumerate(self._file_systems, _FIRST_FILE_SYSTEM_GROUP):
            if reading := source.read(force=is_last):
                self._file.sample(reading[0], group, reading[1])
        self._cpu_s = _thread_cpu_s()
        self._ended_ns = monotonic_ns()
        self._samples += 1

    def _sample_processes(self, is_last: bool) -> None:
        time_ns = monotonic_ns()
        readings, changed = self._processes.read()
        for process in changed:
            self._file.process(time_ns, process)
        own = {
            "sampler.cpu": round(_thread_cpu_s(), 6),
            "sampler.period": round(self._period_s, 3),
            "sampler.processes": float(len(readings) - 1),
            "sampler.lost": float(self._file.lost),
        }
        own |= self._cpu_limits.read(process.pid for process in changed)
        if self._samples < 2 or is_last or self._samples % _ALL_PROCESSES_EVERY == 0:
            used_s = {
                subject: values["process.cpu_user"] + values["process.cpu_system"]
                for subject, values in readings.items()
            }
            own |= self._scheduling.read(used_s, self._processes.others_s())
        self._file.sample(time_ns, _PROCESS_GROUP, readings | {HOST: own})

    def _write_notes(self) -> None:
        refused = self._processes.io_refused
        found = [*self._host.notes, *(self._gpus.notes if self._gpus else [])]
        found += [note for counters, _ in self._file_systems for note in counters.notes]
        if refused:
            found.append(
                "bytes read are unknown for some processes: /proc/PID/io is not readable (other"
                " user, or not dumpable)"
            )
        for text in found:
            if text not in self._notes:
                self._notes.append(text)
                self._file.note(text)


def _network_file_systems() -> list[FileSystemCounters]:
    found: tuple[FileSystemCounters, ...] = (LustreCounters(), NfsCounters())
    return [counters for counters in found if counters.is_present]


def _thread_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime
