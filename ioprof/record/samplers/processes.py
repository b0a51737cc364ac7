"""Counters of every process of the job, from /proc/PID/{stat,io,status} (man proc_pid_stat, proc_pid_io, proc_pid_status).

What a process did after its last sample is not in its series: at most one period's worth. Two things bound that for bytes. The
kernel adds the books of a reaped child to those of its parent (`wait_task_zombie` in kernel/exit.c), so the series of the launcher,
sampled once more when the job has ended, hold the whole tree's bytes but for processes that nobody waited for. And the capture
library leaves its own reading of /proc/self/io in its file. Once dead, a process's io is root's to read, so it cannot be fetched
later.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ioprof.record.samplers.readings import Readings, Subject, read_bytes

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_ENDED: Final = (b"Z", b"X", b"x")

_IO: Final = {
    b"rchar": "process.rchar",
    b"syscr": "process.syscr",
    b"read_bytes": "process.read_bytes",
    b"write_bytes": "process.write_bytes",
}
_STATUS: Final = {
    b"voluntary_ctxt_switches": "process.voluntary_switches",
    b"nonvoluntary_ctxt_switches": "process.involuntary_switches",
}


@dataclass(frozen=True)
class Seen:
    """A process that belongs to the job."""

    pid: int
    parent: int
    command: str
    """The kernel's name of it, at most 15 bytes; a Python script is called as its interpreter is."""


class JobProcesses:
    """The launcher and all processes of its job: its descendants, and whoever carries the job's mark in the environment.

    The mark finds those whose parent had ended before they were seen (daemons, `setsid` children, a shell's background jobs). A
    process that both lost its parent and dropped the mark within one period is missed, as is one that lived shorter than that.
    """

    def __init__(self, launcher: int, mark: bytes, proc: str = "/proc") -> None:
        self._launcher, self._mark, self._proc = launcher, mark, proc
        self._members: dict[int, int] = {}  # pid: start
        self._others: set[tuple[int, int]] = set()  # pid and /proc's inode: looked at before, and not of the job
        self._commands: dict[Subject, str] = {}
        self._newest = b""
        self._listed: dict[int, int] = {}
        self._delays = _is_on(f"{proc}/sys/kernel/task_delayacct")
        self.io_refused: int = 0
        """Processes whose /proc/PID/io could not be read while they lived: another user's, or not dumpable."""
        self._refused: set[Subject] = set()

    def read(self) -> tuple[Readings, list[Seen]]:
        """All values at about this instant, and the processes that are new or run another program since the last time."""
        stats = self._stats()
        readings: Readings = {}
        news = []
        for pid, stat in stats.items():
            subject = (pid, stat.start)
            readings[subject] = {**stat.values(self._delays), **self._io(subject), **self._switches(pid)}
            if self._commands.get(subject) != stat.command:
                self._commands[subject] = stat.command
                news.append(Seen(pid, stat.parent, stat.command))
        for gone in self._commands.keys() - readings.keys():
            del self._commands[gone]
        return readings, news

    def _stats(self) -> dict[int, "_Stat"]:
        """The state of every living process of the job."""
        alive = self._alive()
        self._others &= alive.items()
        found = {}
        for pid in self._members.keys() & alive.keys():
            stat = _stat(self._proc, pid)
            if stat and stat.start == self._members[pid]:
                found[pid] = stat
        unknown = alive.keys() - {pid for pid, _ in self._others} - found.keys()
        new = {pid: stat for pid in unknown if (stat := _stat(self._proc, pid))}
        self._adopt(new, found)
        marks = {pid: stat.has_memory and self._is_marked(pid) for pid, stat in new.items()}
        found |= {pid: new.pop(pid) for pid, mark in marks.items() if mark}
        self._adopt(new, found)
        self._others |= {(pid, alive[pid]) for pid in new if marks[pid] is False}
        self._members = {pid: stat.start for pid, stat in found.items()}
        return found

    def _adopt(self, new: dict[int, "_Stat"], found: dict[int, "_Stat"]) -> None:
        """Move the launcher and all descendants of those that were found; a child's number may be lower than its parent's."""
        while joined := [pid for pid, stat in new.items() if pid == self._launcher or stat.parent in found]:
            found |= {pid: new.pop(pid) for pid in joined}

    def _alive(self) -> dict[int, int]:
        """Inodes of /proc/PID: another process of the same pid has another one, and to list them costs less than to read starts.

        Where no process or thread began since the last time, which /proc/loadavg tells at once, there can be no new ones.
        """
        newest = self._newest_pid()
        if newest != self._newest or not newest:
            with os.scandir(self._proc) as entries:
                self._listed = {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}
            self._newest = newest
        return self._listed

    def _newest_pid(self) -> bytes:
        """The one that was given last, to a process or a thread; empty where that is not told."""
        try:
            return read_bytes(f"{self._proc}/loadavg").split()[-1]
        except (OSError, IndexError):
            return b""

    def _is_marked(self, pid: int) -> bool | None:
        """None if it cannot be said yet: during an execve the environment is empty (`exec_mmap`, then `create_elf_tables`)."""
        try:
            environment = read_bytes(f"{self._proc}/{pid}/environ")
        except OSError:
            return False
        return self._mark in environment.split(b"\0") if environment else None

    def _io(self, subject: tuple[int, int]) -> dict[str, float]:
        try:
            lines = read_bytes(f"{self._proc}/{subject[0]}/io").splitlines()
        except PermissionError:
            if subject not in self._refused:
                self._refused.add(subject)
                self.io_refused += 1
            return {}
        except OSError:
            return {}
        return dict(_chosen(lines, _IO))

    def _switches(self, pid: int) -> dict[str, float]:
        try:
            lines = read_bytes(f"{self._proc}/{pid}/status").splitlines()
        except OSError:
            return {}
        return dict(_chosen(lines[-4:], _STATUS))


@dataclass(frozen=True)
class _Stat:
    command: str
    parent: int
    start: int
    fields: list[bytes]

    @property
    def has_memory(self) -> bool:
        """False for a thread of the kernel."""
        return self._field(23) > 0

    def values(self, delays: bool) -> dict[str, float]:
        found: dict[str, float] = {
            "process.major_faults": self._field(12),
            "process.cpu_user": self._field(14) / _TICKS_PER_S,
            "process.cpu_system": self._field(15) / _TICKS_PER_S,
            "process.threads": self._field(20),
            "process.rss": self._field(24) * _PAGE_BYTES,
        }
        return found | ({"process.block_delay": self._field(42) / _TICKS_PER_S} if delays else {})

    def _field(self, number: int) -> int:
        return int(self.fields[number - 3])  # as man proc_pid_stat numbers them; the first two are not in `fields`


def _stat(proc: str, pid: int) -> _Stat | None:
    """None for a process that has ended, reaped or not."""
    try:
        data = read_bytes(f"{proc}/{pid}/stat")
    except OSError:
        return None
    begin, end = data.find(b"("), data.rfind(b")")  # the command may hold spaces and parentheses
    fields = data[end + 2 :].split()
    if len(fields) < 40 or fields[0] in _ENDED:
        return None
    return _Stat(data[begin + 1 : end].decode(errors="replace"), int(fields[1]), int(fields[19]), fields)


def _chosen(lines: list[bytes], names: dict[bytes, str]) -> Iterator[tuple[str, float]]:
    for line in lines:
        key, _, value = line.partition(b":")
        if name := names.get(key):
            yield name, int(value)


def _is_on(path: str) -> bool:
    try:
        return read_bytes(path).strip() == b"1"
    except OSError:
        return False
