"""Whether the kernel should read ahead where the memory map of an LMDB is touched in random order.

With readahead a fault reads a whole window around it (`read_ahead_kb` of the device), however
little of it is wanted. That is the fastest way to read all of a file that fits in memory: what was
read stays until it is wanted. Where it does not, most of a large window is evicted before it is
used. Without readahead (MADV_RANDOM) each page of a value would be a read of its own, one after the
other; so the pages of a value are announced to the kernel before they are touched
(POSIX_FADV_WILLNEED, one read).

Whether the data fits is asked again while the job runs, as its processes may grow: see `Watch`.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ioprof.file_systems import file_system_of, is_shared

ASKED, SHARED, SMALL_WINDOW, FITS, TOO_LARGE, LOST = (
    "asked",
    "shared",
    "small window",
    "fits in memory",
    "larger than memory",
    "lost",
)
REASONS: Final = (ASKED, SHARED, SMALL_WINDOW, FITS, TOO_LARGE, LOST)
_ROOM: Final = 0.75
"""Share of the memory that the data may take: the job's processes grow, and of a cache that is
nearly full the kernel evicts pages that are still wanted."""


class Readahead(NamedTuple):
    """The choice for one dataset."""

    is_on: bool
    reason: str
    """One of `REASONS`."""


def choose(
    asked: str, path: Path, record_bytes: int, data_bytes: int, memory_bytes: int | None = None
) -> Readahead:
    """The choice for environments like that at `path`, of `data_bytes` in all; `asked` is one of
    `base.READAHEADS`.

    On file systems of other hosts readahead stays on: without it Lustre fetches each page of 4 KiB
    by itself (LU-13669).
    """
    if asked != "auto":
        return Readahead(asked == "on", ASKED)
    if is_shared(file_system_of(str(path))):
        return Readahead(True, SHARED)
    window_bytes = _window_bytes(path.stat().st_dev)
    if window_bytes is not None and window_bytes <= record_bytes:
        return Readahead(False, SMALL_WINDOW)  # else a record is several reads, one after the other
    return Readahead(*((True, FITS) if fits(data_bytes, memory_bytes) else (False, TOO_LARGE)))


def fits(data_bytes: int, memory_bytes: int | None = None) -> bool:
    """Whether so much data stays in the page cache, with what the processes leave now."""
    return data_bytes <= _ROOM * (available_bytes() if memory_bytes is None else memory_bytes)


class Watch:
    """Whether readahead that was chosen because the data fits still pays, in one process."""

    def __init__(self, data_bytes: int) -> None:
        self._data_bytes = data_bytes
        self._fetched_bytes = 0

    def is_lost(self, wanted_bytes: int, fetched_bytes: int) -> bool:
        """Whether what is read ahead is evicted before it is used, now that the kernel fetched so
        many bytes for a value of `wanted_bytes`.

        Either the processes leave too little memory now; or this process has fetched more than all
        of the data, so some of it twice.
        """
        self._fetched_bytes += fetched_bytes
        if fetched_bytes <= wanted_bytes:
            return False
        return self._fetched_bytes > self._data_bytes or not fits(self._data_bytes)


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process's files can take: what is free or can be freed, on the host and
    below the limits of its control groups.
    """
    found = [1 << 62]
    with suppress(OSError, ValueError):
        lines = (proc / "meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                found += _left(groups, path, _V2) + _left(groups / "unified", path, _V2)
            elif "memory" in controllers.split(","):
                found += _left(groups / "memory", path, _V1)
    return min(found)


class _Names(NamedTuple):
    """Files of a group, and the prefix of the lines of `memory.stat` that include the groups below
    it.
    """

    limit: str
    usage: str
    prefix: str


_V1: Final = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2: Final = _Names("memory.max", "memory.current", "")


def _left(mount: Path, path: str, names: _Names) -> list[int]:
    """What each limited group leaves for files, and those above it, as far as they are visible: its
    limit without what its processes take, which is its usage without its files.
    """
    found = []
    folder = mount / path.lstrip("/")
    for each in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # "max", or a group that a container does not see
            limit = int((each / names.limit).read_text())
            found.append(max(0, limit - _taken(each, names)))
        if each == mount:
            break
    return found


def _taken(group: Path, names: _Names) -> int:
    with suppress(OSError, ValueError, KeyError):
        usage = int((group / names.usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files = sum(int(stat[f"{names.prefix}{state}_file"]) for state in ("active", "inactive"))
        return max(0, usage - files)
    return 0


def _window_bytes(device: int) -> int | None:
    number = f"{os.major(device)}:{os.minor(device)}"
    for place in (
        f"/sys/class/bdi/{number}",
        f"/sys/dev/block/{number}/queue",
        f"/sys/dev/block/{number}/../queue",
    ):
        with suppress(OSError, ValueError):
            return int((Path(place) / "read_ahead_kb").read_text()) << 10
    return None
