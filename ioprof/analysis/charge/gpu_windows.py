"""When the GPU was recorded. Kineto records in windows (`ioprof.instrument.gpu`); outside of them
nothing is known of the device.

A step there is charged to nothing: all that its GPU computed would look like waiting.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import Intervals, pack, subtract, total, union, union_all
from ioprof.analysis.selection import first_and_last
from ioprof.format.run_record import DeviceTime, GpuWindow, RunRecord, Sentence, sentence
from ioprof.format.trace import Trace

_FEWEST_STEPS: Final = 5
_LEAST_SLOWDOWN: Final = 0.02  # that is mentioned
_PARTS: Final = (("kernel",), ("comm",), ("h2d", "d2h"))
_ON_DEVICE: Final = tuple(kind for part in _PARTS for kind in part)
PAGEABLE: Final = "pageable"
"""Name of a copy to or from memory that is not page-locked."""


def observed(trace: Trace, table: pl.DataFrame) -> NDArray[np.bool_]:
    """For each row of a table of steps, whether what its device did was recorded; all, if there
    were no windows.
    """
    windows = _windows(trace)
    if not windows:
        return np.ones(len(table), np.bool_)
    ranks, steps = table["rank"].to_numpy(), table["step"].to_numpy()
    found = np.zeros(len(table), np.bool_)
    for window in windows:
        first, last = window.first_step, window.last_step
        if first is not None and last is not None and window.rank is not None:
            found |= (ranks == window.rank) & (steps >= first) & (steps <= last)
    return found


def recorded_times(trace: Trace, rank: int) -> Intervals | None:
    """When the rank's device was recorded; null: not in windows, so at all times or never."""
    windows = _windows(trace)
    if not windows:
        return None
    mine = [
        (window.start_ns, window.end_ns)
        for window in windows
        if window.rank == rank and window.start_ns is not None and window.end_ns is not None
    ]
    times = np.array(mine, np.int64).reshape(-1, 2)
    return union(pack(times[:, 0], times[:, 1]))


def pageable_ratio(trace: Trace) -> float | None:
    """Share of the bytes copied to devices that came from pageable memory; null: no copy says what
    memory it came from.
    """
    copies = trace.rows(pl.col("name").is_not_null(), pl.col("bytes") > 0, kinds=["h2d"])
    total = int(copies["bytes"].sum())
    pageable = copies.filter(pl.col("name").cast(pl.String) == PAGEABLE)
    return int(pageable["bytes"].sum()) / total if total else None


def loop_ratio(run: RunRecord, recorded_s: float) -> float | None:
    """The part of the recorded steps (`recorded_s`, of all ranks) in which the loops did not wait
    for their devices, but ran.

    A loop launches what its device computes later. Null: it is not known when a loop waited, as
    where no GPU was recorded.
    """
    windows = run.capture.gpu.windows if run.capture.gpu else ()
    waited = [window.loop_waited_ns for window in windows if window.first_step is not None]
    if not waited or not recorded_s:
        return None
    known = [each for each in waited if each is not None]
    return max(0.0, 1 - sum(known) / 1e9 / recorded_s) if len(known) == len(waited) else None


def device_time(trace: Trace) -> DeviceTime | None:
    """What the devices of an imported run did; see `DeviceTime`."""
    parts = np.zeros(4, np.int64)
    for window in _windows(trace):
        if window.launched_ns is None:
            continue
        of_device = pl.col("stream").is_not_null() & (pl.col("rank") == window.rank)
        spans = trace.rows(
            of_device, pl.col("start_ns") >= window.launched_ns, kinds=_ON_DEVICE
        ).select("kind", "start_ns", "end_ns")
        if spans.is_empty():
            continue
        computed, exchanged, copied = (
            union(pack(part["start_ns"].to_numpy(), part["end_ns"].to_numpy()))
            for part in (spans.filter(pl.col("kind").is_in(kinds)) for kinds in _PARTS)
        )
        alone, both = subtract(exchanged, computed), union_all([computed, exchanged])
        first_ns, last_ns = first_and_last(spans)
        used = [total(computed), total(alone), total(subtract(copied, both))]
        parts += np.array([*used, last_ns - first_ns - sum(used)])
    if not parts.any():
        return None
    return DeviceTime(float(parts.sum()) / 1e9, *(float(part) / 1e9 for part in parts))


def window_cost_ns(trace: Trace) -> int:
    """How long windows delayed the job: to begin, end and write them. Summed over processes."""
    return sum(window.cost_ns or 0 for window in _windows(trace))


def slowdown(table: pl.DataFrame, seen: NDArray[np.bool_]) -> float | None:
    """How much longer the median step took while the GPU was recorded, 0.1 for a tenth; null: too
    few steps to tell.
    """
    took = (table["end_ns"] - table["start_ns"]).to_numpy()
    inside, outside = took[seen], took[~seen]
    if min(len(inside), len(outside)) < _FEWEST_STEPS or not np.median(outside):
        return None
    return float(np.median(inside) / np.median(outside)) - 1


def gpu_gaps(trace: Trace, table: pl.DataFrame) -> Iterator[Sentence]:
    """What the records of the GPU do not show; `table` is that of all steps."""
    seen = observed(trace, table)
    if not seen.all():
        yield sentence("gpu_steps", seen=int(seen.sum()), steps=len(seen))
    slower = slowdown(table, seen)
    if slower is not None and slower > _LEAST_SLOWDOWN:
        yield sentence("gpu_slowdown", ratio=slower)
    left_out = sum(sum(window.left_out.values()) for window in _windows(trace))
    if left_out:
        yield sentence("gpu_left_out", records=left_out)
    unrecorded = sum(window.unrecorded_launches or 0 for window in _windows(trace))
    if unrecorded:
        yield sentence("gpu_launches", launches=unrecorded)
    for note in trace.run.capture.gpu.notes if trace.run.capture.gpu else ():
        for reason, times in note.reasons.items():
            yield sentence("gpu_note", pid=note.pid, what=reason, times=times, is_often=times > 1)


def _windows(trace: Trace) -> tuple[GpuWindow, ...]:
    return trace.run.capture.gpu.windows if trace.run.capture.gpu else ()
