"""The thread that samples, and what it costs."""

import os
import resource
import threading
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.record.host import host
from ioprof.record.samplers.file import SampleFile
from ioprof.record.samplers.gpus import GpuCounters
from ioprof.record.samplers.host import HostCounters
from ioprof.record.samplers.lustre import LustreCounters
from ioprof.record.samplers.nfs import NfsCounters
from ioprof.record.samplers.pacing import Paced
from ioprof.record.samplers.processes import JobProcesses
from ioprof.record.samplers.readings import HOST
from ioprof.record.variables import SPOOL_VARIABLE

PERIOD_S: Final = 1.0
"""Time between two samples unless asked otherwise."""
LARGEST_COST: Final = 0.01
"""Cores that the sampler may take: where a sample costs more than this share of the period, the period gets longer."""
LARGEST_BYTES_PER_S: Final = 20_000
"""How fast the file may grow (72 MB an hour), by the same means."""
LARGEST_WAIT_S: Final = 10.0
"""How long the end of the job waits for the thread: a driver or a process in uninterruptible sleep may hold it up."""

_HOST_GROUP, _PROCESS_GROUP, _GPU_GROUP, _FIRST_SERVER_GROUP = range(4)


@dataclass(frozen=True)
class Sampling:
    """What was sampled, and what that cost."""

    period_s: float
    """Time between two samples as asked for."""
    longest_period_s: float
    """The longest that it came to be. Longer than `period_s`: samples were dear, e.g. of hundreds of processes."""
    samples: int
    lost: int
    """Lines that could not be written; above 0, the spool was full."""
    cpu_s: float
    """CPU time of the sampling thread."""
    wall_s: float
    """From its start to its end."""
    notes: tuple[str, ...]
    """What could not be sampled and why, one sentence each."""

    @property
    def cost_ratio(self) -> float:
        """Share of one core that sampling took; not the job's own time, since it runs in the launcher."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


class Sampler:
    """Samples the host and the job's processes into `spool` from `start` to `stop`, or in a `with` block.

    The job is the descendants of this process and whoever has `IOPROF_SPOOL=<spool>` in its environment. `OSError` if no file
    can be made in the spool; nothing is raised later.
    """

    def __init__(self, spool: str, period_s: float = PERIOD_S) -> None:
        self._file = SampleFile(spool, host(), period_s)
        self._asked_s = self._period_s = self._longest_s = period_s
        self._host = HostCounters()
        self._processes = JobProcesses(os.getpid(), os.fsencode(f"{SPOOL_VARIABLE}={spool}"))
        self._gpus: GpuCounters | None = None
        self._servers: list[tuple[LustreCounters | NfsCounters, Paced]] = []
        self._noted: list[str] = []
        self._samples, self._cpu_s, self._dear_s = 0, 0.0, 0.0
        self._began_ns = self._ended_ns = monotonic_ns()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ioprof sampler", daemon=True)

    def start(self) -> "Sampler":
        """Begin; call it before the job is started."""
        self._began_ns = self._ended_ns = monotonic_ns()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Sample once more, and end; call it when the job has been waited for, so that all its children's books are closed."""
        self._end.set()
        if self._thread.ident:
            self._thread.join(LARGEST_WAIT_S)
        if self._thread.is_alive():
            self._noted.append(f"the sampler did not come back within {LARGEST_WAIT_S:.0f} s: a driver or a process held it up")
        elif not self._thread.ident:
            self._file.close()

    def facts(self) -> dict[str, Any]:
        """What was sampled and what it cost, for `run.json`; complete after `stop`."""
        sampling = self.sampling()
        return {**asdict(sampling), "notes": list(sampling.notes), "cost_ratio": sampling.cost_ratio}

    def sampling(self) -> Sampling:
        """The same as plain data."""
        return Sampling(
            period_s=self._asked_s,
            longest_period_s=self._longest_s,
            samples=self._samples,
            lost=self._file.lost,
            cpu_s=self._cpu_s,
            wall_s=(self._ended_ns - self._began_ns) / 1e9,
            notes=tuple(self._noted),
        )

    def __enter__(self) -> "Sampler":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        self._gpus = GpuCounters(_nvml())
        self._servers = [(counters, Paced(counters.read)) for counters in (LustreCounters(), NfsCounters()) if counters.is_there]
        next_ns = monotonic_ns()
        try:
            while not self._end.wait(max(0.0, (next_ns - monotonic_ns()) / 1e9)):
                self._take()
                # From the plan, not from now, so that the period does not drift; a sample that came late delays the next.
                next_ns = max(next_ns + int(self._period_s * 1e9), monotonic_ns())
            self._take(is_last=True)
        finally:
            self._gpus.close()
            self._file.close()
            self._ended_ns = monotonic_ns()

    def _take(self, *, is_last: bool = False) -> None:
        before_bytes = self._file.sampled_bytes
        self._file.sample(monotonic_ns(), _HOST_GROUP, self._host.read())
        self._sample_processes()
        if self._gpus and (found := self._gpus.read()):
            self._file.sample(monotonic_ns(), _GPU_GROUP, found)
        self._say_notes()
        cpu_s = _thread_cpu_s()
        if self._samples:  # the first looks at every process of the host, and names every series
            self._adapt(cpu_s - self._cpu_s, self._file.sampled_bytes - before_bytes)
        self._sample_servers(is_last)
        self._cpu_s = _thread_cpu_s()
        self._ended_ns = monotonic_ns()
        self._samples += 1

    def _sample_servers(self, is_last: bool) -> None:
        """The counters of network file systems: dear where there are hundreds of targets, and therefore at a pace of their own."""
        for group, (_, paced) in enumerate(self._servers, _FIRST_SERVER_GROUP):
            if found := paced.read(whatever_it_takes=is_last):
                self._file.sample(found[0], group, found[1])

    def _sample_processes(self) -> None:
        time_ns = monotonic_ns()
        readings, news = self._processes.read()
        for seen in news:
            self._file.process(time_ns, seen.pid, seen.parent, seen.command)
        own = {
            "sampler.cpu": round(_thread_cpu_s(), 6),
            "sampler.period": round(self._period_s, 3),
            "sampler.processes": float(len(readings) - 1),
            "sampler.lost": float(self._file.lost),
        }
        self._file.sample(time_ns, _PROCESS_GROUP, readings | {HOST: own})

    def _adapt(self, cpu_s: float, size_bytes: int) -> None:
        """Set the period by the mean of what the last samples cost, so that one slow sample does not thin out the next minute."""
        self._dear_s = (self._dear_s + max(cpu_s / LARGEST_COST, size_bytes / LARGEST_BYTES_PER_S)) / 2
        self._period_s = max(self._asked_s, self._dear_s)
        self._longest_s = max(self._longest_s, self._period_s)

    def _say_notes(self) -> None:
        refused = self._processes.io_refused
        found = [*self._host.notes, *(self._gpus.notes if self._gpus else [])]
        found += [note for counters, _ in self._servers for note in counters.notes]
        if refused:
            found.append("bytes read are missing for some processes: /proc/PID/io was refused (another user's, or not dumpable)")
        for text in found:
            if text not in self._noted:
                self._noted.append(text)
                self._file.note(text)


def _nvml() -> Any:
    import pynvml  # the launcher of a job without GPUs need not load it before the job runs

    return pynvml


def _thread_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime
