"""One window of a Kineto trace and its metadata."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import polars as pl

from ioprof.clock import Anchor
from ioprof.files import read_json_object
from ioprof.format.run_record import Damage, GpuWindow
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import empty_table
from ioprof.ingest.untrusted_values import LATEST_NS, damage_facts

FILE: Final = re.compile(r"kineto-(?P<host>.+)-(?P<pid>\d+)-(?P<number>\d+)\.json(\.gz)?(\.tmp)?")
"""Names of exported files."""
STEPPED_NS: Final = 10_000
"""Maximum change of the wall clock offset within a window, in addition to the uncertainty of the
readings."""
_BASE: Final = re.compile(r'"baseTimeNanoseconds"\s*:\s*"?(\d{1,19})\b')
_RANK: Final = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*"?(\d{1,9})\b')
_HOST: Final = re.compile(r'"host_name"\s*:\s*"([^"\\]{1,255})"')


@dataclass
class Window:
    """One Kineto file and its valid contents. Times are nanoseconds of CLOCK_MONOTONIC of
    `host`.
    """

    path: Path
    host: str = ""
    pid: int | None = None
    rank: int | None = None
    number: int | None = None
    """Index among the windows of its process."""
    start_ns: int | None = None
    end_ns: int | None = None
    """When the device had finished all launched work; None: unknown, e.g. the process was
    killed."""
    ready_ns: int | None = None
    """When the profiler was running."""
    ending_ns: int | None = None
    """When ioprof began to end it: what its thread waits for from then on is ioprof's doing."""
    threads: dict[int, int] = field(default_factory=dict)
    """Threads that Python knows: their numbers in the file, and their system thread ids."""
    loop_tid: int | None = None
    """The thread of the steps."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Step and the time of its end. The window begins at the end of the first step, which is not
    part of it."""
    anchors: list[Anchor] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    cost_ns: int | None = None
    """How long the job was blocked by it."""
    ended_by: str | None = None
    base_ns: int | None = None
    """Base of the times in the file, since 1970; None: 1970."""
    spans: pl.DataFrame = field(default_factory=lambda: empty_table(SPAN_COLUMNS))
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of device activities with impossible times, by reason."""
    unrecorded_launches: int = 0
    """Kernel launches without a kernel in the trace: lost, or captured into a CUDA graph."""
    damage: Counter[str] = field(default_factory=Counter)
    """Number of occurrences of each kind of invalid data."""

    @property
    def clock_moved_ns(self) -> int:
        """Step of the wall clock between its first and last reading; 0 if it is within the
        uncertainty of the readings.
        """
        moved_ns = self.anchors[-1].offset_ns - self.anchors[0].offset_ns if self.anchors else 0
        threshold_ns = STEPPED_NS + sum(anchor.uncertainty_ns for anchor in self.anchors)
        return moved_ns if abs(moved_ns) > threshold_ns else 0

    @property
    def uncertainty_ns(self) -> int | None:
        """Maximum error of its times relative to other spans of the host, from its wall clock
        readings.
        """
        if not self.anchors:
            return None
        return min(anchor.uncertainty_ns for anchor in self.anchors) + abs(self.clock_moved_ns)

    @property
    def loop_waited_ns(self) -> int | None:
        """How long the thread of the steps waited for the device in the steps of the window; None:
        that thread is not known.
        """
        if self.loop_tid is None:
            return None
        waits = self.spans.filter(
            pl.col("kind") == "sync", pl.col("tid") == self.loop_tid, pl.col("step").is_not_null()
        )
        return int((waits["end_ns"] - waits["start_ns"]).sum())

    def aligned(self, shift_ns: int, rank: int | None, first_step: int = 0) -> "Window":
        """A copy with this rank, all times shifted by `shift_ns`, and steps that are counted from
        `first_step`.
        """
        spans = self.spans.with_columns(
            pl.col("start_ns", "end_ns") + shift_ns,
            pl.col("step") + first_step,
            rank=pl.lit(rank, pl.Int32),
        )
        return replace(
            self,
            rank=rank,
            start_ns=None if self.start_ns is None else self.start_ns + shift_ns,
            end_ns=None if self.end_ns is None else self.end_ns + shift_ns,
            ready_ns=None if self.ready_ns is None else self.ready_ns + shift_ns,
            ending_ns=None if self.ending_ns is None else self.ending_ns + shift_ns,
            marks=[(step + first_step, at_ns + shift_ns) for step, at_ns in self.marks],
            spans=spans,
        )

    def facts(self) -> GpuWindow:
        """Its entry in `GpuCapture.windows`."""
        return GpuWindow(
            file=self.path.name,
            host=self.host,
            pid=self.pid,
            rank=self.rank,
            window=self.number,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            first_step=self.marks[0][0] + 1 if len(self.marks) > 1 else None,
            last_step=self.marks[-1][0] if len(self.marks) > 1 else None,
            spans=len(self.spans),
            left_out=dict(self.left_out),
            unrecorded_launches=self.unrecorded_launches,
            devices=tuple(self.devices),
            cost_ns=self.cost_ns,
            loop_waited_ns=self.loop_waited_ns,
            uncertainty_ns=self.uncertainty_ns,
            ended_by=self.ended_by,
        )

    def damage_facts(self) -> list[Damage]:
        """Entries for `CaptureRecord.damaged`."""
        return damage_facts(self.path.name, self.damage)


def add_name(window: Window) -> None:
    """Add host, process and number from the file name."""
    parts = FILE.fullmatch(window.path.name)
    if parts:
        window.host, window.pid, window.number = (
            parts["host"],
            _small(int(parts["pid"])),
            _small(int(parts["number"])),
        )


def add_meta(window: Window, path: Path) -> None:
    """Add the metadata that the session wrote; invalid values are ignored."""
    meta = read_json_object(path)
    if meta is None:
        window.damage["its .meta.json cannot be read"] += 1
        return
    host, devices, ended_by = meta.get("host"), meta.get("devices"), meta.get("ended_by")
    window.host = host if isinstance(host, str) else window.host
    window.pid = _small(meta.get("pid")) or window.pid
    window.rank = _small(meta.get("rank"))
    window.start_ns, window.end_ns = _whole(meta.get("started_ns")), _whole(meta.get("stopped_ns"))
    window.ready_ns, window.ending_ns = _whole(meta.get("ready_ns")), _whole(meta.get("ending_ns"))
    threads = dict(_valid_threads(meta.get("threads")))
    window.threads = {number_in_file(ident): tid for ident, tid in threads.items()} | {
        tid: tid for tid in threads.values()
    }
    window.loop_tid = threads.get(_ident(meta.get("thread")))
    window.cost_ns, window.ended_by = (
        _whole(meta.get("cost_ns")),
        ended_by if isinstance(ended_by, str) else None,
    )
    window.devices = (
        [device for device in devices if isinstance(device, dict)]
        if isinstance(devices, list)
        else []
    )
    window.marks = sorted(_valid_marks(meta.get("marks")), key=lambda mark: mark[1])
    window.anchors = list(_valid_anchors(meta.get("anchors"))) or window.anchors
    if window.end_ns is None:
        window.damage["the process ended during this window"] += 1


def _valid_marks(value: Any) -> Iterator[tuple[int, int]]:
    for pair in value if isinstance(value, list) else ():
        if (
            isinstance(pair, list)
            and len(pair) == 2
            and None not in (step := [_whole(number) for number in pair])
        ):
            yield cast(int, step[0]), cast(int, step[1])


def _valid_threads(value: Any) -> Iterator[tuple[int, int]]:
    """What `threading` calls a thread, and its system thread id."""
    for pair in value if isinstance(value, list) else ():
        if (
            isinstance(pair, list)
            and len(pair) == 2
            and (ident := _ident(pair[0]))
            and (tid := _small(pair[1]))
        ):
            yield ident, tid


def _valid_anchors(value: Any) -> Iterator[Anchor]:
    for each in value if isinstance(value, list) else ():
        found = (
            [_whole(each.get(f"{name}_ns")) for name in ("before", "wall", "after")]
            if isinstance(each, dict)
            else [None]
        )
        if None not in found and cast(int, found[0]) <= cast(int, found[2]):
            yield Anchor(*cast(list[int], found))


def _whole(value: Any) -> int | None:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LATEST_NS
        else None
    )


def _ident(value: Any) -> int:
    """An address, which may use all 64 bits."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 64
        else 0
    )


def number_in_file(ident: int) -> int:
    """How Kineto writes a thread of which torch has told it nothing, as it does if only the device
    is recorded.

    CUPTI gives the lower half of `pthread_self()`, which is `threading.get_ident()`, as a signed
    number, and the writer of the file leaves out its sign (`sanitizeTid` in libkineto's
    output_json.cpp).
    """
    low = ident & 0xFFFF_FFFF
    return min(low, (1 << 32) - low)


def _small(value: Any) -> int | None:
    number = _whole(value)
    return number if number is not None and number < 1 << 31 else None


def add_heading(window: Window, heading: str) -> None:
    """Add what the file contains outside its events; a file of another profiler has no other
    metadata.
    """
    base, rank, host = _BASE.search(heading), _RANK.search(heading), _HOST.search(heading)
    window.base_ns = _whole(int(base[1])) if base else None
    if window.rank is None and rank:
        window.rank = int(rank[1])
    if not window.host and host:
        window.host = host[1]
