"""Latency and rate of the storage that a run read from, for a replay. Whether it is bound by the
one or the other: `ioprof/analysis/reads/storage_bound.py`.
"""

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import total, union
from ioprof.analysis.reads.storage_bound import (
    LEAST_WINDOWS,
    WAITED_NS,
    WINDOW_NS,
    Quartiles,
    by_window,
    spread,
    storage_bound,
)
from ioprof.analysis.selection import WORK, first_and_last, intervals
from ioprof.format.trace import Trace
from ioprof.model.pipeline import StorageUse

_NONE: Final = StorageUse(0.0, np.inf, np.inf, is_rate_bound=False, is_alone=True, is_sure=False)
_TICK_NS: Final = 20_000_000
_MOST_TICKS: Final = 50
_LEAST_TAIL: Final = 5.0
"""Mean of the times of reads over their median, from which on a few hold up all others."""
_STEADY: Final = 0.15
"""Variation of the bytes in windows of time over what batches of their sizes would have, up to
which a rate holds them: 0.04 to 0.10 in 19 runs on a throttled disk, 0.2 to 2.4 in 64 behind a
latency (measured apart)."""
_ALWAYS: Final = 0.85
"""Share of the time in which some reader waited, from which on storage was always at work."""


def storage_use(reads: pl.DataFrame) -> StorageUse:
    """What `reads_of_batches` show."""
    waits = reads.filter(pl.col("end_ns") - pl.col("start_ns") >= WAITED_NS)
    if waits.is_empty():
        return _NONE
    latency_s = float((waits["end_ns"] - waits["start_ns"]).to_numpy().mean()) / 1e9
    is_alone = reads.select(pl.struct("pid", "tid").n_unique()).item() == 1
    is_rate_bound, is_sure = _rate_bound(reads, waits)
    if not is_rate_bound:
        return StorageUse(
            latency_s, np.inf, np.inf, is_rate_bound=False, is_alone=is_alone, is_sure=is_sure
        )
    first_ns, last_ns = first_and_last(reads)
    busy_ns, whole_ns = total(intervals(reads)), last_ns - first_ns
    # Where somebody nearly always waits, or the rate is steady, the storage works in gaps too:
    # readahead, or a quota that saves up.
    if busy_ns >= _ALWAYS * whole_ns or _is_steady(reads):
        rate = _usual_rate(reads) or float(reads["bytes"].sum()) / (whole_ns / 1e9)
    else:
        rate = float(reads["bytes"].sum()) / (busy_ns / 1e9)
    return StorageUse(
        0.0,
        rate,
        rate,
        is_rate_bound=True,
        is_alone=is_alone,
        burst_bytes=_burst(reads, rate),
        is_sure=is_sure,
    )


def warm_open_ratio(trace: Trace) -> float:
    """Time of a fast open over the mean: an open is as fast where what it needs of the file system
    is in memory.
    """
    opens = trace.spans.filter(
        pl.col("kind") == "open", pl.col("name").is_null(), pl.col("batch").is_not_null()
    )
    took = np.sort((opens["end_ns"] - opens["start_ns"]).to_numpy())
    return float(took[len(took) // 10] / took.mean()) if len(took) and took.mean() > 0 else 0.0


def reads_of_batches(trace: Trace) -> pl.DataFrame:
    """Reads and faults from storage that made batches, on the device on which they waited longest.

    Others, such as faults in libraries that a worker uses for the first time, come from elsewhere
    and say nothing of that device.
    """
    is_peer = pl.col("source").is_in(["socket", "pipe"]).fill_null(False)
    reads = trace.spans.filter(
        WORK["storage"], pl.col("batch").is_not_null(), pl.col("kind") != "open", ~is_peer
    )
    devices = trace.files.select("file", device=pl.col("device").cast(pl.String))
    reads = reads.select(
        "start_ns", "end_ns", "rank", "pid", "tid", "batch", "file", pl.col("bytes").fill_null(0)
    )
    reads = reads.join(devices, on="file", how="left", maintain_order="left")
    waited = reads.group_by("device").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    if len(waited) < 2:
        return reads
    most = waited.sort("ns", descending=True)["device"][0]
    return reads.filter(pl.col("device").eq_missing(pl.lit(most, pl.String)))


def _is_steady(reads: pl.DataFrame) -> bool:
    """Whether the storage sets the bytes per second, not the readers: they vary less than the sizes
    of the batches would make them, and less than the bytes per second in which somebody waited.
    Batches of one size do not show it.

    Bytes are counted when a read ended, or evenly over its time, whichever varies less: long reads
    blur the one, lumps the other.
    """
    first_ns, last_ns = first_and_last(reads)
    edges, waits = np.arange(first_ns + WINDOW_NS, last_ns, WINDOW_NS), union(intervals(reads))
    if len(edges) <= LEAST_WINDOWS:
        return False
    weights = reads["bytes"].to_numpy().astype(np.float64)
    counted, _ = np.histogram(reads["end_ns"].to_numpy(), edges, weights=weights)
    num_bytes = min(counted, by_window(edges, reads, "bytes"), key=_variation)
    (waited_ns,) = spread(edges, waits[:, 0], waits[:, 1], waits[:, 1] - waits[:, 0])
    if (waited_ns <= 0).any() or _variation(num_bytes) >= _variation(num_bytes / waited_ns):
        return False
    # the first batches may read much more, as indexes
    in_windows = pl.col("end_ns").is_between(int(edges[0]), int(edges[-1]))
    sizes = (
        reads.filter(in_windows)
        .group_by("rank", "batch")
        .agg(pl.col("bytes").sum())["bytes"]
        .to_numpy()
    )
    per_window = num_bytes.mean() / sizes.mean() if sizes.any() else 0.0
    return bool(
        per_window > 0
        and _variation(num_bytes) <= _STEADY * _variation(sizes) / np.sqrt(per_window)
    )


def _variation(values: NDArray[Any]) -> float:
    """The standard deviation over the mean."""
    return float(values.std(ddof=1) / values.mean()) if len(values) > 1 and values.any() else 0.0


def _usual_rate(reads: pl.DataFrame) -> float | None:
    """Bytes per second in the median window: in a few, something else held all readers up. None:
    too few windows.
    """
    num_bytes = _bytes_by_time(reads, WINDOW_NS)[1:-1]
    return (
        float(np.median(num_bytes)) / (WINDOW_NS / 1e9) if len(num_bytes) >= LEAST_WINDOWS else None
    )


def _burst(reads: pl.DataFrame, rate: float) -> float:
    """The most bytes by which the reads of at most a second were ahead of a constant rate (the size
    of a token bucket).
    """
    # before that, workers start, and what they find has been fetched for others
    started = WINDOW_NS // _TICK_NS
    ticks = _bytes_by_time(reads, _TICK_NS)
    done = np.concatenate(
        ([0.0], np.cumsum(ticks[started:] if len(ticks) > 2 * started else ticks))
    )
    lengths = range(1, min(_MOST_TICKS, len(done) - 1) + 1)
    ahead = [
        float((done[length:] - done[:-length]).max()) - rate * length * _TICK_NS / 1e9
        for length in lengths
    ]
    return max([0.0, *ahead])


def _bytes_by_time(reads: pl.DataFrame, step_ns: int) -> NDArray[np.float64]:
    """Bytes that arrived in each stretch of time."""
    ends = reads["end_ns"].to_numpy()
    bounds = np.arange(int(reads["start_ns"].to_numpy().min()), int(ends.max()) + step_ns, step_ns)
    found, _ = np.histogram(ends, bounds, weights=reads["bytes"].to_numpy().astype(np.float64))
    return found.astype(np.float64)


def _rate_bound(reads: pl.DataFrame, waits: pl.DataFrame) -> tuple[bool, bool]:
    """Whether the storage is bound by a rate, and whether that is sure."""
    took = (waits["end_ns"] - waits["start_ns"]).to_numpy()
    of_time, of_size = (
        Quartiles(*np.quantile(each, (0.25, 0.5, 0.75)).tolist())
        for each in (took, waits["bytes"].to_numpy())
    )
    edges = np.arange(*first_and_last(reads), WINDOW_NS)
    bound = storage_bound(
        of_time, of_size, by_window(edges, reads), by_window(edges, reads, "bytes")
    )
    if bound.kind is not None:
        return bound.kind == "throughput", True
    # A quota lets most reads pass at once, and holds one for as long as it takes to allow more.
    return bool(took.mean() >= _LEAST_TAIL * of_time.middle), False
