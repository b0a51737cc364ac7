"""When the GPU was recorded. Kineto records in windows (`ioprof.record.gpu`), and outside of them nothing is known of the device.

A step there is charged to nothing: all that its GPU computed would look like waiting.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.facts import mapping, whole
from ioprof.analysis.intervals import Intervals, pack, union
from ioprof.trace import Trace

NO_STEP_RECORDED: Final = "no step lay wholly within the time in which the GPU was recorded"
_FEWEST_STEPS: Final = 5
_WORTH_A_WORD: Final = 0.02
PAGEABLE: Final = "pageable"
"""Name of a copy to or from memory that is not page-locked."""


def observed(trace: Trace, table: pl.DataFrame) -> NDArray[np.bool_]:
    """For each row of a table of steps, whether what its device did was recorded; all, if there were no windows."""
    windows = list(_windows(trace))
    if not windows:
        return np.ones(len(table), np.bool_)
    ranks, steps = table["rank"].to_numpy(), table["step"].to_numpy()
    found = np.zeros(len(table), np.bool_)
    for window in windows:
        first, last = whole(window.get("first_step")), whole(window.get("last_step"))
        if first is not None and last is not None:
            found |= (ranks == window.get("rank")) & (steps >= first) & (steps <= last)
    return found


def recorded_times(trace: Trace, rank: int) -> Intervals | None:
    """When the rank's device was recorded; null: not in windows, so at all times or never."""
    windows = list(_windows(trace))
    if not windows:
        return None
    mine = [
        (start, end)
        for window in windows
        if window.get("rank") == rank
        and isinstance(start := window.get("start_ns"), int)
        and isinstance(end := window.get("end_ns"), int)
    ]
    times = np.array(mine, np.int64).reshape(-1, 2)
    return union(pack(times[:, 0], times[:, 1]))


def pageable_ratio(trace: Trace) -> float | None:
    """Share of the bytes copied to devices that came from pageable memory; null: no copy says what memory it came from."""
    copies = trace.spans.filter(pl.col("kind") == "h2d", pl.col("name").is_not_null(), pl.col("bytes") > 0)
    total = int(copies["bytes"].sum())
    pageable = copies.filter(pl.col("name").cast(pl.String) == PAGEABLE)
    return int(pageable["bytes"].sum()) / total if total else None


def window_cost_ns(trace: Trace) -> int:
    """How long the job stood still for windows: to begin and end them, and to write them. Summed over processes."""
    return sum(_count(window.get("cost_ns")) for window in _windows(trace))


def slowdown(table: pl.DataFrame, seen: NDArray[np.bool_]) -> float | None:
    """How much longer the median step took while the GPU was recorded, 0.1 for a tenth; null: too few steps to tell."""
    took = (table["end_ns"] - table["start_ns"]).to_numpy()
    inside, outside = took[seen], took[~seen]
    if min(len(inside), len(outside)) < _FEWEST_STEPS or not np.median(outside):
        return None
    return float(np.median(inside) / np.median(outside)) - 1


def gpu_not_seen(trace: Trace, table: pl.DataFrame) -> Iterator[str]:
    """What the records of the GPU do not show, in sentences; `table` is that of all steps."""
    gpu = mapping(mapping(trace.run.get("capture")).get("gpu"))
    seen = observed(trace, table)
    if not seen.all():
        yield f"the GPU was recorded in {int(seen.sum()):,} of {len(seen):,} steps, and only these are charged to causes"
    slower = slowdown(table, seen)
    if slower is not None and slower > _WORTH_A_WORD:
        yield f"steps took {slower:.0%} longer (median) while the GPU was recorded; rates are best read without it"
    spoilt = sum(sum(map(_count, mapping(window.get("left_out")).values())) for window in _windows(trace))
    if spoilt:
        yield f"{spoilt:,} records of the GPU had impossible times and were left out"
    unrecorded = sum(_count(window.get("unrecorded_launches")) for window in _windows(trace))
    if unrecorded:
        yield f"{unrecorded:,} launches of GPU kernels left no record: lost by Kineto, or captured into a CUDA graph"
    for entry in gpu.get("notes") or []:
        for reason, times in mapping(mapping(entry).get("reasons")).items():
            yield f"GPU of process {mapping(entry).get('pid')}: {reason}" + (f" ({times} times)" if _count(times) > 1 else "")


def _windows(trace: Trace) -> Iterator[dict[str, Any]]:
    yield from (mapping(each) for each in mapping(mapping(trace.run.get("capture")).get("gpu")).get("windows") or [])


def _count(value: Any) -> int:
    return whole(value) or 0
