"""Whether the kernel should read ahead where the memory map of an LMDB is touched in random order.

With readahead a fault reads a whole window around it (`read_ahead_kb` of the device), however
little of it is wanted. That is the fastest way to read all of a file that fits in memory: what was
read stays until it is wanted. Where it does not, most of a large window is evicted before it is
used. Without readahead (MADV_RANDOM) each page of a value would be a read of its own, one after the
other; so the pages of a value are announced to the kernel before they are touched
(POSIX_FADV_WILLNEED, one read).
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ioprof.file_systems import file_system_of, is_shared

ASKED, SHARED, SMALL_WINDOW, FITS, TOO_LARGE = (
    "asked",
    "shared",
    "small window",
    "fits in memory",
    "larger than memory",
)
REASONS: Final = (ASKED, SHARED, SMALL_WINDOW, FITS, TOO_LARGE)
_ROOM: Final = 0.75
"""Share of the memory that the data may take: the job needs some of it for itself."""


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
    room = _ROOM * (available_bytes() if memory_bytes is None else memory_bytes)
    return Readahead(True, FITS) if data_bytes <= room else Readahead(False, TOO_LARGE)


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process's files can take: what is free or can be freed, and the limits of
    its control groups.
    """
    found = [1 << 62]
    with suppress(OSError, ValueError):
        lines = (proc / "meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                found += _limits(groups, path, "memory.max") + _limits(
                    groups / "unified", path, "memory.max"
                )
            elif "memory" in controllers.split(","):
                found += _limits(groups / "memory", path, "memory.limit_in_bytes")
    return min(found)


def _limits(mount: Path, path: str, name: str) -> list[int]:
    """Of a group and of those above it, as far as they are visible."""
    found = []
    folder = mount / path.lstrip("/")
    for each in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # "max", or a group that a container does not see
            found.append(int((each / name).read_text()))
        if each == mount:
            break
    return found


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
