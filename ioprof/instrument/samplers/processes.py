"""Counters of every process of the job, from /proc/PID/{stat,io,status} (man proc_pid_stat,
proc_pid_io, proc_pid_status).

What a process did after its last sample is not in its series: at most one period. For bytes two
other sources bound that. The kernel adds the proc io counters of a reaped child to those of its
parent (`wait_task_zombie` in kernel/exit.c), so the series of the launcher, which are sampled once
more after the end of the job, contain the bytes of the whole tree, except for processes that were
never waited for. And the capture library writes its own reading of /proc/self/io to its file. After
a process has died, only root can read its io file, so it cannot be read later.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.samplers.readings import Readings, Subject, read_record
from ioprof.instrument.samplers.threads import ThreadCounters

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_ENDED: Final = (b"Z", b"X", b"x")

_IO: Final = {
    b"rchar": "process.rchar",
    b"syscr": "process.syscr",
    b"read_bytes": "process.read_bytes",
    b"write_bytes": "process.write_bytes",
}
_SMAPS: Final = {b"Private_Dirty": "process.private_dirty", b"Pss": "process.pss"}
_KIB: Final = 1024
_SMAPS_SHARE: Final = 0.0002
"""Largest share of the time for reading smaps_rollup, for which the kernel walks the page tables:
40 to 60 ms per GiB in use by the process (measured once, on a busy machine with two cores)."""
_FIRST_SMAPS_SHARE: Final = 0.0005
"""The same for processes of which it was not read yet: a short job has values of all of its
workers."""
_MOST_NEW: Final = 64
"""Up to so many new pids are looked at one by one."""
_STATUS: Final = {
    b"voluntary_ctxt_switches": "process.voluntary_switches",
    b"nonvoluntary_ctxt_switches": "process.involuntary_switches",
}


@dataclass(frozen=True)
class JobProcess:
    """A process that belongs to the job."""

    pid: int
    parent: int
    command: str
    """Its name in the kernel, at most 15 bytes; for a Python script that of the interpreter."""
    cpus: str = ""
    """The CPUs that it may use, e.g. `0-3,8`; empty: not known."""
    sees_spool: bool = True
    """False: the folder of the recording is not there for it, as in a container that has its own
    /tmp."""


class JobProcesses:
    """The launcher and all processes of its job: its descendants, and processes with the marker of
    the job in their environment.

    The marker finds processes whose parent ended before they were found (daemons, `setsid`
    children, background jobs of a shell). A process that lost its parent and removed the marker
    within one period is missed, as is one that lived for less than a period.
    """

    def __init__(
        self,
        launcher: int,
        marker: bytes,
        proc: str = "/proc",
        read_file: Callable[[str], bytes] = read_record,
        spool: str = "",
    ) -> None:
        self._launcher, self._marker, self._proc, self._read_file, self._spool = (
            launcher,
            marker,
            proc,
            read_file,
            spool,
        )
        self._threads = ThreadCounters(proc)
        self._members: dict[int, int] = {}  # pid: start time
        # pid and inode in /proc of processes known not to belong to the job
        self._others: set[tuple[int, int]] = set()
        self._described: dict[Subject, tuple[str, str]] = {}  # command and CPUs
        self._newest_pid = 0
        self._listed: dict[int, int] = {}
        self._num_listed = 0
        self._absent: list[int] = []
        """Of the pids that were assigned before the last call those that no process had then: a
        process may just have been made."""
        self._examined: dict[int, int] | None = None
        """The list of which each process is known to belong to the job or not; None: not so of the
        newest."""
        try:
            self._has_delays = read_file(f"{proc}/sys/kernel/task_delayacct").strip() == b"1"
        except OSError:
            self._has_delays = False
        self.io_refused: int = 0
        """Number of running processes whose /proc/PID/io could not be read: of another user, or not
        dumpable."""
        self._refused: set[Subject] = set()
        self._memory: dict[tuple[int, int], dict[str, float]] = {}
        """Newest private and shared memory of forked processes, the one that was read first in
        front."""
        self._memory_ns, self._memory_took_ns = 0, 0
        self.memory_s: float = 0.0
        """Time that reading this took so far; it has a limit of its own."""

    def read(self) -> tuple[Readings, list[JobProcess]]:
        """The current values, and the processes that are new, run another program or may use other
        CPUs since the last call.
        """
        stats = self._stats()
        of_threads = self._threads.read(
            {(pid, stat.start): stat.num_threads for pid, stat in stats.items()}
        )
        readings: Readings = {}
        changed = []
        for pid, stat in stats.items():
            subject = (pid, stat.start)
            readings[subject] = {
                **stat.values(self._has_delays),
                **self._io(subject),
                **self._context_switches(pid),
                **of_threads[subject],
            }
            described = stat.command, self._threads.cpus.get(subject, "")
            if self._described.get(subject) != described:
                self._described[subject] = described
                changed.append(
                    JobProcess(pid, stat.parent, *described, sees_spool=self._sees_spool(pid))
                )
            parent = stats.get(stat.parent)
            if parent is not None and stat.is_fork_of(parent):
                self._memory.setdefault(subject, {})
        for ended in self._described.keys() - readings.keys():
            del self._described[ended]
        self._memory = {
            subject: values for subject, values in self._memory.items() if subject in readings
        }
        self._read_memory()
        for of_process, values in self._memory.items():
            readings[of_process].update(values)
        return readings, changed

    def others_s(self) -> dict[Subject, float]:
        """CPU seconds of the processes that were not of the job at the last call of `read`, without
        those of the kernel.
        """
        stats = {pid: self._read_stat(pid) for pid, _ in self._others}
        return {
            (pid, stat.start): stat.cpu_s
            for pid, stat in stats.items()
            if stat is not None and stat.has_memory
        }

    def _sees_spool(self, pid: int) -> bool:
        try:
            os.stat(f"{self._proc}/{pid}/root{self._spool}")
        except (FileNotFoundError, NotADirectoryError):
            # it has ended
            return not os.path.exists(os.path.join(self._proc, str(pid), "root", "."))
        except OSError:  # a process of another user: not known
            return True
        return True

    def _read_memory(self) -> None:
        """Read the memory of forked processes in turn, while that costs less than `_SMAPS_SHARE` of
        the time.
        """
        start_ns = monotonic_ns()
        for subject, before in list(self._memory.items()):
            if (start_ns - self._memory_ns) * (
                _SMAPS_SHARE if before else _FIRST_SMAPS_SHARE
            ) < self._memory_took_ns:
                continue
            del self._memory[subject]
            try:
                lines = self._read_file(f"{self._proc}/{subject[0]}/smaps_rollup").splitlines()
            except OSError:  # it has ended, or belongs to another user
                lines = []
            self._memory[subject] = {
                name: value * _KIB
                for name, value in _select([line.removesuffix(b" kB") for line in lines], _SMAPS)
            }
            self._memory_ns, start_ns = start_ns, monotonic_ns()
            self._memory_took_ns = start_ns - self._memory_ns
            self.memory_s += self._memory_took_ns / 1e9

    def _stats(self) -> dict[int, "_Stat"]:
        """The stat file of every running process of the job."""
        alive = self._list_processes()
        found = {}
        for pid in self._members.keys() & alive.keys():
            stat = self._read_stat(pid)
            if stat and stat.start == self._members[pid]:
                found[pid] = stat
        if alive is self._examined and len(found) == len(self._members):
            return found
        self._others &= alive.items()
        unknown = alive.keys() - {pid for pid, _ in self._others} - found.keys()
        new = {pid: stat for pid in unknown if (stat := self._read_stat(pid))}
        self._move_descendants(new, found)
        is_marked = {pid: stat.has_memory and self._is_marked(pid) for pid, stat in new.items()}
        found |= {pid: new.pop(pid) for pid, marked in is_marked.items() if marked}
        self._move_descendants(new, found)
        self._others |= {(pid, alive[pid]) for pid in new if is_marked[pid] is False}
        self._members = {pid: stat.start for pid, stat in found.items()}
        self._examined = alive if None not in is_marked.values() else None
        return found

    def _move_descendants(self, new: dict[int, "_Stat"], found: dict[int, "_Stat"]) -> None:
        """Move the launcher and all descendants of `found` from `new` to `found`; the pid of a
        child may be lower than its parent's.
        """
        while joined := [
            pid for pid, stat in new.items() if pid == self._launcher or stat.parent in found
        ]:
            found |= {pid: new.pop(pid) for pid in joined}

    def _list_processes(self) -> dict[int, int]:
        """Inodes of /proc/PID, which identify a process like its start time but are cheaper to
        read.

        /proc/loadavg contains the pid that was assigned last. If that is unchanged, there are no
        new processes and the last list is used. If it is a little higher, only pids up to it are
        looked at, which takes a tenth of the time of a whole listing.
        """
        try:
            newest_pid = int(self._read_file(f"{self._proc}/loadavg").split()[-1])
        except (OSError, IndexError, ValueError):
            newest_pid = 0
        assigned = range(self._newest_pid + 1, newest_pid + 1)
        has_few_new = 0 < self._newest_pid <= newest_pid and len(assigned) <= _MOST_NEW
        if has_few_new and len(self._listed) <= 2 * self._num_listed:
            candidates = [*self._absent, *assigned]
            found = {pid: inode for pid in candidates if (inode := self._inode(pid)) is not None}
            self._absent = [pid for pid in assigned if pid not in found]
            if found:
                self._listed = self._listed | found
        else:
            with os.scandir(self._proc) as entries:
                self._listed = {
                    int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()
                }
            self._num_listed, self._absent = len(self._listed), []
        self._newest_pid = newest_pid
        return self._listed

    def _inode(self, pid: int) -> int | None:
        """Of a process; None where there is none, also for a thread, which takes a pid too."""
        try:
            inode = os.stat(f"{self._proc}/{pid}").st_ino
            return (
                inode
                if b"\nTgid:\t%d\n" % pid in self._read_file(f"{self._proc}/{pid}/status")
                else None
            )
        except OSError:
            return None

    def _read_stat(self, pid: int) -> "_Stat | None":
        """None for a process that has ended, reaped or not."""
        try:
            data = self._read_file(f"{self._proc}/{pid}/stat")
        except OSError:
            return None
        # the command may contain spaces and parentheses
        begin, end = (
            data.find(b"("),
            data.rfind(b")"),
        )
        fields = data[end + 2 :].split()
        if len(fields) < 40 or fields[0] in _ENDED:
            return None
        return _Stat(
            data[begin + 1 : end].decode(errors="replace"), int(fields[1]), int(fields[19]), fields
        )

    def _is_marked(self, pid: int) -> bool | None:
        """None if unknown: during an execve the environment is empty (`exec_mmap`, then
        `create_elf_tables`).
        """
        try:
            environment = self._read_file(f"{self._proc}/{pid}/environ")
        except OSError:
            return False
        return self._marker in environment.split(b"\0") if environment else None

    def _io(self, subject: tuple[int, int]) -> dict[str, float]:
        try:
            lines = self._read_file(f"{self._proc}/{subject[0]}/io").splitlines()
        except PermissionError:
            if subject not in self._refused:
                self._refused.add(subject)
                self.io_refused += 1
            return {}
        except OSError:
            return {}
        return dict(_select(lines, _IO))

    def _context_switches(self, pid: int) -> dict[str, float]:
        try:
            lines = self._read_file(f"{self._proc}/{pid}/status").splitlines()
        except OSError:
            return {}
        return dict(_select(lines[-4:], _STATUS))


@dataclass(frozen=True)
class _Stat:
    command: str
    parent: int
    start: int
    fields: list[bytes]

    @property
    def has_memory(self) -> bool:
        """False for kernel threads."""
        return self._field(23) > 0

    def is_fork_of(self, parent: "_Stat") -> bool:
        """Whether it was forked from `parent`, and has executed no program since: its stack begins
        at the same random address.

        The kernel shows that address only to those who may trace the process; else it is 0, or 1.
        """
        return self._field(28) > 1 and self._field(28) == parent._field(28)  # noqa: SLF001

    @property
    def num_threads(self) -> int:
        return self._field(20)

    @property
    def cpu_s(self) -> float:
        return (self._field(14) + self._field(15)) / _TICKS_PER_S

    def values(self, has_delays: bool) -> dict[str, float]:
        found: dict[str, float] = {
            "process.minor_faults": self._field(10),
            "process.major_faults": self._field(12),
            "process.cpu_user": self._field(14) / _TICKS_PER_S,
            "process.cpu_system": self._field(15) / _TICKS_PER_S,
            "process.threads": self.num_threads,
            "process.rss": self._field(24) * _PAGE_BYTES,
        }
        return found | (
            {"process.block_delay": self._field(42) / _TICKS_PER_S} if has_delays else {}
        )

    def _field(self, number: int) -> int:
        # numbered as in man proc_pid_stat; `fields` starts with the third
        return int(self.fields[number - 3])


def _select(lines: list[bytes], names: dict[bytes, str]) -> Iterator[tuple[str, float]]:
    for line in lines:
        key, _, value = line.partition(b":")
        if name := names.get(key):
            yield name, int(value)
