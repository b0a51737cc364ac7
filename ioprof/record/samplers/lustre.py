"""Counters of a Lustre client, from wherever its release keeps them and this user may read them.

                     2.10, 2.11                2.12 to 2.16                         2.17
    llite .. stats   /proc/fs/lustre           debugfs: root only                   debugfs; lctl shows it to any user
    osc, mdc  stats  /proc/fs/lustre           debugfs: root only                   debugfs; lctl shows it to any user
    .. rpc_stats     /proc/fs/lustre           /proc/fs/lustre                      debugfs: root only
    mdc .. md_stats  /proc/fs/lustre           /proc/fs/lustre                      /proc/fs/lustre

All mounts of one file system are summed. What is not to be had is said once. Where only rpc_stats can be read, the bytes that were
fetched are known within bounds: a request is counted by its size's power of two.
"""

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ioprof.record.samplers.lustre_stats import Tally, by_parameter, read_requests, tallies
from ioprof.record.samplers.readings import HOST, Readings, read_bytes

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")  # of this client: 64 KiB on some
_LCTL_S: Final = 5.0
_ROOT_ONLY: Final = "readable by root only; an administrator opens it with: chmod a+rx /sys/kernel/debug"

# The instance on a client ends with an address; on a server, which has targets of its own, with the name of one.
_INSTANCES: Final = {
    "llite": re.compile(r"(.+)-[0-9a-f]{8,16}"),
    "osc": re.compile(r"(.+)-OST[0-9a-f]{4}-osc-[0-9a-f]{8,16}"),
    "mdc": re.compile(r"(.+)-MDT[0-9a-f]{4}-mdc-[0-9a-f]{8,16}"),
}
_OPERATIONS: Final = (
    "close", "create", "enqueue", "getattr", "getxattr", "intent_getattr_async", "intent_lock", "link", "read_page", "rename",
    "setattr", "setxattr", "fsync", "unlink",
)  # fmt: skip
_ALWAYS: Final = ("close", "getattr", "intent_lock", "read_page")  # what reading files takes
_COUNTS: Final = {"reads": "read_bytes", "opens": "open", "page_faults": "page_fault"}
_TIMES: Final = {"read_time": "read", "open_time": "open", "page_fault_time": "page_fault"}

Values = dict[str, float]
"""By the last part of the series' name."""


@dataclass(frozen=True)
class _File:
    """A statistics file that could be read."""

    file_system: str
    what: str
    """Folder and file, e.g. `osc/rpc_stats`."""
    path: str


class LustreCounters:
    """Reads the Lustre file systems that are mounted on this host; nothing where there is no Lustre. `lctl` is that program."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys", lctl: str | None = None) -> None:
        self._places = (f"{proc}/fs/lustre", f"{sys}/fs/lustre", f"{sys}/kernel/debug/lustre")
        self._missing: dict[str, str] = {}
        self._files = list(self._found())
        self._lctl = lctl or shutil.which("lctl") or "/usr/sbin/lctl"
        if not self._ask_lctl():
            self._lctl = ""

    @property
    def is_there(self) -> bool:
        """Whether there is a Lustre client at all."""
        return bool(self._files or self._missing)

    @property
    def notes(self) -> list[str]:
        """What could not be read and why, one sentence for each kind of file."""
        return [f"Lustre: {what} is not sampled ({_MEANS[what]}): {why}" for what, why in self._missing.items()]

    def read(self) -> Readings:
        """All values at about this instant, summed over the mounts and targets of each file system."""
        values: Values = defaultdict(float)
        for file_system, found in self._found_values():
            for name, value in found.items():
                values[f"lustre.{file_system}.{name}"] += value
        return {HOST: dict(values)} if values else {}

    def _found_values(self) -> Iterator[tuple[str, Values]]:
        for file in self._files:
            try:
                yield file.file_system, values_in(file.what, read_bytes(file.path))
            except OSError:  # unmounted meanwhile
                continue
        for what, file_system, data in _shown_by(self._lctl):
            yield file_system, values_in(what, data)

    def _found(self) -> Iterator[_File]:
        """The best file of each kind for every instance; what is missing of the best goes into `_missing`."""
        for folder, instance, file_system in self._instances():
            for names in _WANTED[folder]:
                found = next((file for name in names if (file := self._file(file_system, folder, instance, name))), None)
                if found:
                    yield found
                if not found or found.what != f"{folder}/{names[0]}":
                    self._missing[f"{folder}/{names[0]}"] = self._refusal(f"{folder}/{instance}/{names[0]}")

    def _instances(self) -> Iterator[tuple[str, str, str]]:
        for folder, pattern in _INSTANCES.items():
            entries = sorted({entry for place in self._places for entry in _entries(f"{place}/{folder}")})
            yield from ((folder, entry, match[1]) for entry in entries if (match := pattern.fullmatch(entry)))

    def _file(self, file_system: str, folder: str, instance: str, name: str) -> _File | None:
        paths = (f"{place}/{folder}/{instance}/{name}" for place in self._places)
        return next((_File(file_system, f"{folder}/{name}", path) for path in paths if os.access(path, os.R_OK)), None)

    def _refusal(self, name: str) -> str:
        path = f"{self._places[-1]}/{name}"
        try:
            os.stat(path)
        except PermissionError:
            return f"{path} is {_ROOT_ONLY}"
        except OSError as error:
            return f"{path}: {error.strerror}"
        return f"{path} is {_ROOT_ONLY}"

    def _ask_lctl(self) -> bool:
        """Whether lctl shows what the files did not: since 2.17 it asks the kernel in another way, which needs no root."""
        wanted = self._missing.keys() & {f"{folder}/stats" for folder in _INSTANCES}
        shown = {what for what, _, _ in _shown_by(self._lctl)} if wanted else set()
        for what in shown & wanted:
            del self._missing[what]
        self._files = [
            file
            for file in self._files
            if f"{file.what.partition('/')[0]}/stats" not in shown & wanted or file.what.endswith(("md_stats", "read_ahead_stats"))
        ]
        return bool(shown & wanted)


def _shown_by(lctl: str) -> Iterator[tuple[str, str, bytes]]:
    """Every statistics file that the program prints: what it is, the file system, its text."""
    if not os.access(lctl, os.X_OK):
        return
    command = [lctl, "get_param", *(f"{folder}.*.stats" for folder in _INSTANCES)]
    try:
        printed = subprocess.run(command, capture_output=True, timeout=_LCTL_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    for parameter, data in by_parameter(printed):
        folder, _, rest = parameter.partition(".")
        instance, _, name = rest.rpartition(".")
        if (pattern := _INSTANCES.get(folder)) and (known := pattern.fullmatch(instance)):
            yield f"{folder}/{name}", known[1], data


_WANTED: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "llite": (("stats",), ("read_ahead_stats",)),
    "osc": (("stats", "rpc_stats"),),
    "mdc": (("stats", "rpc_stats"), ("md_stats",)),
}
"""For each folder the files to read; of several names for one thing the first that is there."""

_MEANS: Final = {
    "llite/stats": "reads, opens and page faults with their times",
    "llite/read_ahead_stats": "hits and misses of readahead",
    "osc/stats": "bytes that the servers sent, exactly",
    "mdc/stats": "bytes that the metadata servers sent, exactly",
    "mdc/md_stats": "requests to the metadata servers",
}


def values_in(what: str, data: bytes) -> Values:
    """What one statistics file adds to the series of its file system; empty for one that is not understood."""
    if what.endswith("/rpc_stats"):
        return _of_requests(data)
    found = tallies(data)
    if found is None:
        return {}
    if what == "llite/stats":
        return _of_mount(found)
    if what == "llite/read_ahead_stats":
        names = {"hits": "readahead_hits", "misses": "readahead_misses"}
        return {series: float(_of(found, name).count) for name, series in names.items()}
    if what == "mdc/md_stats":
        return {f"metadata.{name}": float(_of(found, name).count) for name in _OPERATIONS if name in found or name in _ALWAYS}
    return _of_targets(found)


def _of_mount(found: dict[str, Tally]) -> Values:
    values = {series: float(_of(found, name).count) for series, name in _COUNTS.items()}
    values["read_bytes"] = float(_of(found, "read_bytes").sum or 0)
    return values | {series: time for series, name in _TIMES.items() if (time := _of(found, name).seconds) is not None}


def _of_targets(found: dict[str, Tally]) -> Values:
    """`read_bytes` counts what was sent, `ost_read` how long that took."""
    read, took = _of(found, "read_bytes"), _of(found, "ost_read").seconds
    values = {"fetched_bytes": float(read.sum or 0), "read_requests": float(read.count)}
    return values if took is None else {**values, "read_request_time": took}


def _of(found: dict[str, Tally], name: str) -> Tally:
    """A line; one that is not there has counted nothing yet."""
    return found.get(name) or Tally(0, "", None)


def _of_requests(data: bytes) -> Values:
    requests = read_requests(data)
    if requests is None:
        return {}
    return {
        "fetched_bytes_least": float(requests.least_pages * _PAGE_BYTES),
        "fetched_bytes_most": float(requests.most_pages * _PAGE_BYTES),
        "read_requests": float(requests.requests),
    }


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
