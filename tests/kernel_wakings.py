"""The kernel's own record of who wakes whom, by its tracer, and how far blocks agree with it."""

import os
import re
import subprocess
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from ioprof.format.trace import Trace

KINDS = [
    "loader", "pinning loader", "pool", "threads", "processes", "asyncio", "manager", "joblib",
]  # fmt: skip
"""What `programs/wait_for_others.py` can wait for."""


class NoTracerError(Exception):
    """The kernel's tracer cannot be used; the text says why."""


@contextmanager
def traced_wakings(folder: Path) -> Iterator[Path]:
    """A folder of the kernel's tracer, which records the wake-ups of this process and of those that
    it starts."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tracefs", "none", folder], capture_output=True)
    if mounted.returncode:
        raise NoTracerError("the kernel's tracer cannot be mounted: needs root")
    try:
        if not (folder / "events/sched/sched_waking").is_dir():
            raise NoTracerError("this kernel has no events of the scheduler")
        for name, value in (
            ("trace_clock", "mono"), ("buffer_size_kb", "20000"), ("trace", ""),
            ("options/event-fork", "1"), ("set_event_pid", str(os.getpid())),
            ("events/sched/sched_waking/enable", "1"), ("tracing_on", "1"),
        ):  # fmt: skip
            (folder / name).write_text(value)
        yield folder
        for name, value in (
            ("events/sched/sched_waking/enable", "0"), ("set_event_pid", ""),
            ("options/event-fork", "0"), ("trace", ""), ("trace_clock", "local"),
        ):  # fmt: skip
            (folder / name).write_text(value)
    finally:
        subprocess.run(["umount", folder], check=True)


def last_wakers(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """By thread, when it was woken (ns of CLOCK_MONOTONIC) and by which thread. Tracing ends."""
    (folder / "tracing_on").write_text("0")
    found = defaultdict(list)
    line = re.compile(r"-(\d+)\s+\[\d+\]\s+\S+\s+(\d+)\.(\d{6}): sched_waking: .* pid=(\d+)")
    for by, seconds, micro, woken in line.findall((folder / "trace").read_text()):
        found[int(woken)].append(((int(seconds) * 10**6 + int(micro)) * 1000, int(by)))
    return found


def right_ratio(trace: Trace, wakings: dict[int, list[tuple[int, int]]]) -> float:
    """Part of the blocked time whose waker is the one that the kernel saw last within it."""
    zero_ns, took = trace.run.clocks.zero_monotonic_ns or 0, {True: 0, False: 0}
    of_end = pl.col("object").cast(pl.String).is_in(["process", "thread"])
    known = trace.blocks.filter(pl.col("woken_ns").is_not_null(), ~of_end)
    for start, end, tid, by in known.select("start_ns", "end_ns", "tid", "waker_tid").iter_rows():
        place = bisect_right(wakings[tid], (end + zero_ns, 1 << 62)) - 1
        if place >= 0 and wakings[tid][place][0] >= start + zero_ns - 2000:
            took[wakings[tid][place][1] == by] += end - start
    assert sum(took.values()) > 1e8
    return took[True] / sum(took.values())


def known_ratio(blocks: pl.DataFrame) -> float:
    """Part of the blocked time that has a waker, or ended because its time was over."""
    took = pl.col("end_ns") - pl.col("start_ns")
    is_known = pl.col("timed_out") | pl.col("woken_ns").is_not_null()
    return float(blocks.filter(is_known).select(took.sum()).item()) / float(
        blocks.select(took.sum()).item()
    )
