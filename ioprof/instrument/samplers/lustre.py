"""Counters of a Lustre client. Their location and permissions depend on the release:

                     2.10, 2.11                2.12 to 2.16                         2.17
    llite .. stats   /proc/fs/lustre           debugfs: root only                   debugfs; lctl shows it to any user
    osc, mdc  stats  /proc/fs/lustre           debugfs: root only                   debugfs; lctl shows it to any user
    .. rpc_stats     /proc/fs/lustre           /proc/fs/lustre                      debugfs: root only
    mdc .. md_stats  /proc/fs/lustre           /proc/fs/lustre                      /proc/fs/lustre

All mounts of one file system are summed. Unavailable counters are noted once. If only rpc_stats is
readable, the bytes fetched are known within bounds, because it counts requests by the power of two
of their size.
"""  # noqa: E501

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ioprof.instrument.samplers.lustre_stats import (
    Statistic,
    parse_statistics,
    read_requests,
    split_parameters,
)
from ioprof.instrument.samplers.readings import HOST, Readings, read_bytes

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")  # of this client: 64 KiB on some
_LCTL_S: Final = 5.0
_ROOT_ONLY: Final = (
    "readable by root only; an administrator can allow it: chmod a+rx /sys/kernel/debug"
)

# On a client the instance ends with an address; on a server, with the name of a target.
_INSTANCES: Final = {
    "llite": re.compile(r"(.+)-[0-9a-f]{8,16}"),
    "osc": re.compile(r"(.+)-OST[0-9a-f]{4}-osc-[0-9a-f]{8,16}"),
    "mdc": re.compile(r"(.+)-MDT[0-9a-f]{4}-mdc-[0-9a-f]{8,16}"),
}
_OPERATIONS: Final = (
    "close",
    "create",
    "enqueue",
    "getattr",
    "getxattr",
    "intent_getattr_async",
    "intent_lock",
    "link",
    "read_page",
    "rename",
    "setattr",
    "setxattr",
    "fsync",
    "unlink",
)
# operations that reading files needs
_ALWAYS: Final = (
    "close",
    "getattr",
    "intent_lock",
    "read_page",
)
_COUNTS: Final = {"reads": "read_bytes", "opens": "open", "page_faults": "page_fault"}
_TIMES: Final = {"read_time": "read", "open_time": "open", "page_fault_time": "page_fault"}

Values = dict[str, float]
"""Values by the last part of the name of the series."""


@dataclass(frozen=True)
class _File:
    """A readable statistics file."""

    file_system: str
    what: str
    """Folder and file, e.g. `osc/rpc_stats`."""
    path: str


class LustreCounters:
    """Reads the Lustre file systems mounted on this host; nothing without Lustre. `lctl` is the
    path of that program.
    """

    def __init__(self, proc: str = "/proc", sys: str = "/sys", lctl: str | None = None) -> None:
        self._roots = (f"{proc}/fs/lustre", f"{sys}/fs/lustre", f"{sys}/kernel/debug/lustre")
        self._missing: dict[str, str] = {}
        self._files = list(self._find_files())
        self._lctl = lctl or shutil.which("lctl") or "/usr/sbin/lctl"
        if not self._replace_by_lctl():
            self._lctl = ""

    @property
    def is_present(self) -> bool:
        """Whether this host is a Lustre client."""
        return bool(self._files or self._missing)

    @property
    def notes(self) -> list[str]:
        """What could not be read and why, one sentence for each kind of file."""
        return [
            f"Lustre: {what} is not sampled ({_MEANS[what]}): {why}"
            for what, why in self._missing.items()
        ]

    def read(self) -> Readings:
        """The current values, summed over the mounts and targets of each file system."""
        values: Values = defaultdict(float)
        for file_system, found in self._read_all():
            for name, value in found.items():
                values[f"lustre.{file_system}.{name}"] += value
        return {HOST: dict(values)} if values else {}

    def _read_all(self) -> Iterator[tuple[str, Values]]:
        for file in self._files:
            try:
                yield file.file_system, values_in(file.what, read_bytes(file.path))
            except OSError:  # unmounted
                continue
        for what, file_system, data in _read_by_lctl(self._lctl):
            yield file_system, values_in(what, data)

    def _find_files(self) -> Iterator[_File]:
        """The preferred readable file of each kind for every instance; unreadable preferred files
        go into `_missing`.
        """
        for folder, instance, file_system in self._instances():
            for names in _WANTED[folder]:
                candidates = (
                    (name, f"{root}/{folder}/{instance}/{name}")
                    for name in names
                    for root in self._roots
                )
                found = next(
                    (
                        _File(file_system, f"{folder}/{name}", path)
                        for name, path in candidates
                        if os.access(path, os.R_OK)
                    ),
                    None,
                )
                if found:
                    yield found
                if not found or found.what != f"{folder}/{names[0]}":
                    self._missing[f"{folder}/{names[0]}"] = self._explain_missing(
                        f"{folder}/{instance}/{names[0]}"
                    )

    def _instances(self) -> Iterator[tuple[str, str, str]]:
        for folder, pattern in _INSTANCES.items():
            entries = sorted(
                {entry for root in self._roots for entry in _list_folder(f"{root}/{folder}")}
            )
            yield from (
                (folder, entry, match[1])
                for entry in entries
                if (match := pattern.fullmatch(entry))
            )

    def _explain_missing(self, name: str) -> str:
        path = f"{self._roots[-1]}/{name}"
        try:
            os.stat(path)
        except PermissionError:
            return f"{path} is {_ROOT_ONLY}"
        except OSError as error:
            return f"{path}: {error.strerror}"
        return f"{path} is {_ROOT_ONLY}"

    def _replace_by_lctl(self) -> bool:
        """Read missing files by lctl, which since 2.17 uses an interface that needs no root.
        Returns whether it shows any.
        """
        wanted = self._missing.keys() & {f"{folder}/stats" for folder in _INSTANCES}
        shown = {what for what, _, _ in _read_by_lctl(self._lctl)} if wanted else set()
        for what in shown & wanted:
            del self._missing[what]
        self._files = [
            file
            for file in self._files
            if f"{file.what.partition('/')[0]}/stats" not in shown & wanted
            or file.what.endswith(("md_stats", "read_ahead_stats"))
        ]
        return bool(shown & wanted)


def _read_by_lctl(lctl: str) -> Iterator[tuple[str, str, bytes]]:
    """The statistics files that lctl prints: kind, file system and text of each."""
    if not os.access(lctl, os.X_OK):
        return
    command = [lctl, "get_param", *(f"{folder}.*.stats" for folder in _INSTANCES)]
    try:
        printed = subprocess.run(command, capture_output=True, timeout=_LCTL_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    for parameter, data in split_parameters(printed):
        folder, _, rest = parameter.partition(".")
        instance, _, name = rest.rpartition(".")
        if (pattern := _INSTANCES.get(folder)) and (known := pattern.fullmatch(instance)):
            yield f"{folder}/{name}", known[1], data


_WANTED: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "llite": (("stats",), ("read_ahead_stats",)),
    "osc": (("stats", "rpc_stats"),),
    "mdc": (("stats", "rpc_stats"), ("md_stats",)),
}
"""The files to read in each folder; of alternatives the first one that exists."""

_MEANS: Final = {
    "llite/stats": "reads, opens and page faults with their times",
    "llite/read_ahead_stats": "hits and misses of readahead",
    "osc/stats": "bytes that the servers sent, exactly",
    "mdc/stats": "bytes that the metadata servers sent, exactly",
    "mdc/md_stats": "requests to the metadata servers",
}


def values_in(what: str, data: bytes) -> Values:
    """The values of one statistics file for the series of its file system; empty if the format is
    unknown.
    """
    if what.endswith("/rpc_stats"):
        requests = read_requests(data)
        if requests is None:
            return {}
        return {
            "fetched_bytes_least": float(requests.least_pages * _PAGE_BYTES),
            "fetched_bytes_most": float(requests.most_pages * _PAGE_BYTES),
            "read_requests": float(requests.requests),
        }
    found = parse_statistics(data)
    if found is None:
        return {}
    if what == "llite/stats":
        values = {series: float(_stat(found, name).count) for series, name in _COUNTS.items()}
        values["read_bytes"] = float(_stat(found, "read_bytes").sum or 0)
        return values | {
            series: time
            for series, name in _TIMES.items()
            if (time := _stat(found, name).seconds) is not None
        }
    if what == "llite/read_ahead_stats":
        names = {"hits": "readahead_hits", "misses": "readahead_misses"}
        return {series: float(_stat(found, name).count) for name, series in names.items()}
    if what == "mdc/md_stats":
        return {
            f"metadata.{name}": float(_stat(found, name).count)
            for name in _OPERATIONS
            if name in found or name in _ALWAYS
        }
    # bytes sent by the servers, and the time of that
    read, seconds = (
        _stat(found, "read_bytes"),
        _stat(found, "ost_read").seconds,
    )
    values = {"fetched_bytes": float(read.sum or 0), "read_requests": float(read.count)}
    return values if seconds is None else {**values, "read_request_time": seconds}


def _stat(found: dict[str, Statistic], name: str) -> Statistic:
    """A line of a statistics file; a missing line means 0."""
    return found.get(name) or Statistic(0, "", None)


def _list_folder(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
