"""Counters of the whole host: CPUs, memory, pressure, disks and networks, from /proc and /sys.

Sources: man proc_stat, proc_meminfo, proc_vmstat; Documentation/admin-guide/iostats.rst and
accounting/psi.rst of the kernel.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from ioprof.instrument.samplers.readings import HOST, Readings, read_bytes, read_record

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_SECTOR_BYTES: Final = 512  # the unit of /proc/diskstats, whatever the device's own sector is
_LANES: Final = 4  # InfiniBand counts port data in units of 4 bytes (IBTA 16.1.3.5)
_NO_DISKS: Final = ("ram", "zram")

Reader = Callable[[], dict[str, float]]
_Lines = dict[bytes, dict[str, float]]
"""The lines of a file as they were last read, and what was in each: most are the same in the next
sample."""


class HostCounters:
    """Reads the counters of this host. Unavailable ones are noted once and not read again."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc, self._sys = proc, sys
        self._is_disk: dict[str, bool] = {}
        self._disks: _Lines = {}
        self._networks: _Lines = {}
        self._readers: list[Reader] = [
            self.cpu,
            self.memory,
            self.paging,
            *(partial(self.pressure, what) for what in ("io", "cpu", "memory")),
            self.disks,
            self.networks,
            *([self.infiniband] if os.path.isdir(f"{sys}/class/infiniband") else []),
        ]
        self.notes: list[str] = []
        """What could not be read, one sentence each."""

    def read(self) -> Readings:
        """The current values."""
        values: dict[str, float] = {}
        for reader in tuple(self._readers):
            try:
                values |= reader()
            except (OSError, ValueError, IndexError, KeyError) as error:
                self._readers.remove(reader)
                if isinstance(error, OSError):
                    hint = (
                        " (the kernel was started without psi=1)"
                        if "/pressure/" in str(error.filename)
                        else ""
                    )
                    self.notes.append(
                        f"{error.filename or 'a counter'} is not sampled:"
                        f" {error.strerror or error}{hint}"
                    )
                else:
                    self.notes.append(
                        "a counter of the host is not sampled: its file has an unexpected format"
                        f" ({error!r})"
                    )
        return {HOST: values}

    def cpu(self) -> dict[str, float]:
        """CPU time of the host by state."""
        line = read_record(f"{self._proc}/stat").split(b"\n", 1)[0]
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(field) / _TICKS_PER_S for field in line.split()[1:9]
        )
        return {
            "cpu.user": user + nice,
            "cpu.system": system,
            "cpu.irq": irq + softirq,
            "cpu.idle": idle,
            "cpu.iowait": iowait,
            "cpu.steal": steal,
        }

    def memory(self) -> dict[str, float]:
        """Memory and page cache."""
        data = read_record(f"{self._proc}/meminfo")
        names = {
            "memory.available": b"MemAvailable:",
            "memory.cached": b"Cached:",
            "memory.dirty": b"Dirty:",
        }
        return {name: _number(data, key) * 1024 for name, key in names.items()}

    def paging(self) -> dict[str, float]:
        """Bytes read into memory, and major page faults."""
        data = read_bytes(f"{self._proc}/vmstat")
        return {
            "vm.paged_in": _number(data, b"pgpgin") * 1024,
            "vm.swapped_in": _number(data, b"pswpin") * _PAGE_BYTES,
            "vm.major_faults": _number(data, b"pgmajfault"),
        }

    def pressure(self, what: str) -> dict[str, float]:
        """Stall times of `io`, `cpu` or `memory`; "full" of the CPU is undefined for a whole
        host.
        """
        found = {}
        for line in read_record(f"{self._proc}/pressure/{what}").splitlines():
            kind, *fields = line.decode().split()
            if (what, kind) != ("cpu", "full"):
                found[f"pressure.{what}.{kind}"] = int(fields[-1].removeprefix("total=")) / 1e6
        return found

    def disks(self) -> dict[str, float]:
        """Every block device (not partition) with reads or writes since boot."""
        lines = read_bytes(f"{self._proc}/diskstats").splitlines()
        self._disks = {
            line: known if (known := self._disks.get(line)) is not None else self._disk(line)
            for line in lines
        }
        return _together(self._disks)

    def _disk(self, line: bytes) -> dict[str, float]:
        _, _, name, *fields = line.split()
        reads, _, sectors, read_ms, writes, _, written, _, flying, busy_ms, queued_ms = map(
            int, fields[:11]
        )
        device = name.decode()
        if not (reads or writes) or not self._is_storage(device):
            return {}
        return {
            f"disk.{device}.reads": reads,
            f"disk.{device}.read_bytes": sectors * _SECTOR_BYTES,
            f"disk.{device}.read_time": read_ms / 1e3,
            f"disk.{device}.writes": writes,
            f"disk.{device}.write_bytes": written * _SECTOR_BYTES,
            f"disk.{device}.in_flight": flying,
            f"disk.{device}.busy_time": busy_ms / 1e3,
            f"disk.{device}.queue_time": queued_ms / 1e3,
        }

    def networks(self) -> dict[str, float]:
        """Every interface of this network namespace with traffic."""
        lines = read_bytes(f"{self._proc}/net/dev").splitlines()[2:]
        self._networks = {
            line: known if (known := self._networks.get(line)) is not None else _network(line)
            for line in lines
        }
        return _together(self._networks)

    def infiniband(self) -> dict[str, float]:
        """Every port of every InfiniBand adapter."""
        found: dict[str, float] = {}
        adapters = f"{self._sys}/class/infiniband"
        for adapter in sorted(os.listdir(adapters)):
            for port in sorted(os.listdir(f"{adapters}/{adapter}/ports")):
                name, folder = (
                    f"infiniband.{adapter}.{port}",
                    f"{adapters}/{adapter}/ports/{port}/counters",
                )
                found[f"{name}.received_bytes"] = (
                    int(read_bytes(f"{folder}/port_rcv_data")) * _LANES
                )
                found[f"{name}.sent_bytes"] = int(read_bytes(f"{folder}/port_xmit_data")) * _LANES
        return found

    def _is_storage(self, device: str) -> bool:
        """False for partitions, which are counted in their disk, and for RAM disks and compressed
        memory.
        """
        if device not in self._is_disk:
            partition = os.path.exists(f"{self._sys}/class/block/{device}/partition")
            self._is_disk[device] = not partition and device.rstrip("0123456789") not in _NO_DISKS
        return self._is_disk[device]


def _network(line: bytes) -> dict[str, float]:
    name, _, rest = line.decode().strip().rpartition(": ")
    fields = rest.split()
    received, sent = int(fields[0]), int(fields[8])
    if not (received or sent):
        return {}
    return {f"network.{name}.received_bytes": received, f"network.{name}.sent_bytes": sent}


def _together(lines: _Lines) -> dict[str, float]:
    found: dict[str, float] = {}
    for values in lines.values():
        found |= values
    return found


def _number(data: bytes, name: bytes) -> int:
    """The number after a name at the start of a line. A search is faster than parsing all 200 lines
    for three of them.
    """
    begin = 0 if data.startswith(name + b" ") else data.index(b"\n" + name + b" ") + 1
    return int(data[begin : data.index(b"\n", begin)].split()[1])
