"""One window of Kineto's records: what it is, and what the session that recorded it wrote beside it."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import polars as pl

from ioprof.clock import Anchor
from ioprof.schema import SPAN_COLUMNS
from ioprof.spool.values import LATEST_NS, damage_facts
from ioprof.trace import empty_table

FILE: Final = re.compile(r"kineto-(?P<host>.+)-(?P<pid>\d+)-(?P<number>\d+)\.json(\.gz)?(\.tmp)?")
"""How a session names what it exports."""
STEPPED_NS: Final = 10_000
"""By how much wall and monotonic clock may move apart within a window, beyond the readings' own uncertainty."""
_BASE: Final = re.compile(r'"baseTimeNanoseconds"\s*:\s*"?(\d{1,19})\b')
_RANK: Final = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*"?(\d{1,9})\b')
_HOST: Final = re.compile(r'"host_name"\s*:\s*"([^"\\]{1,255})"')


@dataclass
class Window:
    """One Kineto file and what was understood of it. Times are nanoseconds of CLOCK_MONOTONIC of `host`."""

    path: Path
    host: str = ""
    pid: int | None = None
    rank: int | None = None
    number: int | None = None
    """Place among the windows of its process."""
    start_ns: int | None = None
    end_ns: int | None = None
    """When the device had done all that was launched; None: not known, e.g. the process was killed."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Step and the time of its end; the window begins with the end of the first, whose own work is not in it."""
    anchors: list[Anchor] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    cost_ns: int | None = None
    """How long the job stood still for it."""
    ended_by: str | None = None
    base_ns: int | None = None
    """What the file's times count from, since 1970; None: from 1970."""
    spans: pl.DataFrame = field(default_factory=lambda: empty_table(SPAN_COLUMNS))
    left_out: Counter[str] = field(default_factory=Counter)
    """Records of the device that cannot be, and how many."""
    unrecorded_launches: int = 0
    """Launches of kernels that Kineto has no record of: lost, or captured into a CUDA graph."""
    damage: Counter[str] = field(default_factory=Counter)
    """How often each thing was found that cannot be read."""

    @property
    def clock_moved_ns(self) -> int:
        """By how much the wall clock was set between the first and the last reading of it, as far as they can tell."""
        moved_ns = self.anchors[-1].offset_ns - self.anchors[0].offset_ns if self.anchors else 0
        told_apart_ns = STEPPED_NS + sum(anchor.uncertainty_ns for anchor in self.anchors)
        return moved_ns if abs(moved_ns) > told_apart_ns else 0

    @property
    def uncertainty_ns(self) -> int | None:
        """How far its times can be off against other spans of the host, by its readings of the wall clock."""
        if not self.anchors:
            return None
        return min(anchor.uncertainty_ns for anchor in self.anchors) + abs(self.clock_moved_ns)

    def placed(self, shift_ns: int, rank: int | None) -> "Window":
        """The same window as that of `rank`, all its times later by `shift_ns`."""
        spans = self.spans.with_columns(pl.col("start_ns", "end_ns") + shift_ns, rank=pl.lit(rank, pl.Int32))
        return replace(
            self,
            rank=rank,
            start_ns=None if self.start_ns is None else self.start_ns + shift_ns,
            end_ns=None if self.end_ns is None else self.end_ns + shift_ns,
            marks=[(step, at_ns + shift_ns) for step, at_ns in self.marks],
            spans=spans,
        )

    def facts(self) -> dict[str, Any]:
        """What goes into `run["capture"]["gpu"]["windows"]`."""
        return {
            "file": self.path.name,
            "host": self.host,
            "pid": self.pid,
            "rank": self.rank,
            "window": self.number,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "first_step": self.marks[0][0] + 1 if len(self.marks) > 1 else None,
            "last_step": self.marks[-1][0] if len(self.marks) > 1 else None,
            "spans": len(self.spans),
            "left_out": dict(self.left_out),
            "unrecorded_launches": self.unrecorded_launches,
            "devices": self.devices,
            "cost_ns": self.cost_ns,
            "uncertainty_ns": self.uncertainty_ns,
            "ended_by": self.ended_by,
        }

    def damage_facts(self) -> list[dict[str, str]]:
        """What goes into `run["capture"]["damaged"]`."""
        return damage_facts(self.path.name, self.damage)


def take_name(window: Window) -> None:
    """What the session put into the file's name."""
    parts = FILE.fullmatch(window.path.name)
    if parts:
        window.host, window.pid, window.number = parts["host"], _small(int(parts["pid"])), _small(int(parts["number"]))


def take_meta(window: Window, path: Path) -> None:
    """What the session wrote; each thing that is not as it must be is left as it was."""
    try:
        meta = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        window.damage["its .meta.json cannot be read"] += 1
        return
    host, devices, ended_by = meta.get("host"), meta.get("devices"), meta.get("ended_by")
    window.host = host if isinstance(host, str) else window.host
    window.pid = _small(meta.get("pid")) or window.pid
    window.rank = _small(meta.get("rank"))
    window.start_ns, window.end_ns = _whole(meta.get("started_ns")), _whole(meta.get("stopped_ns"))
    window.cost_ns, window.ended_by = _whole(meta.get("cost_ns")), ended_by if isinstance(ended_by, str) else None
    window.devices = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    window.marks = sorted(_pairs(meta.get("marks")), key=lambda mark: mark[1])
    window.anchors = list(_anchors(meta.get("anchors"))) or window.anchors
    if window.end_ns is None:
        window.damage["the process ended within this window"] += 1


def _pairs(value: Any) -> Iterator[tuple[int, int]]:
    for pair in value if isinstance(value, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and None not in (step := [_whole(number) for number in pair]):
            yield cast(int, step[0]), cast(int, step[1])


def _anchors(value: Any) -> Iterator[Anchor]:
    for each in value if isinstance(value, list) else ():
        found = [_whole(each.get(f"{name}_ns")) for name in ("before", "wall", "after")] if isinstance(each, dict) else [None]
        if None not in found and cast(int, found[0]) <= cast(int, found[2]):
            yield Anchor(*cast(list[int], found))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LATEST_NS else None


def _small(value: Any) -> int | None:
    number = _whole(value)
    return number if number is not None and number < 1 << 31 else None


def take_heading(window: Window, heading: str) -> None:
    """What stands in the file before or after its events, which is all that there is of a file from elsewhere."""
    base, rank, host = _BASE.search(heading), _RANK.search(heading), _HOST.search(heading)
    window.base_ns = _whole(int(base[1])) if base else None
    if window.rank is None and rank:
        window.rank = int(rank[1])
    if not window.host and host:
        window.host = host[1]
