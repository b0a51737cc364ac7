"""Adds to page faults the bytes that the kernel fetched for them beyond the page at which the
thread stopped.

The kernel counts for each process what it fetched from storage (`read_bytes` in /proc/PID/io). The
capture library counts how much of that was fetched during read calls. The rest was fetched by page
faults, for metadata, and by the loader of programs. A single fault does not say how much it
fetched. It can be no more than lies between it and the next page at which any thread stopped, since
that page was not in memory. Within these bounds the rest is divided among the faults of the
process, first as the sampled counter of the process grew, then over all. What remains was not
timed.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.trace import Trace

_MOST_REACH: Final = 1 << 60
"""Bytes; more, of a damaged record, would overflow when it is doubled."""
AROUND_BYTES: Final = 128 << 10
"""What a major fault fetches at most (`read_ahead_kb` of most devices). Only used where minor
faults were not recorded: then pages further on may have been fetched by minor faults that nobody
saw."""
LEAST_WATCHED: Final = 0.8
"""Share of the major faults from which on minor faults count as recorded."""

_Array = npt.NDArray[Any]


def file_size(path: str) -> int | None:
    """The size of a file now; None: it is gone."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None


def credit_mapped_bytes(trace: Trace, size_of: Callable[[str], int | None] = file_size) -> Trace:
    """The trace with `bytes` of its faults as fetched. Faults of processes without counters keep
    one page each.
    """
    fetched = {
        (process.host, process.pid): count
        for process in trace.run.processes
        if process.reads and (count := process.reads.mapped_bytes) is not None
    }
    # one byte stands for a wait whose bytes are another span's
    is_stored = (
        (pl.col("kind") == "fault") & (pl.col("source") == "storage") & (pl.col("bytes") > 1)
    )
    # A fault without an offset is a record of a loader, which knows its bytes: the kernel's own
    # faults for it are not in the trace.
    is_fault = is_stored & pl.col("offset").is_not_null()
    records = trace.spans.filter(is_stored, pl.col("offset").is_null()).group_by(
        pl.col("host").cast(pl.String), "pid"
    )
    for host, pid, known in records.agg(pl.col("bytes").sum()).iter_rows():
        if (host, pid) in fetched:
            fetched[host, pid] = max(0, fetched[host, pid] - known)
    faults = (
        trace.spans.lazy()
        .with_row_index("row")
        .filter(is_fault)
        .select("row", "host", "pid", "end_ns", "file", "offset", "bytes")
    )
    table = faults.collect().with_columns(pl.col("host").cast(pl.String))
    if table.is_empty() or not fetched:
        return trace
    table = _with_reach(table, _sizes(trace, table, size_of))
    ratios = [record.minor_watched_ratio for record in trace.run.capture.fault_records]
    if any(ratio is None or ratio < LEAST_WATCHED for ratio in ratios):
        table = table.with_columns(
            pl.min_horizontal("reach", pl.max_horizontal("bytes", pl.lit(AROUND_BYTES)))
        )
    credited = [
        part.select(
            "row", credit=pl.Series(_credits(part, fetched[(host, pid)], _rates(trace, host, pid)))
        )
        for (host, pid), part in table.partition_by("host", "pid", as_dict=True).items()
        if (host, pid) in fetched
    ]
    if not credited:
        return trace
    rows = pl.concat(credited)
    return replace(
        trace,
        spans=trace.spans.with_columns(trace.spans["bytes"].scatter(rows["row"], rows["credit"])),
    )


def processes_to_credit(trace: Trace) -> dict[tuple[str | None, int | None], _Array]:
    """By host and process, for those whose faults `credit_mapped_bytes` changes: the times at which
    their counter was sampled.
    """
    counted = {
        (process.host, process.pid)
        for process in trace.run.processes
        if process.reads and process.reads.mapped_bytes
    }
    faults = trace.rows(
        pl.col("source") == "storage", pl.col("offset").is_not_null(), kinds=["fault"]
    )
    found = (
        faults.select(pl.col("host").cast(pl.String), "pid")
        .unique()
        .sort("host", "pid")
        .iter_rows()
    )
    return {key: _samples(trace, *key)["time_ns"].to_numpy() for key in found if key in counted}


def _sizes(
    trace: Trace, faults: pl.DataFrame, size_of: Callable[[str], int | None]
) -> pl.DataFrame:
    used = (
        trace.files.filter(pl.col("file").is_in(faults["file"].unique().implode()))
        .select("file", "path")
        .unique("file")
    )
    return used.with_columns(
        size=pl.Series([size_of(path) for path in used["path"]], dtype=pl.Int64)
    ).drop("path")


def _with_reach(faults: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Adds `reach`: the most bytes that each fault can have fetched."""
    ordered = faults.join(sizes, on="file", how="left").sort(
        "host", "file", "offset", nulls_last=True
    )
    of_file = ["host", "file"]
    before = pl.col("offset").shift(1).over(of_file)
    end = pl.coalesce(
        pl.col("offset").shift(-1).over(of_file), "size", pl.col("offset") + AROUND_BYTES
    )
    ahead = (end - pl.col("offset")).clip(pl.col("bytes"))
    behind = (
        pl.when(before.is_null()).then(pl.col("offset").clip(0, AROUND_BYTES // 2)).otherwise(0)
    )
    return ordered.with_columns(
        reach=pl.when(pl.col("file").is_null())
        .then("bytes")
        .otherwise(ahead + behind)
        .fill_null(AROUND_BYTES)
    )


def _rates(trace: Trace, host: Any, pid: Any) -> tuple[_Array, _Array]:
    """Times of samples, and the bytes that were fetched outside of read calls from each sample to
    the next.
    """
    of_process = (pl.col("host") == host) & (pl.col("pid") == pid)
    series = _samples(trace, host, pid)
    calls = trace.spans.filter(
        of_process, pl.col("kind") == "read", pl.col("source") == "storage"
    ).sort("end_ns")
    times = series["time_ns"].to_numpy()
    total = np.concatenate([[0], np.cumsum(calls["bytes"].to_numpy())])
    by_calls = total[np.searchsorted(calls["end_ns"].to_numpy(), times)]
    return times, np.maximum(np.diff(series["value"].to_numpy() - by_calls), 0)


def _samples(trace: Trace, host: Any, pid: Any) -> pl.DataFrame:
    of_process = (pl.col("host") == host) & (pl.col("pid") == pid)
    return trace.counters.filter(of_process, pl.col("name") == "process.read_bytes").sort("time_ns")


def _credits(faults: pl.DataFrame, fetched: int, rates: tuple[_Array, _Array]) -> _Array:
    """Bytes of each fault of a process: those of each time between two samples for the faults in
    it, then the rest for all.
    """
    page, reach, ends = (faults[name].to_numpy() for name in ("bytes", "reach", "end_ns"))
    reach = np.minimum(reach, _MOST_REACH)
    near = np.minimum(reach, np.maximum(page, AROUND_BYTES))
    times, amounts = rates
    shares = page.copy()
    if len(amounts):
        share = min(1.0, fetched / max(float(amounts.sum()), 1.0))
        places = np.clip(np.searchsorted(times, ends, side="right") - 1, 0, len(amounts) - 1)
        is_unseen = ~np.isin(np.arange(len(amounts)), places)
        # no fault says when in these times it was fetched
        fetched = max(0, fetched - int(amounts[is_unseen].sum() * share))
        for place in np.unique(places).tolist():
            chosen = places == place
            shares[chosen] = _divide_near(
                int(amounts[place] * share), *(each[chosen] for each in (page, shares, near, reach))
            )
    return _divide_near(fetched, page, shares, near, reach)


def _divide_near(fetched: int, page: _Array, least: _Array, near: _Array, reach: _Array) -> _Array:
    """The same as `_divide`; no fault gets more than what is near it before all have that, nor then
    more than twice of what others can have: of one in a large file it is not known how far its
    readahead went.
    """
    shares, times = _divide(fetched, page, least, np.maximum(near, least)), 1
    # Not until shares reach `reach`, which need not be whole pages.
    while int(shares.sum()) + int(page.max(initial=0)) <= fetched and (times * near < reach).any():
        times *= 2
        shares = _divide(fetched, page, shares, np.maximum(np.minimum(reach, times * near), shares))
    return shares


def _divide(fetched: int, page: _Array, least: _Array, most: _Array) -> _Array:
    """Bytes of each fault, in whole pages: between `least` and `most`, in sum `fetched` if that is
    possible.
    """
    room = most - least
    ratio = min(1.0, max(0.0, (fetched - int(least.sum())) / max(int(room.sum()), 1)))
    pages = np.floor(np.cumsum(room * ratio) / page + 1e-6)
    credited: _Array = least + page * np.diff(pages, prepend=0).astype(np.int64)
    return credited
